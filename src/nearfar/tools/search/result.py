"""Result of `search`: a table, and each query with its nearest images on a page."""

from __future__ import annotations

from nearfar.embeddings import Embeddings
from nearfar.embeddings.queries import Queries
from nearfar.isolation import isolated
from nearfar.neighbours import Nearest
from nearfar.pages.sheet import Figure, Group, contact_sheet, picture, thumbnails_for
from nearfar.progress import Table
from nearfar.tools.result import Columns, Result

DISTANCES = "The line below a name is its rank and its distance: 0 for copies."


class SearchResult(Result):
    """The nearest images of each query."""

    def __init__(self, photos: Embeddings, queries: Queries, near: Nearest) -> None:
        k, rows = near.index.shape[1], near.index.flatten().tolist()
        columns: Columns = {
            "query": [name for name in queries.names for _ in range(k)],
            "rank": list(range(1, k + 1)) * len(queries.names),
            "name": [photos.images.names[row] for row in rows],
            "distance": near.distance.flatten().tolist(),
        }
        columns |= photos.columns(rows)
        table = Table("image", "", "most alike", "distance")
        shown = (columns[name] for name in ("query", "rank", "name", "distance"))
        for query, rank, name, far in zip(*shown, strict=True):
            table.add(query if rank == 1 else "", rank, name, f"{far:.4f}")
        super().__init__(
            photos,
            columns,
            rows=rows,
            title="Images most alike",
            about=f"among {len(photos)} images of {photos.images.where}",
            note=DISTANCES,
            lines=[table],
        )
        self.queries = queries

    @isolated()
    def page(self) -> str:
        """Return a contact sheet with a group for each query."""
        ranked = zip(self["rank"], self["distance"], strict=True)
        near = thumbnails_for(
            self.photos, self.rows, [f"{rank}: {far:.4f}" for rank, far in ranked]
        )
        k = len(near) // len(self.queries.names)
        channels = self.photos.images.shown
        groups = []
        for place, (name, pixels) in enumerate(
            zip(self.queries.names, self.queries.pixels, strict=True)
        ):
            shown = pixels if channels is None else pixels[channels]
            query = Figure(picture(shown), name, "query", marked=True)
            groups.append(Group([query, *near[place * k : (place + 1) * k]]))
        return contact_sheet(self.title, self.about, self.note, groups=groups)
