"""The check of types and shapes that tests/conftest.py puts around the functions of the rooms that
compute with arrays. Types elsewhere are mypy's work: checking them at each call as well makes tests
slower.
"""

import jaxtyping
from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int will do for a float
ROOMS = (
    "losses",
    "pairs",
    "views",
    "networks",
    "methods",
    "neighbours",
    "maps",
    "evaluation",
    "embeddings",
)


def install() -> None:
    """Have the modules of these rooms checked when they are imported."""
    jaxtyping.install_import_hook([f"nearfar.{room}" for room in ROOMS], f"{__name__}.checked")
