"""`check` on photographs' stand-ins with planted leaks, wrong labels and bad images."""

import csv

import numpy as np
import pandas
import pytest
import torch
from PIL import Image, ImageFilter
from sklearn.datasets import load_digits, load_sample_images

import nearfar
from nearfar.data import open_images
from nearfar.neighbours import Link, duplicates, find_leaks
from nearfar.neighbours.links import COPIED, NEAR_DUPLICATE
from nearfar.tools.check.problems import Issue, duplicate_issues, next_step

pytestmark = pytest.mark.usefixtures("known_speed")


DIGITS = load_digits()


def digit(number, side=48):
    pixels = DIGITS.images[number] * 200 / 16 + 30
    return Image.fromarray(pixels.astype(np.uint8)).resize((side, side), Image.Resampling.NEAREST)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Digits 0 to 3 in splits: leaks of three kinds, three wrong labels, a copy under another, bad
    images.
    """
    folder, labels = tmp_path_factory.mktemp("check") / "digits", DIGITS.target
    of = {label: np.flatnonzero(labels == label) for label in range(4)}
    for label, rows in of.items():
        for split, some in (("train", rows[:40]), ("test", rows[40:52])):
            (folder / split / str(label)).mkdir(parents=True)
            for number, row in enumerate(some):
                digit(row).save(folder / split / str(label) / f"{number:02d}.png")
    train, test = folder / "train", folder / "test"
    for label, number in ((0, 31), (1, 32), (2, 33)):
        digit(of[label + 1][60 + label]).save(train / str(label) / f"wrong-{number}.png")
    (test / "0" / "same.png").write_bytes((train / "0" / "03.png").read_bytes())
    Image.open(train / "1" / "04.png").save(test / "1" / "again.jpg", quality=70)
    Image.open(train / "2" / "05.png").resize((64, 64), Image.Resampling.BICUBIC).save(
        test / "2" / "larger.png"
    )
    Image.open(train / "3" / "06.png").save(train / "1" / "twice.png", compress_level=0)
    sharp = digit(of[3][70])
    sharp.filter(ImageFilter.GaussianBlur(5)).save(train / "3" / "blurred.png")
    sharp.point(lambda value: value // 8).save(train / "3" / "dark.png")
    sharp.point(lambda value: 255 if value < 190 else 60).save(train / "3" / "bright.png")
    Image.new("L", (48, 48), 120).save(train / "3" / "plain.png")
    sharp.resize((48, 200)).save(train / "3" / "long.png")
    digit(of[3][71], 8).save(train / "3" / "tiny.png")
    (train / "3" / "broken.png").write_bytes(b"no image")
    (train / "rare").mkdir()
    digit(1000).save(train / "rare" / "one.png")
    return folder


@pytest.fixture(scope="module")
def run(digits, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    options = dict(
        epochs=6, batch_size=32, held_out=8, image_size=32, encoder="small", method="simclr"
    )
    return nearfar.pretrain(digits, out=out, **options)


@pytest.fixture(scope="module")
def checked(run):
    return run.check()


def named(checked, problem):
    issues = pandas.DataFrame(checked)
    return issues[issues.problem == problem].reset_index(drop=True)


@pytest.mark.slow
def test_test_images_that_are_copies_of_training_images_are_leaks(checked):
    leaks = named(checked, "leak")
    assert dict(zip(leaks.name, leaks.other, strict=True)) == {
        "test/0/same.png": "train/0/03.png",
        "test/1/again.jpg": "train/1/04.png",
        "test/2/larger.png": "train/2/05.png",
    }
    assert set(leaks.split) == {"test"} and (leaks.measure < 0.2).all()


@pytest.mark.slow
def test_copies_under_two_labels_contradict_each_other(checked):
    copies = named(checked, "copies disagree")
    assert sorted(zip(copies.name, copies.label, copies.other, strict=True)) == [
        ("train/1/twice.png", "1", "train/3/06.png"),
        ("train/3/06.png", "3", "train/1/twice.png"),
    ]
    assert set(copies.suggested) == {""}  # one against one


@pytest.mark.slow
def test_wrong_labels_come_first_among_the_doubtful_ones(checked):
    mislabelled = named(checked, "label issue")
    wrong = {"train/0/wrong-31.png", "train/1/wrong-32.png", "train/2/wrong-33.png"}
    assert (
        len(wrong & set(mislabelled.name[:4])) >= 2 and mislabelled.measure.is_monotonic_increasing
    )
    row = mislabelled[mislabelled.name == "train/1/wrong-32.png"].iloc[0]
    assert (row.label, row.suggested) == ("1", "2") and row.words.startswith("1 (")
    assert "train/1/twice.png" in set(mislabelled.name)  # a three among the ones


@pytest.mark.slow
def test_bad_images_are_named_by_what_is_wrong_with_them(checked):
    defects = {
        problem: [name.rpartition("/")[2] for name in named(checked, problem).name]
        for problem in (
            "nearly uniform",
            "dark",
            "overexposed",
            "blurred",
            "odd size",
            "odd proportions",
            "unreadable",
        )
    }
    assert defects.pop("blurred")[0] == "blurred.png"
    assert defects == {
        "nearly uniform": ["plain.png"],
        "dark": ["dark.png"],
        "overexposed": ["bright.png"],
        "odd size": ["tiny.png"],
        "odd proportions": ["long.png"],
        "unreadable": ["broken.png"],
    }
    [long] = named(checked, "odd proportions").measure
    assert long == pytest.approx(200 / 48)


def test_classes_are_counted_and_the_next_step_is_the_gravest(checked, run, digits):
    classes = pandas.DataFrame(checked.classes).set_index("label")
    assert classes.loc["0"].tolist() == [54, 41, 13] and classes.loc["rare"].tolist() == [1, 1, 0]
    assert list(classes.columns) == ["images", "train", "test"] and classes.images.tolist()[-1] == 1
    assert checked.next.startswith(
        "Remove from one of the splits the images that are copies across splits (3); then"
    )
    with open(run.path / "check.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == checked["name"]
    leaks = [row["path"] for row in rows if row["problem"] == "leak"]
    assert (run.path / "check.list").read_bytes().decode().split("\0")[:-1] == leaks
    assert str(digits.resolve() / "test" / "0" / "same.png") in leaks
    page = (run.path / "check.html").read_text()
    assert "<b>0/same.png</b>" in page  # with its class
    assert page.count("<figure>") >= 15 and "Copies disagree" in page
    assert len(list(digits.rglob("*.*"))) == 4 * 52 + 3 + 3 + 1 + 6 + 2  # all are still there


def test_without_labels_and_without_problems_it_says_so(run, tmp_path, log):
    pixels = np.stack([np.asarray(digit(number, 32)) for number in range(30)])
    issues = run.check(pixels, out=tmp_path / "page.html")
    assert issues.classes == {"label": [""], "images": [30]}
    assert issues.next == "Nothing was found, use the data as it is."
    assert "the images have no labels" in log.text
    assert "no labels" in (tmp_path / "page.html").read_text()


def test_evaluate_says_what_leaks_do_to_its_numbers(run, tmp_path, log):
    results = run.evaluate(protocol=("knn",), baselines=False)
    text = log.text
    assert "3 of 51 test images" in text
    assert f"and not {results['trained']['knn']:.3f};" in text
    chance = np.random.default_rng(0)
    np.savez(
        tmp_path / "apart.npz",
        images=chance.integers(0, 256, (60, 32, 32), dtype=np.uint8),
        labels=np.arange(60) % 2,
    )
    log.clear()
    run.evaluate(tmp_path / "apart.npz", protocol=("knn",), baselines=False)
    assert "copy among" not in log.text


@pytest.fixture(scope="module")
def squashed(tmp_path_factory):
    """Photographs of 120 x 90 squashed to 72 x 72 for training, and 8 of 24 test images of them at
    their own proportions.
    """
    folder = tmp_path_factory.mktemp("squashed") / "images"
    chance, pictures = np.random.default_rng(0), load_sample_images().images
    for number in range(64):
        y, x = chance.integers(0, 300, 2)
        pixels = pictures[number % 2][y : y + 90, x : x + 120]
        image, label = Image.fromarray(pixels), "ab"[number % 2]
        for split in ("train", "test"):
            (folder / split / label).mkdir(parents=True, exist_ok=True)
        if number < 48:
            small = image.resize((72, 72), Image.Resampling.BICUBIC)
            small.save(folder / "train" / label / f"{number}.jpg", quality=90)
        if number < 8 or number >= 48:
            image.save(folder / "test" / label / f"{number}.png")
    return folder


def test_leaks_whose_proportions_changed_are_found_and_nothing_else(squashed, tmp_path):
    """But for images of parts that overlap, which are edited copies."""
    issues = nearfar.check(squashed, edits=False, out=tmp_path / "page.html")
    leaks = named(issues, "leak")
    assert dict(zip(leaks.name, leaks.other, strict=True)) == {
        f"test/{'ab'[number % 2]}/{number}.png": f"train/{'ab'[number % 2]}/{number}.jpg"
        for number in range(8)
    }
    assert leaks.words.str.startswith("stretched copy of train/").all()
    assert "copies across splits (8)" in issues.next
    listed = (tmp_path / "page.list").read_bytes().decode().split("\0")[:-1]
    assert sorted(listed) == sorted(leaks.path)


def test_evaluate_leaves_out_leaks_whose_proportions_changed(run, squashed, log):
    run.evaluate(squashed, protocol=("knn",), baselines=False)
    [line] = [line for line in log.text.splitlines() if "have a copy" in line]
    assert line.startswith("8 of 24 test images")
    predicted = np.load(run.path / "predictions.npz")
    names = nearfar.data.open_images(squashed, split="test").names
    own = [int(name.rpartition("/")[2].removesuffix(".png")) >= 48 for name in names]
    right = (predicted["knn"] == predicted["truth"])[own]
    assert f"knn {right.mean():.3f} and not" in line


def test_leaks_beyond_the_limit_give_no_accuracy_without_them(run, monkeypatch, log):
    monkeypatch.setattr(duplicates, "CHUNK", 1)
    for most, count in ((10_000, "3 of 51"), (1, "at least 1 of 51")):
        log.clear()
        monkeypatch.setattr(duplicates, "CONFIRMED", most)
        run.evaluate(protocol=("knn",), baselines=False)
        [line] = [line for line in log.text.splitlines() if "have a copy" in line]
        assert line.startswith(f"{count} test images")
        assert ("without them" in line) == (most > 1)


def test_all_leaks_are_confirmed_though_there_are_more_than_a_chunk_of_them(monkeypatch, bars):
    monkeypatch.setattr(duplicates, "CHUNK", 7)
    pixels = np.stack([np.asarray(digit(number)) for number in range(60)])
    images, features = open_images(pixels), torch.eye(60)
    leaks = find_leaks(images, images, features, features, 0.1)
    assert leaks.complete and sorted(link.second for link in leaks.links) == list(range(60))
    moves = [move[1:] for move in bars if move[0] == "looking for copies"]
    assert moves[-1] == (60, 60) and len(moves) == 9
    monkeypatch.setattr(duplicates, "CONFIRMED", 20)
    leaks = find_leaks(images, images, features, features, 0.1)
    assert not leaks.complete and len(leaks.links) == 20


def test_near_leaks_are_in_the_next_step_behind_what_is_graver():
    names = ["leak", "copies disagree", "label issue", "near leak", "dark"]
    problems = [Issue(name, row, f"{row}.png", "") for row, name in enumerate(names)]
    classes = {"label": ["a"], "images": [9]}
    advice = next_step(problems, classes)
    assert advice.count("; then ") == 2 and advice.endswith(
        "that nearly repeat a training image (1)."
    )
    assert next_step(problems[3:], classes).count("; then ") == 1


def test_near_leaks_stand_out_from_images_that_are_all_much_alike():
    """Angles of unit vectors: 4 degrees apart and far from all others, but for a copy; and 4
    degrees from the next.
    """
    angles = np.radians([0, 4, 0, 90, 94, 98, 102, 180])
    splits = ["train", "test", "train", "train", "test", "train", "test", "train"]
    features = torch.from_numpy(np.stack([np.cos(angles), np.sin(angles)], 1))
    far = 1 - float(np.cos(np.radians(4)))
    links = [
        Link(far, 0, 1, NEAR_DUPLICATE),
        Link(far, 3, 4, NEAR_DUPLICATE),
        Link(far, 5, 6, NEAR_DUPLICATE),
    ]
    names = [f"{number}.png" for number in range(8)]
    for copies in (
        [],
        [Link(0.0, 0, 2, COPIED)],
    ):  # 2 is as near as 0, so that neither stands out, unless it is its copy
        issues = duplicate_issues(copies + links, 0.1, features, names, splits, [""] * 8)
        assert [(issue.problem, issue.row, issue.other) for issue in issues] == [
            ("near leak", 1, 0)
        ][: len(copies)]


def test_what_many_images_have_is_one_line_and_no_list(tmp_path, log):
    """White ground: 24 of 60 images are nearly white, which is no anomaly; one dark image still
    is.
    """
    chance = np.random.default_rng(0)
    pixels = chance.integers(90, 160, (60, 32, 32), dtype=np.uint8)
    pixels[:24] = 255
    pixels[:24, ::4, ::4] = chance.integers(0, 200, (24, 8, 8))
    pixels[40] //= 4
    issues = nearfar.check(pixels, out=tmp_path / "page.html")
    assert "overexposed" not in issues["problem"]
    assert "dark" in issues["problem"]
    line = "24 of 60 images, which is usual here, so none is listed"
    assert f"overexposed: {line}" in log.text
    assert line in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("plain", "lines"),
    [
        (20, ["uniform: 20 of 40", "19 of 40 images repeat another one"]),
        (40, ["uniform: 40 of 40", "39 of 40 images repeat another one"]),
        (3, ["2 of 40 images repeat another one"]),
    ],
)
def test_plain_images_and_copies_are_told_however_many_there_are(plain, lines, tmp_path, log):
    """A set of which half showed nothing once had no problems and the advice to use the
    data as it is.
    """
    pixels = np.random.default_rng(0).integers(0, 256, (40, 32, 32), dtype=np.uint8)
    pixels[:plain] = 128
    issues = nearfar.check(pixels, out=tmp_path / "page.html")
    text = log.text
    assert all(line in text for line in lines)
    if plain == 3:
        assert issues["problem"] == ["nearly uniform"] * 3
        assert issues.next == "Remove the images that show nothing (3)."
    else:
        assert issues.next == "Nothing else was found, use the data as it is."
        assert all(line in (tmp_path / "page.html").read_text() for line in lines)


@pytest.mark.parametrize("vectors", [pytest.param(False, marks=pytest.mark.slow), True])
def test_wrong_labels_are_found_though_copies_repeat_them(vectors, tmp_path, log):
    """Each digit twice: a copy is no other image, and both are listed; a class of many copies of
    two digits, and an image without a label, are told.
    """
    folder, names, rows, wrong = tmp_path / "data", [], [], set()
    for label in range(5):
        for place, row in enumerate(np.flatnonzero(DIGITS.target == label)[:20]):
            given = (label + 1 + place) % 5 if place < 2 else label
            (folder / str(given)).mkdir(parents=True, exist_ok=True)
            both = [f"{given}/{label}-{place}{end}.png" for end in ("", "b")]
            digit(row).save(folder / both[0])
            digit(row).save(folder / both[1], compress_level=0)
            names, rows = names + both, [*rows, row, row]
            wrong |= set(both) if place < 2 else set()
    (folder / "rare").mkdir()
    for number in range(6):
        digit(1000 + number % 2).save(folder / "rare" / f"{number}.png")
    digit(1100).save(folder / "alone.png")
    target, labels = folder, [int(name[0]) for name in names]
    if vectors:
        target = tmp_path / "vectors.npz"
        np.savez(target, features=DIGITS.data[rows], labels=labels, name=names)
    issues = named(nearfar.check(target, out=tmp_path / "page.html"), "label issue")
    listed = issues.name.tolist()
    assert len(set(listed) & wrong) >= 0.6 * len(wrong) and len(set(listed) - wrong) <= 4
    assert [name.replace("b.", ".") for name in listed[1::2]] == listed[::2]
    if not vectors:
        assert "without a training image" not in log.text
        assert "6 labels are not examined" in log.text and "1 of 207 images" in log.text


def test_classes_without_a_training_image_are_told(tmp_path, log):
    for folder, count in (("train/cat", 9), ("train/dog", 9), ("test/cats", 2), ("test/dog", 3)):
        (tmp_path / "data" / folder).mkdir(parents=True)
        for number in range(count):
            digit(len(folder) * 20 + number).save(tmp_path / "data" / folder / f"{number}.png")
    nearfar.check(tmp_path / "data", out=tmp_path / "page.html")
    assert "without a training image (1): cats" in log.text
    assert "2 labels are not examined" in log.text
    assert "2 labels are not examined" in (tmp_path / "page.html").read_text()


def test_check_says_how_well_labels_can_be_predicted_and_which_encoder_would_help(tmp_path, log):
    """Labels that the pixels do not show: nothing is listed, and the line names what would help."""
    chance = np.random.default_rng(0)
    pixels, labels = chance.integers(0, 256, (300, 16, 16), dtype=np.uint8), np.arange(300) % 4
    labels[:100] = 0
    np.savez(tmp_path / "data.npz", images=pixels, labels=labels)
    issues = nearfar.check(tmp_path / "data.npz", out=tmp_path / "page.html")
    text = log.text
    assert "label issue" not in issues["problem"]
    assert f"(the largest class has {150 / 300:.1%})" in text and "balanced accuracy" in text
    assert "too few to tell" in text
    assert "nearfar pretrain" in text and "resnet50" in text
    assert "none is listed" in (tmp_path / "page.html").read_text()
