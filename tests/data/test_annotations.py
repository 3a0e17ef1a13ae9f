"""COCO json and VOC xml come to the same boxes; bad annotations get one line that names the file."""

import json

import numpy as np
import pytest

from nearfar.data.annotations import open_annotated
from nearfar.data.run_lengths import run_lengths, to_mask, to_runs

BILLION = '<!DOCTYPE a [<!ENTITY b "bbbb"><!ENTITY c "&b;&b;&b;">]><annotation>&c;</annotation>'


def test_both_forms_give_the_same_boxes_and_splits(coco_folder, voc_folder, scenes):
    for pair in zip(open_annotated(coco_folder), open_annotated(voc_folder), strict=True):
        assert pair[0].class_names == pair[1].class_names == ("disc", "square")
        for one, other in zip(pair[0].images, pair[1].images, strict=True):
            assert one.path.stem == other.path.stem
            np.testing.assert_array_equal(one.boxes, other.boxes)
            np.testing.assert_array_equal(one.labels, other.labels)
            np.testing.assert_array_equal(one.areas, other.areas)
            kind, x, y, s = scenes[int(one.path.stem)][1][0]
            assert one.boxes[0].tolist() == [x, y, x + s, y + s] and one.labels[0] == kind + 1
    assert len(pair[0]) == 2
    assert not pair[0].images[1].crowd.any() and pair[1].images[1].crowd.all()  # difficult in VOC


def test_the_segmentation_covers_the_box_and_the_keypoints_are_its_corners(coco_folder):
    one = open_annotated(coco_folder)[0].images[0]
    x, y, right, bottom = one.boxes[0].astype(int)
    assert one.keypoints[0].tolist() == [[x, y, 2], [right, y, 2]]
    mask = to_mask(one.segmentations[0], 64, 64)
    assert mask[y:bottom, x:right].all() and mask.sum() <= (right - x + 1) * (bottom - y + 1)


def test_a_seeded_split_where_none_is_given(voc_folder):
    for file in (voc_folder / "ImageSets/Main").iterdir():
        file.unlink()
    names = [[one.path.stem for one in part.images] for part in open_annotated(voc_folder, test_share=0.25, seed=3)]
    assert len(names[0]) == 6 and len(names[1]) == 2 and len({*names[0], *names[1]}) == 8
    again = open_annotated(voc_folder, test_share=0.25, seed=3)
    assert names == [[one.path.stem for one in part.images] for part in again]
    assert names != [[one.path.stem for one in p.images] for p in open_annotated(voc_folder, test_share=0.25, seed=4)]


def test_runs_and_masks():
    mask = np.zeros((3, 4), np.uint8)
    mask[1:, 1] = 1  # down the columns: 3 + 1 empty, 2 set, 6 empty
    assert to_runs(mask) == {"size": [3, 4], "counts": [4, 2, 6]}
    np.testing.assert_array_equal(to_mask(to_runs(mask), 4, 3), mask)
    np.testing.assert_array_equal(to_mask(to_runs(1 - mask), 4, 3), 1 - mask)


def test_compressed_runs_are_those_of_the_reference():
    mask = pytest.importorskip("faster_coco_eval.core.mask")
    drawn = np.random.default_rng(0).integers(0, 2, (37, 50), dtype=np.uint8)
    drawn[:, 20:40] = 1  # a long run too
    packed = mask.encode(np.asfortranarray(drawn))["counts"]
    packed = packed.decode() if isinstance(packed, bytes) else packed
    assert run_lengths(packed) == to_runs(drawn)["counts"]
    assert run_lengths(packed + "o") is None and run_lengths("\x00") is None and run_lengths([1, -2]) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<annotation><object>", "is no xml"),
        ('<?xml version="1.0" encoding="nonsense"?><annotation/>', "is no xml"),
        (BILLION, "declares entities"),
        ('<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]><annotation>&x;</annotation>', "declares entities"),
        ("<annotation><object><name>disc</name></object></annotation>", "the size of its image"),
        ("<annotation><size><width>64</width><height>64</height></size><object><name>disc</name></object></annotation>",
         "no bndbox"),
        ("<annotation><size><width>64</width><height>64</height></size><object><name>disc</name><bndbox><xmin>1</xmin>"
         "<ymin>x</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></object></annotation>", "ymin is no number"),
    ],
)  # fmt: skip
def test_bad_xml_gets_one_line_that_names_the_file(voc_folder, text, said):
    (voc_folder / "Annotations" / "3.xml").write_text(text)
    with pytest.raises(ValueError, match=said) as caught:
        open_annotated(voc_folder)
    assert "3.xml" in str(caught.value) and "\n" not in str(caught.value)


def change(key, value):
    def apply(content):
        content["annotations"][1][key] = value

    return apply


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda content: content.pop("images"), "COCO's form"),
        (lambda content: content["images"][0].pop("width"), "COCO's form"),
        (lambda content: content["images"][0].update(file_name="gone.png"), "gone.png"),
        (lambda content: content["images"][0].update(width="wide"), "COCO's form"),
        (change("bbox", [1, 2, "3", 4]), "annotation 2: bbox must be 4 numbers"),
        (change("bbox", [1, 2, float("nan"), 4]), "bbox must be 4 numbers"),
        (change("category_id", 7), "unknown category 7"),
        (change("image_id", 99), "does not list"),
        (change("segmentation", {"size": [64, 64], "counts": [5, 10**12]}), "do not fill the image"),
        (change("segmentation", [[1, 2, 3]]), "three points"),
        (change("keypoints", [1, 2]), "keypoints must be 6 numbers"),
    ],
)
def test_bad_json_gets_one_line_that_names_the_file(coco_folder, tmp_path, spoil, said):
    content = json.loads((coco_folder / "annotations/train.json").read_text())
    spoil(content)
    (tmp_path / "images").symlink_to(coco_folder / "images")
    (tmp_path / "train.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=said) as caught:
        open_annotated(tmp_path / "train.json")
    assert "train.json" in str(caught.value) and "\n" not in str(caught.value)


def test_no_annotations_at_all(tmp_path):
    with pytest.raises(FileNotFoundError, match="no annotations in"):
        open_annotated(tmp_path)
