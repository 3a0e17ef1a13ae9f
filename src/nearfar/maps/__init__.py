"""Two-dimensional maps of a data set: layouts, how true they are, groups and a picture."""

from nearfar.maps.cluster_embedding import ClusterEmbedding
from nearfar.maps.clusters import Clusters, clusters_of
from nearfar.maps.draw import draw_map
from nearfar.maps.finetune import finetune_map
from nearfar.maps.placement import NeighbourPlacement
from nearfar.maps.projector import Projector, fit_map, fit_projector
from nearfar.maps.quality import MapQuality, map_quality
from nearfar.maps.saved import SavedMap, load_map, save_map

__all__ = [
    "ClusterEmbedding",
    "Clusters",
    "MapQuality",
    "NeighbourPlacement",
    "Projector",
    "SavedMap",
    "clusters_of",
    "draw_map",
    "finetune_map",
    "fit_map",
    "fit_projector",
    "load_map",
    "map_quality",
    "save_map",
]
