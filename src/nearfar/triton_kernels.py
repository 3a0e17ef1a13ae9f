"""A kernel in Triton as one of two ways: what chooses it, and what happens where it fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from nearfar.device import compiles_kernels
from nearfar.progress import log

Result = TypeVar("Result")


@dataclass
class TritonKernel:
    """A kernel, and the operations of PyTorch that do its work elsewhere.

    work: what the kernel is for, in words. otherwise: the name of those operations, and the value
    of the environment variable `switch` that chooses them. failed: whether the kernel could not be
    imported, compiled or run once; then it is left alone.
    """

    work: str
    otherwise: str
    switch: str
    failed: bool = False

    def chosen_on(self, device: torch.device) -> bool:
        """Return whether the kernel would be tried on a device: never inside torch.compile."""
        return (
            not torch.compiler.is_compiling()
            and compiles_kernels(device)
            and not self.failed
            and os.environ.get(self.switch) != self.otherwise
        )

    def tried(self, run: Callable[[], Result]) -> Result | None:
        """Return what the kernel makes; None, with a warning, where it fails.

        Memory that runs out is no failure of the kernel: that error goes on.
        """
        try:
            return run()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self.failed = True
            log.warning(
                "the kernel for %s failed (%s: %s): slower %s of plain PyTorch do its work; "
                "%s=%s chooses them from the start",
                self.work,
                type(error).__name__,
                (str(error).strip().splitlines() or [""])[-1][:200],
                self.otherwise,
                self.switch,
                self.otherwise,
            )
            return None
