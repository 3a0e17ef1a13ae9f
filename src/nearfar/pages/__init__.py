"""Pages: templates, the style sheet and scripts in `templates/`, and the functions that fill
them.
"""

from nearfar.pages.map import write_map_page

__all__ = ["write_map_page"]
