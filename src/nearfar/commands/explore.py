"""The command that looks at a whole collection: copies, leaks, doubtful labels, defects, clusters
and a map, after one walk over the files.

nearfar explore photos/
nearfar explore photos/ --out explored
nearfar explore runs/photos
nearfar explore clip.parquet photos/
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfar.isolation import isolated
from nearfar.progress import Table, log

if TYPE_CHECKING:
    from torch import Tensor

    from nearfar.data import Images
    from nearfar.embeddings import Embeddings
    from nearfar.maps import Map
    from nearfar.maps.clusters import Clusters
    from nearfar.neighbours import Nearest
    from nearfar.neighbours.approximate import Lists
    from nearfar.tools.map.sheets import Sheets

RECORD = "parts.json"
GRANULARITIES = ("coarse", "middle", "fine")
# of the map's side: a thousandth keeps 99 % of the neighbours that further steps would
LEAST_MOVE = 0.001
MOST_OLD = 0.9  # share of the images that an earlier map has, for a map to begin from it
NOTHING = {"cpu_seconds": 0.0, "seconds": 0.0, "peak_memory_mb": 0.0, "numbers": dict[str, Any]()}
"""What a part took that was finished and not noted."""
FORMAT = 3  # raise it when a part writes something else, or finds other copies


class Explored(dict[str, Any]):
    """The main numbers of a collection, and the folder with its pages.

    "images", "problems" by kind, "repeats", "clusters" by granularity, "next", and "parts": of each
    part its CPU seconds, seconds, peak memory of the process by then in MB, and whether it was done
    now or an earlier time.
    """

    def __init__(self, folder: Path, numbers: Mapping[str, Any]) -> None:
        super().__init__(numbers)
        self.path = folder / "index.html"

    def summary(self) -> dict[str, Any]:
        """Return what JSON output prints."""
        return {"path": str(self.path), **self}


@isolated()
def explore(
    target: Any,
    data: Any = None,
    *,
    out: str | Path | None = None,
    encoder: str | None = None,
    label_column: str | None = None,
    approximate: bool = False,
    seed: int = 0,
) -> Explored:
    """Look at a whole collection in one go: copies, leaks, doubtful labels, defects, clusters in
    three granularities, and a map of everything, as one folder of pages.

    Each file is decoded once. What is found is kept by the digests of the files: another time only
    new files are read, and compared with the others. A run that was stopped goes on from there, and
    nothing is computed again while the images and options stay the same. Nothing is moved or
    removed.

    Args:
        target: run folder; or, without one, the data itself, which gets the best features at hand,
            or a file of vectors made elsewhere (docs/neighbours.md). In Python also `Embeddings`.
        data: images to look at, all splits. Default: the data of the run.
        out: folder for the pages and what is kept; a folder of an earlier time goes on. Default:
            explore in the run folder, or else DATA-explore in the working directory.
        encoder: for data without a run: a timm model by name, hf:owner/name, pretrained, nearfar or
            a folder. Default: the best features at hand; above 20 000 images colours and edges and
            the net that comes with nearfar, at 64 pixels.
        label_column: column of the data with the labels. Default: one of a usual name, such as
            label.
        approximate: search by inverted lists instead of comparing all pairs, for hundreds of
            thousands of images; the share of the true nearest neighbours that it finds is reported.
        seed: random seed of the map, of the clusters, and of the parts in which labels are
            predicted from the others.

    Returns:
        The main numbers: "images", "problems" by kind, "repeats" (images that are copies of
        others), "clusters", "next" and "parts", with the CPU seconds of each; `path` is the page.

    Raises:
        ValueError: for fewer than three images, and where `out` is a folder of something else.

    >>> explored = nearfar.explore("photos", out="explored")
    >>> explored["images"], explored["repeats"], explored.path.name
    (25, 1, 'index.html')
    """
    from nearfar.embeddings.sources import Opening, each_file_once, resolve
    from nearfar.messages import LARGEST_SEED, check_range
    from nearfar.training.run_folder import content_of

    check_range("seed", seed, 0, LARGEST_SEED)
    source = resolve(target)
    folder = _folder(source, out)
    parts = Parts(folder)
    with parts.measured("files"):
        opening = Opening(data, None, encoder, label_column, usual="all", fewest=3, later=True)
        photos = each_file_once(source.open(opening))
    with parts.measured("features"):
        photos, key = _with_features(photos, folder / "features")
    parts.depend([FORMAT, key, approximate, seed], photos.images)
    photos = _with_neighbours(photos, parts, approximate)
    photos = _with_copies(photos, parts, approximate)
    problems = _checked(photos, parts, approximate, seed)
    made = _laid_out(photos, parts, seed)
    parts.digest = _digest([parts.digest, content_of(made.coordinates)])
    layers = _clustered(photos, parts, made.coordinates, seed)
    _write_map(photos, parts, made, layers, seed)
    explored = Explored(
        folder,
        {
            "images": len(photos),
            **problems,
            "clusters": {name: int(layer.number.max()) + 1 for name, layer in layers.items()},
            "parts": parts.done,
        },
    )
    _write_index(photos, folder, explored)
    for line in _lines(explored):
        log.info(line)
    log.info("look -> %s", explored.path)
    return explored


def _folder(source: Any, out: str | Path | None) -> Path:
    """Return the folder to write; ValueError for one with something else in it, OSError where
    nothing can be written.
    """
    from nearfar.atomic import check_folder

    if out is None:
        page = source.page("explore")
        folder = Path("explore") if page is None else page.with_suffix("")
    else:
        folder = Path(out)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / RECORD).is_file():
        raise ValueError(f"{folder} holds something else: name another folder with `out`")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: name a folder with `out`")
    check_folder(next(place for place in (folder, *folder.parents) if place.is_dir()))
    return folder


class Parts:
    """Finished parts of a folder, in its parts.json: by the name of each part its digest, its
    numbers and what it took.

    digest: of images, with their names and labels, and options, on which all parts depend but those
    before it is set. marks: digests of the images, as bytes. options: digest of the options. The
    folder is made when its first part is finished.
    """

    def __init__(self, folder: Path) -> None:
        import torch

        self.folder, self.file = folder, folder / RECORD
        self.digest = self.options = ""
        self.marks = torch.empty(0, 16, dtype=torch.uint8)
        self.done: dict[str, dict[str, Any]] = {}
        try:
            known = json.loads(self.file.read_text(encoding="utf-8"))
            self.before: dict[str, Any] = {name: dict(part) for name, part in known.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            self.before = {}

    def depend(self, options: Sequence[Any], images: Images) -> None:
        """Set what the parts from here on depend on."""
        import torch

        from nearfar.data.table import digest

        self.options, marks = _digest(options), images.marks
        self.marks = torch.from_numpy(marks)
        words = (images.names, images.label_names, images.split_names)
        texts = ("\n".join([*of_images, ""]).encode() for of_images in words)
        self.digest = digest([self.options.encode(), marks.tobytes(), *texts])

    @contextmanager
    def measured(self, name: str) -> Iterator[dict[str, Any]]:
        """Do a part, and note it when it is finished; its numbers go into what is yielded."""
        from nearfar.allocator import return_memory
        from nearfar.atomic import write_file
        from nearfar.data.resources import peak_memory

        cpu, began = time.process_time(), time.perf_counter()
        numbers: dict[str, Any] = {}
        yield numbers
        return_memory()
        self.done[name] = {
            "digest": self.digest,
            "now": True,
            "cpu_seconds": time.process_time() - cpu,
            "seconds": time.perf_counter() - began,
            "peak_memory_mb": peak_memory(),
            "numbers": numbers,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        write_file(self.file, json.dumps(self.before | self.done) + "\n")

    def known(self, name: str, *files: str) -> dict[str, Any] | None:
        """Return the numbers of a part that was finished on the same images with the same options,
        and whose files are still there; None for another.
        """
        part = self.before.get(name, {})
        if part.get("digest") != self.digest:
            return None
        if not all((self.folder / file).exists() for file in files):
            return None
        return self.take(name)

    def take(self, name: str) -> dict[str, Any]:
        """Return the numbers of a part that was finished an earlier time, and count it as kept."""
        part = self.before.get(name, NOTHING)
        self.done[name] = {**part, "now": False}
        return dict(part["numbers"])


class Kept:
    """Tensors of a part, with a row for each image, in a file of the folder.

    before: those of an earlier time with the same options, None without. is_whole: whether they
    are those of these images.
    """

    def __init__(self, parts: Parts, name: str) -> None:
        import torch

        from nearfar.embeddings.kept import read_kept

        self.parts, self.file = parts, parts.folder / f"{name}.safetensors"
        self.before = read_kept(self.file, parts.options)
        self.is_whole = self.before is not None and torch.equal(self.before["digests"], parts.marks)

    def places(self) -> Tensor:
        """Return the position of each image among those before, -1 for a new one."""
        from nearfar.embeddings.kept import places_among

        assert self.before is not None
        return places_among(self.parts.marks, self.before["digests"])

    def write(self, tensors: dict[str, Tensor]) -> None:
        """Write the tensors, whole or not at all."""
        from nearfar.embeddings.kept import save_kept

        save_kept(self.file, self.parts.options, tensors | {"digests": self.parts.marks})


def _digest(parts: Any) -> str:
    from nearfar.data.table import digest

    return digest(json.dumps(parts).encode())


def _with_features(photos: Embeddings, folder: Path) -> tuple[Embeddings, str]:
    """Return the images that can be read with their features and measures, and what the features
    depend on.
    """
    import numpy as np

    from nearfar.data.table import digest
    from nearfar.embeddings.walk import Walk
    from nearfar.neighbours.duplicates import MANY
    from nearfar.networks import Encoder
    from nearfar.networks.shortened import DIRECTIONS

    images, encoder = photos.images, photos.encoder
    if photos.vectors is not None or images.originals is None or not isinstance(encoder, Encoder):
        features = photos.features
        return replace(photos, vectors=features), digest(features.numpy().tobytes())
    if len(images) > MANY:
        log.info("features cut down to %d numbers: more than %d images", DIRECTIONS, MANY)
    walk = Walk(folder, encoder, images, shorten=len(images) > MANY)
    walked = walk.go()
    photos = replace(
        photos,
        encoder=walk.encoder,
        vectors=walked.features,
        measures=walked.measures.astype(np.float64),
    )
    images.kept = walked.pictures
    if walked.problems:
        skipped = [(images.names[row], why) for row, why in walked.problems.items()]
        photos = photos.subset([row for row in range(len(images)) if row not in walked.problems])
        photos.images.skipped = [*photos.images.skipped, *skipped]
    return photos, walk.key


def _with_neighbours(photos: Embeddings, parts: Parts, approximate: bool) -> Embeddings:
    import torch

    from nearfar.neighbours import Nearest

    kept = Kept(parts, "neighbours")
    if kept.before is not None and kept.is_whole:
        parts.take("neighbours")
        near = Nearest(kept.before["distance"], kept.before["index"].long())
        return replace(photos, near=near)
    with parts.measured("neighbours"):
        near, lists = _neighbours(photos.features, kept, approximate)
        tensors = {"distance": near.distance, "index": near.index.int()}
        if lists is not None:
            tensors |= {"centres": lists.centres, "list_of": lists.list_of.contiguous()}
            tensors["learned"] = torch.tensor([lists.learned])
        kept.write(tensors)
    return replace(photos, near=near)


def _neighbours(features: Tensor, kept: Kept, approximate: bool) -> tuple[Nearest, Lists | None]:
    """Find the neighbours of each image, those of most from an earlier time, if there are any; and
    the lists around centres by which they were found.
    """
    from nearfar.maps.cluster_embedding import ATTRACTING
    from nearfar.neighbours import Nearest, find_nearest
    from nearfar.neighbours.approximate import Lists, learn_lists
    from nearfar.neighbours.updating import update_nearest

    k, lists = min(ATTRACTING, len(features) - 1), None
    if kept.before is not None:
        known, place = kept.before, kept.places()
        if "centres" in known:
            before = Lists(known["centres"], known["list_of"], int(known["learned"]))
            lists = before.extended(features, place)
        near = update_nearest(
            features, Nearest(known["distance"], known["index"].long()), place, k, lists
        )
        if near is not None:
            return near, lists
    lists = learn_lists(features) if approximate else None
    return find_nearest(features, k=k, approximate=approximate, lists=lists), lists


def _with_copies(photos: Embeddings, parts: Parts, approximate: bool) -> Embeddings:
    """Find copies, and write the page that lists them."""
    from nearfar.embeddings.embeddings import Repeats
    from nearfar.neighbours import Link
    from nearfar.neighbours.duplicates import MANY
    from nearfar.tools.duplicates.result import find_duplicates

    known = parts.known("copies", "duplicates.html", "duplicates.csv")
    if known is not None:
        links = [Link(*link) for link in known["links"]]
        return replace(photos, repeats=Repeats(known["near"], links))
    assert photos.near is not None
    if len(photos) > MANY and photos.has_pixels:
        log.info(
            "copies among the %d nearest images of each alone: more than %d images",
            photos.near.index.shape[1],
            MANY,
        )
    with parts.measured("copies") as numbers:
        with _verdicts(photos, parts.folder / "verdicts.safetensors") as verdicts:
            repeats = photos.find_repeats(approximate, verdicts=verdicts)
        photos = replace(photos, repeats=repeats)
        assert photos.repeats is not None
        numbers["near"] = photos.repeats.near
        numbers["links"] = [link[:5] for link in photos.repeats.links]
        result = find_duplicates(photos, None, False, False, None, approximate)
        result.write(parts.folder / "duplicates.html")
    return photos


@contextmanager
def _verdicts(photos: Embeddings, file: Path) -> Iterator[dict[tuple[str, str], int]]:
    """Relations of pairs of files that were compared, by their digests; those that are added are
    kept, also where the run is stopped.
    """
    import torch

    from nearfar.embeddings.kept import Marks, as_marks, read_kept, save_kept

    verdicts: dict[tuple[str, str], int] = {}
    kept = read_kept(file, str(FORMAT))
    if kept is not None:
        marks = ([bytes(mark).hex() for mark in kept[name].numpy()] for name in ("first", "second"))
        verdicts = dict(zip(zip(*marks, strict=True), kept["kind"].tolist(), strict=True))
    try:
        yield verdicts
    finally:
        find, left = Marks(photos.images.marks), torch.ones(len(verdicts), dtype=torch.bool)
        kept = {"kind": torch.tensor(list(verdicts.values()))}
        for side, name in enumerate(("first", "second")):
            kept[name] = as_marks([pair[side] for pair in verdicts])
            is_known = torch.zeros_like(left)
            is_known[find.rows_of(kept[name].numpy())[1]] = True
            left &= is_known
        save_kept(file, str(FORMAT), {name: part[left] for name, part in kept.items()})


def _checked(photos: Embeddings, parts: Parts, approximate: bool, seed: int) -> dict[str, Any]:
    """Write the page of problems; returns how many there are of each kind, and what to do next."""
    from collections import Counter

    from nearfar.neighbours.groups import group_links
    from nearfar.neighbours.links import NEAR_DUPLICATE
    from nearfar.tools.check.result import check_images

    known = parts.known("check", "check.html", "check.csv")
    if known is not None:
        return known
    with parts.measured("check") as numbers:
        result = check_images(photos, approximate, seed)
        result.write(parts.folder / "check.html")
        assert photos.repeats is not None
        sure = [link for link in photos.repeats.links if link.kind < NEAR_DUPLICATE]
        copies, _ = group_links(sure, len(photos), photos.repeats.near)
        numbers["problems"] = dict(Counter(result["problem"]))
        numbers["repeats"] = sum(len(group) - 1 for group in copies)
        steps = [result.next] if result["problem"] or not copies else []
        if copies:
            steps.append(f"Look through the copies ({numbers['repeats']}).")
        numbers["next"] = " ".join(steps)
    return numbers


def _laid_out(photos: Embeddings, parts: Parts, seed: int) -> Map:
    from nearfar.maps import Map
    from nearfar.maps.cluster_embedding import NeighborInterpolation

    kept = Kept(parts, "layout")
    made = kept.before
    if made is not None and kept.is_whole:
        parts.take("layout")
    else:
        with parts.measured("layout"):
            made = _layout(photos, kept, seed)
            kept.write(made)
    places = made["coordinates"]
    function = NeighborInterpolation(photos.features, places, "cosine")
    return Map(function, places, {"laid out": made["laid_out"]})


def _layout(photos: Embeddings, kept: Kept, seed: int) -> dict[str, Tensor]:
    """Coordinates, which images were added since all were laid out, and a digest of that layout.

    Where these are few, they alone are placed, and the others stay.
    """
    import torch

    from nearfar.embeddings.kept import as_marks
    from nearfar.maps.cluster_embedding import ClusterEmbedding, settled
    from nearfar.training.run_folder import content_of

    assert photos.near is not None
    embedding = ClusterEmbedding(metric="cosine", random_state=seed, least_move=LEAST_MOVE)
    if kept.before is not None:
        start, added = _start(kept.before, kept.places())
        if added.float().mean() <= 1 - MOST_OLD:
            places = settled(photos.near, start, "cosine")
            return {**kept.before, "coordinates": places, "added": added}
        if start.isfinite().all(1).float().mean() > MOST_OLD:
            embedding.init = settled(photos.near, start, "cosine").numpy()
            embedding.early_exaggeration = 1.0
    embedding.fit(photos.features.numpy(), neighbours=photos.near)
    places = torch.from_numpy(embedding.embedding_).contiguous()
    return {
        "coordinates": places,
        "added": torch.zeros(len(places), dtype=torch.bool),
        "laid_out": as_marks([content_of(places)]),
    }


def _start(made: Mapping[str, Tensor], place: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates of an earlier layout, NaN for new images, and which images were added since all
    were laid out.
    """
    import torch

    old = place >= 0
    coordinates = torch.full((len(place), 2), torch.nan)
    coordinates[old] = made["coordinates"][place[old]]
    added = ~old
    added[old] = made["added"][place[old]]
    return coordinates, added


