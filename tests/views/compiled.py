"""Compile the kernel of the views for GPUs that are not there, and print what it uses as JSON.

Run by test_kernel.py in a process of its own, in which Triton does not interpret.
"""

import argparse
import json
import sys
import time

import jaxtyping
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import tools.typechecker

jaxtyping.install_import_hook(
    "nearfar", f"{tools.typechecker.__name__}.checked"
)  # as tests/conftest.py does

from nearfar import triton_kernels  # noqa: E402
from nearfar.views import View, fused, fused_kernel, make_views, plan  # noqa: E402
from tests.pairs.compiled import Driver, Launched, usage_of  # noqa: E402

POINTERS = ("source_ptr", "table_ptr", "moments_ptr", "scratch_ptr", "out_ptr")


def compile_view(capability, channels, source, side, dtype, changes):
    kernel = fused_kernel.make_view
    view = View(size=side, **dict.fromkeys(changes, 0.5))
    constants = fused.constants((channels, source, source), side, [view])
    warps = constants.pop("num_warps")
    names = kernel.arg_names
    types = dict.fromkeys(POINTERS, "*fp32") | {"source_ptr": f"*{dtype}"}
    types |= dict.fromkeys(("images", "rows", "channels"), "i32")
    divisible = {(names.index(name),): [["tt.divisibility", 16]] for name in POINTERS}
    source = ASTSource(
        fn=kernel,
        signature={**types, **dict.fromkeys(constants, "constexpr")},
        constexprs=constants,
        attrs=divisible,
    )
    began = time.perf_counter()
    made = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps}
    )
    return usage_of(made) | {"seconds": time.perf_counter() - began}


def launches(numbers):
    """Images of so many channels: types and constants as Triton sees them at a launch."""
    triton.runtime.driver.set_active(Driver())
    fused_kernel.make_view = launched = Launched(fused_kernel.make_view)
    triton_kernels.compiles_kernels = lambda device: True
    for channels in numbers:
        images = torch.zeros(2, channels, 16, 16, dtype=torch.uint8)
        moments = [0.5] * channels, [0.25] * channels
        make_views(images, plan("weak", 16, channels), torch.Generator(), *moments)
    return {"failed": fused.KERNEL.failed, "launches": launched.count}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", help="a list of [name, arguments of compile_view] as JSON")
    cases = json.loads(parser.parse_args().cases)
    for name, given in cases:
        try:
            reported = compile_view(*given)
        except Exception as error:
            reported = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps([name, reported]), flush=True)
    channels = {given[1] for _, given in cases}
    if len(channels) > 1:
        print(json.dumps(["as Python launches it", launches(channels)]), flush=True)
    sys.exit(0)
