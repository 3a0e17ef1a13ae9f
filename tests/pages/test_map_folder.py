import base64
import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.atomic import replacing
from nearfar.data import Images
from nearfar.pages import write_map_page
from nearfar.pages.map import Square, z_order_keys

COUNT = 700
TYPES = {"u2": "<u2", "i4": "<i4", "f4": "<f4"}


def images_of(count=COUNT, side=12):
    """Image i is filled with the colour (i % 256, i // 256 * 64, 50)."""
    i = torch.arange(count)
    colour = torch.stack([i % 256, i // 256 * 64, torch.full_like(i, 50)], 1).to(torch.uint8)
    names = [f'{i}</script>\u2028"\\.png' for i in range(count)]
    pixels = colour[:, :, None, None].expand(count, 3, side, side).contiguous()
    return Images(
        pixels, names=names, image_size=side, channels=3, labels=np.arange(count) % 3, class_names=list("xyz")
    )


@pytest.fixture(scope="module")
def points():
    return torch.randn(COUNT, 2, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, points):
    path = tmp_path_factory.mktemp("maps") / "map"
    neighbours = np.stack([np.roll(np.arange(COUNT), -1), np.full(COUNT, -1)], 1)
    write_map_page(path, points, images_of(), columns={"odd": np.arange(COUNT) / 7}, neighbours=neighbours)
    return path


def part(folder, key):
    text = (folder / "parts" / f"{key}.js").read_text(encoding="ascii")
    name, value = json.loads(re.fullmatch(r"nearfarPart\((.*)\)", text)[1].join("[]"))
    assert name == key
    return value


def numbers(given):
    return np.frombuffer(base64.b64decode(given["bytes"]), TYPES[given["type"]])


def order(points):
    places = points.double().numpy()
    return np.argsort(z_order_keys(places, Square.around(places)), kind="stable")


def test_parts_hold_all_images_in_z_order(folder, points):
    which = order(points)
    assert np.array_equal(numbers(part(folder, "points")).reshape(-1, 2), points.numpy()[which])
    assert part(folder, "names-0") == [images_of().names[i] for i in which]
    assert np.array_equal(numbers(part(folder, "column-0")), which % 3)
    assert np.allclose(numbers(part(folder, "column-1")), which / 7)
    near = numbers(part(folder, "neighbours-0")).reshape(COUNT, 2)
    assert np.array_equal(which[near[:, 0]], (which + 1) % COUNT) and (near[:, 1] == -1).all()


def test_sheets_hold_the_thumbnails_of_all_images_and_of_each_level(folder, points):
    sets = {"all": order(points)}
    depths = [int(path.name) for path in (folder / "pictures").iterdir() if path.name != "all"]
    for depth in depths:
        sets[str(depth)] = sets["all"][numbers(part(folder, f"level-{depth}")["points"])]
    assert len(depths) > 2
    for name, rows in sets.items():
        files = [folder / "pictures" / name / f"{number}.png" for number in range(-(-len(rows) // 256))]
        sheets = [np.array(Image.open(file)) for file in files]
        for place, i in enumerate(rows):
            row, column = divmod(place % 256, 16)
            assert sheets[place // 256][row * 12 + 5, column * 12 + 5].tolist() == [i % 256, i // 256 * 64, 50]


def test_the_page_itself_is_small_and_asks_for_nothing_elsewhere(folder):
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert len(page) < 100_000 and page.count("</script>") == 3
    assert not re.search(r"https?://|//cdn|<link|@import|\bfetch\(|XMLHttpRequest|import\(|<script[^>]+src", page)
    assert "default-src 'none'" in page and "{{" not in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    assert [column["name"] for column in data["columns"]] == ["label", "odd"]


def test_photographs_are_jpeg_and_few_are_held_at_a_time(tmp_path, monkeypatch):
    read = []
    gather = Images.gather
    monkeypatch.setattr(Images, "gather", lambda self, index: read.append(len(index)) or gather(self, index))
    write_map_page(tmp_path / "map", torch.randn(COUNT, 2), images_of(side=40))
    assert max(read) <= 256
    sheet = Image.open(io.BytesIO((tmp_path / "map/pictures/all/0.jpg").read_bytes()))
    assert sheet.size == (640, 640)


def test_a_folder_appears_whole_or_not_at_all(tmp_path, points):
    images, path = images_of(), tmp_path / "map"
    with replacing(path) as unfinished:
        write_map_page(unfinished, points, images)
    before = sorted(tmp_path.rglob("*"))
    broken = images_of()
    broken.gather = lambda index: 1 / 0
    with pytest.raises(ZeroDivisionError), replacing(path) as unfinished:
        write_map_page(unfinished, points, broken)
    assert sorted(tmp_path.rglob("*")) == before
    with replacing(path) as unfinished:
        write_map_page(unfinished, points[:5], images.subset(range(5)))
    assert sorted(tmp_path.iterdir()) == [path] and len(part(path, "names-0")) == 5


def test_points_and_neighbours_that_cannot_be_drawn(tmp_path, unchecked):
    with pytest.raises(ValueError, match="finite"):
        write_map_page(tmp_path / "map", torch.full((3, 2), torch.nan), images_of(3))
    with pytest.raises(ValueError, match="neighbours must have one row"):
        write_map_page(tmp_path / "map", torch.zeros(3, 2), images_of(3), neighbours=np.zeros((2, 1), np.int32))
    assert not list(tmp_path.iterdir())
