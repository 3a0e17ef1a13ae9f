"""The commands that list images: those most similar to given ones, copies, a choice of images to
label, and groups.

nearfar search runs/photos beach.jpg --k 20 --out beach.html
nearfar search runs/photos beach.jpg --null | xargs -0 ls -l
nearfar duplicates runs/photos
nearfar duplicates runs/photos others/ --distance 0.02 --out others.html
nearfar duplicates runs/photos new/ --against archive/ --orientations
nearfar select runs/photos --n 200 --by typical
nearfar select runs/photos beach.jpg --by near --n 50
nearfar cluster runs/photos
nearfar cluster runs/photos --clusters 12 --out groups.html
nearfar duplicates photos/
nearfar cluster clip.parquet photos/
"""

from __future__ import annotations

import math
import os
import shlex
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nearfar.isolation import isolated
from nearfar.messages import as_words, check_known, check_range, check_seed, did_you_mean

if TYPE_CHECKING:
    from torch import nn

    from nearfar.run_features import Featured

DISTANCES = "The line below a name is its rank and its distance: 0 for copies."
CENTRES = (
    "The images nearest to the centre of each group, then those farthest from it, "
    "with their distances to it."
)
TYPICAL, EDGE = 12, 4  # images of a group on the page: from its centre, and from its edge
MOST_CLUSTERS = 1000
MEANING = {
    "diverse": "its distance to those before it",
    "typical": "its mean distance to its neighbours",
    "outlier": "its distance to its last neighbour",
    "near": "its distance to the nearest image given",
}
ON_PAGE = 1000  # selected images
FOUND, CHOSEN = 10, 100  # images, where nobody says how many


@isolated()
def search_images(
    run: Any,
    images: Any = (),
    *,
    data: Any = None,
    k: int | None = None,
    out: str | Path | None = None,
    split: str | None = None,
    encoder: str | nn.Module | None = None,
    console: Console | None = None,
) -> dict[str, list[Any]]:
    """Find the images most similar to given ones: a table, a contact sheet, paths for other
    commands.

    Args:
        run: run folder; or, without one, the data itself, or a file of vectors made elsewhere
            (docs/neighbours.md).
        images: query images: names in the data, files, or text files with one name per line. In
            Python also pixels.
        data: images to search. Default: the data of the run.
        k: number of images to find for each query. Default: 10, or all others where they are fewer.
        out: contact sheet to write, .html, with a .csv beside it; neither may exist. Default: none.
        split: part of the data; "all" for everything. Default: that of the run, of other data its
            training split.
        encoder: for data without a run: a timm model by name, hf:owner/name, pretrained, nearfar or
            a folder. Default: the best features at hand. In Python also the trained module of a
            run, if it was an object of your own.
        console: console for the table.

    Returns:
        Columns "query", "rank" from 1, "name", "distance" (1 - cos of the features: 0 for copies)
        and, for images in files, "path". An image of the data does not find itself.

    Raises:
        ValueError: for images that are missing or unreadable, and a k above the number of other
            images.

    >>> found = nearfar.search_images("runs/photos", "photos/cat/copy.png", k=1)
    >>> found["name"], found["distance"]
    (['cat/3.png'], [0.0])
    """
    from nearfar.pages import lists
    from nearfar.run_features import nearest_shown, open_featured, queries_of, run_or_data

    run, console = run_or_data(run), console or Console()
    page = None if out is None else lists.output_of(run, out, "search", lists.TABLE)
    images, data = _folders_apart(run, images, data)
    known = open_featured(run, data, split, encoder, console)
    k = min(FOUND, len(known.images) - 1) if k is None else k
    check_range("--k", k, 1, len(known.images) - 1)
    asked = queries_of(images, known)
    found = nearest_shown(known.features, k, console, asked.features, asked.own)
    rows = found.index.flatten().tolist()
    columns: dict[str, list[Any]] = {
        "query": [name for name in asked.names for _ in range(k)],
        "rank": list(range(1, k + 1)) * len(asked.names),
        "name": [known.images.names[row] for row in rows],
        "distance": found.distance.flatten().tolist(),
        **known.files(rows),
    }
    table = Table("image", "", "most alike", "distance")
    for query, rank, name, far in zip(
        *(columns[key] for key in ("query", "rank", "name", "distance")), strict=True
    ):
        table.add_row(Text(query if rank == 1 else ""), str(rank), Text(name), f"{far:.4f}")
    console.print(table)
    if page is not None:
        lines = [
            f"{rank}: {far:.4f}"
            for rank, far in zip(columns["rank"], columns["distance"], strict=True)
        ]
        near = lists.figures_of(known, rows, lines)
        groups = []
        for i, (name, pixels) in enumerate(zip(asked.names, asked.pixels, strict=True)):
            shown = pixels if known.images.shown is None else pixels[known.images.shown]
            query = lists.Figure(lists.picture(shown), name, "query", marked=True)
            groups.append(lists.Group([query, *near[i * k : (i + 1) * k]]))
        about = f"among {len(known.images)} images of {known.images.where}"
        lists.write_contact_sheet(page, "Images most alike", about, DISTANCES, groups=groups)
        lists.write_table(page.with_suffix(lists.TABLE), columns)
        console.print(Text(f"contact sheet -> {page}"))
    return columns


