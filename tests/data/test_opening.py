"""Folders, Parquet, tars and the Hub through `open_images`: names, labels, splits, and what is
refused.
"""

import json
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from nearfar.data import describe, difference, list_splits, open_images, scan
from tests.pictures import png


def first(pixels):
    return pixels.transpose(2, 0, 1)


def parquet(path, rows, **columns):
    """Plain Parquet, without the notes `datasets` would leave in the schema."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": png(n), "path": None} for n in rows]
    pq.write_table(pa.table({"img": images, **columns}), path)


# folders


@pytest.mark.parametrize("split", ["", "train/"])
def test_an_image_beside_the_class_folders_has_no_label(tmp_path, paint, split, caplog):
    for i, name in enumerate(["preview.png", "ant/0.png", "cat/0.png", "cat/1.png"]):
        paint(tmp_path / split / name, i)
    with caplog.at_level("INFO", logger="nearfar"):
        images = open_images(tmp_path)
    assert dict(zip(images.names, images.labels.tolist(), strict=True)) == {
        f"{split}ant/0.png": 0,
        f"{split}cat/0.png": 1,
        f"{split}cat/1.png": 1,
        f"{split}preview.png": -1,
    }
    assert images.class_names == ["ant", "cat"] and "2 classes" in repr(images)
    [line] = caplog.messages
    assert f"'{tmp_path}'" in line and line.endswith(f": 1 of 4, first '{split}preview.png'")
    for i in range(2):
        paint(tmp_path / split / f"more {i}.png", i)
    assert open_images(tmp_path).labels is None  # most images lie in no class folder


@pytest.mark.parametrize(
    ("files", "split", "names", "labels"),
    [
        (["b.png", "a.png", "deep/er/c.png"], None, ["a.png", "b.png", "deep/er/c.png"], None),
        (["cat/1.png", "dog/1.png"], None, ["cat/1.png", "dog/1.png"], [0, 1]),
        (
            ["cat/1.png", "cat/deep/2.png", "dog/1.png"],
            None,
            ["cat/1.png", "cat/deep/2.png", "dog/1.png"],
            None,
        ),
        (["cat/1.png", "cat/2.png"], None, ["cat/1.png", "cat/2.png"], None),  # one class is none
        (["train/x/1.png", "train/y/2.png", "val/y/4.png"], "validation", ["val/y/4.png"], [1]),
        (["training/1.png", "testing/2.png"], "all", ["training/1.png", "testing/2.png"], None),
        (["training/1.png", "testing/2.png"], None, ["training/1.png"], None),
    ],
)
def test_the_images_of_a_folder_and_their_classes(tmp_path, paint, files, split, names, labels):
    for i, name in enumerate([*files, ".hidden.png", "__MACOSX/x.png", ".trash/y.png"]):
        paint(tmp_path / "in" / name, i)
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "notes.txt").write_text("not looked at")
    images = open_images(tmp_path / "in", split=split)
    assert images.names == names
    assert images.skipped == [("loop/", "a link to a folder that is read already")]
    assert labels is None if images.labels is None else images.labels.tolist() == labels
    with pytest.raises(ValueError, match=r"split 'extra'"):
        open_images(tmp_path / "in", split="extra")


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_labels_of_metadata_beside_the_images(tmp_path, paint, ending):
    for i in range(3):
        paint(tmp_path / "deep" / f"{i}.png", i)
    rows = pa.table({"file_name": ["2.png", "0.png", "lost.png"], "kind": [5, 3, 5]})
    if ending == "parquet":
        pq.write_table(rows, tmp_path / "deep" / "metadata.parquet")
    else:
        lines = (
            map(json.dumps, rows.to_pylist())
            if ending == "jsonl"
            else ["file_name,kind", "2.png,5", "0.png,3", "lost.png,5"]
        )
        (tmp_path / "deep" / f"metadata.{ending}").write_text("\n".join(lines))
    images = open_images(tmp_path, label_column="kind")
    assert images.names == [
        "deep/0.png",
        "deep/1.png",
        "deep/2.png",
    ] and images.labels.tolist() == [3, -1, 5]
    assert images.skipped == [
        ("deep/lost.png", "named in the metadata, and not an image in the folder")
    ]
    assert open_images(tmp_path).labels is None
    with pytest.raises(ValueError, match="no column 'sort' for labels"):
        open_images(tmp_path, label_column="sort")


def test_names_that_look_like_patterns_are_names(tmp_path, paint):
    for name in ("[x]*/a?.png", "[x]*/#b.png", "50%/ü {1}.PNG"):
        paint(tmp_path / "data[1]" / name, 0)
    images = open_images(tmp_path / "data[1]")
    assert images.names == ["50%/ü {1}.PNG", "[x]*/#b.png", "[x]*/a?.png"]
    assert images.labels.tolist() == [0, 1, 1]


def test_unreadable_images_are_skipped_and_listed(tmp_path, paint, monkeypatch):
    for i in range(4):
        paint(tmp_path / f"{i}.png", i)
    paint(tmp_path / "bomb.png", 9, size=64)
    whole = (tmp_path / "1.png").read_bytes()
    (tmp_path / "1.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "2.png").write_text("hello")
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "link.png").symlink_to(tmp_path / "nowhere.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    images = open_images(tmp_path)
    assert images.names == ["0.png", "3.png"] and len(images.pixels) == 2
    reasons = dict(images.skipped)
    assert list(reasons) == ["1.png", "2.png", "bomb.png", "empty.jpg", "link.png"]
    assert "truncated" in reasons["1.png"] and "known format" in reasons["2.png"]
    assert "limit of 2,000" in reasons["bomb.png"]
    assert reasons["link.png"] == "there is no such file"
    assert open_images(tmp_path).skipped == images.skipped  # from the cache as well


def test_links_in_a_circle_are_told_without_the_number_of_an_error(tmp_path, paint):
    paint(tmp_path / "0.png", 0)
    (tmp_path / "1.png").symlink_to("2.png")
    (tmp_path / "2.png").symlink_to("1.png")
    ((name, reason), (other, same)) = open_images(tmp_path).skipped
    assert (name, other) == ("1.png", "2.png") and reason == same
    assert "symbolic links" in reason and "rrno" not in reason and str(tmp_path) not in reason


def test_of_images_that_cannot_be_read_the_reason_is_not_that_of_another_file(tmp_path, paint):
    """It was the first that was left out: a link to a folder, where seven channels were asked for."""
    for number in range(3):
        paint(tmp_path / f"{number}.png", number)
    (tmp_path / "again").symlink_to(".")
    (tmp_path / "clip.mp4").write_bytes(b"0000ftypmp42")
    with pytest.raises(ValueError, match=r"none of the 3 .* channels"):
        open_images(tmp_path, channels=7)


def test_image_files_are_a_source(tmp_path, paint, monkeypatch, decodes):
    painted = {
        name: paint(tmp_path / name, i) for i, name in enumerate(["x/1.png", "y/1.png", "y/0.png"])
    }
    given = [tmp_path / name for name in painted]
    images = open_images(given)
    assert images.names == list(painted) and images.labels is None and list_splits(given) == []
    assert (images.pixels.numpy() == [first(pixels) for pixels in painted.values()]).all()
    assert images.source == describe(given) == f"3 image files, first {given[0]}"
    assert open_images(given, few=2).names == ["x/1.png", "y/0.png"] and len(scan(given)) == 3
    monkeypatch.chdir(tmp_path)
    decodes.clear()
    assert open_images(list(painted)).names == images.names and not decodes  # from the cache
    before = scan(given)
    assert before == scan(list(painted))
    paint(tmp_path / "y/0.png", 7)
    assert difference(before, scan(given)) == "1 image changed: first y/0.png"
    alone = open_images("y/1.png")
    assert alone.names == ["1.png"] and (alone.pixels[0].numpy() == first(painted["y/1.png"])).all()
    with pytest.raises(ValueError, match=r"y/1.png' is given twice"):
        open_images(["y/1.png", "./y/1.png"])
    with pytest.raises(FileNotFoundError, match=r"'y/2\.png'"):
        open_images(["y/1.png", "y/2.png"])


# Parquet


def test_parquet_of_bytes_and_cells_that_hold_no_image(tmp_path):
    pq.write_table(pa.table({"image": [png(0), b"nothing", None, png(1)]}), tmp_path / "a.parquet")
    images = open_images(tmp_path / "a.parquet")
    assert images.names == ["000000", "000003"] and images.originals[1] == png(1)
    assert [name for name, _ in images.skipped] == ["000001", "000002"]
    assert "no image data here" in images.skipped[1][1]
    pq.write_table(
        pa.table({"image": [{"bytes": png(0), "path": None}, {"bytes": None, "path": None}]}),
        tmp_path / "b.parquet",
    )
    assert open_images(tmp_path / "b.parquet").skipped[0][0] == "000001"


def test_parquet_written_by_datasets_keeps_class_names(tmp_path):
    import datasets

    features = datasets.Features(
        {"picture": datasets.Image(), "fine_label": datasets.ClassLabel(names=["u", "v"])}
    )
    rows = {"picture": [{"bytes": png(n), "path": None} for n in range(2)], "fine_label": [1, 0]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "x.parquet")
    images = open_images(tmp_path)
    assert images.labels.tolist() == [1, 0] and images.class_names == ["u", "v"]


def test_parquet_rows_cannot_point_outside_the_folder(tmp_path, paint):
    paint(tmp_path / "secret.png", 0)
    paint(tmp_path / "in" / "pics" / "mine.png", 1)
    cells = [
        {"bytes": None, "path": path}
        for path in (
            str(tmp_path / "secret.png"),
            "../secret.png",
            "https://example.org/a.png",
            "pics/mine.png",
        )
    ]
    pq.write_table(pa.table({"image": cells}), tmp_path / "in" / "rows.parquet")
    images = open_images(tmp_path / "in" / "rows.parquet")
    assert images.names == ["pics/mine.png"]
    assert [name for name, _ in images.skipped] == [
        str(tmp_path / "secret.png").strip("/"),
        "../secret.png",
        "https://example.org/a.png",
    ]


def rows_with_paths(file, paths, **columns):
    """A Parquet file of images with these paths; their first pixel is the number of the row."""
    cells = [{"bytes": png(row), "path": path} for row, path in enumerate(paths)]
    pq.write_table(pa.table({"image": cells, **columns}), file)


@pytest.mark.parametrize(
    ("paths", "names", "words"),
    [
        (["b/1.png", "a/1.png"], ["b/1.png", "a/1.png"], []),
        (["b/1.png", "", None], ["b/1.png", "000001", "000002"], ["2 without a path"]),
        (
            ["x.png", "y.png", "x.png"],
            ["000000", "y.png", "000002"],
            ["2 whose path is not unique, first x.png"],
        ),
        (["000001", None], ["000000", "000001"], ["1 without a path", "first 000001"]),
        (["line\nbreak.png", 1001 * "x"], ["line\\nbreak.png", "000001"], ["1 without a path"]),
        ([None, ""], ["000000", "000001"], []),
    ],
)
def test_parquet_rows_have_the_names_of_their_paths(tmp_path, log, paths, names, words):
    rows_with_paths(tmp_path / "a.parquet", paths)
    images = open_images(tmp_path / "a.parquet")
    assert images.names == names and len(set(names)) == len(names)
    assert list(images.originals) == [png(row) for row in range(len(names))]
    lines = [line for line in log.lines if "named by their number" in line]
    assert len(lines) == bool(words) and all(word in line for line in lines for word in words)
    assert open_images(tmp_path / "a.parquet").names == names  # by the table of the first scan


def test_equal_paths_in_two_splits_or_files(tmp_path, log):
    rows_with_paths(
        tmp_path / "a.parquet", ["x.png", "x.png", "y.png"], split=["train", "test", "test"]
    )
    images = open_images(tmp_path / "a.parquet", split="all")
    assert sorted(images.names) == ["test/x.png", "test/y.png", "train/x.png"]
    assert not any("named by their number" in line for line in log.lines)
    for part in (0, 1):
        (tmp_path / "b").mkdir(exist_ok=True)
        rows_with_paths(tmp_path / f"b/train-{part}.parquet", ["0.png", f"{part}/1.png"])
    assert open_images(tmp_path / "b").names == [
        "train/000000",
        "train/0/1.png",
        "train/000002",
        "train/1/1.png",
    ]


def test_rows_of_datasets_have_the_names_of_their_paths(tmp_path, paint):
    import datasets

    paint(tmp_path / "in/mine.png", 1)
    features = datasets.Features({"image": datasets.Image()})
    cells = [{"bytes": png(0), "path": "cat/0.png"}, str(tmp_path / "in/mine.png")]
    table = datasets.Dataset.from_dict({"image": cells}, features=features)
    assert open_images(table).names == ["cat/0.png", str(tmp_path / "in/mine.png").strip("/")]


# refusals


@pytest.mark.parametrize(
    "made", [iter, set, np.array, pandas.Series, lambda paths: pandas.DataFrame({"path": paths})]
)
def test_paths_in_anything_but_a_list_are_refused_in_a_line_that_says_so(tmp_path, paint, made):
    paths = [str(tmp_path / f"{number}.png") for number in range(3)]
    for number, path in enumerate(paths):
        paint(Path(path), number)
    assert len(open_images(paths)) == 3
    with pytest.raises(ValueError, match="make a list of it"):
        open_images(made(paths))


def test_wrong_paths_name_the_nearest(tmp_path, paint):
    paint(tmp_path / "photos" / "cats" / "0.png", 0)
    with pytest.raises(FileNotFoundError, match=r"phots.*did you mean 'photos'"):
        open_images(tmp_path / "phots")
    with pytest.raises(FileNotFoundError, match=r"did you mean 'cats'"):
        open_images(tmp_path / "photos" / "cat")
    with pytest.raises(FileNotFoundError, match=r"did you mean 'photos'"):
        open_images(tmp_path / "photo" / "cats" / "deep")
    with pytest.raises(FileNotFoundError, match="''"):
        open_images("")
    with pytest.raises(FileNotFoundError) as error:
        open_images(tmp_path / "quite different")
    assert "mean" not in str(error.value)


def test_folders_without_images(tmp_path):
    with pytest.raises(ValueError, match="is empty"):
        open_images(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match="holds no images"):
        open_images(tmp_path)
    with pytest.raises(ValueError, match=r"is no image"):
        open_images(tmp_path / "a.txt")


def test_all_images_unreadable(tmp_path):
    for name in ("a.png", "b.jpg"):
        (tmp_path / name).write_text("x")
    with pytest.raises(ValueError, match=r"2 images in .*; a.png: ") as error:
        open_images(tmp_path)
    assert "\n" not in str(error.value)


def test_errors_of_a_parquet_file_name_it(tmp_path):
    pq.write_table(pa.table({"a": [1], "label": [1]}), tmp_path / "none.parquet")
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1" + bytes(40) + b"PAR1")
    parquet(tmp_path / "some.parquet", [0], label=[1])
    for name, options in {
        "none.parquet": {},
        "damaged.parquet": {},
        "some.parquet": {"label_column": "nope"},
    }.items():
        with pytest.raises(ValueError, match=name) as error:
            open_images(tmp_path / name, **options)
    assert "'nope' for labels" in str(error.value)
