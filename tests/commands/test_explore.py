"""One walk over a collection and everything that it shows, which goes on where it was stopped."""

import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import nearfar
from nearfar.cli import main
from nearfar.data import open_images
from nearfar.data.decoding import decode
from nearfar.data.measures import decode_and_measure, grayscale, measures
from nearfar.data.thumbnails import thumbnails
from nearfar.data.value_range import PixelFormat
from nearfar.embeddings import walk
from nearfar.embeddings.kept import Marks, places_among
from nearfar.neighbours import full_size
from nearfar.neighbours.copies import compare_pixels, small_images
from nearfar.networks import shortened
from nearfar.tools.map import page, sheets


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Sixty smooth images in two classes and two splits, a copy across the splits, a damaged file
    and a black one.
    """
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for number in range(60):
        place = tmp_path / "photos" / ("test" if number % 5 == 0 else "train")
        place = place / ("dim" if number % 2 else "light")
        place.mkdir(parents=True, exist_ok=True)
        small = rng.integers(0, 256, (6, 6, 3)) // (2 - number % 2)
        image = Image.fromarray(small.astype(np.uint8)).resize((64, 64), Image.Resampling.BICUBIC)
        image.save(place / f"{number}.png")
    root = tmp_path / "photos"
    with Image.open(root / "train" / "dim" / "1.png") as image:
        image.resize((48, 48), Image.Resampling.BOX).save(root / "test" / "dim" / "copy.png")
    (root / "train" / "dim" / "bad.png").write_bytes(
        (root / "train" / "dim" / "3.png").read_bytes()[:900]
    )
    Image.new("RGB", (64, 64)).save(root / "train" / "dim" / "black.png")
    return root


def test_the_numbers_are_those_of_the_collection(photos):
    explored = nearfar.explore("photos")
    folder = explored.path.parent
    assert folder.name == "photos-explore" and explored["images"] == 62
    assert explored["repeats"] == 1 and explored["problems"]["leak"] == 1
    assert explored["problems"]["unreadable"] == 1 and explored["problems"]["nearly uniform"] == 1
    assert list(explored["clusters"]) == ["coarse", "fine"]
    page = explored.path.read_text()
    for name in ("duplicates.html", "check.html", "map.html", "clusters-fine.html"):
        assert name in page and (folder / name).is_file()
    assert "coarse clusters" in (folder / "map.html").read_text()
    assert all(part["cpu_seconds"] >= 0 for part in explored["parts"].values())


def test_features_are_those_of_the_images_as_they_are_opened(photos):
    images = nearfar.data.open_images("photos", split="all", image_size=32, later=True)
    encoder = nearfar.join(["edges", "colours"], image_size=32)
    walked = walk.Walk(photos.parent / "walk", encoder, images, shorten=False).go()
    right = [row for row in range(len(images)) if row not in walked.problems]
    own = encoder(images.subset(right).gather(torch.arange(len(right))))
    assert torch.cosine_similarity(walked.features[right], own).min() > 0.999
    assert [images.names[row] for row in walked.problems] == ["train/dim/bad.png"]


@pytest.mark.parametrize(("size", "most"), [(32, 2), (80, 24)])
def test_pages_show_what_the_walk_keeps_once_the_files_are_gone(photos, size, most):
    images = nearfar.data.open_images("photos", split="all", image_size=size, later=True)
    encoder = nearfar.join(["colours"], image_size=size)
    walked = walk.Walk(photos.parent / "walk", encoder, images, shorten=False).go()
    right = [row for row in range(len(images)) if row not in walked.problems]
    images = images.subset(right[::-1])
    rows = torch.tensor([0, 40, 3])
    true, small = thumbnails(images.pictures(rows), 64), small_images(images, rows)
    images.kept = walked.pictures.subset(np.array(right[::-1]))
    shutil.rmtree(photos)
    shown = pickle.loads(pickle.dumps(images)).pictures(rows, 64)
    assert shown.shape == (3, 3, min(size, 64), min(size, 64))
    assert (shown.int() - true.int()).abs().max() <= most  # a small one is PNG, a large one JPEG
    assert (small_images(images, rows) - small).abs().max() <= 0.5
    assert small_images(images, rows[:0]).shape == (0, *small.shape[1:])
    with pytest.raises(OSError):
        images.pictures(rows)
    in_memory = images.with_pictures(rows[:2])
    assert torch.equal(in_memory.pictures(rows, 64), shown)  # the third from its file
    shutil.rmtree(photos.parent / "walk")
    assert torch.equal(in_memory.pictures(rows[:2], 64), shown[:2])


def test_digests_are_found_among_others_as_a_dictionary_finds_them():
    rng = np.random.default_rng(0)
    every = rng.integers(0, 256, (40, 16), dtype=np.uint8)
    every[:20, :8] = every[20:, :8]  # the same first half
    every[0] = 0  # not known
    own, others = every[rng.integers(0, 40, 100)], every[rng.permutation(40)[:30]]
    places = {bytes(mark): place for place, mark in enumerate(others) if mark.any()}
    expected = {row: places[bytes(mark)] for row, mark in enumerate(own) if bytes(mark) in places}
    rows, at = Marks(own).rows_of(others)
    assert dict(zip(rows.tolist(), at.tolist(), strict=True)) == expected and len(rows) > 40


@pytest.mark.parametrize("copies", [1, 3])
def test_images_find_their_places_among_earlier_ones_one_for_each(copies):
    """Of several with one digest the first takes the first, and one that is not known none."""
    rng = np.random.default_rng(0)
    every = rng.integers(0, 256, (30, 16), dtype=np.uint8)
    every[:10, :8] = every[10:20, :8]  # the same first half
    every[0] = 0  # not known
    known, marks = (every[rng.integers(0, stop, copies * 25)] for stop in (25, 30))
    left = {bytes(mark): [] for mark in every}
    for place, mark in enumerate(known):
        left[bytes(mark)].append(place)
    left[bytes(16)] = []
    expected = [of.pop(0) if (of := left[bytes(mark)]) else -1 for mark in marks]
    places = places_among(torch.from_numpy(marks), torch.from_numpy(known))
    assert places.tolist() == expected and -1 in expected and max(expected) > 10
    for empty, whole in ((known[:0], marks), (known, marks[:0])):
        places = places_among(torch.from_numpy(whole), torch.from_numpy(empty))
        assert places.tolist() == [-1] * len(whole)


def test_another_time_only_new_files_are_read(photos, monkeypatch):
    nearfar.explore("photos", out="out")
    opened = []
    monkeypatch.setattr(
        walk, "decode_and_measure", lambda *args: opened.append(args) or decode_and_measure(*args)
    )
    again = nearfar.explore("photos", out="out")
    assert len(opened) == 1  # the damaged one, which may be mended by now
    assert not any(again["parts"][name]["now"] for name in ("copies", "check", "layout", "map"))
    shutil.copy(photos / "train/dim/1.png", photos / "train/dim/other.png")
    Image.new("RGB", (64, 64), (9, 200, 9)).save(photos / "train/dim/new.png")
    grown = nearfar.explore("photos", out="out")
    assert len(opened) == 3 and grown["images"] == 64 and grown["repeats"] == 2
    assert grown["parts"]["map"]["now"]


def test_a_run_that_was_stopped_goes_on_to_the_same_result(photos, monkeypatch):
    whole = nearfar.explore("photos", out="whole")
    from nearfar.maps import clusters

    def stop(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as changed:
        changed.setattr(clusters, "layered_clusters", stop)
        with pytest.raises(KeyboardInterrupt):
            nearfar.explore("photos", out="part")
    rest = nearfar.explore("photos", out="part")
    now = [name for name, part in rest["parts"].items() if part["now"]]
    assert now == ["files", "features", "clusters", "map"]
    for name in ("images", "problems", "repeats", "clusters", "next"):
        assert rest[name] == whole[name]
    folders = whole.path.parent, rest.path.parent
    first, second = ((folder / "map.json").read_text() for folder in folders)
    assert first == second


@pytest.mark.slow
def test_many_images_have_short_features_that_keep_the_copies(photos, monkeypatch):
    from nearfar.embeddings import sources, untrained
    from nearfar.neighbours import duplicates

    for room in (untrained, sources, duplicates):
        monkeypatch.setattr(room, "MANY", 50)
    monkeypatch.setattr(shortened, "DIRECTIONS", 16)
    shutil.copy(photos / "train/light/2.png", photos / "train/dim/again.png")
    explored = nearfar.explore("photos", out="out")
    assert explored["repeats"] == 2 and explored["problems"]["leak"] == 1
    assert explored["problems"]["copies disagree"] == 2
    directions = photos.parent / "out" / "features" / "directions.safetensors"
    made = directions.read_bytes()
    Image.new("RGB", (64, 64), (9, 200, 9)).save(photos / "train/dim/new.png")
    nearfar.explore("photos", out="out")
    assert directions.read_bytes() == made


@pytest.mark.slow
def test_a_damaged_file_of_features_is_made_anew(photos, caplog):
    nearfar.explore("photos", out="out")
    [file] = (photos.parent / "out" / "features").glob("0*.safetensors")
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)
    assert nearfar.explore("photos", out="out")["images"] == 62
    assert "damaged" in caplog.text


@pytest.mark.slow
def test_it_is_a_command_and_a_method_of_vectors_too(photos, capsys):
    assert main(["explore", "photos", "--out", "out", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["images"] == 62 and printed["path"].endswith("index.html")
    embedded = nearfar.embed("photos", split="all", out="vectors.npz")
    alone = nearfar.explore("vectors.npz", out="vectors")
    assert alone["images"] == len(embedded) == 62 and "leak" not in alone["problems"]


def test_pages_among_the_photos_are_no_photos(photos, log):
    first = nearfar.explore("photos", out="photos/explored")
    log.clear()
    again = nearfar.explore("photos", out="photos/explored")
    assert again["images"] == first["images"] and again["problems"] == first["problems"]
    assert not any(part["now"] for part in again["parts"].values() if part["digest"])
    assert "'photos/explored' is a folder" in log.text


def test_a_collection_of_copies_is_told_to_look_through_them(photos):
    for number in range(4):
        shutil.copy(photos / "train" / "dim" / "1.png", photos.parent / f"{number}.png")
    explored = nearfar.explore([photos.parent / f"{number}.png" for number in range(4)], out="same")
    assert explored["repeats"] == 3 and explored["next"] == "Look through the copies (3)."


def test_what_cannot_be_explored_leaves_no_folder(photos, complaint):
    (photos.parent / "empty").mkdir()
    assert "empty" in complaint("explore", "empty")
    assert "only 2 images" in complaint(
        "explore", "photos/train/dim/1.png", "photos/train/dim/3.png", "--out", "two"
    )
    assert sorted(path.name for path in photos.parent.iterdir()) == ["empty", "photos"]


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_read(photos, log):
    with pytest.raises(OSError, match="write into /proc"):
        nearfar.explore("photos", out="/proc/explored")
    assert "images read" not in log.text


def tables(explored):
    """Copies, problems and neighbours in a folder."""
    folder = explored.path.parent
    near = load_file(folder / "neighbours.safetensors")
    texts = [(folder / f"{name}.csv").read_text() for name in ("duplicates", "check")]
    return texts, near["index"].tolist(), near["distance"].tolist()


def add(photos):
    shutil.copy(photos / "train/dim/1.png", photos / "train/dim/0.png")
    Image.new("RGB", (64, 64), (9, 200, 9)).save(photos / "test/light/new.png")


def remove(photos):
    (photos / "train/light/2.png").unlink()


def change(photos):
    with Image.open(photos / "train/light/4.png") as image:
        turned = image.rotate(90)
    turned.save(photos / "train/light/4.png")


def correct_a_label(photos):
    (photos / "train/dim/99.png").write_bytes((photos / "train/dim/9.png").read_bytes())
    (photos / "train/dim/9.png").unlink()
    (photos / "train/dim/99.png").rename(photos / "train/light/00.png")


@pytest.mark.slow
@pytest.mark.parametrize("happened", [add, remove, change, correct_a_label])
def test_another_time_the_result_is_that_from_nothing(photos, happened):
    nearfar.explore("photos", out="out")
    happened(photos)
    again = nearfar.explore("photos", out="out")
    # but for features, whose last bits depend on the images that are encoded together
    shutil.copytree(photos.parent / "out" / "features", photos.parent / "afresh" / "features")
    (photos.parent / "afresh" / "parts.json").write_text("{}")
    afresh = nearfar.explore("photos", out="afresh")
    assert tables(again) == tables(afresh)
    for name in ("images", "problems", "repeats", "next"):
        assert again[name] == afresh[name]


def nearest_names(photos, folder):
    """The names of the images nearest to each, by its own name, as the files of a run have them."""
    images = open_images("photos", split="all", image_size=32)
    name_of = dict(zip(map(bytes, images.marks), images.names, strict=True))
    kept = load_file(photos.parent / folder / "neighbours.safetensors")
    names = [name_of[bytes(mark)] for mark in kept["digests"].numpy()]
    near = [[names[other] for other in row] for row in kept["index"].tolist()]
    return dict(zip(names, near, strict=True)), kept


@pytest.mark.slow
def test_lists_of_the_first_time_serve_another_time(photos, log):
    """With one list, as 62 images have, the neighbours are those of all."""
    nearfar.explore("photos", out="out", approximate=True)
    with Image.open(photos / "train/light/4.png") as image:
        image.rotate(90).save(photos / "train/dim/new.png")
    log.clear()
    nearfar.explore("photos", out="out", approximate=True)
    (line,) = [line for line in log.lines if "lost a neighbour" in line]
    assert "100.0 %" in line
    near, kept = nearest_names(photos, "out")
    assert len(kept["list_of"]) == len(near) and "train/dim/new.png" in near
    nearfar.explore("photos", out="afresh")
    assert near == nearest_names(photos, "afresh")[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["neighbours", "layout", "clusters", "verdicts"])
def test_damaged_tensors_are_noticed_and_computed_again(photos, caplog, name):
    whole = nearfar.explore("photos", out="out")
    kept = tables(whole)
    Image.new("RGB", (64, 64), (9, 200, 9)).save(photos / "train/dim/new.png")
    nearfar.explore("photos", out="out")
    (photos / "train/dim/new.png").unlink()
    file = photos.parent / "out" / f"{name}.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    assert tables(nearfar.explore("photos", out="out")) == kept
    assert f"{name}.safetensors is damaged" in caplog.text


@pytest.mark.slow
def test_a_pair_of_files_is_compared_once(photos, monkeypatch):
    nearfar.explore("photos", out="out")
    compared = []
    monkeypatch.setattr(
        full_size, "compare_pixels", lambda *args: compared.append(args) or compare_pixels(*args)
    )
    Image.new("RGB", (64, 64), (9, 200, 9)).save(photos / "train/dim/new.png")
    assert nearfar.explore("photos", out="out")["repeats"] == 1
    assert not compared  # the new one is like no other
    with Image.open(photos / "train" / "dim" / "1.png") as image:
        image.resize((32, 32), Image.Resampling.BOX).save(photos / "train/dim/small.png")
    assert nearfar.explore("photos", out="out")["repeats"] == 2
    assert 1 <= len(compared) <= 2


def places_of(explored):
    """Coordinates by the digests of the images."""
    kept = load_file(explored.path.parent / "layout.safetensors")
    return dict(zip(map(bytes, kept["digests"].numpy()), kept["coordinates"], strict=True))


@pytest.mark.slow
def test_images_of_the_last_map_stay_where_they_are_until_a_tenth_is_new(photos):
    """Of 62 images six are a tenth; one more, and all are moved, from where they are."""
    before = places_of(nearfar.explore("photos", out="out"))
    for number in range(6):
        Image.new("RGB", (64, 64), (9, 200, 9 * number)).save(photos / f"train/light/z{number}.png")
    after = places_of(nearfar.explore("photos", out="out"))
    assert len(after) == len(before) + 6
    assert all(torch.equal(after[image], place) for image, place in before.items())
    Image.new("RGB", (64, 64), (9, 200, 99)).save(photos / "train/light/z7.png")
    now = places_of(nearfar.explore("photos", out="out"))
    every, old = torch.stack([*after.values()]), torch.stack([*before.values()])
    moved = torch.stack([now[image] for image in after]) - every
    assert moved.abs().amin(1).gt(0).all()
    moved -= moved.mean(0)  # the centre of a map is that of all images, old and new
    assert moved.norm(dim=1).mean() < 0.1 * (old.amax(0) - old.amin(0)).max()


def sheets_of(explored):
    files = (explored.path.parent / "map" / "pictures").iterdir()
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


@pytest.mark.slow
def test_sheets_of_a_map_that_have_not_changed_are_not_drawn_again(photos, monkeypatch):
    """Sheets of sixteen images; one that is damaged is drawn again, as is one with an image that is
    gone.
    """
    monkeypatch.setattr(page, "MOST_IMAGES", 50)
    monkeypatch.setattr(sheets, "PER_ROW", 4)
    monkeypatch.setattr(sheets, "PER_SHEET", 16)
    monkeypatch.setattr(sheets, "TOGETHER", 3)
    before = sheets_of(nearfar.explore("photos", out="out"))
    assert len(before) == 4
    Image.new("RGB", (64, 64), (9, 200, 9)).save(photos / "train/light/a.png")
    Image.new("RGB", (64, 64), (200, 9, 9)).save(photos / "train/light/zz.png")
    after = sheets_of(nearfar.explore("photos", out="out"))
    assert {name for name in after if after[name] != before.get(name)} == {"3.jpg"}
    (photos.parent / "out/map/pictures/1.jpg").write_bytes(before["1.jpg"][0][:-5])
    (photos / "train/light/a.png").unlink()
    again = sheets_of(nearfar.explore("photos", out="out"))
    assert {name for name in again if again[name] != after[name]} == {"1.jpg", "3.jpg"}
    assert again["1.jpg"][0] == before["1.jpg"][0] and again["3.jpg"][0] != after["3.jpg"][0]


def test_a_folder_with_other_things_is_left_alone(photos, complaint):
    assert "photos holds something else" in complaint("explore", "photos", "--out", "photos")


def test_one_decoding_gives_the_pixels_and_the_measures_of_two(photos):
    file = str(photos / "train/light/2.png")
    pixels, measured = decode_and_measure(file, PixelFormat(32, 3))
    apart = pixels.astype(int) - decode(file, PixelFormat(32, 3))
    assert np.abs(apart).max() <= 2
    np.testing.assert_allclose(measured, measures(grayscale(file)), atol=1e-6)
