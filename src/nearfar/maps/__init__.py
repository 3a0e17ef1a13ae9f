"""Two-dimensional maps of a data set: the layouts, how true they are, a picture and an interactive page."""

from nearfar.maps.cluster_embedding import ClusterEmbedding
from nearfar.maps.draw import draw_map
from nearfar.maps.page import write_map_page
from nearfar.maps.projector import fit_map
from nearfar.maps.quality import MapQuality, map_quality

__all__ = ["ClusterEmbedding", "MapQuality", "draw_map", "fit_map", "map_quality", "write_map_page"]