def _folders_apart(run: Any, images: Any, data: Any) -> tuple[Any, Any]:
    """Queries and data: where there is no run, folders among the queries are further data."""
    from nearfar.run import Run

    if isinstance(run, Run) or data is not None or not isinstance(images, (list, tuple)):
        return images, data
    folders = [one for one in images if isinstance(one, (str, os.PathLike)) and os.path.isdir(one)]
    if not folders:
        return images, None
    words = [one for one in images if not any(one is each for each in folders)]
    return words, folders[0] if len(folders) == 1 else folders


@isolated()
def find_duplicates(
    run: Any,
    data: Any = None,
    *,
    against: Any = None,
    orientations: bool = False,
    distance: float | None = None,
    out: str | Path | None = None,
    split: str | None = None,
    approximate: bool = False,
    encoder: str | nn.Module | None = None,
    console: Console | None = None,
) -> dict[str, list[Any]]:
    """Find copies of images, exact, resized or encoded again, and images that are nearly alike.

    Args:
        run: run folder; or, without one, the data itself, or a file of vectors made elsewhere
            (docs/neighbours.md).
        data: images to compare. Default: the data of the run.
        against: an archive: list the images that it holds already, each with its closest one there,
            instead of copies among the images themselves. Nothing of the archive is listed for
            removal. All its splits are read.
        orientations: find turned and mirrored copies too, in the seven other orientations of a
            square; they are never listed for removal. It takes seven further searches over versions
            of 16 x 16 pixels, and no further features.
        distance: largest 1 - cos of the features for similar images that are not copies; the page
            has a slider to choose it by eye. Default: a tenth of the median distance of any two.
            Copies are confirmed by their pixels at full size, up to the distance by which features
            move when images are halved in size or saved as JPEG of quality 50 (measured on 128
            images).
        out: page to write, .html, with a .csv, and a .list of the files whose bytes another file
            has, beside it; none may exist. Default: duplicates.html in the run folder, which is
            replaced.
        split: part of the data. Default: all, since images of one split can be copies of those of
            another.
        approximate: search with faiss's index instead of comparing all pairs, for hundreds of
            thousands of images; the share of the true nearest neighbours that it finds is reported.
        encoder: for data without a run: a timm model by name, hf:owner/name, pretrained, nearfar or
            a folder. Default: none, features of colours and edges. In Python also the trained
            module of a run, if it was an object of your own.
        console: console for progress and messages.

    Returns:
        Columns "group" from 1; "kind": "first", "same file", "same pixels", "copy", "turned" or
        "mirrored" (perhaps turned, too), "stretched copy" of other proportions, or "first frame
        alone" of animations and documents of several pages, in a group of copies, else "alike";
        "kept": False for an image with the bytes of an image that is kept, unless removing it could
        harm: "why" is then "shows nothing", "belongs to another file of that name" (a mask, a
        second view, a text beside it), "in another class" or "in another split"; "name", "distance"
        to the first of the group, "width", "height", "bytes" and, for images in files, "path". The
        first of a group has the most pixels, then the largest file, then the shortest name. Groups
        of copies come first. An image that is kept can be in a group that is alike, too. Nothing is
        removed, and images with other bytes are for a person to look at: no list for removal names
        them. With `against`, a row for each image that the archive has, and the columns
        "archive_name", "archive_width", "archive_height", "archive_bytes" and "archive_path" of its
        closest image there, in place of "group".

    Raises:
        ValueError: for a distance below 0 or above 2, fewer than two images, `orientations` of
            vectors without images, and `against` with vectors.

    >>> found = nearfar.find_duplicates("runs/photos")
    >>> found["name"], found["kind"]
    (['cat/3.png', 'cat/copy.png'], ['first', 'same file'])
    >>> copy = "photos/cat/copy.png"
    >>> found = nearfar.find_duplicates("runs/photos", copy, against="photos/cat", out="had.html")
    >>> found["name"], found["kind"], found["archive_name"]
    (['copy.png'], ['same file'], ['3.png'])
    """
    from torch.nn.functional import normalize

    from nearfar.neighbours import (
        FRAME,
        KINDS,
        Staying,
        alike_distance,
        facts_of,
        find_links,
        members_at,
    )
    from nearfar.pages import lists
    from nearfar.run_features import open_against, open_featured, run_or_data
    from nearfar.training.seeding import stream

    run, console = run_or_data(run), console or Console()
    check_range("--distance", distance, 0, 2)
    page = lists.output_of(run, out, "duplicates", lists.TABLE, lists.FILES)
    known, archive = (
        open_featured(
            run, data, split or "all", encoder, console, 2 if against is None else 1, copies=True
        ),
        0,
    )
    known = _each_once(known, console)
    where, of_splits = known.images.where, known.images.of_splits
    if against is not None:
        known, archive = open_against(known, against, console)
    if orientations and not known.pictured:
        raise ValueError("--orientations compares pixels: name the images of these vectors")
    images, features = known.images, normalize(known.features, dim=1)
    near = alike_distance(features, stream(0, "pairs")) if distance is None else distance
    if not known.pictured:
        console.print(
            Text(
                "copies are confirmed by pixels: name the images of these vectors; "
                "without, all are alike"
            )
        )
    links = find_links(
        images,
        features,
        max(known.copy_distance(), lists.BEYOND * near),
        archive=archive,
        orientations=orientations,
        pictured=known.pictured,
        approximate=approximate,
    )
    facts = facts_of(images, sorted({row for link in links for row in link[1:3]}))
    stays = Staying(images, links, archive)
    members = members_at(links, facts, images.names, near, archive, stays.why)
    first = {member.group: member.row for member in reversed(members)}
    listed = [member for member in members if member.row >= archive]
    rows, beside = [member.row for member in listed], [first[member.group] for member in listed]
    apart = (features[beside] - features[rows]).square().sum(1) / 2

    def described(rows: list[int]) -> dict[str, list[Any]]:
        sizes = {
            field: [getattr(facts[row], field) for row in rows]
            for field in ("width", "height", "bytes")
        }
        return {"name": [images.names[row] for row in rows], **sizes, **known.files(rows)}

    columns: dict[str, list[Any]] = (
        {} if archive else {"group": [member.group for member in listed]}
    )
    columns |= {
        "kind": [member.kind for member in listed],
        "kept": [member.kept for member in listed],
        "why": [member.why for member in listed],
    }
    columns |= {"name": [], "distance": apart.tolist(), **described(rows)}
    columns |= (
        {f"archive_{field}": values for field, values in described(beside).items()}
        if archive
        else {}
    )
    words = [
        word
        for word in (data if isinstance(data, (list, tuple)) else [data])
        if isinstance(word, (str, Path))
    ]
    options = dict(split=split, encoder=encoder, against=against, orientations=orientations or None)
    options |= {"out": page.with_stem(f"{page.stem}-new")} if out is not None else {}
    words += as_words(
        {name: one for name, one in options.items() if isinstance(one, (str, Path, bool))}
    )
    command = shlex.join(map(str, ["nearfar", "duplicates", run.path, *words]))
    told: dict[str, Any] = dict(where=where, archive=archive, distance=near, command=command)
    lists.write_duplicates_page(page, known, links, members, facts, **told)
    lists.write_table(page.with_suffix(lists.TABLE), columns)
    counts = [columns["kind"].count(kind) for kind in KINDS]
    same, pixels, again, turned, mirrored, stretched, alike = counts
    frames = columns["kind"].count(FRAME)
    said = f"{same} the same file, {pixels} the same pixels, {again} resized or encoded again"
    said += f", {turned} turned, {mirrored} mirrored" if orientations else ""
    said += f", {stretched} stretched to other proportions" if stretched else ""
    said += f", {frames} by their first frame alone" if frames else ""
    total, what = (
        sum(counts) - alike + frames,
        "in the archive" if archive else "copies of others",
    )
    others = (
        f"{alike}"
        if archive
        else f"{len({one.group for one in members if one.kind == KINDS[-1]})} groups of"
    )
    of = f" of {of_splits}" if of_splits else ""
    console.print(Text(f"{total} of {len(images) - archive} images{of} are {what}: {said}"))
    console.print(Text(f"{others} others are nearly alike, at a distance of up to {near:.3g}"))
    if stay := [why for why in columns["why"] if why]:
        said = ", ".join(f"{count} {why}" for why, count in Counter(stay).most_common())
        console.print(
            Text(f"{len(stay)} that are the same file are not listed for removal: {said}")
        )
    console.print(
        Text(f"look first -> {page} and {page.with_suffix(lists.TABLE).name}; nothing was removed")
    )
    if "path" in columns:
        files = page.with_suffix(lists.FILES)
        gone = [
            path for path, keep in zip(columns["path"], columns["kept"], strict=True) if not keep
        ]
        lists.write_files(files, gone)
        if gone:
            command = (
                f"to archive and then remove what is the same file, byte for byte: "
                f"{lists.removing(files)}"
            )
            console.print(
                Text(command), soft_wrap=True
            )  # a command that is broken into lines is another command
    return columns


