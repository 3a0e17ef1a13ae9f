"""The tool that groups images without labels.

nearfar cluster runs/photos
nearfar cluster runs/photos --clusters 12 --out groups.html
nearfar cluster clip.parquet photos/
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from nearfar.tools.registry import Between, Seed, tool

if TYPE_CHECKING:
    from nearfar.embeddings import Embeddings
    from nearfar.tools.cluster.result import Groups

MOST_CLUSTERS = 1000


@tool(page="clusters", data="images to group", fewest=3)
def cluster(
    photos: Embeddings,
    *,
    clusters: Annotated[int | None, Between(1, MOST_CLUSTERS)] = None,
    seed: Seed = 0,
) -> Groups:
    """Group the images without labels, and show each group by a few of its images.

    Args:
        clusters: number of groups; fewer if fewer images are distinct. Default: the number from 2
            to 60 with the largest silhouette (Rousseeuw 1987) on the plane, which keeps neighbours,
            where k-means finds the groups.
        seed: random seed of the plane and of k-means.

    Returns:
        Columns "name", "cluster" (from 1, the largest first), "distance" (1 - cos of the features
        to the centre of the cluster) and, for images in files, "path"; in the order of the data.

    Raises:
        ValueError: for fewer images than clusters, or fewer than three.

    >>> found = nearfar.cluster("runs/photos", clusters=2)
    >>> sorted(set(found["cluster"]))
    [1, 2]
    """
    from nearfar.maps import clusters_of
    from nearfar.tools.cluster.result import Groups

    if clusters is not None and clusters > len(photos):
        raise ValueError(
            f"there are only {len(photos)} images in {photos.images.source}, and {clusters} are "
            "needed"
        )
    return Groups(photos, clusters_of(photos.features, clusters, seed), clusters)
