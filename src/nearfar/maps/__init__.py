"""Two-dimensional maps of a data set: layouts, their quality and clusters."""

from nearfar.maps.cluster_embedding import ClusterEmbedding, NeighbourPlacement
from nearfar.maps.clusters import Clusters, clusters_of
from nearfar.maps.layouts import LAYOUTS, Map, check_layout, find_map, lay_out, load_map, origin, save_map
from nearfar.maps.projector import Projector, finetune_map, fit_projector
from nearfar.maps.quality import MapQuality, map_quality

__all__ = [
    "LAYOUTS",
    "ClusterEmbedding",
    "Clusters",
    "Map",
    "MapQuality",
    "NeighbourPlacement",
    "Projector",
    "check_layout",
    "clusters_of",
    "find_map",
    "finetune_map",
    "fit_projector",
    "lay_out",
    "load_map",
    "map_quality",
    "origin",
    "save_map",
]
