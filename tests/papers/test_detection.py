"""Detectors through `nearfar_papers.transfer` and the command line; average precision against numbers
worked out by hand.
"""

import json
import shutil
from dataclasses import replace
from importlib import util
from pathlib import Path

import numpy as np
import pytest
from faster_coco_eval.core import mask
from PIL import Image

import nearfar
import nearfar_papers
from nearfar.cli import main
from nearfar.evaluation.results import MeasuredOn, Measurement
from nearfar_papers.annotations import AnnotatedImage, AnnotatedImages, open_annotated
from nearfar_papers.detection import average_precision, read_detection
from nearfar_papers.detector import DETECTORS

pytestmark = pytest.mark.usefixtures("known_speed")

TASKS = ("detect", "segment", "keypoints")


@pytest.fixture(scope="module")
def run(coco_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "scenes"
    options = dict(epochs=1, batch_size=8, held_out=0, encoder="small", image_size=64, crop_size=64)
    return nearfar.pretrain(str(coco_folder / "images"), out=str(out), **options)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    small = replace(
        DETECTORS["small"], sides=(64,), longest=64, batch_size=2, channels=16, regions=16
    )
    monkeypatch.setitem(DETECTORS, "small", small)


def test_all_three_from_this_run_and_from_random_weights(run, coco_folder):
    on = MeasuredOn("digits", "the test split", 9, 9, 10, 0.1, 0, "i", "e")
    run.write_results([Measurement(on, {"trained": {"knn": 0.5}})])
    results = nearfar_papers.transfer(run, str(coco_folder), protocol=TASKS, epochs=1)
    assert list(results) == ["untrained", "trained"]
    for task in TASKS:
        about = read_detection(run.path)[task]
        assert (about["train_images"], about["test_images"], about["steps"]) == (6, 2, 3)
        assert about["settings"]["sides"] == [64] and about["data"] == coco_folder.name
        for row, numbers in about["results"].items():
            assert {"AP", "AP50", "AP75", "minutes"} <= set(numbers)
            assert all(0 <= numbers[name] <= 1 for name in ("AP", "AP50", "AP75"))
            assert ("box AP" in numbers) == (task != "detect")
            assert results[row][f"{task}_AP"] == numbers["AP"]
        page = (run.path / f"{task}.html").read_text()
        assert page.count("<img") == 2 * 3 and "random weights" in page and "annotated" in page
    assert run.results == [{"trained": {"knn": 0.5}}]  # kept, and apart
    run.write_results([Measurement(on, {"trained": {"knn": 0.6}})])
    assert set(read_detection(run.path)) == set(TASKS)
    report = (run.path / "report.html").read_text()
    assert "Objects found" in report and "segment: small, 6 images to fit, 2 to test" in report


def test_a_line_says_how_many_images_were_read_and_left_out(run, coco_folder, tmp_path, capsys):
    shutil.copytree(coco_folder, tmp_path / "scenes")
    file = tmp_path / "scenes/annotations/train.json"
    content = json.loads(file.read_text())
    content["annotations"] = [
        annotation for annotation in content["annotations"] if annotation["image_id"] > 1
    ]
    file.write_text(json.dumps(content))
    words = ["transfer", run.path, tmp_path / "scenes", "--protocol", "detect", "--limit", "3"]
    assert main([*map(str, words), "--epochs", "1", "--no-baselines", "--json"]) == 0
    [read] = json.loads(capsys.readouterr().out)["read"]
    assert (read["images"], sum(read["left_out"].values())) == (6, 2)
    assert read["line"].endswith(
        "scenes: 6 images read, 2 left out: 2 (no annotated object to learn from)"
    )


def test_classes_without_a_training_object_are_named(run, coco_folder, tmp_path, capsys):
    shutil.copytree(coco_folder, tmp_path / "scenes")
    file = tmp_path / "scenes/annotations/train.json"
    content = json.loads(file.read_text())
    for annotation in content["annotations"]:
        annotation["category_id"] = 10
    file.write_text(json.dumps(content))
    words = ["transfer", run.path, tmp_path / "scenes", "--protocol", "detect", "--epochs", "1"]
    assert main([*map(str, words), "--no-baselines"]) == 0
    output = capsys.readouterr()
    squares = json.loads((coco_folder / "annotations/test.json").read_text())["annotations"]
    count = sum(each["category_id"] == 20 for each in squares)
    assert 0 < count < 4
    assert f"{count} of 4 test objects" in output.err + output.out


def test_the_report_needs_no_other_protocol(run, coco_folder):
    for name in ("results.json", "detection.json"):
        (run.path / name).unlink(missing_ok=True)
    once, again = (
        nearfar_papers.transfer(
            run, coco_folder, protocol="detect", epochs=1, limit=4, baselines=False
        )
        for _ in range(2)
    )
    assert once["trained"]["detect_AP"] == again["trained"]["detect_AP"]
    written = json.loads((run.path / "detection.json").read_text())
    assert not (run.path / "results.json").exists() and written["detect"]["train_images"] == 4
    assert "Objects found" in (run.path / "report.html").read_text()


def test_mistakes_are_one_line_and_change_nothing(
    run, coco_folder, voc_folder, images_file, complaint
):
    before = sorted(run.path.rglob("*"))
    for words, message in (
        ([coco_folder, "--protocol", "detect", "knn"], "there is no protocol 'knn'"),
        ([coco_folder, "--protocol", "detect", "transfer"], "run transfer by itself"),
        ([coco_folder / "images", "--protocol", "detect"], "no annotations in"),
        ([coco_folder / "missing", "--protocol", "detect"], "there is no"),
        ([coco_folder, "--protocol", "detect", "--detector", "smal"], "did you mean 'small'"),
        (
            [coco_folder, "--protocol", "detect", "--epochs", "0"],
            "--epochs must be",
        ),
        ([voc_folder, "--protocol", "segment"], "boxes without segmentations"),
        ([voc_folder, "--protocol", "keypoints"], "no keypoints"),
        ([voc_folder, "--protocol", "detect"], "6.jpg"),
    ):
        if message == "6.jpg":
            Image.new("RGB", (40, 64)).save(voc_folder / "JPEGImages/6.jpg")
        assert message in complaint("transfer", run.path, *words)
    assert sorted(run.path.rglob("*")) == before


def truth(*boxes, crowd=()):
    objects = tuple(
        {"bbox": list(box), "category_id": 1, "iscrowd": int(i in crowd), "area": box[2] * box[3]}
        for i, box in enumerate(boxes)
    )
    return AnnotatedImages((AnnotatedImage(Path("a.png"), 200, 200, objects),), ("cell",))


def detections(*boxes, scores=(0.9, 0.8)):
    return [
        [
            {"bbox": list(box), "category_id": 1, "score": score}
            for box, score in zip(boxes, scores, strict=False)
        ]
    ]


FIRST, SECOND = (0, 0, 50, 50), (100, 100, 50, 50)


@pytest.mark.parametrize("kind", ["bbox", "segm", "keypoints"])
def test_what_is_all_found_has_one_in_each_column(coco_folder, kind):
    _, test = open_annotated(coco_folder)
    perfect = [[{**each, "score": 0.9} for each in image.objects] for image in test.images]
    numbers = average_precision(test, perfect, kind)
    assert all(value == pytest.approx(1) for value in numbers.values())
    assert {"AP", "AP50", "AP75"} <= set(numbers)


def test_overlap_of_two_thirds_counts_up_to_that():
    """100 x 80 inside 100 x 120: IoU 2/3, so right at .50, .55, .60, .65 and wrong at the six
    thresholds above.
    """
    expected = pytest.approx({"AP": 0.4, "AP50": 1.0, "AP75": 0.0, "AP cell": 0.4})
    gold, guess = truth((0, 0, 100, 120)), detections((0, 0, 100, 80))
    assert average_precision(gold, guess) == expected
    drawn = np.zeros((200, 200), np.uint8, order="F")
    drawn[:120, :100] = 1
    gold.images[0].objects[0]["segmentation"] = mask.encode(drawn)
    drawn[80:] = 0
    guess[0][0]["segmentation"] = mask.encode(drawn)
    assert average_precision(gold, guess, "segm") == expected


def test_a_false_one_ahead_halves_the_precision_and_a_missed_one_ends_the_recall():
    assert average_precision(truth(FIRST), detections(SECOND, FIRST))["AP"] == pytest.approx(0.5)
    assert average_precision(truth(FIRST), detections(FIRST, SECOND))["AP"] == pytest.approx(1.0)
    half = average_precision(truth(FIRST, SECOND), detections(FIRST))
    assert half["AP"] == pytest.approx(51 / 101)  # of the 101 levels of recall those up to a half


def test_crowds_and_difficult_objects_neither_count_nor_cost():
    boxes = truth(FIRST, SECOND, crowd=(1,))
    assert average_precision(boxes, detections(FIRST))["AP"] == pytest.approx(1)
    assert average_precision(boxes, detections(SECOND, FIRST))["AP"] == pytest.approx(1)


def test_nothing_found_is_zero_and_nothing_to_find_is_an_error(monkeypatch):
    assert average_precision(truth(FIRST), [[]])["AP"] == 0
    with pytest.raises(ValueError, match="no annotated object"):
        average_precision(truth(FIRST, crowd=(0,)), [[]])
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'nearfar\[detection\]'"):
        average_precision(truth(FIRST), [[]])