def _each_once(known: Featured, console: Console) -> Featured:
    """The same with each file once: one that is seen twice would be listed for removal as a copy of
    itself.

    Files are told apart by device and inode, so that hard links, symbolic links, bind mounts and
    names that differ in case count as one file; of these a name that is no link comes first.
    """
    from nearfar.data.names import file_identity

    paths = known.paths or []
    order = sorted(range(len(paths)), key=lambda row: (os.path.islink(paths[row]), row))
    rows = sorted({file_identity(paths[row]): row for row in reversed(order)}.values())
    if len(rows) == len(paths):
        return known
    said = (
        f"{len(paths) - len(rows)} files are named more than once (links count too), and count once"
    )
    console.print(Text(said))
    vectors = None if known.vectors is None else known.vectors[rows]
    return replace(known, images=known.images.subset(rows), vectors=vectors)


@isolated()
def select_images(
    run: Any,
    images: Any = (),
    *,
    n: int | None = None,
    by: Literal["diverse", "typical", "outlier", "near"] = "diverse",
    data: Any = None,
    labelled: Any = (),
    k: int | None = None,
    out: str | Path | None = None,
    split: str | None = None,
    approximate: bool = False,
    seed: int = 0,
    encoder: str | nn.Module | None = None,
    console: Console | None = None,
) -> dict[str, list[Any]]:
    """Choose images to label or to look at: diverse, typical, odd ones, or those near others.

    Args:
        run: run folder; or, without one, the data itself, or a file of vectors made elsewhere
            (docs/neighbours.md).
        images: for --by near: names in the data, files, or text files with one name per line.
        n: number of images to choose. Default: 100, or all where they are fewer.
        by: "diverse" (farthest point first: covers everything, odd images too), "typical"
            (TypiClust: one from the centre of each cluster; best for very few labels), "outlier"
            (far from its k-th neighbour), or "near" (nearest to any of the images given).
            docs/neighbours.md has the sources.
        data: images to choose from. Default: the data of the run.
        labelled: images that have labels already, given like `images` (on the command line one name
            or text file): they are left out, diverse continues from them, and typical prefers
            clusters without them.
        k: for --by outlier: the neighbour whose distance counts. Default: 10, or the last where
            they are fewer.
        out: page to write, .html, with a .csv and a .list of the files beside it; none may exist.
            Default: selection.html in the run folder, which is replaced.
        split: part of the data; "all" for everything. Default: that of the run, of other data its
            training split.
        approximate: for --by outlier and near: search with faiss's index instead of comparing all
            pairs.
        seed: random seed of the clusters, for --by typical.
        encoder: for data without a run: a timm model by name, hf:owner/name, pretrained, nearfar or
            a folder. Default: the best features at hand. In Python also the trained module of a
            run, if it was an object of your own.
        console: console for progress and messages.

    Returns:
        Columns "rank" from 1, "name", "distance" (which one depends on `by`) and, for images in
        files, "path". Nothing is moved or copied.

    Raises:
        ValueError: for more images than there are, an unknown `by`, or missing or superfluous
            images for it.

    >>> found = nearfar.select_images("runs/photos", n=3, by="outlier")
    >>> len(found["name"])
    3
    """
    import torch

    from nearfar.neighbours import diverse_rows, remote_rows, typical_rows
    from nearfar.pages import lists
    from nearfar.run_features import (
        nearest_shown,
        open_featured,
        places_of,
        queries_of,
        run_or_data,
    )
    from nearfar.training.progress import waiting

    run, console = run_or_data(run), console or Console()
    check_known("--by", by, MEANING)
    if (images is not None and (isinstance(images, (str, Path)) or len(images) > 0)) != (
        by == "near"
    ):
        raise ValueError(
            "--by near needs images, and nothing else does: nearfar select RUN IMAGE... --by near"
        )
    check_seed(seed)
    page = lists.output_of(run, out, "selection", lists.TABLE, lists.FILES)
    known = open_featured(run, data, split, encoder, console)
    names = known.images.names
    places = places_of(
        [labelled] if isinstance(labelled, (str, Path)) else list(labelled or ()), known
    )
    if missing := [word for word, row in places if row < 0]:
        near = did_you_mean(missing[0], names[:20_000], "see `nearfar embed` for the names")
        raise ValueError(f"--labelled: {missing[0]!r} is not an image of the data: {near}")
    done = torch.tensor(sorted({row for _, row in places}), dtype=torch.int64)
    k = min(FOUND, len(names) - 1) if k is None else k
    check_range("--n", n, 1, len(names) - len(done))
    check_range("--k", k, 1, len(names) - 1 if by == "outlier" else math.inf)
    if len(done) == len(names):
        raise ValueError("--labelled names every image of the data: none is left to choose")
    wanted = min(CHOSEN, len(names) - len(done)) if n is None else n
    if by == "near":
        queries = queries_of(images, known)
        others = torch.ones(len(names), dtype=torch.bool)
        others[queries.own[queries.own >= 0]] = False
        others[done] = False
        if not others.any():
            raise ValueError("--by near: every image of the data is given or labelled already")
        check_range("--n", n, 1, int(others.sum()))
        wanted = min(wanted, int(others.sum()))
        found = nearest_shown(
            queries.features, 1, console, known.features[others], approximate=approximate
        )
        distance, order = found.distance[:, 0].sort(stable=True)
        chosen, distance = others.nonzero()[:, 0][order[:wanted]], distance[:wanted]
    elif by == "outlier":
        far = nearest_shown(known.features, k, console, approximate=approximate).distance
        far[done] = -1
        chosen, distance = remote_rows(far, wanted)
    else:
        with waiting(console, "choosing"):
            choose: Any = diverse_rows if by == "diverse" else partial(typical_rows, seed=seed)
            chosen, distance = choose(known.features, wanted, labelled=done)
    n = wanted
    rows = chosen.tolist()
    columns = {
        "rank": list(range(1, n + 1)),
        "name": [names[row] for row in rows],
        "distance": distance.tolist(),
        **known.files(rows),
    }
    lines = [f"{rank}: {far:.4f}" for rank, far in enumerate(columns["distance"][:ON_PAGE], 1)]
    note = f"The line below a name is its rank, and {MEANING[by]}."
    about = f"{n} of {len(names)} images of {known.images.where}"
    about += f", the first {ON_PAGE}" if n > ON_PAGE else ""
    figures = lists.figures_of(known, rows[:ON_PAGE], lines)
    lists.write_contact_sheet(page, f"Selected: {by}", about, note, figures=figures)
    lists.write_table(page.with_suffix(lists.TABLE), columns)
    console.print(Text(f"{n} images -> {page} and {page.with_suffix(lists.TABLE).name}"))
    if "path" in columns:
        files = page.with_suffix(lists.FILES)
        lists.write_files(files, columns["path"])
        console.print(
            Text(f"to pack copies of them into an archive: {lists.copying(files)}"), soft_wrap=True
        )
    return columns


