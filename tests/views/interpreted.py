"""Views by the kernel in Triton's interpreter, on a CPU, against operations; errors as JSON.

Run by test_kernel.py in a process of its own, as Triton reads TRITON_INTERPRET when it is imported.
An error is the largest difference of two values of a view, normalised by a deviation of 0.25.
"""

import json
import os
import sys
from dataclasses import replace

os.environ["TRITON_INTERPRET"] = "1"

import jaxtyping
import torch

import tools.typechecker

jaxtyping.install_import_hook(
    "nearfar", f"{tools.typechecker.__name__}.checked"
)  # as tests/conftest.py does

from nearfar import triton_kernels  # noqa: E402
from nearfar.views import View, ViewPlan, fused, make_views, plan  # noqa: E402
from nearfar.views.make import apply_views  # noqa: E402
from nearfar.views.sampling import sample_views  # noqa: E402
from tests.standin.test_views import OPERATIONS, pictures  # noqa: E402

FULL = View(
    flip=0.5,
    flip_vertical=0.5,
    rot90=0.75,
    affine=0.6,
    degrees=30.0,
    translate=0.1,
    zoom=(0.8, 1.2),
    shear=10.0,
    jitter=0.9,
    brightness=0.4,
    contrast=0.4,
    saturation=0.4,
    hue=0.1,
    grayscale=0.2,
    drop=0.4,
    blur=0.6,
    solarize=0.3,
)
launches = []
launch = fused._launch


def counted(*given):
    launches.append(given)
    return launch(*given)


def both(images, the_plan, seed, **rows):
    """The largest difference between the kernel's views and those of operations."""
    channels = (images if isinstance(images, torch.Tensor) else images[0]).shape[1]
    made = []
    for kernel in (False, True):
        triton_kernels.compiles_kernels = lambda device, kernel=kernel: kernel
        generator = torch.Generator().manual_seed(seed)
        made.append(
            make_views(images, the_plan, generator, [0.45] * channels, [0.25] * channels, **rows)
        )
    return largest(*made)


def largest(expected, made):
    assert len(expected) == len(made)
    for view, other in zip(expected, made, strict=True):
        assert view.dtype == other.dtype and view.shape == other.shape
    return max((a - b).abs().max().item() for a, b in zip(expected, made, strict=True))


def report(name, error):
    """Print the error and the launches since the last."""
    assert not fused.KERNEL.failed, name
    print(json.dumps([name, error, len(launches)]), flush=True)
    launches.clear()


def named(name):
    """A plan by its name at 32 px, on noise, where neighbours differ most, unless images move: the
    places that they come from are numbers of float32, in PyTorch as well.
    """
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8, generator=generator)
    images = pictures(3, 32, count=3) if name == "documents" else noise
    report(name, both(images, plan(name, 32, 3), 5))


def operation(name, channels):
    """An operation alone, in views of two sides, from images that are not square."""
    images = pictures(channels, 24, 32, count=2)
    views = ViewPlan(name, (View(size=20, **OPERATIONS[name]), View(size=11, **OPERATIONS[name])))
    report(f"{name}, {channels}", both(images, views, 5))


def everything(channels, side, size, seed, count=2, bits=8):
    """All operations at once."""
    images = pictures(channels, side, count=count, bits=bits)
    views = ViewPlan("all", (replace(FULL, size=size), replace(FULL, size=size)))
    report(f"all, {channels} x {side} to {size}, {seed}, {bits}", both(images, views, seed))


def crops():
    """Crops that workers made: a launch for each."""
    the_plan = ViewPlan("crops", (replace(FULL, size=16), replace(FULL, size=9)))
    report("crops", both([pictures(3, view.size, count=2) for view in the_plan.views], the_plan, 3))


def ahead():
    """Rows of a table of several batches, and a part of a batch."""
    images, the_plan = pictures(3, 16, count=3), ViewPlan("two", (FULL, replace(FULL, size=8)))
    moments = [0.45] * 3, [0.25] * 3
    generators = [torch.Generator().manual_seed(seed) for seed in range(3)]
    sampled = sample_views(the_plan, generators, 5, [(16, 16)] * 2, slice(1, 4))
    sampled = replace(sampled, table=fused.pack(sampled))
    errors = []
    for step, rows in ((0, slice(0, 3)), (2, slice(1, 3))):
        part = sampled[3 * step : 3 * step + 3][rows]
        made = []
        for kernel in (False, True):
            triton_kernels.compiles_kernels = lambda device, kernel=kernel: kernel
            made.append(apply_views(images[rows], the_plan, part, *moments))
        errors.append(largest(*made))
    report("ahead", max(errors))


if __name__ == "__main__":
    torch.set_num_threads(1)
    fused._launch, fused.BLOCK = counted, 1024
    everything(3, 16, 16, seed=1)
    if sys.argv[1:] == ["few"]:
        sys.exit(0)
    crops()
    ahead()
    for name in OPERATIONS:
        if name != "noise":
            operation(name, 3)
            operation(name, 1)
    for name in ("saclr-cifar", "solo-beta", "microscope", "documents"):
        named(name)
    everything(5, 16, 16, seed=2)
    everything(1, 28, 28, seed=3)
    everything(3, 72, 40, seed=4, bits=16)
    everything(3, 30, 64, seed=6, bits=16)
    fused.BLOCK = 128  # the last block of a view is not full
    everything(3, 15, 15, seed=7)
    sys.exit(0)
