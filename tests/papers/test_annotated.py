"""COCO json and VOC xml come to the same boxes; bad annotations get one line that names the file."""

import json

import numpy as np
import pytest
from faster_coco_eval.core import mask

from nearfar.papers.annotations import open_annotated

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
    drawn = mask.decode(one.masks[0])
    assert drawn[y:bottom, x:right].all() and drawn.sum() == (right - x) * (bottom - y)


def test_a_seeded_split_where_none_is_given(voc_folder):
    for file in (voc_folder / "ImageSets/Main").iterdir():
        file.unlink()
    names = [[one.path.stem for one in part.images] for part in open_annotated(voc_folder, test_share=0.25, seed=3)]
    assert len(names[0]) == 6 and len(names[1]) == 2 and len({*names[0], *names[1]}) == 8
    again = open_annotated(voc_folder, test_share=0.25, seed=3)
    assert names == [[one.path.stem for one in part.images] for part in again]
    assert names != [[one.path.stem for one in p.images] for p in open_annotated(voc_folder, test_share=0.25, seed=4)]


def test_runs_are_read_as_lists_and_compressed(coco_folder, tmp_path):
    drawn = np.random.default_rng(0).integers(0, 2, (64, 64), dtype=np.uint8)
    drawn[:, 20:40] = 1  # a long run too
    packed = mask.encode(np.asfortranarray(drawn))["counts"]
    flat = drawn.T.flatten()
    runs = np.diff([0, *(np.flatnonzero(np.diff(flat)) + 1), flat.size]).tolist()
    for counts in ([0] * int(flat[0]) + runs, packed.decode()):
        file = spoiled(coco_folder, tmp_path, change("segmentation", {"size": [64, 64], "counts": counts}))
        found = np.stack([mask.decode(each) for one in open_annotated(file) for i in one.images for each in i.masks])
        assert (found == drawn).all((1, 2)).sum() == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<annotation><object>", "cannot read"),
        ('<?xml version="1.0" encoding="nonsense"?><annotation/>', "cannot read"),
        (BILLION, "document type"),
        ('<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]><annotation>&x;</annotation>', "document type"),
        ("<annotation><object><name>disc</name></object></annotation>", "as VOC xml"),
        ("<annotation><size><width>64</width><height>64</height></size><object><name>disc</name></object></annotation>",
         "bndbox"),
        ("<annotation><size><width>64</width><height>64</height></size><object><name>disc</name><bndbox><xmin>1</xmin>"
         "<ymin>x</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></object></annotation>", "could not convert"),
    ],
)  # fmt: skip
def test_bad_xml_gets_one_line_that_names_the_file(voc_folder, text, said):
    (voc_folder / "Annotations" / "3.xml").write_text(text)
    with pytest.raises(ValueError, match=said) as caught:
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
    ("spoil", "said"),
    [
        (lambda content: content.pop("images"), "as COCO json"),
        (lambda content: content["images"][0].pop("width"), "as COCO json"),
        (lambda content: content["images"][0].update(file_name="gone.png"), "gone.png"),
        (lambda content: content["images"][0].update(width="wide"), "as COCO json"),
        (change("bbox", [1, 2, "3", 4]), "annotation 2: bbox must be 4 numbers"),
        (change("bbox", [1, 2, float("nan"), 4]), "bbox must be 4 numbers"),
        (change("category_id", 7), "unknown category 7"),
        (change("image_id", 99), "does not list"),
        (change("segmentation", {"size": [64, 64], "counts": [5, 10**12]}), "segmentation: RLE counts exceed"),
        (change("segmentation", [[1, 2, 3]]), "three points"),
        (change("keypoints", [1, 2]), "keypoints must be 6 numbers"),
    ],
)
def test_bad_json_gets_one_line_that_names_the_file(coco_folder, tmp_path, spoil, said):
    with pytest.raises(ValueError, match=said) as caught:
        open_annotated(spoiled(coco_folder, tmp_path, spoil))
    assert "train.json" in str(caught.value) and "\n" not in str(caught.value)


def test_no_annotations_at_all(tmp_path):
    with pytest.raises(FileNotFoundError, match="no annotations in"):
        open_annotated(tmp_path)
