"""Every method trains on the GPU as on the CPU, and no step waits for the device."""

import numpy as np
import pytest

import nearfar
from nearfar.methods import method_class, method_names
from tests.standin.test_losses import EIGH

MAY_WAIT = {
    "model.to(process.device)": "the start of the run",
    "super()._apply(fn, recurse)": "the same, of the momentum encoder",
    "mean = (loss_sum / loss_count).item()": "a line of metrics",
    "name: float(value)": "the same",
    "if isinstance(value, torch.Tensor) and bool(value.isfinite().all())": "a checkpoint",
    "return {name: value.detach().cpu().contiguous().clone() for name, value in "
    "state.items()}": "the saved encoder",
    "return torch.stack([model.online[1](h) for h in features]).float().cpu(), features[": "health",
    "].float().cpu()": "health",
    "pixels = validation.gather(torch.arange(rows.start, rows.stop)).to(device)": "the same",
    "encoder.to(find_device())": "the nearest images in the report",
    "out[index] = features.float().cpu()": "the same",
    EIGH: "torch's eigenvalues always wait; LORAC's are of a matrix as small as its views are many",
}


def train(name, folder, accelerator):
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    options = dict(encoder="tiny", accelerator=accelerator, precision="32-true", epochs=3 / 2)
    options |= dict(batch_size=16, micro_batch=8, log_every=1)
    options["held_out"] = 8 if name == "simclr" else 0  # health is no matter of the method
    if hasattr(method_class(name).from_recipe("small"), "queue_size"):
        options["queue_size"] = 32
    run = nearfar.pretrain(images, method=name, out=str(folder), **options)
    return [line["loss"] for line in run.metrics if "loss" in line]


@pytest.mark.parametrize("name", method_names())
@pytest.mark.slow
def test_a_method_trains_as_on_the_cpu_and_no_step_waits(name, tmp_path, tolerance, waits_for):
    wanted = train(name, tmp_path / "here", "cpu")
    with waits_for() as waits:
        losses = train(name, tmp_path / "there", "gpu")
    assert len(losses) == 3 and losses == pytest.approx(wanted, rel=tolerance["rtol"])
    assert {line for _, line in waits} <= set(MAY_WAIT)
