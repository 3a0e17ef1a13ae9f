"""Notes of cameras in their pictures, and pictures of phones: HEIC and AVIF."""

from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from PIL.ExifTags import GPS, IFD, Base

import nearfar
from nearfar.data import open_images, readers
from nearfar.data.pictures import formats
from nearfar.maps.columns import columns_of

pytestmark = pytest.mark.usefixtures("known_speed")


def picture(seed=0, size=(40, 30)):
    rng = np.random.default_rng(seed)
    return Image.fromarray(
        rng.integers(0, 256, (size[1] // 10, size[0] // 10, 3), dtype=np.uint8)
    ).resize(size)


def noted(camera="Box 3", taken="2019:07:02 12:00:00", south=False):
    tags = Image.Exif()
    tags[Base.Model] = camera
    tags.get_ifd(IFD.Exif)[Base.DateTimeOriginal] = taken
    place = {GPS.GPSLatitudeRef: "S" if south else "N", GPS.GPSLatitude: (48.0, 30.0, 36.0)}
    tags.get_ifd(IFD.GPSInfo).update(
        place | {GPS.GPSLongitudeRef: "W", GPS.GPSLongitude: (9.0, 0.0, 0.0)}
    )
    return tags


@pytest.mark.parametrize("ending", ["jpg", "webp", "png"])
def test_time_camera_and_place_are_columns(ending, tmp_path):
    picture().save(tmp_path / f"a.{ending}", exif=noted(south=True))
    picture(1).save(tmp_path / "b.bmp")
    columns = open_images(tmp_path, image_size=16).columns.to_pydict()
    assert columns["taken"] == [datetime(2019, 7, 2, 12), None]
    assert columns["camera"] == ["Box 3", None]
    assert columns["latitude"] == [pytest.approx(-48.51), None] and columns["longitude"] == [
        -9.0,
        None,
    ]
    years = columns_of(
        open_images(tmp_path, image_size=16).columns, None, ["a", "b"], labelled=False
    )["taken"]
    assert years[0] == pytest.approx(2019.5, abs=0.01) and np.isnan(years[1])


def test_columns_of_a_table_of_paths_stay_and_exif_joins_them(tmp_path):
    picture().save(tmp_path / "a.jpg", exif=noted())
    (tmp_path / "table.csv").write_text("path,camera\na.jpg,mine\n")
    columns = open_images(tmp_path / "table.csv", image_size=16).columns.to_pydict()
    assert columns["camera"] == ["mine"] and columns["latitude"] == [pytest.approx(48.51)]


@pytest.mark.parametrize("taken", ["0000:00:00 00:00:00", "yesterday", ""])
def test_damaged_notes_count_as_missing(taken, tmp_path):
    tags = noted(camera="", taken=taken)
    tags.get_ifd(IFD.GPSInfo)[GPS.GPSLatitude] = (948.0, 0.0, 0.0)
    picture().save(tmp_path / "a.jpg", exif=tags)
    assert open_images(tmp_path, image_size=16).columns is None


def test_files_without_notes_have_no_columns(tmp_path):
    picture().save(tmp_path / "a.jpg")
    assert open_images(tmp_path, image_size=16).columns is None


def test_embed_writes_them(tmp_path):
    for number in range(12):
        picture(number).save(tmp_path / f"{number:02d}.jpg", exif=noted(camera=f"Box {number % 2}"))
    options = dict(epochs=1, batch_size=4, held_out=2, image_size=16, encoder="small")
    run = nearfar.pretrain(tmp_path, out=tmp_path / "run", **options)
    table = pq.read_table(nearfar.embed(run, out=tmp_path / "rows.parquet", split="all").path)
    assert table["camera"].to_pylist() == ["Box 0", "Box 1"] * 6
    assert set(table["taken"].to_pylist()) == {datetime(2019, 7, 2, 12)}


@pytest.mark.parametrize(("ending", "form"), [("avif", "AVIF"), ("heic", "HEIF")])
def test_pictures_of_phones(ending, form, tmp_path):
    if form not in formats():
        pytest.skip(f"this Pillow does not read {form}")
    flat = picture().resize((64, 48), Image.Resampling.BICUBIC)
    flat.save(tmp_path / f"a.{ending}", format=form, quality=95, exif=noted())
    flat.save(tmp_path / "b.png")
    images = open_images(tmp_path, image_size=48)
    assert images.names == [f"a.{ending}", "b.png"]
    assert (images.pixels[0].float() - images.pixels[1].float()).abs().mean() < 6
    assert images.columns["camera"].to_pylist() == ["Box 3", None]


def test_heic_without_its_reader_says_what_to_install(tmp_path, monkeypatch):
    without = tuple(name for name in formats() if name != "HEIF")
    monkeypatch.setattr(readers, "formats", lambda: without)
    picture().save(tmp_path / "a.png")
    Path(tmp_path / "b.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(200))
    images = open_images(tmp_path, image_size=16)
    assert images.names == ["a.png"]
    assert images.skipped == [("b.heic", "HEIC needs pillow-heif: pip install 'nearfar[heic]'")]
