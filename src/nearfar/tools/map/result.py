"""A map that was drawn: the place of each image, and the files that show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow

from nearfar.data import Images
from nearfar.data.opening import shown_positions
from nearfar.device import find_device
from nearfar.embeddings import Embeddings
from nearfar.isolation import isolated
from nearfar.maps import Map, digests_of, fit_layout, map_fingerprint, map_quality
from nearfar.maps.cluster_embedding import ATTRACTING
from nearfar.maps.columns import columns_of, neighbour_columns, retrieval_column
from nearfar.neighbours import Nearest, find_nearest
from nearfar.pages.report import write_report
from nearfar.progress import log
from nearfar.threads import fastest_threads, use_threads
from nearfar.tools.map.page import MOST_IMAGES, Plane, write_map, write_page_of
from nearfar.tools.result import Result
from nearfar.training.request import serializable_source
from nearfar.training.settings import Described
from nearfar.training.view_choice import resolve_views
from nearfar.views import Views


@dataclass(frozen=True)
class Drawing:
    """Options of laying out a map; see `nearfar.map`."""

    layout: str
    num_views: int | None
    epochs: int | None
    seed: int
    approximate: bool
    views: Any


class DrawnMap(Result):
    """Images on a plane: `write` gives an interactive page, a figure, numbers and the map as a
    function.
    """

    def __init__(
        self,
        photos: Embeddings,
        plane: Plane,
        numbers: Mapping[str, Any],
        saved: Map | None = None,
    ) -> None:
        """plane: the images of the page, of which `photos` are the last. numbers: for the .json.
        saved: the map as a function.
        """
        places = plane.coordinates[-len(photos) :].tolist()
        x, y = ([place[axis] for place in places] for axis in (0, 1))
        own = photos.columns()
        table = {"name": own.pop("name"), "x": x, "y": y, **own}
        lines = [plane.note] * bool(plane.note)
        super().__init__(photos, table, title="Map of the images", note=plane.note, lines=lines)
        self.plane, self.numbers, self.saved = plane, numbers, saved

    def summary(self) -> Any:
        """Return the page that was written."""
        return {"path": None if self.path is None else str(self.path)}

    @isolated()
    def page(self) -> str:
        """Return the page in one file, which shows at most 20 000 images."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "map.html"
            write_page_of(path, self.plane)
            return path.read_text(encoding="utf-8")

    @isolated()
    def write(self, path: Path) -> None:
        """Write the page and what lies beside it; a folder without the ending .html."""
        write_map(path, self.plane, self.numbers, self.saved)
        run = self.photos.run
        if run is not None and path.parent == run.path and path.stem == "map":
            if not path.suffix:
                (run.path / "map.html").unlink(missing_ok=True)  # of fewer images, and older
            write_report(run.path)
        self.path = path / "index.html" if path.is_dir() else path
        log.info("map -> %s", self.path)

    def default_page(self, page: Path) -> Path:
        """Return the page, as a folder where one file cannot hold the images; images that were
        added to a map get a page of their own.
        """
        if self.saved is None:
            return page.with_stem(f"{page.stem}-new")
        return page if len(self.plane.images) <= MOST_IMAGES else page.with_suffix("")


def draw(
    whole: Embeddings,
    photos: Embeddings,
    drawing: Drawing,
    table: pyarrow.Table | None,
    show_channels: Sequence[int] | None,
    made: Map | None = None,
) -> DrawnMap:
    """Lay images out on a plane; photos: those of the whole that are drawn. table: columns by the
    names of images. made: their layout, if there is one already.
    """
    images = photos.images
    if show_channels is not None:
        images = copy(images)
        images.shown = shown_positions(list(show_channels), images.channels)
    plan = _views(photos, drawing.views)
    near, measured_columns = _neighbours(photos, images, plan, drawing)
    if made is None:
        with use_threads(fastest_threads()):
            made = fit_layout(
                drawing.layout,
                photos.encoder if photos.run is not None else None,
                images,
                photos.features,
                plan,
                neighbours=near,
                num_views=drawing.num_views,
                epochs=drawing.epochs,
                seed=drawing.seed,
            )
    index = None if near is None else near.index
    quality = map_quality(
        photos.features, made.coordinates, images.labels, near=index, seed=drawing.seed
    )
    labelled = images.labels is not None
    colours = columns_of(images.columns, table, images.names, labelled, photos.paths)
    plane = Plane(
        images=images,
        coordinates=made.coordinates,
        quality=quality,
        columns=colours | measured_columns,
        near=index,
        note="" if quality is None else f"The map {quality.words}",
    )
    about = {**made.about, **_about(whole, photos, drawing)}
    saved = replace(made, about=about, digests=digests_of(images))
    return DrawnMap(photos, plane, {"layout": drawing.layout}, saved)


def _views(photos: Embeddings, views: Any) -> Views | None:
    """Return the views of the run, or others; None without a run."""
    if photos.run is None:
        return None
    settings = photos.run.settings
    return resolve_views(settings.given("views") if views is None else views, settings)


def _neighbours(
    photos: Embeddings, images: Images, plan: Views | None, drawing: Drawing
) -> tuple[Nearest | None, dict[str, Any]]:
    """Return the nearest images of each, and what these say of it, as columns of the page."""
    if len(images) < 2:
        return None, {}
    k = min(ATTRACTING, len(images) - 1)
    near = photos.near or find_nearest(photos.features, k=k, approximate=drawing.approximate)
    measured_columns: dict[str, Any] = dict(neighbour_columns(near))
    if photos.run is not None and photos.encoder is not None and plan is not None:
        measured_columns["positive-pair retrieval"] = retrieval_column(
            photos.encoder,
            images,
            plan,
            drawing.seed,
            partial(find_nearest, approximate=drawing.approximate),
            device=find_device(),
        )
    return near, measured_columns


def _about(whole: Embeddings, photos: Embeddings, drawing: Drawing) -> dict[str, Any]:
    """Return what the map as a function notes of its images."""
    known = serializable_source(photos.source)
    about: dict[str, Any] = {
        "data": None if isinstance(known, Described) else known,
        "split": photos.split,
    }
    if photos.run is not None:
        about |= map_fingerprint(photos.run.path, photos.images)
    return about | ({"sample": drawing.seed} if len(photos) < len(whole) else {})
