"""`nearfar transfer` on labelled images, end to end; its detectors are in test_detection.py."""

import pytest

import nearfar
import nearfar_papers
from nearfar_papers import labelled_evaluation, protocols
from tests.papers.test_standard_sets import picture, write_dtd, write_voc

pytestmark = pytest.mark.usefixtures("known_speed")

ROWS = ["largest_class", "raw_pixels", "colour_histogram", "hog", "untrained", "trained"]


@pytest.fixture(scope="module")
def run(images_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "halves"
    options = dict(
        epochs=1, batch_size=16, held_out=0, encoder="small", method="simclr", channels=3
    )
    return nearfar.pretrain(images_file, out=str(out), precision="32-true", **options)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(protocols, "PENALTIES", (0.1, 10.0))


def test_every_rival_has_a_row_beside_earlier_results(run):
    before = nearfar.evaluate(run, protocol=("knn",))
    results = nearfar_papers.transfer(run, protocol=("transfer", "low-shot"))
    assert list(results) == ROWS
    for row, numbers in results.items():
        shots = {"low_shot_16", "low_shot_16_std", "low_shot_all"}
        assert set(numbers) >= {"transfer"} | (set() if row == "largest_class" else shots)
        assert all(0 <= value <= 1 for value in numbers.values())
        assert run.results[-1][row] == before[row] | numbers
    assert results["raw_pixels"]["transfer"] > 0.95  # bright above or below: one line parts them


def test_a_data_set_of_torchvision_has_columns_of_its_own_and_a_limit_is_a_fixed_sample(
    run, tmp_path
):
    write_dtd(tmp_path)
    options = dict(root=str(tmp_path))
    results = nearfar_papers.transfer(run, "torchvision:dtd", **options)
    assert results["colour_histogram"] == {"transfer_dtd": 1.0}  # light red and dark blue
    assert set(results["trained"]) == {"transfer_dtd"} <= set(run.results[-1]["trained"])
    first, again = (
        nearfar_papers.transfer(run, "torchvision:dtd", limit=5, baselines=False, **options)
        for _ in range(2)
    )
    assert first == again and 0 <= first["trained"]["transfer_dtd"] <= 1


def test_voc_is_measured_by_average_precision(run, tmp_path):
    write_voc(tmp_path, train=12, test=6)
    options = dict(root=str(tmp_path))
    results = nearfar_papers.transfer(
        run, "torchvision:voc2007", protocol=("transfer", "low-shot"), **options
    )
    assert (
        results["colour_histogram"]["transfer_voc2007"]
        == results["raw_pixels"]["transfer_voc2007"]
        == 1.0
    )
    assert results["colour_histogram"]["low_shot_all_voc2007"] == 1.0
    assert "low_shot_16_voc2007_std" in results["trained"]
    with pytest.raises(ValueError, match="one label an image"):
        nearfar_papers.transfer(run, "torchvision:voc2007", protocol=("transfer-sgd",), **options)


def test_a_validation_split_of_a_folder_is_used(run, tmp_path, monkeypatch):
    for part, count in (("train", 6), ("validation", 4), ("test", 4)):
        for kind, shade in (("a", 200), ("b", 40)):
            for i in range(count):
                picture(tmp_path / part / kind / f"{i}.png", shade)
    seen = []
    real = protocols.protocol_results

    def watched(name, splits, *rest):
        seen.append({part: len(labels) for part, (_, labels) in splits.items()})
        return real(name, splits, *rest)

    monkeypatch.setattr(labelled_evaluation, "protocol_results", watched)
    results = nearfar_papers.transfer(run, str(tmp_path), baselines=False)
    assert seen == [{"train": 12, "validation": 8, "test": 8}] and list(results) == ["trained"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--protocol transfr", "'transfr': did you mean 'transfer'"),
        ("--protocol knn", "there are transfer, transfer-sgd"),
        ("torchvision:dtd", "--root DIR"),
        ("torchvision:dtd --root nowhere", "nothing is downloaded"),
        ("--root nowhere", "--root is for"),
        ("--limit 0", "--limit"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(run, complaint, line, message):
    before = run.results
    assert message in complaint("transfer", run.path, *line.split())
    assert run.results == before
