"""Group the images without labels, and show each group by a few of its images.

nearfar cluster runs/photos
nearfar cluster runs/photos --clusters 12 --out groups.html
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import nn

from nearfar.commands.listing import TABLE, Columns, output_of, write_table
from nearfar.commands.opening import shown
from nearfar.commands.run import Run
from nearfar.commands.run_features import Featured, open_featured
from nearfar.maps import Clusters, clusters_of
from nearfar.messages import check_range
from nearfar.pages.contact_sheets import Group, figures_of, write_contact_sheet
from nearfar.training.seeding import LARGEST_SEED

TYPICAL, EDGE = 12, 4  # images of a cluster that are shown: from its middle, and from its edge
MOST_CLUSTERS = 1000
NOTE = "The images nearest to the middle of each group, then those farthest from it, with their distances to it."


def cluster_images(
    run: str | Path | Run,
    data: Any = None,
    *,
    clusters: int | None = None,
    out: str | Path | None = None,
    split: str | None = None,
    seed: int = 0,
    encoder: nn.Module | None = None,
    console: Console | None = None,
) -> Columns:
    """Group the images without labels, and show each group by a few of its images.

    Args:
        run: run folder.
        data: images to group. Default: the data of the run.
        clusters: how many; fewer where fewer images are different. Default: the number from 2 to 60 with the largest
            silhouette (Rousseeuw 1987) on a plane that keeps neighbours, where they are grouped.
        out: page to write, .html, with a .csv beside it; neither may exist.
            Default: clusters.html in the run folder, replaced if it is there.
        split: part of the data. Default: that of the run.
        seed: of the plane and of k-means.
        encoder: the module that was trained, where it was an object of your own.
        console: where it is said what was found and written.

    Returns:
        Columns "name", "cluster" (from 1, the largest first), "distance" (1 - cos of the features to the middle of the
        cluster) and, where images are files, "path"; in the order of the data.

    Raises:
        ValueError: for fewer images than clusters, or fewer than three.
    """
    console = console or Console()
    run = Run.of(run)
    check_range("--clusters", clusters, 1, MOST_CLUSTERS)
    check_range("--seed", seed, 0, LARGEST_SEED)
    page = output_of(run, out, "clusters", TABLE)
    known = open_featured(run, data, split, encoder, console, least=max(3, clusters or 3))
    with shown(console, "grouping images") as progress:
        found = clusters_of(known.features, clusters, seed, progress)
    columns: Columns = {
        "name": list(known.images.names),
        "cluster": (found.number + 1).tolist(),
        "distance": found.distance.tolist(),
        **known.files(list(range(len(known.images)))),
    }
    count = int(found.number.max()) + 1
    about = f"{len(known.images)} images in {count} group{'s' * (count > 1)}"
    if count < (clusters or 0):
        about += f" and not {clusters}, since no more of them are different"
    elif clusters is None:
        about += f", {_why(found)}"
    write_contact_sheet(page, "Groups of images", about, NOTE, groups=[_group(known, found, i) for i in range(count)])
    write_table(page.with_suffix(TABLE), columns)
    table = Table("group", "images", "in its middle")
    for number in range(count):
        members = _members(found, number)
        table.add_row(str(number + 1), str(len(members)), Text(known.images.names[members[0]]))
    console.print(table)
    console.print(Text(f"{about} -> {page} and {page.with_suffix(TABLE).name}"))
    return columns


def _why(found: Clusters) -> str:
    if not found.scores:
        return "as many as there are different images"
    best = max(found.scores.values())
    return f"the number of {min(found.scores)} to {max(found.scores)} with the largest silhouette ({best:.2f})"


def _members(found: Clusters, number: int) -> list[int]:
    """Images of a cluster, from its middle to its edge."""
    rows = (found.number == number).nonzero()[:, 0]
    return rows[found.distance[rows].argsort(stable=True)].tolist()


def _group(known: Featured, found: Clusters, number: int) -> Group:
    members = _members(found, number)
    middle, edge = members[:TYPICAL], members[TYPICAL:][-EDGE:]
    lines = [f"{float(found.distance[row]):.3f}" for row in middle]
    lines += [f"{float(found.distance[row]):.3f}, at the edge" for row in edge]
    figures = figures_of(known.images, known.paths, middle + edge, lines)
    return Group(figures, f"Group {number + 1}", f"{len(members)} images")
