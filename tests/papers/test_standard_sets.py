"""Tiny data sets in the layouts that torchvision reads."""

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.data.images import sample
from nearfar.tools.evaluate.labelled_sets import LabelledSets
from nearfar_papers import standard_sets
from nearfar_papers.standard_sets import (
    STANDARD_SETS,
    VOC_CLASSES,
    features_in_pieces,
    open_standard,
    standard_set,
)

FITTED = dict(image_size=8, channels=3)


def picture(path, shade):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), (shade, 30, 90)).save(path)


def labels_of(split):
    return [split.images[i][1] for i in range(len(split.images))]


def write_dtd(root):
    for part, count in (("train", 4), ("val", 2), ("test", 3)):
        names = [
            f"{kind}/{kind}_{part}{i}.jpg" for kind in ("banded", "dotted") for i in range(count)
        ]
        for name in names:
            picture(root / "dtd/dtd/images" / name, 200 if name[0] == "b" else 40)
        file = root / f"dtd/dtd/labels/{part}1.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{name}\n" for name in names))


def write_voc(root, train=6, test=4):
    """Images of a cat, of a dog, of both, in turn; and in the first of each part a difficult
    bus.
    """
    folder = root / "VOCdevkit/VOC2007"
    (folder / "ImageSets/Main").mkdir(parents=True)
    (folder / "Annotations").mkdir()
    for part, count in (("train", train), ("val", train), ("test", test)):
        names = [f"{part}{i:03d}" for i in range(count)]
        (folder / f"ImageSets/Main/{part}.txt").write_text("".join(f"{name}\n" for name in names))
        for i, name in enumerate(names):
            shown = (
                [("cat", 0)] * (i % 3 != 1) + [("dog", 0)] * (i % 3 != 0) + [("bus", 1)] * (i == 0)
            )
            picture(folder / f"JPEGImages/{name}.jpg", [0, 250, 125][i % 3])
            things = "".join(
                f"<object><name>{k}</name><difficult>{d}</difficult></object>" for k, d in shown
            )
            (folder / f"Annotations/{name}.xml").write_text(f"<annotation>{things}</annotation>")


def test_dtd_has_three_splits(tmp_path):
    write_dtd(tmp_path)
    splits = open_standard(standard_set("torchvision:dtd")[1], tmp_path)
    assert {name: labels_of(split) for name, split in splits.items()} == {
        "train": [0] * 4 + [1] * 4,
        "validation": [0] * 2 + [1] * 2,
        "test": [0] * 3 + [1] * 3,
    }
    assert splits["train"].matrix is None


def test_voc_labels_are_1_for_there_0_for_difficult_and_minus_1(tmp_path):
    write_voc(tmp_path)
    splits = open_standard(standard_set("torchvision:voc2007")[1], tmp_path)
    assert list(splits) == ["train", "validation", "test"] and [
        len(s.images) for s in splits.values()
    ] == [6, 6, 4]
    cat, dog, bus = (VOC_CLASSES.index(name) for name in ("cat", "dog", "bus"))
    matrix = splits["test"].matrix
    assert matrix.shape == (4, 20) and matrix[:, cat].tolist() == [1, -1, 1, 1]
    assert matrix[:, dog].tolist() == [-1, 1, 1, -1] and matrix[:, bus].tolist() == [0, -1, -1, -1]
    assert (np.delete(matrix, [cat, dog, bus], 1) == -1).all()


def test_caltech_is_drawn_30_of_each_class_and_the_rest(tmp_path):
    for kind, count in (("accordion", 33), ("ant", 31), ("BACKGROUND_Google", 2)):
        for i in range(count):
            picture(tmp_path / f"caltech101/101_ObjectCategories/{kind}/image_{i + 1:04d}.jpg", i)
    (tmp_path / "caltech101/Annotations").mkdir()
    for kind in ("accordion", "ant"):
        (tmp_path / f"caltech101/Annotations/{kind}").mkdir()
    splits = open_standard(STANDARD_SETS["caltech101"], tmp_path, seed=3)
    assert labels_of(splits["train"]) == [0] * 30 + [1] * 30 and labels_of(splits["test"]) == [
        0
    ] * 3 + [1]
    again = open_standard(STANDARD_SETS["caltech101"], tmp_path, seed=3)
    rows = set(splits["train"].images.indices)
    assert splits["train"].images.indices == again["train"].images.indices
    assert not rows & set(splits["test"].images.indices)


