"""COCO json and VOC xml come to the same objects; bad annotations get one line that names the
file.
"""

import json

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
