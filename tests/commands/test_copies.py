"""Turned and mirrored copies, and an archive, in folders with planted copies; without a run."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import matplotlib
import numpy as np
import pandas
import pytest
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_digits, load_sample_images
from torch.nn.functional import normalize

import nearfar
from nearfar.cli import main
from nearfar.embeddings import Opening, resolve, sources
from nearfar.neighbours.copies import composed, inverse, turned
from nearfar.networks import shortened

pytestmark = pytest.mark.usefixtures("known_speed")


def photographs(count, width=96, height=72):
    """Parts of two photographs, as wide and high as that."""
    chance, pictures = np.random.default_rng(0), load_sample_images().images
    for number in range(count):
        y, x = chance.integers(0, 300, 2)
        yield Image.fromarray(pictures[number % 2][y : y + height, x : x + width])


def digits(count):
    for digit in load_digits().images[10 : 10 + count]:
        yield Image.fromarray((digit * 255 / 16).astype(np.uint8)).resize(
            (32, 32), Image.Resampling.BICUBIC
        )


STEPS = [
    [*mirrored, *turn]
    for mirrored in ([], [Image.Transpose.FLIP_LEFT_RIGHT])
    for turn in (
        [],
        [Image.Transpose.ROTATE_90],
        [Image.Transpose.ROTATE_180],
        [Image.Transpose.ROTATE_270],
    )
]


def oriented(image, turn):
    for step in STEPS[turn]:
        image = image.transpose(step)
    return image


def test_orientations_are_those_of_pillow_and_form_a_group():
    image = next(photographs(1))
    pixels = np.asarray(image).transpose(2, 0, 1)
    for turn in range(8):
        assert np.array_equal(
            turned(pixels, turn), np.asarray(oriented(image, turn)).transpose(2, 0, 1)
        )
        assert composed(turn, inverse(turn)) == composed(inverse(turn), turn) == 0
        for before in range(8):
            assert np.array_equal(
                turned(turned(pixels, before), turn), turned(pixels, composed(turn, before))
            )


def forms(family, size, at, numbers):
    """Pages of one form at half the size, each with one of these numbers; its digits are 4 or 5
    pixels high.
    """
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    for number in numbers:
        page = Image.new("RGB", (440, 300), "white")
        draw = ImageDraw.Draw(page)
        draw.rectangle((20, 20, 120, 60), fill=(20, 60, 120))
        for line in range(14):
            words = (
                "Item 17 of the order, delivered on the ninth of May 2024, at 12.40 "
                "each, 3 per cent off"
            )
            draw.text(
                (20, 70 + 16 * line),
                words[line : line + 62],
                font=ImageFont.load_default(10),
                fill="black",
            )
        draw.rectangle((at[0] - 3, at[1] - 2, at[0] + 70, at[1] + 16), fill="white")
        draw.text(at, number, font=ImageFont.truetype(fonts / f"{family}.ttf", size), fill="black")
        yield page.resize((220, 150), Image.Resampling.LANCZOS)


@pytest.mark.parametrize(
    ("ending", "options"),
    [("png", {}), ("jpg", {"quality": 50}), ("webp", {"quality": 80})],
)
@pytest.mark.slow
def test_forms_at_half_the_size_that_differ_in_one_digit_are_no_copies(ending, options, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    cases = [
        ("DejaVuSans", 11, (330, 30), ("381506", "381508", "301506")),
        ("DejaVuSerif", 10, (200, 150), ("381506", "331506", "381596")),
        ("DejaVuSansMono", 10, (60, 230), ("000001", "000007", "600001")),
        ("STIXGeneral", 12, (300, 260), ("381506", "381406", "391506")),
    ]
    for case in cases:
        for number, page in zip(case[-1], forms(*case), strict=True):
            page.save(folder / f"form {case[0]} {number}.{ending}", **options)
    for number, image in enumerate(photographs(6, 192, 144)):
        image.save(folder / f"{number}.png")
        image.save(folder / f"{number}.jpg", quality=(30, 50, 75)[number % 3])
        image.resize((96, 72), Image.Resampling.BICUBIC).save(
            folder / f"{number} half.jpg", quality=90
        )
    duplicates = pandas.DataFrame(nearfar.duplicates(folder, out=tmp_path / "page.html"))
    copies = (
        duplicates[duplicates.kind != "near-duplicate"].groupby("group").name.apply(sorted).tolist()
    )
    assert sorted(copies) == [
        [f"{number} half.jpg", f"{number}.jpg", f"{number}.png"] for number in range(6)
    ]


@pytest.mark.parametrize("kind", [pytest.param("photographs", marks=pytest.mark.slow), "digits"])
def test_all_orientations_are_found_and_told_apart(kind, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number, image in enumerate(photographs(12) if kind == "photographs" else digits(12)):
        for turn in range(8 if number < 4 else 1):
            if (number + turn) % 2:
                oriented(image, turn).save(folder / f"{number:02d}-{turn}.png")
            else:
                oriented(image, turn).save(folder / f"{number:02d}-{turn}.jpg", quality=75)
    shutil.copy(folder / "01-4.png", folder / "01-4 again.png")
    duplicates = pandas.DataFrame(
        nearfar.duplicates(folder, orientations=True, out=tmp_path / "a.html")
    )
    copies = duplicates[duplicates.kind != "near-duplicate"]
    groups = [rows.name.str[:2].tolist() for _, rows in copies.groupby("group")]
    assert sorted(groups) == [[f"{number:02d}"] * (9 if number == 1 else 8) for number in range(4)]
    for _, rows in copies.groupby("group"):
        first, *others = rows.itertuples()
        for other in others:
            mirrored = (int(first.name[3]) < 4) != (int(other.name[3]) < 4)
            expected = "mirrored" if mirrored else "turned"
            assert other.kind == expected or (
                other.kind == "same file" and other.name.startswith("01-4")
            )
    assert copies.name[~copies.kept].tolist() in (
        ["01-4.png"],
        ["01-4 again.png"],
    )  # what has the same bytes alone
    upright = pandas.DataFrame(nearfar.duplicates(folder, out=tmp_path / "b.html"))
    assert set(upright.kind[upright.kind != "near-duplicate"]) == {"first", "same file"}


def test_a_copy_of_a_mirrored_copy_is_mirrored(tmp_path):
    """Its only link to the first is through another image."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number, image in enumerate(photographs(6)):
        image.save(folder / f"{number}.png")
    flipped = Image.open(folder / "0.png").transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    flipped.save(folder / "flipped.png")
    flipped.save(folder / "flipped.jpg", quality=30)
    duplicates = nearfar.duplicates(folder, orientations=True, out=tmp_path / "a.html")
    kinds = dict(zip(duplicates["name"], duplicates["kind"], strict=True))
    of_first = [kinds[name] for name in ("0.png", "flipped.png", "flipped.jpg")]
    assert of_first in (
        ["first", "mirrored", "mirrored"],
        ["mirrored", "first", "copy"],
    )  # the larger file is first