def _clustered(
    photos: Embeddings, parts: Parts, coordinates: Tensor, seed: int
) -> dict[str, Clusters]:
    """Group the images in three granularities, and write a page of each; coarse first."""
    from nearfar.maps.clusters import Clusters, layered_clusters
    from nearfar.tools.cluster.result import Groups

    kept = Kept(parts, "clusters")
    tensors = kept.before
    page = "clusters-fine.html"
    if tensors is None or not kept.is_whole or parts.known("clusters", page) is None:
        with parts.measured("clusters"):
            layers = layered_clusters(photos.features, coordinates, seed)
            names = {1: GRANULARITIES[2:], 2: GRANULARITIES[::2]}.get(len(layers), GRANULARITIES)
            tensors = {}
            for name, layer in zip(names, layers, strict=True):
                tensors |= {name: layer.number, f"{name}-distance": layer.distance}
                Groups(photos, layer, None).write(parts.folder / f"clusters-{name}.html")
            kept.write(tensors)
    return {
        name: Clusters(tensors[name], tensors[f"{name}-distance"], {})
        for name in GRANULARITIES
        if name in tensors
    }


def _write_map(
    photos: Embeddings, parts: Parts, made: Map, layers: Mapping[str, Clusters], seed: int
) -> None:
    """Write the map, which can be coloured by the clusters."""
    import torch

    from nearfar.embeddings.kept import as_marks
    from nearfar.tools.map.page import MOST_IMAGES, PICTURES, write_map
    from nearfar.tools.map.result import Drawing, draw

    one_file = len(photos) <= MOST_IMAGES
    page = "map.html" if one_file else "map"
    if parts.known("map", page, "map.png") is not None:
        return
    with parts.measured("map") as numbers:
        drawing = Drawing("cluster-embedding", None, None, seed, False, None)
        drawn = draw(replace(photos, run=None), photos, drawing, None, None, made)
        columns = {
            f"{name} clusters": [f"group {number + 1}" for number in layer.number.tolist()]
            for name, layer in layers.items()
        }
        kept, laid_out = Kept(parts, "sheets"), made.about["laid out"]
        plane = replace(
            drawn.plane,
            columns={**drawn.plane.columns, **columns},
            earlier=_earlier_sheets(kept, parts.folder / page / PICTURES, laid_out),
        )
        sheets = write_map(parts.folder / page, plane, drawn.numbers, None)
        if sheets is not None:
            kept.write(
                {
                    "slots": torch.from_numpy(sheets.slots),
                    "files": as_marks(sheets.files),
                    "side": torch.tensor([sheets.side]),
                    "laid_out": laid_out,
                }
            )
        numbers["page"] = page if one_file else f"{page}/index.html"
        numbers["note"] = plane.note


