"""The papers' tables as data: what they claim, which runs would show it, and whether they did.

One YAML file a paper, in the form of docs/reproduce.md; `nearfar reproduce` runs them.
"""

from nearfar.papers.claims import Judgement, Place, Right, Values, holm, judge
from nearfar.papers.paper import (
    SIZES,
    TRAINED,
    Cell,
    Claim,
    Column,
    Paper,
    Row,
    Scale,
    Size,
    Table,
)
from nearfar.papers.picture import draw_curves, draw_histograms, draw_lines, draw_pictures, draw_rows
from nearfar.papers.reading import paper_names, read_paper

__all__ = [
    "SIZES",
    "TRAINED",
    "Cell",
    "Claim",
    "Column",
    "Judgement",
    "Paper",
    "Place",
    "Right",
    "Row",
    "Scale",
    "Size",
    "Table",
    "Values",
    "draw_curves",
    "draw_histograms",
    "draw_lines",
    "draw_pictures",
    "draw_rows",
    "holm",
    "judge",
    "paper_names",
    "read_paper",
]
