import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import normalize

from nearfar.data import open_images
from nearfar.engine import working
from nearfar.evaluation import extract, extract_view
from nearfar.evaluation.features import CroppedAndFlipped
from nearfar.networks import Encoder, build_backbone
from nearfar.networks.shortened import Shortened
from nearfar.views import View, ViewPlan, plan


class Net(nn.Module):
    """Batch norm and dropout: its output tells the training mode from the eval mode."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.BatchNorm2d(3)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(3 * 8 * 8, 5)
        self.devices = []

    def forward(self, x):
        assert x.dtype == torch.uint8
        self.devices.append(x.device.type)
        return self.out(self.drop(self.norm(x.float() / 255)).flatten(1))


def images(count=11, side=8):
    return torch.randint(
        0,
        256,
        (count, 3, side, side),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(1),
    )


def test_features_are_those_of_the_eval_mode_in_order(bars):
    net, x = Net(), images()
    with torch.no_grad():
        expected = torch.stack([net.eval()(image[None])[0] for image in x])
    net.train()
    net.norm.eval()  # a frozen norm must stay frozen afterwards
    before = net.norm.running_mean.clone()
    features = extract(net, x, batch_size=4)
    torch.testing.assert_close(features, expected, rtol=1e-5, atol=1e-6)
    assert features.dtype == torch.float32 and not features.requires_grad
    assert bars == [("computing features", done, 11) for done in (4, 8, 11)]
    assert net.training and net.drop.training and not net.norm.training
    assert torch.equal(net.norm.running_mean, before)


def test_modes_come_back_after_an_error():
    class Broken(Net):
        def forward(self, x):
            raise RuntimeError("no")

    net = Broken().train()
    with pytest.raises(RuntimeError, match="no"):
        extract(net, images())
    assert all(module.training for module in net.modules())


def test_bad_input_is_named():
    for encoder, given, message in (
        (Net(), images(0), "at least one"),
        (nn.Identity(), images(), r"must return \[\d+, dim\]"),
        (Net(), open_images(images()).subset([]), "got 0 images"),
        (Net(), images().flatten(1), r"got \[11, 192\]"),
    ):
        with pytest.raises(ValueError, match=message):
            extract(encoder, given)


def test_sets_of_any_size_are_read_in_pieces_and_the_encoder_moves_once(monkeypatch):
    class Counting(Net):
        moves = 0

        def to(self, *args, **kwargs):
            self.moves += 1
            return super().to(*args, **kwargs)

    x = images(2000)
    data, gathered = open_images(x).subset(range(1999, -1, -1)), []
    real = data.gather
    monkeypatch.setattr(data, "gather", lambda index: gathered.append(len(index)) or real(index))
    net = Counting().eval()
    features = extract(net, data, batch_size=300, device="cpu")
    assert net.moves == 2  # there and back
    assert gathered == [300] * 6 + [200]
    torch.testing.assert_close(features, extract(net, x.flip(0)))


@pytest.fixture
def trained():
    """An encoder of dark images with little contrast, and other images: bright ones with much of
    it.
    """
    torch.manual_seed(0)
    encoder = Encoder(
        build_backbone("small", image_size=16, channels=3),
        16,
        3,
        (0.2, 0.1, 0.15),
        (0.05, 0.1, 0.05),
    )
    return encoder.eval(), open_images(images(40, side=16))


def test_a_view_that_changes_nothing_gives_the_plain_features(trained):
    """Of images other than those that the encoder was trained on: it normalises as it always
    does.
    """
    encoder, other = trained
    same = ViewPlan("same", (View(scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0),))
    features = extract_view(encoder, other, same, torch.Generator(), batch_size=7)
    plain = extract(encoder, other)
    assert torch.cosine_similarity(features, plain).min() > 1 - 1e-4
    torch.testing.assert_close(features, plain, atol=1e-3, rtol=1e-3)


def test_views_follow_the_generator_and_must_be_one(trained):
    encoder, other = trained
    strong = plan("strong", 16, 3).pick([0])
    first, again, next_one = (
        extract_view(encoder, other, strong, torch.Generator().manual_seed(seed), batch_size=16)
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.allclose(first, next_one)
    with pytest.raises(ValueError, match="'strong' makes 2: pick one"):
        extract_view(encoder, other, plan("strong", 16, 3), torch.Generator())


def test_crops_and_flips_are_those_of_the_seed_and_new_in_every_pass():
    across = torch.linspace(0, 1, 32).expand(400, 1, 32, 32)  # from black to white
    ends = lambda pixels: torch.stack([pixels[:, 0, :, 0], pixels[:, 0, :, -1]]).mean(2).T  # noqa: E731
    seeing = CroppedAndFlipped(ends, seed=3)
    first, second = extract(seeing, across), extract(seeing, across)
    assert torch.equal(first, extract(CroppedAndFlipped(ends, seed=3), across))
    assert not torch.equal(first, second)
    turned = (first[:, 0] > first[:, 1]).float().mean().item()
    assert turned == pytest.approx(0.5, abs=0.1)
    width = (first[:, 0] - first[:, 1]).abs()
    assert 0.04 < (width**2).min() < 0.2 and 0.8 < width.max() <= 1  # of 7 to 32 pixels


class Keeping:
    """An engine that keeps results by their keys."""

    def __init__(self):
        self.kept = {}

    def each(self, work, pieces, keys):
        for piece in pieces:
            yield self.kept.setdefault(keys(piece), work(piece))


def test_an_engine_keeps_features_of_other_directions_apart(tmp_path):
    for number, pixels in enumerate(images(4)):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / f"{number}.png")
    opened = open_images(tmp_path)
    net = build_backbone("tiny", image_size=8, channels=3)
    encoder = Encoder(net, 8, 3, [0.5] * 3, [0.25] * 3).eval()
    first, last = torch.eye(encoder.num_features).chunk(2, dim=1)
    with working(Keeping()):
        features = [extract(Shortened(encoder, part), opened) for part in (first, last)]
    whole = normalize(extract(encoder, opened), dim=1)
    assert torch.allclose(torch.cat(features, 1), whole, atol=1e-6)


def test_an_engine_keeps_features_of_a_net_that_shares_weights(tmp_path):
    Image.fromarray(images(1)[0].permute(1, 2, 0).numpy()).save(tmp_path / "0.png")
    first = nn.Conv2d(3, 3, 1)
    net = nn.Sequential(first, first, nn.Flatten())
    net.again = first.weight
    encoder = Encoder(build_backbone(net, image_size=8, channels=3), 8, 3, [0.5] * 3, [0.25] * 3)
    opened = open_images(tmp_path)
    with working(Keeping()):
        assert extract(encoder.eval(), opened).shape == (1, 192)
