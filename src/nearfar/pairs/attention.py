"""Queries against a queue of keys without gradient: log-sum-exp and mean key, never a [rows, keys] matrix."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.pairs.precision import accumulation_dtype, refuse_double_backward, without_autocast

_TILE_BYTES = {"cpu": 2**21}  # about one core's L2 cache; elsewhere:
_TILE_BYTES_ELSEWHERE = 2**23


def attend(
    query: Float[Tensor, "rows dim"], keys: Float[Tensor, "keys dim"], temperature: float
) -> tuple[Float[Tensor, " rows"], Float[Tensor, "rows dim"]]:
    """Log-sum-exp over the keys of query.key / temperature, and the softmax-weighted mean key, for each query.

    The log-sum-exp is differentiable with respect to `query` (its gradient is the mean key / temperature, so the
    backward pass costs nothing more); the mean key and `keys` carry no gradient. Both results are float32, or
    float64 if an input is float64. Rows need not be unit vectors. Memory: one tile and the two results.

    Raises ValueError without keys, for a temperature that is not positive, or for unequal dimensions.
    """
    if keys.ndim != 2 or query.ndim != 2 or keys.shape[1] != query.shape[1]:
        raise ValueError(
            f"query [rows, dim] and keys [keys, dim] do not fit: {tuple(query.shape)}, {tuple(keys.shape)}"
        )
    if len(keys) < 1:
        raise ValueError("the queue is empty: at least one key is needed")
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    return _Attend.apply(query, keys.detach(), float(temperature))


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query: Tensor, keys: Tensor, temperature: float) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
        dtype = accumulation_dtype(query, keys)
        with without_autocast(query):
            if query.device.type == "cpu" and keys.dtype == dtype:
                log_sum_exp, mean_key = _flash(query.to(dtype), keys, temperature)
            else:
                log_sum_exp, mean_key = _tiles(query.to(dtype), keys, temperature)
        ctx.save_for_backward(mean_key)
        ctx.temperature, ctx.query_dtype = temperature, query.dtype
        ctx.mark_non_differentiable(mean_key)
        return log_sum_exp, mean_key

    @staticmethod
    def backward(ctx, grad: Tensor, _: Tensor | None) -> tuple[Tensor, None, None]:  # type: ignore[no-untyped-def]
        refuse_double_backward()
        (mean_key,) = ctx.saved_tensors
        with without_autocast(mean_key):
            return (mean_key * (grad / ctx.temperature).unsqueeze(1)).to(ctx.query_dtype), None, None


def _flash(query: Tensor, keys: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """torch's own CPU attention kernel, which also returns the log-sum-exp; up to a fifth faster than tiles."""
    q, k = query[None, None], keys[None, None]
    mean_key, log_sum_exp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, k, scale=1 / temperature)
    return log_sum_exp[0, 0], mean_key[0, 0].contiguous()


def _tiles(query: Tensor, keys: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The same by tiles of keys with a running maximum: any device and dtype.

    Also the form for GPUs: a few hundred queries leave most of the device idle in torch's attention kernels,
    while each of these products fills it.
    """
    rows, dim = query.shape
    tile_bytes = _TILE_BYTES.get(query.device.type, _TILE_BYTES_ELSEWHERE)
    width = max(1, min(len(keys), tile_bytes // (query.element_size() * max(rows, dim))))
    scaled = query / temperature
    buffer = query.new_empty(rows * width)
    maximum = query.new_full((rows, 1), -torch.inf)
    mass = query.new_zeros(rows, 1)
    weighted = query.new_zeros(rows, dim)
    for tile in keys.split(width):
        tile = tile.to(query.dtype)
        logits = torch.mm(scaled, tile.T, out=buffer[: rows * len(tile)].view(rows, len(tile)))
        higher = torch.maximum(maximum, logits.amax(1, keepdim=True))
        weights = logits.sub_(higher).exp_()
        shrink = maximum.sub_(higher).exp_()
        mass.mul_(shrink).add_(weights.sum(1, keepdim=True))
        weighted.mul_(shrink).addmm_(weights, tile)
        maximum = higher
    return (maximum + mass.log()).squeeze(1), weighted.div_(mass)
