"""The net that proposes edited copies: its file, its rows, and what it finds alike."""

import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from safetensors import safe_open
from safetensors.torch import load_file
from sklearn.datasets import load_sample_images
from torch import nn
from torchvision.transforms.v2.functional import pil_to_tensor

from nearfar.networks.edit_net import CORNERS, FILE, NUMBERS, EditNet, edit_features, edit_net


def test_its_file_holds_numbers_alone_and_is_small():
    assert FILE.stat().st_size < 2e6
    with safe_open(FILE, "pt") as file:
        kinds = {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118
    assert kinds == {torch.float16}


def squares(images, side):
    fitted = [pil_to_tensor(ImageOps.fit(image, (side, side))) for image in images]
    return torch.stack(fitted)


def test_edits_are_nearest_to_their_image_whatever_the_size():
    """Sixteen parts of two photographs, and one edit of each."""
    parts = [
        Image.fromarray(image[y : y + 200, x : x + 200])
        for image in load_sample_images().images
        for x in (0, 140, 280, 420)
        for y in (0, 220)
    ]
    kinds = [
        ImageOps.mirror,
        ImageOps.flip,
        lambda image: image.crop((20, 10, 180, 170)),
        lambda image: image.resize((200, 150)),
        lambda image: image.rotate(25),
        lambda image: ImageOps.expand(image, 30, "white"),
        lambda image: ImageOps.grayscale(image).convert("RGB"),
        lambda image: image.rotate(140, expand=True, fillcolor="white"),
    ]
    edits = [kinds[at % len(kinds)](part) for at, part in enumerate(parts)]
    net = edit_net()
    for side, other in ((128, 128), (64, 96), (150, 40)):
        own, theirs = (
            edit_features(net, squares(images, size))[0]
            for images, size in ((parts, side), (edits, other))
        )
        assert own.shape == (16, NUMBERS)
        assert torch.allclose(own.norm(dim=1), torch.ones(16), atol=1e-5)
        right = (theirs @ own.T).argmax(1) == torch.arange(16)
        assert int(right.sum()) >= 14


def test_a_grayscale_image_is_its_version_in_three_equal_colours():
    gray = torch.randint(0, 256, (2, 1, 80, 80), dtype=torch.uint8)
    net = edit_net()
    both = [edit_features(net, some)[0] for some in (gray, gray.expand(-1, 3, -1, -1))]
    assert torch.allclose(*both, atol=1e-5)


def test_folded_it_gives_the_cubic_means_of_parts_of_the_maps_of_the_net_in_its_file():
    whole = EditNet().eval()
    whole.load_state_dict({name: value.float() for name, value in load_file(FILE).items()}, False)
    images = torch.rand(3, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    net = edit_net()
    with torch.no_grad():
        maps = F.relu(whole.trunk.norm(whole.trunk.conv((images - 0.45) / 0.25)))
        pooled = {corner: [] for corner in CORNERS}
        for block in whole.trunk.blocks:
            maps = block(maps)
            side = maps.shape[-1]
            length = round(0.67 * side)
            for down, across in CORNERS:
                y, x = round((side - length) * down), round((side - length) * across)
                part = maps[:, :, y : y + length, x : x + length]
                pooled[down, across].append(part.pow(3).mean((2, 3)).clamp(1e-6) ** (1 / 3))
        expected = [F.normalize(whole.head(torch.cat(maps, 1)), dim=1) for maps in pooled.values()]
        torch.testing.assert_close(net.parts(images), torch.stack(expected, 1), rtol=0, atol=1e-5)
        torch.testing.assert_close(net(images), whole(images), rtol=0, atol=1e-5)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in net.modules())
