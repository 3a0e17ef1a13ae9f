"""Labelled images for the protocols: splits, pieces, and what cannot be read."""

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.commands.labelled import open_labelled
from nearfar.data.images import sample
from nearfar.data.standard_sets import VOC_CLASSES
from tests.data.test_standard_sets import write_dtd, write_voc

FITTED = dict(image_size=8, channels=3)
OPTIONS = dict(share=0.2, seed=0)


def means(pixels):
    return pixels.float().mean((2, 3))


def test_pieces_are_put_together_and_labels_stay_with_their_images(tmp_path, quiet, monkeypatch):
    monkeypatch.setattr("nearfar.commands.labelled.CHUNK", 4)
    write_voc(tmp_path, train=6, test=6)
    (tmp_path / "VOCdevkit/VOC2007/JPEGImages/test001.jpg").write_bytes(b"no image")
    sets = open_labelled("torchvision:voc2007", quiet, FITTED, root=tmp_path, validation=True, **OPTIONS)
    twice = {"once": means, "again": lambda pixels: 2 * means(pixels)}
    found = dict(sets.features(twice, quiet))
    features, labels = found["once"]["test"]
    assert features.shape == (5, 3) and torch.equal(found["again"]["test"][0], 2 * features)
    reds = torch.tensor([0.0, 125, 0, 250, 125])  # of images 0, 2, 3, 4 and 5
    assert (features[:, 0] - reds).abs().max() < 10
    assert labels[:, VOC_CLASSES.index("cat")].tolist() == [1, 1, 1, -1, 1]
    assert labels[:, VOC_CLASSES.index("bus")].tolist() == [0, -1, -1, -1, -1]
    assert len(found["once"]["train"][1]) == len(found["once"]["validation"][1]) == 6


def test_a_random_sample_of_the_training_images_can_be_taken(tmp_path, quiet, images_file):
    write_dtd(tmp_path)
    sets = open_labelled("torchvision:dtd", quiet, FITTED, root=tmp_path, validation=False, **OPTIONS)
    assert list(sets.splits) == ["train", "test"] and sets.limited(5, 0, quiet).count("train") == 5
    [(_, whole)] = sets.features({"means": means}, quiet)
    [(_, found)] = sets.limited(5, 0, quiet).features({"means": means}, quiet)
    rows = sample(sets.count("train"), 5, 0)
    assert torch.equal(found["train"][0], whole["train"][0][rows]) and len(found["test"][1]) == 6
    assert found["train"][1].tolist() == whole["train"][1][rows].tolist()
    own = open_labelled(images_file, quiet, {}, root=None, validation=True, **OPTIONS)
    assert (own.count("train"), own.count("test"), own.limited(10, 0, quiet).count("train")) == (64, 16, 10)


def test_images_without_labels_are_refused(tmp_path, quiet):
    for name in ("a", "b"):
        Image.new("RGB", (9, 9)).save(tmp_path / f"{name}.png")
    with pytest.raises(ValueError, match="no labels to evaluate with"):
        open_labelled(str(tmp_path), quiet, FITTED, root=None, validation=False, **OPTIONS)


def opened(path, quiet, **options):
    return open_labelled(str(path), quiet, {}, root=None, validation=False, **{**OPTIONS, **options})


def test_images_without_a_label_are_no_class(tmp_path, quiet):
    images, labels = np.zeros((40, 8, 8), np.uint8), np.arange(40) % 2
    labels[::4] = -1
    np.savez(tmp_path / "some.npz", images=images, labels=labels)
    sets = opened(tmp_path / "some.npz", quiet).splits
    names = sorted(sets["train"].names + sets["test"].names)
    assert names == [f"{i:06d}" for i in range(40) if i % 4]
    assert [len(sets["train"]), len(sets["test"])] == [24, 6]
    assert set(sets["train"].labels) == set(sets["test"].labels) == {0, 1}
    np.savez(tmp_path / "two.npz", x_train=images, y_train=labels, x_test=images, y_test=np.arange(40) - 30)
    sets = opened(tmp_path / "two.npz", quiet).splits
    assert len(sets["train"]) == 30 and sets["test"].labels.tolist() == list(range(10))


def test_a_class_with_one_image_is_trained_on_and_not_tested(tmp_path, quiet):
    labels = np.array([7, *[0, 1] * 10])
    np.savez(tmp_path / "a.npz", images=np.zeros((21, 8, 8), np.uint8), labels=labels)
    sets = opened(tmp_path / "a.npz", quiet).splits
    assert sorted(sets["test"].labels) == [0, 0, 1, 1]
    assert sorted(sets["train"].labels) == [0] * 8 + [1] * 8 + [7]
    np.savez(tmp_path / "b.npz", images=np.zeros((12, 8, 8), np.uint8), labels=np.arange(12) % 6)
    with pytest.raises(ValueError, match=r"12 images of 6 classes are too few for --test-share 0.2: both parts need"):
        opened(tmp_path / "b.npz", quiet)
    assert len(opened(tmp_path / "b.npz", quiet, share=0.5).splits["test"]) == 6
