"""Files that are never listed for removal, see-through images, animations, and what is read of
archives.
"""

import io
import shutil
import tarfile

import numpy as np
import pandas
import pytest
import torch
from PIL import Image, ImageDraw

import nearfar
from nearfar.data import open_images
from nearfar.neighbours.duplicates import compare_pixels, find_links
from nearfar.neighbours.files import image_stats, paths_of
from nearfar.neighbours.full_size import full_size
from tests.commands.test_copies import photographs
from tests.pictures import png16


def listed(folder, tmp_path, **options):
    """The table of duplicates, and the files that are listed for removal, by their names in the
    folder.
    """
    out = tmp_path / "page.html"
    duplicates = pandas.DataFrame(nearfar.duplicates(folder, out=out, **options))
    files = out.with_suffix(".list").read_bytes().decode().split("\0")[:-1]
    assert sorted(files) == sorted(duplicates.path[~duplicates.kept])
    return duplicates, sorted(file.removeprefix(f"{folder}/") for file in files)


def drawing(seed):
    """A drawing in white on transparent ground."""
    image = Image.new("RGBA", (64, 64), (255, 255, 255, 0))
    draw, places = ImageDraw.Draw(image), np.random.default_rng(seed).integers(4, 60, (6, 2))
    for (x, y), (right, low) in zip(places[::2].tolist(), places[1::2].tolist(), strict=True):
        draw.line((x, y, right, low), fill=(255, 255, 255, 255), width=5)
    return image


@pytest.mark.parametrize("masks", ["masks/{}.png", "{}_mask.png", "beside/{}_seg_1.png"])
def test_of_77_empty_masks_none_is_listed_and_copies_are(masks, tmp_path):
    folder = tmp_path / "set"
    (folder / "masks").mkdir(parents=True)
    (folder / "beside").mkdir()
    for number, image in enumerate(photographs(77, 40, 40)):
        image.save(folder / f"{number:03d}.jpg")
        Image.new("L", (40, 40)).save(folder / masks.format(f"{number:03d}"))
    shutil.copy(folder / "005.jpg", folder / "holiday.jpg")
    duplicates, gone = listed(folder, tmp_path)
    # 005.jpg has a mask, which its shorter name keeps
    assert gone == ["holiday.jpg"]
    same = duplicates[duplicates.kind == "same file"]
    assert set(same.why[same.kept]) == {"shows nothing"} and same.kept.sum() == 76
    assert set(same.why[~same.kept]) == {""}


def test_masks_that_show_something_and_sidecars_belong_to_their_images(tmp_path):
    folder = tmp_path / "set"
    (folder / "masks").mkdir(parents=True)
    image = list(photographs(12, 40, 40))
    for number in range(6):
        image[number].save(folder / f"{number}.jpg")
        image[6].convert("L").save(folder / "masks" / f"{number}.png")  # one mask for all
    for name in ("first", "second"):
        image[7].save(folder / f"{name}.png")  # a text beside each
        (folder / f"{name}.txt").write_text("0 0.5 0.5 1 1")
    for name in ("left", "right"):
        image[8].save(folder / f"{name}.png")
        (folder / f"{name}.png.json").write_text("{}")
    for name in ("third", "third copy"):
        image[9].save(folder / f"{name}.png")  # of one name, and copies of each other
    duplicates, gone = listed(folder, tmp_path)
    assert gone == ["third copy.png"]
    assert duplicates.why.value_counts()["belongs to another file of that name"] == 5 + 1 + 1


def test_a_file_in_another_class_or_split_than_the_first_is_not_listed(tmp_path):
    folder = tmp_path / "set"
    for place in ("train/cat", "train/dog", "test/cat"):
        (folder / place).mkdir(parents=True)
    for number, image in enumerate(photographs(9, 40, 40)):
        place = ("train/cat", "train/dog", "test/cat")[number % 3]
        image.save(folder / place / f"image{number}.png")
    for name in ("train/cat/again.png", "train/dog/other.png", "test/cat/tested.png"):
        shutil.copy(folder / "train/cat/image0.png", folder / name)
    shutil.copy(folder / "train/cat/image0.png", folder / "train/cat/i.png")  # the first
    duplicates, gone = listed(folder, tmp_path)
    assert gone == ["train/cat/again.png", "train/cat/image0.png"]
    why = dict(zip(duplicates.name, duplicates.why, strict=True))
    assert why["train/dog/other.png"] == "in another class"
    assert why["test/cat/tested.png"] == "in another split"