@pytest.fixture
def archived(tmp_path):
    """An archive of ten photographs, and new ones: three of these, changed or not, and three
    others.
    """
    archive, new = tmp_path / "archive", tmp_path / "it's new"
    archive.mkdir()
    new.mkdir()
    images = list(photographs(14))
    for number in range(10):
        images[number].save(archive / f"{number}.png")
    shutil.copy(archive / "9.png", archive / "9 again.png")
    shutil.copy(archive / "0.png", new / "same.png")
    shutil.copy(archive / "0.png", new / "0.png")
    images[1].save(new / "encoded.jpg", quality=70)
    shutil.copy(new / "encoded.jpg", new / "encoded again.jpg")
    images[2].resize((192, 144), Image.Resampling.BICUBIC).save(new / "larger.png")
    images[3].transpose(Image.Transpose.ROTATE_90).save(new / "turned.png")
    for number in (11, 12, 13):
        images[number].save(new / f"{number}.png")
    shutil.copy(new / "11.png", new / "11 again.png")  # which the archive has not
    return archive, new


def test_many_images_have_short_features_that_find_the_same_copies(
    archived, monkeypatch, tmp_path, log
):
    archive, new = archived
    made = []
    monkeypatch.setattr(shortened, "DIRECTIONS", 8)
    for many in (20_000, 20):
        monkeypatch.setattr(sources, "MANY", many)
        options = dict(orientations=True, out=tmp_path / f"had-{many}.html")
        duplicates = nearfar.duplicates(new, against=archive, **options)
        copies = pandas.DataFrame(duplicates).query("kind != 'near-duplicate'")
        made.append(copies[["name", "kind", "archive_name", "kept"]].sort_values("name"))
    assert "cut down to" in log.text
    assert made[0].values.tolist() == made[1].values.tolist() and len(made[0]) == 6


