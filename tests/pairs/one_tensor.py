"""Reductions of one tensor as both views by torch.compile, in a process of its own: the compiler
refuses the type checks of the tests. Prints the largest difference from the plain call, or the
error, of each as JSON.
"""

import json

import torch

from nearfar.pairs import (
    cosine,
    log_sum_exp,
    logistic_sum,
    per_image_log_sum_exp,
    relation_sum,
    sampled_sum,
    weighted_sum,
)

IMAGES, KERNEL = 6, cosine(0.5)
ONES, NEXT = torch.ones(2, IMAGES), torch.arange(IMAGES).roll(1)[:, None]
REDUCED = {
    "log_sum_exp": lambda z: log_sum_exp(z, z, 0.5)[1].sum(),
    "per_image_log_sum_exp": lambda z: per_image_log_sum_exp(z, z, ONES[0] / 2)[1].sum(),
    "logistic_sum": lambda z: logistic_sum(z, z, 2 * ONES[0, 0], ONES[0, 0])[1],
    "weighted_sum": lambda z: weighted_sum(z, z, ONES, KERNEL)[1],
    "sampled_sum": lambda z: sampled_sum(z, z, NEXT, ONES, KERNEL)[1],
    "relation_sum": lambda z: relation_sum(z, z, z.detach().roll(1, 0), 0.5),
}


def step(call):
    rows = torch.randn(IMAGES, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    value = call(rows)
    return torch.cat([value.detach()[None], torch.autograd.grad(value, rows)[0].flatten()])


for name, reduced in REDUCED.items():
    try:
        made = step(torch.compile(reduced, backend="aot_eager", fullgraph=True))
        result = float((made - step(reduced)).abs().max())
    except Exception as error:
        result = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    print(json.dumps([name, result]))
