"""Reductions over pairs of embeddings in linear memory: exact, symmetric where they can be, never
an n x n matrix.

Each returns the positives' logits and a number per row (or one for all) over the negatives; a loss
is a few lines of O(batch) arithmetic on these. Rows are raw embeddings of two views, normalised
inside where the kernel needs it.
"""

from nearfar.pairs.attention import attend, attend_in_batch
from nearfar.pairs.exponential import log_sum_exp, per_image_log_sum_exp
from nearfar.pairs.kernels import Kernel, cauchy, cosine, gaussian
from nearfar.pairs.logistic import logistic_sum
from nearfar.pairs.relations import relation_sum
from nearfar.pairs.shares import gather_rows, shared_rows
from nearfar.pairs.weighted import sample_order, sample_others, sampled_sum, weighted_sum

__all__ = [
    "Kernel",
    "attend",
    "attend_in_batch",
    "cauchy",
    "cosine",
    "gather_rows",
    "gaussian",
    "log_sum_exp",
    "logistic_sum",
    "per_image_log_sum_exp",
    "relation_sum",
    "sample_order",
    "sample_others",
    "sampled_sum",
    "shared_rows",
    "weighted_sum",
]
