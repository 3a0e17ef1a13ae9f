"""Images with their features: what every tool takes, made from a run, from data or from vectors.

Read embeddings.py (the class), sources.py (what a target can be), untrained.py (features that need
no training), store.py (features that a run folder keeps), queries.py (images that a user names).
"""

from nearfar.embeddings.embeddings import Embeddings
from nearfar.embeddings.sources import (
    OfData,
    OfEmbeddings,
    OfRun,
    OfVectors,
    Opening,
    Source,
    resolve,
)

__all__ = ["Embeddings", "Opening", "resolve"]
