"""Detectors from a run and from random weights, through `nearfar.transfer` and the command line."""

import json
from dataclasses import replace

import pytest
from PIL import Image
from rich.console import Console

import nearfar
from nearfar.cli import main
from nearfar.papers.detector import DETECTORS
from nearfar.run import Run

TASKS = ("detect", "segment", "keypoints")


@pytest.fixture(scope="module")
def run(coco_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "scenes"
    options = dict(epochs=1, batch_size=8, held_out=0, encoder="small", image_size=64, crop_size=64)
    return nearfar.pretrain(str(coco_folder / "images"), out=str(out), console=Console(quiet=True), **options)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    small = replace(DETECTORS["small"], sides=(64,), longest=64, batch_size=2, channels=16, regions=16)
    monkeypatch.setitem(DETECTORS, "small", small)


def test_all_three_from_this_run_and_from_random_weights(run, coco_folder, quiet):
    run.write_results({"trained": {"knn": 0.5}})
    results = nearfar.transfer(run, str(coco_folder), protocol=TASKS, epochs=1, console=quiet)
    assert list(results) == ["untrained", "trained"]
    for task in TASKS:
        about = run.detection[task]
        assert (about["train_images"], about["test_images"], about["steps"]) == (6, 2, 3)
        assert about["settings"]["sides"] == [64] and about["data"] == coco_folder.name
        for row, numbers in about["results"].items():
            assert {"AP", "AP50", "AP75", "minutes"} <= set(numbers)
            assert all(0 <= numbers[name] <= 1 for name in ("AP", "AP50", "AP75"))
            assert ("box AP" in numbers) == (task != "detect")
            assert results[row][f"{task}_AP"] == numbers["AP"]
        page = (run.path / f"{task}.html").read_text()
        assert page.count("<img") == 2 * 3 and "random weights" in page and "annotated" in page
    assert run.results == {"trained": {"knn": 0.5}}  # kept, and apart
    run.write_results({"trained": {"knn": 0.6}})
    assert set(Run.of(run.path).detection) == set(TASKS)
    report = (run.path / "report.html").read_text()
    assert "Objects found" in report and "segment: small, 6 images to fit, 2 to test" in report


def test_the_report_needs_no_other_protocol(run, coco_folder, quiet):
    (run.path / "results.json").unlink(missing_ok=True)
    once, again = (
        nearfar.transfer(run, coco_folder, protocol="detect", epochs=1, limit=4, baselines=False, console=quiet)
        for _ in range(2)
    )
    assert once["trained"]["detect_AP"] == again["trained"]["detect_AP"]
    written = json.loads((run.path / "results.json").read_text())
    assert list(written) == ["detection"] and written["detection"]["detect"]["train_images"] == 4
    assert "Objects found" in (run.path / "report.html").read_text()


def test_mistakes_are_one_line_and_change_nothing(run, coco_folder, voc_folder, images_file, capsys):
    before = sorted(run.path.rglob("*"))
    for words, said in (
        ([coco_folder, "--protocol", "detect", "knn"], "unknown protocol 'knn'"),
        ([coco_folder, "--protocol", "detect", "transfer"], "run transfer by itself"),
        ([coco_folder / "images", "--protocol", "detect"], "no annotations in"),
        ([coco_folder / "missing", "--protocol", "detect"], "there is no"),
        ([coco_folder, "--protocol", "detect", "--detector", "smal"], "did you mean 'small'"),
        ([coco_folder, "--protocol", "detect", "--epochs", "0"], "--epochs must be above 0"),
        ([voc_folder, "--protocol", "segment"], "boxes without segmentations"),
        ([voc_folder, "--protocol", "keypoints"], "no keypoints"),
        ([voc_folder, "--protocol", "detect"], "6.jpg"),
    ):
        if said == "6.jpg":
            Image.new("RGB", (40, 64)).save(voc_folder / "JPEGImages/6.jpg")
        assert main(["transfer", str(run.path), *map(str, words)]) == 2
        complaint = capsys.readouterr().err
        assert said in complaint and complaint.count("\n") == 1
    assert sorted(run.path.rglob("*")) == before