@isolated()
def cluster_images(
    run: Any,
    data: Any = None,
    *,
    clusters: int | None = None,
    out: str | Path | None = None,
    split: str | None = None,
    seed: int = 0,
    encoder: str | nn.Module | None = None,
    console: Console | None = None,
) -> dict[str, list[Any]]:
    """Group the images without labels, and show each group by a few of its images.

    Args:
        run: run folder; or, without one, the data itself, or a file of vectors made elsewhere
            (docs/neighbours.md).
        data: images to group. Default: the data of the run.
        clusters: number of groups; fewer if fewer images are distinct. Default: the number from 2
            to 60 with the largest silhouette (Rousseeuw 1987) on the plane, which keeps neighbours,
            where k-means finds the groups.
        out: page to write, .html, with a .csv beside it; neither may exist. Default: clusters.html
            in the run folder, which is replaced.
        split: part of the data; "all" for everything. Default: that of the run, of other data its
            training split.
        seed: random seed of the plane and of k-means.
        encoder: for data without a run: a timm model by name, hf:owner/name, pretrained, nearfar or
            a folder. Default: the best features at hand. In Python also the trained module of a
            run, if it was an object of your own.
        console: console for progress and messages.

    Returns:
        Columns "name", "cluster" (from 1, the largest first), "distance" (1 - cos of the features
        to the centre of the cluster) and, for images in files, "path"; in the order of the data.

    Raises:
        ValueError: for fewer images than clusters, or fewer than three.

    >>> found = nearfar.cluster_images("runs/photos", clusters=2)
    >>> sorted(set(found["cluster"]))
    [1, 2]
    """
    from nearfar.maps import clusters_of
    from nearfar.pages import lists
    from nearfar.progress import waiting
    from nearfar.run_features import open_featured, run_or_data

    run, console = run_or_data(run), console or Console()
    check_range("--clusters", clusters, 1, MOST_CLUSTERS)
    check_seed(seed)
    page = lists.output_of(run, out, "clusters", lists.TABLE)
    known = open_featured(run, data, split, encoder, console, least=max(3, clusters or 3))
    with waiting("grouping images"):
        found = clusters_of(known.features, clusters, seed)
    columns = {
        "name": list(known.images.names),
        "cluster": (found.number + 1).tolist(),
        "distance": found.distance.tolist(),
        **known.files(list(range(len(known.images)))),
    }
    count = int(found.number.max()) + 1
    about = f"{len(known.images)} images in {count} group{'s' * (count > 1)}"
    if count < (clusters or 0):
        about += f" and not {clusters}, since no more of them are distinct"
    elif clusters is None and found.scores:
        about += (
            f", the number of {min(found.scores)} to {max(found.scores)} with the "
            f"largest silhouette"
        )
        about += f" ({max(found.scores.values()):.2f})"
    table, groups = Table("group", "images", "at its centre"), []
    for number in range(1, count + 1):
        members = found.members(number - 1)
        centre, edge = members[:TYPICAL], members[TYPICAL:][-EDGE:]
        lines = [f"{found.distance[row]:.3f}" for row in centre]
        lines += [f"{found.distance[row]:.3f}, at the edge" for row in edge]
        figures = lists.figures_of(known, centre + edge, lines)
        groups.append(lists.Group(figures, f"Group {number}", f"{len(members)} images"))
        table.add_row(str(number), str(len(members)), Text(known.images.names[members[0]]))
    shown_about = f"{known.images.where}: {about}"
    lists.write_contact_sheet(page, "Groups of images", shown_about, CENTRES, groups=groups)
    lists.write_table(page.with_suffix(lists.TABLE), columns)
    console.print(table)
    console.print(Text(f"{about} -> {page} and {page.with_suffix(lists.TABLE).name}"))
    return columns
