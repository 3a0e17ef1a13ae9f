"""Every method trains on the stand-in as on the CPU; nothing in a step waits for the device."""

import json

import numpy as np
import pytest
import torch
from rich.console import Console

import nearfar
from nearfar.methods import method_class, method_names
from tests.standin.device import NAME, synchronisations


def train(name, folder, accelerator):
    images = np.random.default_rng(0).integers(0, 256, (44, 16, 16, 3), dtype=np.uint8)
    fixed = dict(encoder="tiny", precision="32-true", epochs=3 / 2, batch_size=16, micro_batch=8, log_every=1)
    small = {"queue_size": 32} if hasattr(method_class(name).from_recipe("small"), "queue_size") else {}
    nearfar.pretrain(
        images, method=name, out=str(folder), accelerator=accelerator, **fixed, **small, console=Console(quiet=True)
    )
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.parametrize("name", method_names())
def test_a_method_trains_as_on_the_cpu(name, tmp_path):
    with synchronisations() as waits:
        losses = train(name, tmp_path / "there", NAME)
    for wait in sorted(set(waits)):
        print(wait)
    assert losses == pytest.approx(train(name, tmp_path / "here", "cpu"), rel=1e-4)
