"""Warnings of torch on CUDA's tools, on a machine without a GPU, do not reach the user."""

import pytest
import torch
from torch.utils import cpp_extension

from nearfar.device import quiet_compiler


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU is told")
def test_a_machine_without_a_gpu_hears_nothing_of_cuda(monkeypatch, caplog):
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda")
    cpp_extension.logger.setLevel("WARNING")
    cpp_extension._find_cuda_home()
    assert "CUDA_HOME" in caplog.text
    caplog.clear()
    quiet_compiler()
    cpp_extension._find_cuda_home()
    assert caplog.text == ""
