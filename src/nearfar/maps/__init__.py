"""Two-dimensional maps of a data set: the projection, a picture of it and an interactive page."""

from nearfar.maps.draw import draw_map
from nearfar.maps.page import write_map_page
from nearfar.maps.projector import fit_map

__all__ = ["draw_map", "fit_map", "write_map_page"]
