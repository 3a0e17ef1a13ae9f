"""Every method plans and trains as it did when tests/goldens/methods.json was written.

The plan is config.yaml of a run of five steps; then come the five losses, and loss and norms of the
gradients of fixed views. `python -m tests.goldens.test_methods` writes it anew; a change of it
belongs into the changelog.
"""

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import nearfar
from nearfar.methods import Model, method_class, method_names
from nearfar.networks import build_backbone

pytestmark = pytest.mark.usefixtures("no_pages")

KEPT = Path(__file__).with_name("methods.json")


def recorded(name: str, folder: Path) -> dict[str, Any]:
    images = np.random.default_rng(0).integers(0, 256, (44, 16, 16, 3), dtype=np.uint8)
    fixed: dict[str, Any] = dict(
        encoder="tiny", precision="32-true", epochs=5 / 2, batch_size=16, log_every=1
    )
    small = (
        {"queue_size": 32} if hasattr(method_class(name).from_recipe("small"), "queue_size") else {}
    )
    nearfar.pretrain(images, method=name, out=str(folder), **fixed, **small)
    plan = yaml.safe_load((folder / "config.yaml").read_text())
    del plan["out"], plan["data"], plan["threads"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]

    torch.manual_seed(0)
    method = method_class(name).from_recipe("small")
    model = Model(method, build_backbone("tiny", image_size=16, channels=3), 160).train()
    views = [torch.randn(160, 3, 16, 16) for _ in method.views]
    torch.manual_seed(1)
    loss = model.compute_loss(model(views), torch.arange(160))
    loss.backward()
    norms = {n: p.grad.norm().item() for n, p in model.named_parameters() if p.grad is not None}
    return {"plan": plan, "losses": losses, "loss": loss.item(), "gradients": norms}


def differences(now: Any, then: Any, path: str = "") -> list[str]:
    """Paths at which two trees of plain values differ by more than rounding."""
    if isinstance(now, dict) and isinstance(then, dict):
        keys = sorted({*now, *then})
        return [
            difference
            for key in keys
            for difference in differences(now.get(key), then.get(key), f"{path}/{key}")
        ]
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        return [
            difference
            for place, pair in enumerate(zip(now, then, strict=True))
            for difference in differences(*pair, f"{path}/{place}")
        ]
    if (
        isinstance(now, float)
        and isinstance(then, float)
        and math.isclose(now, then, rel_tol=2e-3, abs_tol=1e-5)
    ):
        return []
    return [] if now == then else [f"{path}: {then!r} became {now!r}"]


@pytest.mark.parametrize("name", method_names())
def test_a_method_plans_and_trains_as_it_did(name, tmp_path):
    assert (
        differences(
            json.loads(json.dumps(recorded(name, tmp_path / "run"))),
            json.loads(KEPT.read_text())[name],
        )
        == []
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        recordings = {name: recorded(name, Path(scratch, name)) for name in method_names()}
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(recording)}" for name, recording in recordings.items()
    )
    KEPT.write_text(f"{{\n{lines}\n}}\n")