def test_different_white_drawings_on_transparent_ground_are_no_copies(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    for number in range(6):
        image = drawing(number)
        image.save(folder / f"rgba{number}.png")
        gray = Image.merge("LA", (Image.new("L", image.size, 255), image.getchannel("A")))
        drawn = gray.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        drawn.save(folder / f"la{number}.png")
        palette = image.getchannel("A").point(lambda value: value > 0 and 1, "L").convert("P")
        palette.putpalette([255] * 6)
        palette = palette.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
        palette.save(folder / f"p{number}.png", transparency=0)
    drawing(0).save(folder / "again.png", compress_level=0)
    drawing(1).save(folder / "again.webp", lossless=True, exact=True)
    duplicates, gone = listed(folder, tmp_path)
    copies = duplicates[duplicates.kind != "near-duplicate"]
    groups = [sorted(group.name) for _, group in copies.groupby("group")]
    assert sorted(groups) == [["again.png", "rgba0.png"], ["again.webp", "rgba1.png"]]
    assert not gone and set(copies.kind) == {"first", "same pixels"}


@pytest.mark.parametrize("gray", [False, True])
def test_sixteen_bits_with_alpha_are_compared_on_every_ground(tmp_path, gray):
    """White drawings on transparent ground are all white on white."""

    def wide(image):
        return np.asarray(image.convert("LA" if gray else "RGBA")).astype(np.uint16) * 257

    half, blank = drawing(0), Image.new("RGBA", (64, 64), "white")
    half.putalpha(half.getchannel("A").point(lambda value: value // 2))
    made = {"first": drawing(0), "second": drawing(1), "half": half, "blank": blank}
    for name, image in made.items():
        (tmp_path / f"{name}.png").write_bytes(png16(wide(image)))
    (tmp_path / "again.png").write_bytes(png16(wide(drawing(0))))
    (tmp_path / "plain.png").write_bytes(png16(wide(blank)[..., :1].repeat(3, 2)))
    images = open_images(tmp_path)
    pixels = {name: full_size(images, row) for row, name in enumerate(images.names)}
    first, channels = pixels["first.png"], 1 if gray else 3
    assert first.shape == (2 * channels, 64, 64) and (first[:channels] == 65535).all()
    seen = np.asarray(drawing(0).getchannel("A")).astype(np.uint16) * 257
    assert (first[channels:] == seen).all()
    assert pixels["blank.png"].shape == (channels, 64, 64)
    assert pixels["plain.png"].shape == (3, 64, 64)
    for lossless in (False, True):
        assert compare_pixels(first, pixels["again.png"], lossless) == "same pixels"
        for other in ("second.png", "half.png", "blank.png", "plain.png"):
            assert compare_pixels(first, pixels[other], lossless) == "near-duplicate", other


def test_see_through_images_are_the_same_only_on_every_ground(tmp_path):
    photograph = next(photographs(1))
    whole, half = photograph.convert("RGBA"), photograph.convert("RGBA")
    half.putalpha(128)
    for name, image in {"whole": whole, "half": half, "plain": photograph}.items():
        image.save(tmp_path / f"{name}.png")
    on_white = Image.new("RGB", photograph.size, "white")
    on_white.paste(half, mask=half)
    on_white.save(tmp_path / "white.png")
    images = open_images(tmp_path)
    pixels = {name: full_size(images, row) for row, name in enumerate(images.names)}
    assert compare_pixels(pixels["whole.png"], pixels["plain.png"]) == "same pixels"
    assert pixels["half.png"].shape == (6, 72, 96) and pixels["plain.png"].shape == (3, 72, 96)
    drawn, blank = (
        np.concatenate([np.full((3, 9, 9), 255, np.uint8), image])
        for image in (np.zeros((3, 9, 9), np.uint8), np.eye(9, dtype=np.uint8)[None].repeat(3, 0))
    )
    for lossless in (False, True):
        assert compare_pixels(pixels["half.png"], pixels["white.png"], lossless) == "copy"
        assert compare_pixels(pixels["half.png"], pixels["plain.png"], lossless) == "near-duplicate"
        assert compare_pixels(drawn, blank, lossless) == "near-duplicate"
        assert compare_pixels(drawn, drawn[:3], lossless) == "near-duplicate"


@pytest.mark.parametrize("ending", ["gif", "png", "webp", "tiff"])
def test_animations_with_one_first_frame_are_copies_by_that_alone(ending, tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    frames = [image.convert("P") if ending == "gif" else image for image in photographs(9)]
    options = {"lossless": True} if ending == "webp" else {}
    for name, others in (("one", frames[1:3]), ("two", frames[3:5]), ("third", frames[5:6])):
        frames[0].save(folder / f"{name}.{ending}", save_all=True, append_images=others, **options)
    for number in (6, 7, 8):
        frames[number].save(folder / f"{number}.{ending}", **options)
    shutil.copy(folder / f"two.{ending}", folder / f"two again.{ending}")
    duplicates, gone = listed(folder, tmp_path)
    copies = duplicates[duplicates.kind != "near-duplicate"]
    assert sorted(copies.kind) == ["first", "first frame alone", "first frame alone", "same file"]
    assert gone == [f"two again.{ending}"]


@pytest.mark.parametrize("beside", [False, True])
def test_members_of_a_tar_are_not_read_where_the_table_knows_them(beside, tmp_path):
    chance = np.random.default_rng(0)
    with tarfile.open(tmp_path / "set.tar", "w") as tar:
        for number in range(40):
            file = io.BytesIO()
            Image.fromarray(chance.integers(0, 256, (8, 8 + number), dtype=np.uint8)).save(
                file, "PNG"
            )
            member = tarfile.TarInfo(f"{number}.png")
            member.size = file.tell()
            tar.addfile(member, io.BytesIO(file.getvalue()))
    sources = [tmp_path / "set.tar"]
    if beside:
        (tmp_path / "plain").mkdir()
        for number, image in enumerate(photographs(3)):
            image.save(tmp_path / "plain" / f"{number}.png")
        sources = [tmp_path / "plain", *sources]
    images = open_images(sources if beside else sources[0], image_size=16)
    assert images.originals is not None
    reads = []

    class Counted:
        def __init__(self, given):
            self.given = given

        def __len__(self):
            return len(self.given)

        def __getitem__(self, row):
            item = self.given[row]
            reads.extend([row] if isinstance(item, bytes) else [])
            return item

    images.originals = Counted(images.originals)
    rows = range(len(images))
    facts = image_stats(images, rows)
    assert [facts[row].width for row in rows][-40:] == [8 + number for number in range(40)]
    assert len(set(facts)) == len(images) and all(fact.bytes > 0 for fact in facts.values())
    assert find_links(images, torch.eye(len(images)), most=0.0, has_pixels=False) == []
    assert [path is not None for path in paths_of(images)] == [True] * 3 * beside + [False] * 40
    assert reads == []


def test_the_columns_of_the_table_are_taken_once(tmp_path, monkeypatch):
    for number, image in enumerate(photographs(30)):
        image.save(tmp_path / f"{number}.png")
    images, taken = open_images(tmp_path), []
    rows = type(images).table_rows
    monkeypatch.setattr(
        type(images), "table_rows", property(lambda self: taken.append(1) or rows.fget(self))
    )
    assert len(image_stats(images, range(30))) == 30
    assert len(taken) < 5


@pytest.mark.parametrize("distance", [0.0, 2.0])
def test_groups_of_more_than_a_fifth_of_the_images_are_folded(distance, tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    for number, image in enumerate(photographs(12, 40, 40)):
        image.save(folder / f"{number}.png")
    duplicates, _ = listed(folder, tmp_path, distance=distance)
    many = (duplicates.kind == "near-duplicate").sum()
    page = (tmp_path / "page.html").read_text()
    assert page.index('id="copies"') < page.index('id="near-duplicates"')
    assert ('<details id="folded" open>' in page) == (many <= 0.2 * 12) == (distance == 0)
    assert (f"{many} of 12 images are in such groups" in page) == (distance > 0)
