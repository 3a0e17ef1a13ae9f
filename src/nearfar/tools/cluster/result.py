"""Result of `cluster`: groups, each shown by images at its centre and at its edge."""

from __future__ import annotations

from nearfar.embeddings import Embeddings
from nearfar.isolation import isolated
from nearfar.maps.clusters import Clusters
from nearfar.pages.sheet import Group, contact_sheet, thumbnails_for
from nearfar.progress import Table
from nearfar.tools.result import Result

CENTRES = (
    "The images nearest to the centre of each group, then those farthest from it, "
    "with their distances to it."
)
TYPICAL, EDGE = 12, 4  # images of a group on the page: from its centre, and from its edge


class Groups(Result):
    """Images in groups."""

    def __init__(self, photos: Embeddings, clusters: Clusters, wanted: int | None) -> None:
        """wanted: the number of groups that was asked for."""
        self.clusters, self.count = clusters, int(clusters.number.max()) + 1
        columns = {
            "name": list(photos.images.names),
            "cluster": (clusters.number + 1).tolist(),
            "distance": clusters.distance.tolist(),
        }
        about = f"{len(photos)} images in {self.count} group{'s' * (self.count > 1)}"
        if self.count < (wanted or 0):
            about += f" and not {wanted}, since no more of them are distinct"
        elif wanted is None and clusters.scores:
            about += (
                f", the number of {min(clusters.scores)} to {max(clusters.scores)} with the "
                f"largest silhouette ({max(clusters.scores.values()):.2f})"
            )
        self.members = clusters.members()
        table = Table("group", "images", "at its centre")
        for number, members in enumerate(self.members):
            table.add(number + 1, len(members), photos.images.names[int(members[0])])
        super().__init__(
            photos,
            columns | photos.columns(),
            title="Groups of images",
            about=f"{photos.images.where}: {about}",
            note=CENTRES,
            lines=[table, about],
        )

    @isolated()
    def page(self) -> str:
        """Return a contact sheet with a part for each group."""
        groups = []
        for number, members in enumerate(self.members):
            centre, edge = members[:TYPICAL].tolist(), members[TYPICAL:][-EDGE:].tolist()
            lines = [f"{self.clusters.distance[row]:.3f}" for row in centre]
            lines += [f"{self.clusters.distance[row]:.3f}, at the edge" for row in edge]
            figures = thumbnails_for(self.photos, centre + edge, lines)
            groups.append(Group(figures, f"Group {number + 1}", f"{len(members)} images"))
        return contact_sheet(self.title, self.about, self.note, groups=groups)
