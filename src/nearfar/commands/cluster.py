"""Group the images without labels, and show each group by a few of its images.

nearfar cluster runs/photos
nearfar cluster runs/photos --clusters 12 --out groups.html
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from nearfar.run import Run

TYPICAL, EDGE = 12, 4  # images of a group on the page: from its centre, and from its edge
MOST_CLUSTERS = 1000
NOTE = "The images nearest to the centre of each group, then those farthest from it, with their distances to it."


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
) -> dict[str, list[Any]]:
    """Group the images without labels, and show each group by a few of its images.

    Args:
        run: run folder.
        data: images to group. Default: the data of the run.
        clusters: number of groups; fewer if fewer images are distinct. Default: the number from 2 to 60 with the
            largest silhouette (Rousseeuw 1987) on the plane, which keeps neighbours, where k-means finds the groups.
        out: page to write, .html, with a .csv beside it; neither may exist. Default: clusters.html in the run folder,
            which is replaced.
        split: part of the data. Default: that of the run.
        seed: random seed of the plane and of k-means.
        encoder: the trained module, if it was an object of your own.
        console: console for progress and messages.

    Returns:
        Columns "name", "cluster" (from 1, the largest first), "distance" (1 - cos of the features to the centre of the
        cluster) and, for images in files, "path"; in the order of the data.

    Raises:
        ValueError: for fewer images than clusters, or fewer than three.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from nearfar.maps import clusters_of
    from nearfar.messages import check_range
    from nearfar.pages import lists
    from nearfar.run import Run
    from nearfar.run_features import open_featured
    from nearfar.training.progress import shown
    from nearfar.training.settings import LARGEST_SEED

    console = console or Console()
    run = Run.of(run)
    check_range("--clusters", clusters, 1, MOST_CLUSTERS)
    check_range("--seed", seed, 0, LARGEST_SEED)
    page = lists.output_of(run, out, "clusters", lists.TABLE)
    known = open_featured(run, data, split, encoder, console, least=max(3, clusters or 3))
    with shown(console, "grouping images") as progress:
        found = clusters_of(known.features, clusters, seed, progress)
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
        about += f", the number of {min(found.scores)} to {max(found.scores)} with the largest silhouette"
        about += f" ({max(found.scores.values()):.2f})"
    elif clusters is None:
        about += ", as many as there are distinct images"
    table, groups = Table("group", "images", "at its centre"), []
    for number in range(1, count + 1):
        members = found.members(number - 1)
        centre, edge = members[:TYPICAL], members[TYPICAL:][-EDGE:]
        lines = [f"{found.distance[row]:.3f}" for row in centre]
        lines += [f"{found.distance[row]:.3f}, at the edge" for row in edge]
        figures = lists.figures_of(known.images, known.paths, centre + edge, lines)
        groups.append(lists.Group(figures, f"Group {number}", f"{len(members)} images"))
        table.add_row(str(number), str(len(members)), Text(known.images.names[members[0]]))
    lists.write_contact_sheet(page, "Groups of images", about, NOTE, groups=groups)
    lists.write_table(page.with_suffix(lists.TABLE), columns)
    console.print(table)
    console.print(Text(f"{about} -> {page} and {page.with_suffix(lists.TABLE).name}"))
    return columns
