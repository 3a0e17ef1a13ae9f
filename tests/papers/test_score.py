"""Average precision against numbers worked out by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from faster_coco_eval.core import mask

from nearfar.papers.annotations import AnnotatedImage, AnnotatedImages, open_annotated
from nearfar.papers.detection import average_precision


def encoded(drawn):
    return mask.encode(np.asfortranarray(drawn))


def truth(*boxes, crowd=()):
    array = np.asarray(boxes, np.float32)
    areas = (array[:, 2:] - array[:, :2]).prod(1)
    hidden = np.asarray([i in crowd for i in range(len(boxes))])
    image = AnnotatedImage(Path("a.png"), 200, 200, array, np.ones(len(boxes), np.int64), areas, hidden)
    return AnnotatedImages((image,), ("cell",))


def found(*boxes, scores):
    return [{"boxes": np.asarray(boxes, np.float32), "labels": np.ones(len(boxes), np.int64), "scores": scores}]


def test_what_is_all_found_has_one_in_each_column(coco_folder):
    _, test = open_annotated(coco_folder)
    perfect = [
        {
            "boxes": one.boxes,
            "labels": one.labels,
            "scores": np.full(len(one.labels), 0.9),
            "masks": one.masks,
            "keypoints": one.keypoints,
        }
        for one in test.images
    ]
    for kind in ("bbox", "keypoints"):
        numbers = average_precision(test, perfect, kind)
        assert all(value == pytest.approx(1) for value in numbers.values())
        assert {"AP", "AP50", "AP75"} <= set(numbers)
    assert average_precision(test, perfect, "segm")["AP"] == pytest.approx(1)


def test_overlap_of_two_thirds_counts_up_to_that():
    # 100 x 80 inside 100 x 120: IoU 2/3, so right at .50, .55, .60, .65 and wrong at the six thresholds above
    numbers = average_precision(truth((0, 0, 100, 120)), found((0, 0, 100, 80), scores=[0.9]))
    assert numbers == pytest.approx({"AP": 0.4, "AP50": 1.0, "AP75": 0.0, "AP cell": 0.4})


def test_a_false_one_ahead_halves_the_precision_and_a_missed_one_ends_the_recall():
    real, wrong = (0, 0, 50, 50), (100, 100, 150, 150)
    ahead = average_precision(truth(real), found(wrong, real, scores=[0.9, 0.8]))
    assert ahead["AP"] == pytest.approx(0.5)
    behind = average_precision(truth(real), found(real, wrong, scores=[0.9, 0.8]))
    assert behind["AP"] == pytest.approx(1.0)
    half = average_precision(truth(real, wrong), found(real, scores=[0.9]))
    assert half["AP"] == pytest.approx(51 / 101)  # of the 101 levels of recall those up to a half


def test_crowds_and_difficult_objects_neither_count_nor_cost():
    boxes = truth((0, 0, 50, 50), (100, 100, 150, 150), crowd=(1,))
    assert average_precision(boxes, found((0, 0, 50, 50), scores=[0.9]))["AP"] == pytest.approx(1)
    both = found((100, 100, 150, 150), (0, 0, 50, 50), scores=[0.9, 0.8])
    assert average_precision(boxes, both)["AP"] == pytest.approx(1)


def test_masks_given_as_runs_overlap_by_their_pixels():
    drawn = np.zeros((200, 200), np.uint8)
    drawn[:120, :100] = 1
    one = truth((0, 0, 100, 120)).images[0]
    gold = AnnotatedImages((replace(one, masks=(encoded(drawn),)),), ("cell",))
    drawn[80:] = 0  # IoU 2/3, as above
    guess = found((0, 0, 100, 80), scores=[0.9])
    guess[0]["masks"] = [encoded(drawn)]
    assert average_precision(gold, guess, "segm") == pytest.approx(
        {"AP": 0.4, "AP50": 1.0, "AP75": 0.0, "AP cell": 0.4}
    )


def test_nothing_found_is_zero_and_nothing_to_find_is_an_error():
    assert average_precision(truth((0, 0, 50, 50)), found(scores=[]))["AP"] == 0
    with pytest.raises(ValueError, match="no annotated object"):
        average_precision(truth((0, 0, 50, 50), crowd=(0,)), found(scores=[]))


def test_one_line_where_the_library_is_missing(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'nearfar\[detection\]'"):
        average_precision(truth((0, 0, 50, 50)), found(scores=[]))