def test_short_features_keep_the_cosines(archived, monkeypatch):
    """Directions fitted to all images lose nothing of these; 8 keep what is longest."""
    whole, short = resolve(archived).open(Opening(copies=True)).features, []
    for directions in (128, 8):
        monkeypatch.setattr(sources, "MANY", 15)
        monkeypatch.setattr(shortened, "DIRECTIONS", directions)
        short.append(resolve(archived).open(Opening(copies=True)).features)
    unit = normalize(whole, dim=1)
    exact, rough = (features @ features.T - unit @ unit.T for features in short)
    assert [features.shape[1] for features in short] == [len(whole), 8]
    assert exact.abs().max() < 1e-5
    assert 1e-3 < rough.abs().max() < 0.3


@pytest.mark.parametrize("orientations", [False, True])
def test_an_archive_has_what_was_planted_and_is_never_listed(orientations, archived, tmp_path, log):
    archive, new = archived
    before = {path.name: path.read_bytes() for path in archive.iterdir()}
    options = dict(orientations=orientations, out=tmp_path / "had.html")
    duplicates = pandas.DataFrame(nearfar.duplicates(new, against=archive, **options))
    copies = duplicates[duplicates.kind != "near-duplicate"].set_index("name")
    expected = {
        "same.png": ("same file", "0.png", False),
        "0.png": ("same file", "0.png", False),
        "encoded.jpg": ("copy", "1.png", True),
        "encoded again.jpg": ("copy", "1.png", True),
        "larger.png": ("copy", "2.png", True),
    }
    expected |= {"turned.png": ("turned", "3.png", True)} if orientations else {}
    assert {
        row.Index: (row.kind, row.archive_name, row.kept) for row in copies.itertuples()
    } == expected
    assert duplicates.path.tolist() == [str(new / name) for name in duplicates.name]
    assert duplicates.archive_path.tolist() == [
        str(archive / name) for name in duplicates.archive_name
    ]
    assert copies.loc["larger.png", ["width", "archive_width"]].tolist() == [192, 96]
    assert (
        pandas.read_csv(tmp_path / "had.csv").archive_name.tolist()
        == duplicates.archive_name.tolist()
    )
    text = log.text
    assert f"{5 + orientations} of 10 images are" in log.text and "2 the same file" in text
    listed = (tmp_path / "had.list").read_bytes().decode().split("\0")[:-1]
    assert sorted(listed) == [str(new / "0.png"), str(new / "same.png")]
    command = re.search(r"byte for byte: (.*)", text)[1]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    assert {path.name: path.read_bytes() for path in archive.iterdir()} == before
    assert len(list(new.iterdir())) == 8


def test_a_file_is_no_copy_of_itself(archived, tmp_path, log):
    """New images inside the archive, or linked from it, would be listed as copies of themselves,
    and then be lost.
    """
    archive, new = archived
    (archive / "link.png").symlink_to(new / "12.png")
    os.link(new / "13.png", archive / "hard.png")
    shutil.move(new, archive / "new")
    (archive / "link.png").unlink()
    (archive / "link.png").symlink_to(archive / "new" / "12.png")
    options = dict(out=tmp_path / "had.html")
    duplicates = nearfar.duplicates(archive / "new", against=archive, **options)
    assert "12 files of" in log.text
    names = {
        name
        for name, kind in zip(duplicates["name"], duplicates["kind"], strict=True)
        if kind != "near-duplicate"
    }
    assert names == {"same.png", "0.png", "encoded.jpg", "encoded again.jpg", "larger.png"}
    assert {path for path in duplicates["archive_path"] if "/new/" in path} == set()
    assert [
        name for name, kept in zip(duplicates["name"], duplicates["kept"], strict=True) if not kept
    ] == [
        "0.png",
        "same.png",
    ]
    with pytest.raises(ValueError, match="name another archive"):
        nearfar.duplicates(archive, against=archive, out=tmp_path / "all.html")


def test_a_file_that_is_named_twice_is_no_copy_of_itself(archived, tmp_path, log):
    """It would be listed for removal as the copy of itself, and be lost."""
    archive, _ = archived
    (archive / "link.png").symlink_to("2.png")
    names = ["0.png", "./0.png", "1.png", "1.png", "2.png", "link.png"]
    (archive / "twice.csv").write_text("path\n" + "\n".join(names) + "\n")
    (archive / "deep").mkdir()
    shutil.move(archive / "3.png", archive / "deep" / "3.png")
    copies = ["9 again.png"]
    for source, expected in (
        ([archive, archive / "deep"], copies),
        (archive / "twice.csv", []),
    ):
        (tmp_path / "sub").mkdir(exist_ok=True)
        duplicates = nearfar.duplicates(source, out=tmp_path / "sub" / "twice.html")
        listed = [
            path
            for path, kept in zip(duplicates["path"], duplicates["kept"], strict=True)
            if not kept
        ]
        assert sorted(map(os.path.basename, listed)) == expected
        assert "named more than once" in log.text
        shutil.rmtree(tmp_path / "sub")


