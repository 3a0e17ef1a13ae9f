"""Compile the kernel of the pairs for GPUs that are not there, and print what it uses as JSON.

Run by test_kernel.py in a process of its own, in which Triton does not interpret.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
from nearfar.losses import SigCLR, SimCLR  # noqa: E402
from nearfar.pairs import attend, fused, fused_kernel  # noqa: E402
from nearfar.pairs.kernels import Form  # noqa: E402

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
WHOLE = ["rows", "columns", "per_split", "start", "half", "period"]
TYPES = {
    **dict.fromkeys(("x_ptr", "x_low_ptr", "y_ptr", "y_low_ptr"), "*bf16"),
    **dict.fromkeys(("x_numbers_ptr", "y_numbers_ptr", "learned_ptr"), "*fp32"),
    **dict.fromkeys(("sums_ptr", "gradient_ptr"), "*fp32"),
    **dict.fromkeys(WHOLE, "i32"),
    **dict.fromkeys(("scale", "bias"), "fp32"),
}


def compile_visit(capability, form, sums, gradient, low, dim=128, even=True, masked=True):
    rows, columns, warps, stages = fused_kernel.tile_of(form, low, capability >= 90)
    constants = dict(
        DIM=dim,
        FORM=form.value,
        LOW=low,
        SUMS=sums,
        GRADIENT=gradient,
        MASK=masked,
        EVEN=even,
        LEARNED=form is Form.LOGISTIC,
        ROWS=rows,
        COLUMNS=columns,
    )
    names = fused_kernel.visit.arg_names
    aligned = ["per_split", *(["rows", "columns"] if even else [])]
    aligned += [name for name in names if name.endswith("_ptr")]
    divisible = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(
        fn=fused_kernel.visit,
        signature={**TYPES, **dict.fromkeys(constants, "constexpr")},
        constexprs=constants,
        attrs=divisible,
    )
    began = time.perf_counter()
    made = triton.compile(
        source,
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True},
    )
    products = made.asm["ptx"].count("wgmma.mma_async") + len(
        re.findall(r"\bmma\.sync", made.asm["ptx"])
    )
    return usage_of(made) | {"products": products, "seconds": time.perf_counter() - began}


def usage_of(made):
    """Registers, bytes that are spilled, and bytes of shared memory of a compiled kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [CUOBJDUMP, "--dump-resource-usage", file.name], capture_output=True, text=True
        ).stdout
    used = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    return {
        "registers": used["REG"],
        "spilled": used["LOCAL"] + used["STACK"],
        "shared": made.metadata.shared,
    }


class Driver:
    """A driver of a GPU that is not there: enough for a launch that ends before the kernel runs."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


class Launched:
    """The kernel as Python launches it, with its types and constants as Triton sees them there,
    compiled and not run.
    """

    def __init__(self, kernel):
        self.kernel, self.count = kernel, 0

    def __getitem__(self, grid):
        def launch(*given, **named):
            self.kernel.warmup(*given, grid=grid, **named)
            self.count += 1

        return launch


def launches():
    """Losses in last tiles that are not full, narrow rows, a learned number, a single query."""
    triton.runtime.driver.set_active(Driver())
    fused_kernel.visit = launched = Launched(fused_kernel.visit)
    triton_kernels.compiles_kernels = fused.has_warpgroups = lambda device: True
    narrow = [torch.randn(45, 24, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)]
    query = torch.randn(1, 128, requires_grad=True)
    for name, work in (
        ("SimCLR", lambda: SimCLR()(*narrow).backward()),
        ("SigCLR, learned", lambda: SigCLR(learn_temperature=True)(*narrow).backward()),
        ("queue", lambda: attend(query, torch.randn(64, 128), 0.1)[0].sum().backward()),
    ):
        work()
        print(
            json.dumps([name, {"failed": fused.KERNEL.failed, "launches": launched.count}]),
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", help="a list of [name, arguments of compile_visit] as JSON")
    for name, (form, *given) in json.loads(parser.parse_args().cases):
        try:
            reported = compile_visit(given[0], Form[form], *given[1:])
        except Exception as error:
            reported = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps([name, reported]), flush=True)
    launches()
    sys.exit(0)
