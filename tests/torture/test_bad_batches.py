"""Numbers that are not finite, and weights of others: a run ends in one line, and its checkpoint
stays good.
"""

import numpy as np
import pytest
import torch

import nearfar
from nearfar.networks import build_backbone

pytestmark = pytest.mark.torture
METHODS = ["saclr", "sogclr", "isogclr", "moco-v2", "nnclr", "swav", "byol", "simclr"]
OPTIONS = dict(encoder="tiny", precision="32-true", batch_size=16, held_out=8, workers=0)
IMAGES = np.random.default_rng(0).integers(0, 256, (72, 16, 16, 3), dtype=np.uint8)


class Spoiled:
    """Views of noise, of which one call has an infinite view of one image."""

    def __init__(self, call):
        self.calls, self.call = 0, call

    def __call__(self, pixels):
        self.calls += pixels.shape[0] == OPTIONS["batch_size"]
        views = [(pixels / 255 + 0.1 * torch.randn(pixels.shape)).clamp(0, 1) for _ in range(2)]
        if self.calls == self.call:
            views[0][3] = torch.inf
        return views


def pretrain(out, **options):
    return nearfar.pretrain(IMAGES, out=out, epochs=4, **OPTIONS, **options)


@pytest.mark.parametrize(
    "method", [method for method in METHODS if method != "swav"]
)  # of more views
def test_a_bad_batch_ends_in_one_line_and_leaves_no_bad_number(method, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(nearfar.TrainingDiverged) as caught:
        pretrain(out, method=method, views=Spoiled(6))
    assert len(str(caught.value).splitlines()) == 1
    assert not (out / "encoder.safetensors").exists()
    checkpoint = out / "checkpoints" / "last.ckpt"
    if checkpoint.exists():
        model = torch.load(checkpoint, weights_only=True)["model"]
        assert all(
            tensor.isfinite().all() for tensor in model.values() if tensor.is_floating_point()
        )


@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_with_a_bad_number_in_any_state_is_refused_in_one_line(method, tmp_path):
    out = tmp_path / "run"
    pretrain(out, method=method)
    checkpoint = out / "checkpoints" / "last.ckpt"
    state = torch.load(checkpoint, weights_only=True)
    floats = [
        name
        for name, tensor in state["model"].items()
        if tensor.is_floating_point() and len(tensor.shape)
    ]
    chosen = [name for name in floats if name.startswith("loss.") or "queue" in name] + floats[:1]
    for name in chosen:
        bad = state["model"][name].clone(memory_format=torch.contiguous_format)
        if not bad.numel():
            continue
        bad.view(-1)[-1] = torch.nan
        torch.save({**state, "model": {**state["model"], name: bad}}, checkpoint)
        with pytest.raises(ValueError, match=r"holds nan or inf") as caught:
            nearfar.resume(out, data=IMAGES)
        assert len(str(caught.value).splitlines()) == 1, name


@pytest.mark.parametrize("other", ["resnet10t", "convnext_atto", "vit_tiny_patch16_224"])
def test_starting_weights_of_another_network_are_one_line(other, tmp_path):
    net = build_backbone(other, image_size=32, channels=3).net
    torch.save(net.state_dict(), tmp_path / "other.pth")
    with pytest.raises(ValueError, match=r"another network|fits the encoder") as caught:
        pretrain(tmp_path / "run", init=str(tmp_path / "other.pth"))
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()
