"""Two-dimensional maps of a data set: layouts, their quality and clusters."""

from nearfar.maps.cluster_embedding import ClusterEmbedding, NeighborInterpolation
from nearfar.maps.clusters import clusters_of
from nearfar.maps.layouts import (
    LAYOUTS,
    Map,
    check_layout,
    digests_of,
    find_map,
    fit_layout,
    load_map,
    map_fingerprint,
    save_map,
)
from nearfar.maps.projector import Projector, finetune_map, fit_projector
from nearfar.maps.quality import MapQuality, map_quality

__all__ = [
    "ClusterEmbedding",
    "Map",
    "MapQuality",
    "Projector",
    "fit_projector",
    "load_map",
    "map_quality",
    "save_map",
]