@pytest.mark.parametrize("name", ["cifar10", "sun397", "voc2007"])
def test_missing_files_are_one_clear_line(tmp_path, name):
    match = rf"{STANDARD_SETS[name].kind} finds no files"
    with pytest.raises(FileNotFoundError, match=match) as caught:
        open_standard(STANDARD_SETS[name], tmp_path)
    assert "\n" not in str(caught.value) and "download=True" not in str(caught.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    with pytest.raises(ValueError, match="`root=DIR`"):
        open_standard(STANDARD_SETS[name], None)


def test_the_tables_of_the_papers():
    """SCE Table 9 has 11 of them; the metrics are those of section 4.4; LORAC Table 2 has all but
    VOC.
    """
    mean = {name for name, standard in STANDARD_SETS.items() if standard.metric == "mean_per_class"}
    assert mean == {"aircraft", "caltech101", "flowers102", "pets"}
    assert len(STANDARD_SETS) == 12 and STANDARD_SETS["voc2007"].metric == "eleven_point_map"
    long = {name for name, standard in STANDARD_SETS.items() if standard.steps == 30_000}
    assert (
        standard_set("torchvision:OxfordIIITPet")[0] == "pets" and standard_set("photos/") is None
    )
    with pytest.raises(ValueError, match="did you mean 'flowers102'"):
        standard_set("torchvision:flower102")
    assert (
        long == {"cars", "cifar10", "cifar100", "food101", "sun397"}
        and STANDARD_SETS["places365"].steps is None
    )


def means(pixels):
    return pixels.float().mean((2, 3))


def test_pieces_are_put_together_and_labels_stay_with_their_images(tmp_path, log, monkeypatch):
    monkeypatch.setattr(standard_sets, "CHUNK", 4)
    write_voc(tmp_path, train=6, test=6)
    (tmp_path / "VOCdevkit/VOC2007/JPEGImages/test001.jpg").write_bytes(b"no image")
    splits = open_standard(STANDARD_SETS["voc2007"], tmp_path)
    twice = {"once": means, "again": lambda pixels: 2 * means(pixels)}
    sets = LabelledSets(splits, "torchvision:voc2007")
    in_pieces = dict(features_in_pieces(sets, FITTED, twice))
    lines = [line for line in log.lines if line.startswith("torchvision:")]
    assert [line.partition(" of ")[0] for line in lines] == [
        f"torchvision:voc2007, the split {name}" for name in splits
    ]
    assert "train, validation, test: 6 images" in lines[0] and "left out" not in lines[0]
    assert "5 images read, 1 left out" in lines[2]
    features, labels = in_pieces["once"]["test"]
    assert features.shape == (5, 3) and torch.equal(in_pieces["again"]["test"][0], 2 * features)
    reds = torch.tensor([0.0, 125, 0, 250, 125])  # of images 0, 2, 3, 4 and 5
    assert (features[:, 0] - reds).abs().max() < 10
    assert labels[:, VOC_CLASSES.index("cat")].tolist() == [1, 1, 1, -1, 1]
    assert labels[:, VOC_CLASSES.index("bus")].tolist() == [0, -1, -1, -1, -1]
    assert len(in_pieces["once"]["train"][1]) == len(in_pieces["once"]["validation"][1]) == 6
    some = splits["train"].sampled(4, 0)
    [(_, few)] = features_in_pieces(LabelledSets({"train": some}), FITTED, {"means": means})
    rows = sample(6, 4, 0)
    assert torch.equal(few["train"][0], in_pieces["once"]["train"][0][rows]) and len(some) == 4
    assert (few["train"][1] == in_pieces["once"]["train"][1][rows]).all()
