"""COCO json and VOC xml come to the same objects; bad annotations get one line that names the
file.
"""

import json
import shutil

import numpy as np
import pytest
import torch
from faster_coco_eval.core import mask

from nearfar_papers.annotations import DetectionSet, flipped, mirrored, open_annotated

SIZE = "<size><width>64</width><height>64</height></size>"
BILLION = '<!DOCTYPE a [<!ENTITY b "bbbb"><!ENTITY c "&b;&b;&b;">]><annotation>&c;</annotation>'


def test_both_forms_give_the_same_objects_and_splits(coco_folder, voc_folder, scenes):
    for pair in zip(open_annotated(coco_folder), open_annotated(voc_folder), strict=True):
        assert pair[0].class_names == pair[1].class_names == ("disc", "square")
        for image, other in zip(pair[0].images, pair[1].images, strict=True):
            assert image.path.stem == other.path.stem
            for key in ("bbox", "category_id", "area"):
                assert [each[key] for each in image.objects] == [
                    each[key] for each in other.objects
                ]
            kind, x, y, s = scenes[int(image.path.stem)][1][0]
            assert (
                image.objects[0]["bbox"] == [x, y, s, s]
                and image.objects[0]["category_id"] == kind + 1
            )
    assert len(pair[0]) == 2
    assert len(pair[0].images[1].counted) == 2 and not pair[1].images[1].counted  # difficult in VOC


def test_targets_are_in_torchvisions_form(coco_folder, scenes):
    image, target = DetectionSet(open_annotated(coco_folder)[0], 3, masks=True)[0]
    pixels, [(kind, x, y, s), _] = scenes[0]
    torch.testing.assert_close(image * 255, torch.from_numpy(pixels).permute(2, 0, 1).float())
    assert target["boxes"][0].tolist() == [x, y, x + s, y + s] and target["labels"][0] == kind + 1
    assert target["keypoints"][0].tolist() == [[x, y, 2], [x + s, y, 2]]
    drawn = target["masks"][0]
    assert drawn[y : y + s, x : x + s].all() and drawn.sum() == s * s


def test_a_seeded_split_where_none_is_given(voc_folder):
    for file in (voc_folder / "ImageSets/Main").iterdir():
        file.unlink()

    def names(seed):
        parts = open_annotated(voc_folder, test_share=0.25, seed=seed)
        return [[image.path.stem for image in part.images] for part in parts]

    train, test = names(3)
    assert len(train) == 6 and len(test) == 2 and len({*train, *test}) == 8
    assert names(3) == [train, test] != names(4)


def test_runs_are_read_as_lists_and_compressed(coco_folder, tmp_path):
    drawn = np.random.default_rng(0).integers(0, 2, (64, 64), dtype=np.uint8)
    drawn[:, 20:40] = 1  # a long run too
    packed = mask.encode(np.asfortranarray(drawn))["counts"]
    flat = drawn.T.flatten()
    runs = np.diff([0, *(np.flatnonzero(np.diff(flat)) + 1), flat.size]).tolist()
    for counts in ([0] * int(flat[0]) + runs, packed.decode()):
        file = spoiled(
            coco_folder, tmp_path, change("segmentation", {"size": [64, 64], "counts": counts})
        )
        masks = [
            each["segmentation"]
            for part in open_annotated(file)
            for image in part.images
            for each in image.objects
        ]
        assert sum(bool((mask.decode(each) == drawn).all()) for each in masks) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<annotation><object>", "cannot read"),
        (BILLION, "document type"),
        (
            '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]><annotation>&x;</annotation>',
            "document type",
        ),
        ("<annotation><object><name>disc</name></object></annotation>", "as VOC xml"),
        (
            f"<annotation>{SIZE}<object><name>disc</name><bndbox><xmin>1</xmin><ymin>x</ymin><xmax>2</xmax><ymax>2</ymax>"
            "</bndbox></object></annotation>",
            "could not convert",
        ),
    ],
)
def test_bad_xml_gets_one_line_that_names_the_file(voc_folder, text, message):
    (voc_folder / "Annotations" / "3.xml").write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        open_annotated(voc_folder)
    assert "3.xml" in str(caught.value) and "\n" not in str(caught.value)


def spoiled(coco_folder, tmp_path, spoil):
    """Return a copy of the training json in which something is changed."""
    content = json.loads((coco_folder / "annotations/train.json").read_text())
    spoil(content)
    if not (tmp_path / "images").exists():
        (tmp_path / "images").symlink_to(coco_folder / "images")
    (tmp_path / "train.json").write_text(json.dumps(content))
    return tmp_path / "train.json"


