"""Out of memory on the GPU: what is said, and the size that --micro-batch auto finds."""

import pytest
import torch

import nearfar
from nearfar.cli import main
from nearfar.messages import to_argv
from nearfar.networks import SmallNet
from nearfar.training.step import GradientStep

FITS = 10  # views whose graph the memory holds
SETTINGS = dict(
    method="simclr",
    encoder="tiny",
    epochs=1,
    batch_size=16,
    held_out=16,
    precision="32-true",
    log_every=1,
)


@pytest.fixture
def little_memory(monkeypatch):
    """A GPU that is full when the encoder keeps a graph of more than `FITS` views, as torch says
    so.
    """
    forward = SmallNet.forward

    def limited(self, images):
        if torch.is_grad_enabled() and images.device.type != "cpu" and len(images) > FITS:
            raise torch.cuda.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total ..."
            )
        return forward(self, images)

    monkeypatch.setattr(SmallNet, "forward", limited)


@pytest.mark.parametrize("micro_batch", [None, 8])
def test_out_of_memory_names_what_helps(micro_batch, little_memory, images_file, tmp_path, capsys):
    options = (
        SETTINGS
        | {"accelerator": "gpu"}
        | ({} if micro_batch is None else {"micro_batch": micro_batch})
    )
    assert main(["pretrain", images_file, "--out", str(tmp_path / "run"), *to_argv(options)]) == 1
    [message] = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("nearfar: ")
    ]
    assert "out of memory" in message and "try --micro-batch auto" in message


@pytest.mark.slow
def test_auto_finds_a_size_and_trains_as_that_size_does(
    little_memory, images_file, tmp_path, monkeypatch
):
    """Two views of 16 images, of 8 and of 4: 8 views fit and 16 do not."""
    tried, gradient = [], GradientStep._gradient

    def watched(self, *given):
        tried.append(self.micro_batch)
        return gradient(self, *given)

    monkeypatch.setattr(GradientStep, "_gradient", watched)
    runs = [
        nearfar.pretrain(
            images_file,
            out=tmp_path / str(size),
            micro_batch=size,
            accelerator="gpu",
            **SETTINGS,
        )
        for size in ("auto", 4)
    ]
    first, second = ([line["loss"] for line in run.metrics if "loss" in line] for run in runs)
    assert tried[:6] == [None, 8, 4, 4, 4, 4] and len(first) == 4
    assert first == pytest.approx(second, rel=1e-6)
