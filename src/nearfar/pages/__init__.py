"""Templates, the style sheet and scripts that several pages share, and what fills them."""

from nearfar.pages.report import write_report
from nearfar.pages.template import render_page, write_page

__all__ = ["render_page", "write_page", "write_report"]