def test_an_archive_with_a_run_and_one_image(archived, tmp_path):
    archive, new = archived
    options = dict(
        epochs=1,
        batch_size=8,
        held_out=2,
        encoder="tiny",
        image_size=32,
        method="simclr",
    )
    run = nearfar.pretrain(archive, out=tmp_path / "run", **options)
    duplicates = run.duplicates(new / "larger.png", against=archive, out=tmp_path / "one.html")
    assert (duplicates["name"], duplicates["archive_name"], duplicates["kind"]) == (
        ["larger.png"],
        ["2.png"],
        ["copy"],
    )
    assert main(["duplicates", str(run.path), str(new), "--against", str(archive)]) == 0
    assert "--against" in (run.path / "duplicates.html").read_text()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(orientations=True), "`orientations` compares pixels"),
        (dict(against="digits"), "`against` needs an encoder"),
    ],
)
def test_vectors_alone_have_neither(options, says, tmp_path):
    vectors = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    with pytest.raises(ValueError, match=says):
        nearfar.duplicates(vectors, out=tmp_path / "page.html", **options)


def test_every_name_of_a_file_counts_once(archived, tmp_path, log):
    """Hard links, links and folders that are linked name one file: removing "the copy" would lose
    it.
    """
    archive, _ = archived
    (archive / "link.png").symlink_to("2.png")
    os.link(archive / "4.png", archive / "hard.png")
    (tmp_path / "seen twice").mkdir()
    for path in archive.iterdir():
        (tmp_path / "seen twice" / path.name).symlink_to(path)
    duplicates = nearfar.duplicates([archive, tmp_path / "seen twice"], out=tmp_path / "twice.html")
    assert "named more than once" in log.text
    listed = (tmp_path / "twice.list").read_bytes().split(b"\0")[:-1]
    assert [os.path.basename(path) for path in listed] == [b"9 again.png"]
    kept = [path for path, keep in zip(duplicates["path"], duplicates["kept"], strict=True) if keep]
    left = {(os.stat(path).st_dev, os.stat(path).st_ino) for path in kept}
    assert not left & {(os.stat(path).st_dev, os.stat(path).st_ino) for path in listed}


