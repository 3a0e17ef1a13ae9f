"""examples/nano.py, the whole of SimCLR in one file, computes what the package computes."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from nearfar.evaluation import knn_accuracy
from nearfar.methods import Model, SimCLR
from nearfar.networks import build_backbone, whiten_stem
from nearfar.training.optimizers import build_optimizer

FILE = Path(__file__).parents[1] / "examples" / "nano.py"
spec = importlib.util.spec_from_file_location("nano", FILE)
nano = importlib.util.module_from_spec(spec)
spec.loader.exec_module(nano)


def test_it_is_short():
    assert len(FILE.read_text().splitlines()) <= 350


@pytest.mark.slow
@pytest.mark.parametrize("size", [24, 96])
def test_loss_gradient_and_step_are_those_of_the_package(size):
    torch.manual_seed(0)
    views = torch.randn(2, 8, 3, size, size, dtype=torch.float64)
    backbone = build_backbone("medium", image_size=size, channels=3).double()
    model = Model(SimCLR(), backbone, 8).train().double()
    net, head = nano.Net(size).double(), nano.projector(256).double()
    net.load_state_dict(backbone.net.state_dict())
    head.load_state_dict(model.online[1].state_dict())
    whiten_stem(backbone.net, views[0])
    backbone.net.conv.requires_grad_(False)
    net.whiten(views[0])

    pairs = list(
        zip([*net.parameters(), *head.parameters()], model.online.parameters(), strict=True)
    )
    theirs, ours = (
        build_optimizer("muon", model, lr=0.02, weight_decay=0.1),
        nano.Muon([parameter for parameter, _ in pairs]),
    )
    for _ in range(3):
        expected = model.compute_loss(model(list(views)), torch.arange(8))
        theirs.zero_grad()
        expected.backward()
        loss = nano.simclr(head(net(views.flatten(0, 1))))
        loss.backward()
        torch.testing.assert_close(loss.double(), expected.double(), atol=1e-5, rtol=1e-5)
        for mine, other in pairs:
            if other.requires_grad:
                torch.testing.assert_close(
                    mine.grad, other.grad, atol=1e-5 * float(other.grad.abs().max()), rtol=0
                )
        theirs.step()
        ours.step(0.02)
        for mine, other in pairs:
            torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)
    assert loss < 1  # three steps learn eight images


def test_crops_are_those_of_torchvision():
    images = torch.randint(0, 256, (2, 3, 32, 40), dtype=torch.uint8)
    start, length = torch.tensor([3.0, 5.0]), torch.tensor([20.0, 9.0])
    straight = torch.tensor([False, False])
    down = nano.resize_matrix(start, length, 32, 16, straight)
    across = nano.resize_matrix(start, length, 40, 16, ~straight)
    out = torch.einsum("nyh,nchw,nxw->ncyx", down, images / 255, across)
    for row in range(2):
        box = (int(start[row]),) * 2 + (int(length[row]),) * 2
        expected = v2.functional.resized_crop(
            images[row] / 255, *box, [16, 16], antialias=True
        ).flip(2)
        torch.testing.assert_close(out[row], expected, atol=1e-4, rtol=1e-4)


def test_colours_keep_gray_images_gray_and_gray_ones_have_one_channel():
    gray = torch.rand(8, 1, 6, 6).expand(-1, 3, -1, -1)
    out = nano.recolour(gray.contiguous())
    torch.testing.assert_close(out[:, 0], out[:, 2], atol=1e-5, rtol=1e-5)
    colour = torch.rand(8, 3, 6, 6)
    unchanged = nano.recolour(colour, jitter=0.0, gray=0.0)
    torch.testing.assert_close(unchanged, colour)
    made = nano.recolour(colour, jitter=0.0, gray=1.0)
    torch.testing.assert_close(
        made, v2.functional.rgb_to_grayscale(colour, 3), atol=1e-3, rtol=1e-3
    )


def test_knn_is_that_of_the_package():
    generator = torch.Generator().manual_seed(1)
    train, test = torch.randn(60, 4, generator=generator), torch.randn(30, 4, generator=generator)
    labels, truth = torch.arange(60) % 3, torch.arange(30) % 3
    unit = torch.nn.functional.normalize
    accuracy = nano.knn_accuracy(unit(train), labels, unit(test), truth)
    assert accuracy == pytest.approx(knn_accuracy(train, labels.numpy(), test, truth.numpy()))


@pytest.mark.slow
def test_a_folder_of_two_kinds_of_images_is_told_apart(tmp_path):
    chance = np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 8)):
        for kind in ("smooth", "rough"):
            folder = tmp_path / split / kind
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = chance.integers(
                    0, 256, (4, 4, 3) if kind == "smooth" else (32, 32, 3), dtype=np.uint8
                )
                Image.fromarray(pixels).resize((32, 32)).save(folder / f"{number}.png")
    assert nano.main([str(tmp_path), "--size", "32", "--minutes", "0.03", "--batch", "16"]) > 0.9