def _earlier_sheets(kept: Kept, folder: Path, laid_out: Tensor) -> Sheets | None:
    """Return the sheets of the last map, where its images lie where they lay; None without, and
    where the content of an image is not known.
    """
    import torch

    from nearfar.tools.map.sheets import PER_SHEET, Sheets

    before = kept.before
    if before is None or not torch.equal(before["laid_out"], laid_out):
        return None
    if not (before["digests"].any(1).all() and kept.parts.marks.any(1).all()):
        return None
    place, slots = kept.places(), before["slots"]
    gone = torch.ones(len(slots), dtype=torch.bool)
    gone[place[place >= 0]] = False
    files = [bytes(mark).hex() for mark in before["files"].numpy()]
    for sheet in (slots[gone] // PER_SHEET).unique().tolist():
        files[sheet] = ""
    known = torch.where(place >= 0, slots[place], -1)
    return Sheets(known.numpy(), int(slots.max()) + 1, files, int(before["side"]), folder)


def _write_index(photos: Embeddings, folder: Path, explored: Explored) -> None:
    """Write the page that links the others, with the main numbers."""
    from nearfar.pages.template import write_page

    write_page(
        explored.path,
        "explore.html",
        beside=True,
        title="Explored",
        about=photos.images.where,
        explored=explored,
        map=explored["parts"]["map"]["numbers"],
        leaks=explored["problems"].get("leak", 0),
        doubts=explored["problems"].get("label issue", 0),
        labelled=photos.images.labels is not None,
        total={
            name: sum(part[name] for part in explored["parts"].values() if part["now"])
            for name in ("cpu_seconds", "seconds")
        },
    )


def _lines(explored: Explored) -> list[str | Table]:
    """Return what a person is told."""
    table = Table("part", "CPU seconds", "seconds", "peak memory, MB")
    for name, part in explored["parts"].items():
        measured = [part["cpu_seconds"], part["seconds"], part["peak_memory_mb"]]
        table.add(name if part["now"] else f"{name} (kept)", *(f"{n:.1f}" for n in measured))
    counts = ", ".join(f"{count} {name}" for name, count in explored["problems"].items())
    return [
        table,
        f"{explored['repeats']} of {explored['images']} images repeat another one",
        f"problems: {counts or 'none'}",
        explored["next"],
        "nothing was moved or removed",
    ]
