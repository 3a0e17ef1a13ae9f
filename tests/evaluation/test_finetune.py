import numpy as np
import pytest
import torch

from nearfar.data import open_images
from nearfar.evaluation import (
    draw_labels,
    finetune,
    finetune_accuracies,
    listed_rows,
    percent_of,
    tuning,
)
from nearfar.evaluation.finetune import Tuning
from nearfar.networks import Encoder, build_backbone

QUICK = Tuning("a test", 0.05, 0.2, epochs=1, batch_size=32)


@pytest.fixture(scope="module")
def halves():
    """Grey images of 16 px, bright above or below, with noise: 100 and 60."""
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 120, (160, 16, 16), dtype=np.uint8), np.arange(160) % 2
    pixels[labels == 0, :8] += 60
    pixels[labels == 1, 8:] += 60
    images = open_images((pixels, labels))
    return images.subset(range(100)), images.subset(range(100, 160))


@pytest.fixture
def encoder(halves):
    torch.manual_seed(0)
    net = build_backbone("small", image_size=16, channels=1)
    return Encoder(net, 16, 1, halves[0].mean, halves[0].std).eval()


@pytest.mark.slow
def test_everything_is_trained_and_the_encoder_that_is_given_stays(
    halves, encoder, monkeypatch, bars
):
    monkeypatch.setattr(finetune, "LEAST_STEPS", 10)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    rows = np.arange(100)
    first = finetune_accuracies(encoder, *halves, rows, QUICK)
    steps = [move[1:] for move in bars if move[0] == "fine-tuning on 100 labels"]
    assert first.top1 > 0.8 and first.top5 is None
    assert first == finetune_accuracies(encoder, *halves, rows, QUICK)
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert not encoder.training
    assert steps == [(done, 12) for done in range(1, 13)]  # whole epochs of 3 batches of 32
    still = Tuning("a test", 0.0, 0.0, epochs=1)
    assert finetune_accuracies(encoder, *halves, rows, still) < first


def test_rates_of_head_and_encoder_fall_at_60_and_80_per_cent(halves, encoder, monkeypatch):
    monkeypatch.setattr(finetune, "LEAST_STEPS", 1)
    rates, step = [], torch.optim.SGD.step

    def watched(self, *arguments):
        rates.append([group["lr"] for group in self.param_groups])
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.SGD, "step", watched)
    finetune_accuracies(
        encoder, *halves, np.arange(64), Tuning("a test", 0.01, 2.5, epochs=5, batch_size=64)
    )
    expected = [[0.01 * f, 2.5 * f] for f in [1] * 3 + [0.2] + [0.04]]
    np.testing.assert_allclose(rates, expected)


def test_bfloat16_where_the_run_used_it(halves, encoder, monkeypatch):
    monkeypatch.setattr(finetune, "LEAST_STEPS", 1)
    seen = []
    encoder.backbone.register_forward_hook(
        lambda module, given, out: seen.append((module.training, out.dtype))
    )
    for bfloat16 in (False, True):
        seen.clear()
        finetune_accuracies(encoder, *halves, np.arange(32), QUICK, bfloat16=bfloat16)
        assert {dtype for training, dtype in seen if training} == {
            torch.bfloat16 if bfloat16 else torch.float32
        }
        assert {dtype for training, dtype in seen if not training} == {
            torch.float32
        }  # tested as it is kept


def test_the_papers_multiples():
    """LORAC, section 6.1: 250 x and 20 x the encoder's rate, 30 and 50 epochs."""
    for percent, multiple, epochs in ((1, 250, 30), (10, 20, 50)):
        chosen = tuning(percent)
        assert chosen.head_lr / chosen.lr == pytest.approx(multiple) and chosen.epochs == epochs


def test_a_share_of_every_class_is_drawn():
    labels = np.repeat([0, 1, 2, -1], [200, 50, 3, 10])
    rows = draw_labels(labels, 10, seed=1)
    assert np.bincount(labels[rows]).tolist() == [20, 5, 1]
    assert (rows == draw_labels(labels, 10, seed=1)).all() and not (
        rows[:20] == draw_labels(labels, 10, seed=2)[:20]
    ).all()
    assert (
        len(draw_labels(labels, 100)) == 253 and len(draw_labels(labels, 1)) == 4
    )  # 2, and 1 of each of the others
    assert [percent_of(protocol) for protocol in ("finetune", "finetune-0.5", "knn")] == [
        100,
        0.5,
        None,
    ]
    for wrong in ("finetune-101", "finetune-0", "finetune-all", "finetune-"):
        with pytest.raises(ValueError, match="above 0 and up to 100"):
            percent_of(wrong)


def test_a_list_names_the_labelled_images():
    names = ["n01/a.jpg", "n01/b.jpg", "n02/c.jpg"]
    assert listed_rows(names, ["c.jpg", "n01/a.jpg\n", ""]).tolist() == [0, 2]
    with pytest.raises(
        ValueError,
        match=r"1 of the 2 images .*'d\.jpg'",
    ):
        listed_rows(names, ["a.jpg", "d.jpg"])
    same = ["cat/1.png", "dog/1.png", "dog/2.png"]  # a whole name means that image alone
    assert listed_rows(same, ["cat/1.png", "2.png"]).tolist() == [0, 2]
    assert listed_rows(same, ["/old/place/cat/1.png", r"D:\\pets\\dog\\1.png"]).tolist() == [0, 1]
    assert listed_rows(names, ["n02/c", "a"]).tolist() == [0, 2]  # without endings
    for nothing in ([], ["\n", " "]):
        with pytest.raises(ValueError, match="names no images"):
            listed_rows(names, nothing)


@pytest.mark.parametrize("listed", [["1.png"], ["bird/1.png"], ["dog/2.png", "1.png"]])
def test_a_listed_name_that_may_be_several_images_or_another_is_refused(listed):
    with pytest.raises(ValueError, match=rf"1 of the {len(listed)} images .*1\.png"):
        listed_rows(["cat/1.png", "dog/1.png", "dog/2.png"], listed)


def test_what_cannot_be_fine_tuned_is_said(halves, encoder):
    train, test = halves
    with pytest.raises(ValueError, match="two classes"):
        finetune_accuracies(encoder, train, test, np.array([0, 2]), QUICK)
    with pytest.raises(ValueError, match="diverged"):
        finetune_accuracies(
            encoder, train, test, np.arange(100), Tuning("a test", 1e20, 1e20, epochs=1)
        )