def frames(count, side):
    """A camera that does not move: a small thing is at another place in each picture."""
    scene = next(photographs(1, side, side))
    for number in range(count):
        frame = scene.copy()
        y, x = divmod(number, 10)
        y, x = (4 + (side - 14) * y // 10, 4 + (side - 14) * x // 10)
        ImageDraw.Draw(frame).rectangle([x, y, x + 5, y + 5], fill=(250, 240, 20))
        yield frame


def numbered_forms(count, side):
    """One form with another number in each."""
    for number in range(count):
        page = Image.new("RGB", (side, side), "white")
        draw = ImageDraw.Draw(page)
        draw.rectangle([4, 4, side - 5, side // 4], fill=(20, 60, 120))
        draw.text(
            (8, side // 2), f"{37 * number % 997:03d}", font=ImageFont.load_default(24), fill=0
        )
        yield page


def copied_groups(columns):
    duplicates = pandas.DataFrame(columns)
    duplicates = duplicates[duplicates.kind != "near-duplicate"]
    return sorted(sorted(names) for _, names in duplicates.groupby("group").name)


@pytest.mark.parametrize(
    ("count", "side", "made"),
    [
        (10, 96, frames),
        (10, 96, numbered_forms),
        (30, 64, frames),
        (30, 64, numbered_forms),
        (100, 64, frames),
    ],
)
@pytest.mark.slow
def test_copies_among_more_than_eight_alike_are_found(made, count, side, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number, image in enumerate(made(count, side)):
        image.save(folder / f"{number:03d}.png")
        image.save(folder / f"{number:03d}.jpg", quality=90)
    duplicates = nearfar.duplicates(folder, out=tmp_path / "page.html")
    pairs = [[f"{number:03d}.jpg", f"{number:03d}.png"] for number in range(count)]
    assert copied_groups(duplicates) == pairs
    if count == 30:
        new = tmp_path / "new"
        new.mkdir()
        for name in (f"{number:03d}.jpg" for number in range(count)):
            (folder / name).rename(new / name)
        duplicates = nearfar.duplicates(new, against=folder, out=tmp_path / "against.html")
        assert sum(kind == "copy" for kind in duplicates["kind"]) == count


def test_sprites_in_36_colours_are_no_copies_but_of_their_own_versions(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    colours = [
        (40 + 60 * a, 40 + 80 * b, 40 + 80 * c)
        for a in range(4)
        for b in range(3)
        for c in range(3)
    ]
    for number, colour in enumerate(colours):
        page = Image.new("RGB", (64, 64), "white")
        ImageDraw.Draw(page).ellipse([6, 6, 58, 58], fill=colour, outline="black", width=3)
        page.save(folder / f"{number:02d}.png")
        if number % 3 == 0:
            page.save(folder / f"{number:02d}.jpg", quality=85)
        if number % 3 == 1:
            page.save(folder / f"{number:02d}.bmp")
    duplicates = nearfar.duplicates(folder, out=tmp_path / "page.html")
    expected = [
        [f"{number:02d}.{('jpg', 'bmp')[number % 3]}", f"{number:02d}.png"]
        for number in range(36)
        if number % 3 < 2
    ]
    assert copied_groups(duplicates) == sorted(sorted(pair) for pair in expected)


@pytest.fixture(params=["L", "RGB"])
def stretched(request, tmp_path):
    """Photographs of 144 x 108, and of three of them a square and a wide copy, as PNG and JPEG; a
    crop of a fourth; the square of 0 twice; and squares of two others.
    """
    folder = tmp_path / "images"
    folder.mkdir()
    photographed = [image.convert(request.param) for image in photographs(9, 144, 108)]
    for number, image in enumerate(photographed[:7]):
        image.save(folder / f"{number}.png")
        square = image.resize((96, 96), Image.Resampling.BICUBIC)
        wide = image.resize((150, 80), Image.Resampling.BILINEAR)
        if number < 3:
            square.save(folder / f"{number} square.png")
            wide.save(folder / f"{number} wide.jpg", quality=85)
    photographed[3].crop((18, 0, 126, 108)).save(folder / "3 centre.png")
    shutil.copy(folder / "0 square.png", folder / "0 square again.png")
    for number in (7, 8):
        photographed[number].resize((96, 96)).save(folder / f"{number}.png")
    return folder


def test_stretched_copies_are_groups_of_their_own_and_are_never_listed(stretched, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["duplicates", str(stretched), "--out", str(page), "--json"]) == 0
    columns = json.loads(capsys.readouterr().out)
    duplicates = pandas.DataFrame(
        {name: columns[name] for name in ("group", "kind", "name", "kept")}
    )
    assert copied_groups(duplicates) == [
        ["0 square again.png", "0 square.png", "0 wide.jpg", "0.png"],
        ["1 square.png", "1 wide.jpg", "1.png"],
        ["2 square.png", "2 wide.jpg", "2.png"],
    ]
    kinds = duplicates[duplicates.kind != "near-duplicate"].set_index("name").kind
    assert {name: kinds[name] for name in ("0.png", "1.png", "1 square.png", "2 wide.jpg")} == {
        "0.png": "first",
        "1.png": "first",
        "1 square.png": "stretched copy",
        "2 wide.jpg": "stretched copy",
    }
    gone = duplicates.name[~duplicates.kept].tolist()  # the bytes of another square alone
    assert gone == ["0 square again.png"] and kinds[gone[0]] == "same file"
    listed = (tmp_path / "page.list").read_bytes().decode().split("\0")[:-1]
    assert listed == [str(stretched / "0 square again.png")]


def test_an_archive_has_stretched_copies_of_new_images(stretched, tmp_path):
    new = tmp_path / "new"
    new.mkdir()
    for path in [*stretched.glob("* *.*"), stretched / "7.png"]:
        path.rename(new / path.name)
    columns = nearfar.duplicates(new, against=stretched, out=tmp_path / "had.html")
    duplicates = pandas.DataFrame(columns)
    copies = duplicates[duplicates.kind != "near-duplicate"]
    assert dict(zip(copies.name, copies.archive_name, strict=True)) == {
        f"{number} {form}": f"{number}.png"
        for number in range(3)
        for form in ("square.png", "wide.jpg", "square again.png")
        if number == 0 or "again" not in form
    }
    assert set(copies.kind) == {"stretched copy"} and copies.kept.all()
    assert (tmp_path / "had.list").read_bytes() == b""
