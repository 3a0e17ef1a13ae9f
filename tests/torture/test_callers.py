"""Public functions in programs that have set modes of their own: all of them work, and leave the
process as it was.
"""

import locale
import logging
import os
import shutil
import signal
import sys
import threading
import warnings

import matplotlib
import numpy as np
import PIL.Image
import PIL.ImageFile
import pytest
import sklearn
import torch

import nearfar
from tests.test_isolation import CALLS, MODES, modes

OURS = {"THP_MEM_ALLOC_ENABLE", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}
"""What `nearfar.allocator` sets for new processes."""
TORCHS = {"TORCHINDUCTOR_CACHE_DIR", "PYTORCH_NVML_BASED_CUDA_CHECK"}


def process():
    """What a program can set of its process, by name."""
    names = ["INT", "TERM", "HUP", "CHLD", "ALRM", "PIPE"]
    return {
        "modes": modes(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "products": torch.get_float32_matmul_precision(),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        "anomalies": torch.is_anomaly_enabled(),
        "warnings": list(warnings.filters),
        "logging": (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
        "folder": os.getcwd(),
        "pillow": (PIL.Image.MAX_IMAGE_PIXELS, PIL.ImageFile.LOAD_TRUNCATED_IMAGES),
        "figures": dict(matplotlib.rcParams),
        "scikit-learn": sklearn.get_config(),
        "environment": {k: v for k, v in os.environ.items() if k not in OURS | TORCHS},
        "signals": [signal.getsignal(getattr(signal, f"SIG{name}")) for name in names],
        "streams": (sys.stdout, sys.stderr, sys.stdin),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook),
        "numbers": (np.get_printoptions(), locale.setlocale(locale.LC_ALL)),
        "paths": list(sys.path),
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.usefixtures("unchecked")
def test_every_function_works_in_every_mode_and_leaves_the_process_as_it_was(
    name, mode, trained, images_file, tmp_path, quiet
):
    getattr(nearfar, name, None)  # imported: libraries add filters of warnings when they are
    run = nearfar.Run(shutil.copytree(trained.path, tmp_path / "run"))
    with MODES[mode]():
        before = process()
        CALLS[name](run, images_file, tmp_path, quiet)
        after = process()
    assert {key for key in before if after[key] != before[key]} == set()