def change(key, value):
    def apply(content):
        content["annotations"][1][key] = value

    return apply


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: content.pop("images"), "as COCO json"),
        (lambda content: content["images"][0].update(file_name="gone.png"), "gone.png"),
        (
            lambda content: content["images"][0].update(width=60),
            r"64 x 64 pixels, .*60 x 64",
        ),
        (change("bbox", [1, 2, "3", 4]), "annotation 2: bbox"),
        (change("bbox", [1, 2, float("nan"), 4]), "bbox must be 4 numbers"),
        (change("category_id", 7), "unknown category 7"),
        (change("image_id", 99), "does not list"),
        (
            change("segmentation", {"size": [64, 64], "counts": [5, 10**12]}),
            "annotation 2: RLE counts exceed",
        ),
        (change("segmentation", [[1, 2, 3]]), "three points"),
        (change("keypoints", [1, 2]), "keypoints must be 6 numbers"),
    ],
)
def test_bad_json_gets_one_line_that_names_the_file(coco_folder, tmp_path, spoil, message):
    with pytest.raises(ValueError, match=message) as caught:
        open_annotated(spoiled(coco_folder, tmp_path, spoil))
    assert "train.json" in str(caught.value) and "\n" not in str(caught.value)


def test_a_flip_moves_boxes_masks_and_keypoints():
    swaps = mirrored(("nose", "left_eye", "right_eye"))
    assert swaps == [0, 2, 1]
    points = torch.tensor([[[5.0, 2.0, 2.0], [4.0, 1.0, 2.0], [0.0, 0.0, 0.0]]])
    target = {
        "boxes": torch.tensor([[1.0, 2.0, 4.0, 6.0]]),
        "masks": torch.eye(8)[None],
        "keypoints": points,
    }
    image, out = flipped(torch.arange(8.0).expand(3, 8, 8), target, swaps)
    assert image[0, 0].tolist() == list(range(7, -1, -1)) and out["boxes"].tolist() == [
        [4, 2, 7, 6]
    ]
    assert out["masks"][0, 0, 7] == 1
    assert out["keypoints"][0].tolist() == [[3, 2, 2], [0, 0, 0], [4, 1, 2]]


def moved(coco_folder, tmp_path, places):
    """Return a folder with the two json files elsewhere in it, and the images."""
    for name, place in places.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(coco_folder / "annotations" / name, tmp_path / place)
    (tmp_path / "images").symlink_to(coco_folder / "images")
    return tmp_path


@pytest.mark.parametrize("folder", ["test_coco", "training", "validated"])
def test_a_file_says_its_split_and_its_folder_only_below_the_root(coco_folder, tmp_path, folder):
    places = {"test.json": "val.json", "train.json": "train.json"}
    root = moved(coco_folder, tmp_path / folder, places)
    assert [len(part) for part in open_annotated(root)] == [6, 2]


def test_folders_of_splits_say_theirs(coco_folder, tmp_path):
    places = {name: f"{name[:-5]}/_annotations.coco.json" for name in ("train.json", "test.json")}
    root = moved(coco_folder, tmp_path, places)
    assert [len(part) for part in open_annotated(root)] == [6, 2]


def test_several_files_of_a_split_are_an_error(coco_folder, tmp_path):
    root = moved(coco_folder, tmp_path, {"train.json": "a/train_a.json", "test.json": "a/val.json"})
    shutil.copy(root / "a/train_a.json", root / "a/train_b.json")
    with pytest.raises(ValueError, match=r"train_a\.json and .*train_b\.json"):
        open_annotated(root)


def repeated(content):
    content["images"].append({**content["images"][0], "id": 50})


def same_id(key):
    def apply(content):
        content[key][1]["id"] = content[key][0]["id"]

    return apply


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (repeated, "0.png is listed twice"),
        (same_id("images"), "two images with the id 0"),
        (same_id("categories"), "two categories with the id 10"),
    ],
)
def test_an_image_or_number_that_is_there_twice_is_an_error(coco_folder, tmp_path, spoil, message):
    with pytest.raises(ValueError, match=message):
        open_annotated(spoiled(coco_folder, tmp_path, spoil))


def test_an_image_of_both_splits_is_an_error(coco_folder, tmp_path):
    content = json.loads((coco_folder / "annotations/train.json").read_text())
    root = moved(coco_folder, tmp_path, {"train.json": "train.json"})
    (root / "test.json").write_text(json.dumps(content | {"annotations": []}))
    with pytest.raises(ValueError, match=r"0\.png is listed twice"):
        open_annotated(root)


def test_an_image_of_both_splits_is_an_error_in_voc(voc_folder):
    (voc_folder / "ImageSets/Main/test.txt").write_text("5\n6\n")
    with pytest.raises(ValueError, match=r"5\.jpg is listed twice"):
        open_annotated(voc_folder)


def test_boxes_outside_their_image_are_counted(coco_folder, tmp_path, caplog):
    file = spoiled(coco_folder, tmp_path, change("bbox", [70, 10, 20, 20]))
    with caplog.at_level("INFO", logger="nearfar"):
        parts = open_annotated(file)
    assert sum(len(image.objects) for part in parts for image in part.images) == 11
    assert "1 of 12 boxes" in caplog.text


def test_classes_of_one_name_stay_apart(coco_folder, tmp_path):
    def rename(content):
        content["categories"][1]["name"] = content["categories"][0]["name"]

    train, _ = open_annotated(spoiled(coco_folder, tmp_path, rename))
    assert train.class_names == ("disc (10)", "disc (20)")
