"""The files of a map's page, read back; what the page does with them is tested in a browser."""

import base64
import io
import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.atomic import replacing
from nearfar.data import Images
from nearfar.tools.map.page import levels, square_around, write_map_page, z_order_keys

COUNT = 700
TYPES = {"u2": "<u2", "i4": "<i4", "f4": "<f4", "f8": "<f8"}
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "a\"b'c&amp;\\",
    "\u2028\u2029\n\t",
    "\ud800 lone",
]


def images_of(count=COUNT, side=12, **more):
    """Image i is filled with the colour (i % 256, i // 256 * 64, 50)."""
    i = torch.arange(count)
    colour = torch.stack([i % 256, i // 256 * 64, torch.full_like(i, 50)], 1).to(torch.uint8)
    pixels = colour[:, :, None, None].expand(count, 3, side, side).contiguous()
    more = {"names": [f'{i}</script>\u2028"\\.png' for i in range(count)], **more}
    return Images(pixels, **more)


def labelled(count=COUNT, side=12):
    return images_of(count, side, labels=np.arange(count) % 3, class_names=list("xyz"))


def data_of(page):
    scripts = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>',
        page.read_text(encoding="utf-8"),
    )
    assert len(scripts) == 1
    return json.loads(scripts[0])


@pytest.fixture(scope="module")
def points():
    return torch.randn(COUNT, 2, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module", params=["map.html", "map"])
def written(request, tmp_path_factory, points):
    path = tmp_path_factory.mktemp("maps") / request.param
    neighbours = np.stack([np.roll(np.arange(COUNT), -1), np.full(COUNT, -1)], 1)
    write_map_page(
        path, points, labelled(), columns={"odd": np.arange(COUNT) / 7}, neighbours=neighbours
    )
    return path


def part(written, key):
    if written.suffix:
        return data_of(written)["parts"][key]
    text = (written / "parts" / f"{key}.js").read_text(encoding="ascii")
    name, value = json.loads(re.fullmatch(r"nearfarPart\((.*)\)", text)[1].join("[]"))
    assert name == key
    return value


def sheet(written, number):
    if not written.suffix:
        return Image.open(written / "pictures" / f"{number}.png")
    return Image.open(
        io.BytesIO(base64.b64decode(data_of(written)["sheets"]["urls"][number].split(",")[1]))
    )


def numbers(given):
    return np.frombuffer(base64.b64decode(given["bytes"]), TYPES[given["type"]])


def order(written, points):
    """Images in the order of the page: their own in a file, in a folder that of the Z-order
    curve.
    """
    places = points.double().numpy()
    keys = z_order_keys(places, square_around(places))
    return np.arange(len(points)) if written.suffix else np.argsort(keys, kind="stable")


def test_parts_hold_all_images_in_the_order_of_the_page(written, points):
    which = order(written, points)
    assert np.array_equal(numbers(part(written, "points")).reshape(-1, 2), points.numpy()[which])
    assert part(written, "names-0") == [labelled().names[i] for i in which]
    assert np.array_equal(numbers(part(written, "column-0")), which % 3)
    assert np.allclose(numbers(part(written, "column-1")), which / 7)
    near = numbers(part(written, "neighbours-0")).reshape(COUNT, 2)
    assert np.array_equal(which[near[:, 0]], (which + 1) % COUNT) and (near[:, 1] == -1).all()


def check_sheets(written, slots, colours):
    """Image i, of such a colour, lies on this place of the sheets."""
    sheets = {}
    for slot, colour in zip(slots.tolist(), colours, strict=True):
        number, (row, column) = slot // 256, divmod(slot % 256, 16)
        if number not in sheets:
            sheets[number] = np.array(sheet(written, number))
        assert sheets[number][row * 12 + 5, column * 12 + 5].tolist() == colour


def colours_of(rows):
    return [[i % 256, i // 256 * 64, 50] for i in rows.tolist()]


def test_sheets_hold_the_thumbnail_of_each_image_once(written, points):
    which = order(written, points)
    slots = np.arange(COUNT) if written.suffix else numbers(part(written, "slots"))
    assert sorted(slots.tolist()) == list(range(COUNT))
    check_sheets(written, slots, colours_of(which))


def test_in_a_folder_the_images_of_coarser_levels_come_first(written, points):
    levels_of = [] if written.suffix else data_of(written / "index.html")["levels"]
    before, slots = 0, None if written.suffix else numbers(part(written, "slots"))
    for level in levels_of:
        chosen = numbers(part(written, f"level-{level['depth']}")["points"])
        assert set(slots[chosen].tolist()) == set(range(len(chosen)))
        added = chosen[slots[chosen] >= before]
        assert (np.diff(slots[added]) == 1).all()  # in Z-order, as the images are
        before = len(chosen)
    assert written.suffix or len(levels_of) > 2


def some_of(rows):
    """Images at these positions, which hold at their places whatever the others are."""
    return images_of().subset(rows)


def state(folder):
    files = sorted((folder / "pictures").iterdir(), key=lambda file: int(file.stem))
    return [(file.read_bytes(), file.stat().st_mtime_ns) for file in files]


def test_sheets_of_an_earlier_folder_stay_what_they_are(tmp_path, points):
    """Of 600 images, on three sheets, and later 650."""
    earlier = write_map_page(tmp_path / "old", points[:600], some_of(range(600)))
    before = state(tmp_path / "old")
    slots = np.concatenate([earlier.slots, np.full(50, -1)])
    now = write_map_page(
        tmp_path / "new",
        points[:650],
        some_of(range(650)),
        earlier=replace(earlier, slots=slots),
    )
    after = state(tmp_path / "new")
    assert after[:2] == before[:2] and after[2] != before[2] and len(after) == 3
    assert now.files[:2] == earlier.files[:2] and np.array_equal(now.slots[:600], earlier.slots)
    check_sheets(tmp_path / "new", now.slots, colours_of(np.arange(650)))


def test_sheets_that_are_damaged_or_show_what_is_gone_are_drawn_again(tmp_path, points):
    earlier = write_map_page(tmp_path / "old", points[:600], some_of(range(600)))
    before = state(tmp_path / "old")
    gone = int(np.flatnonzero(earlier.slots == 300)[0])
    (tmp_path / "old" / "pictures" / "0.png").write_bytes(before[0][0][:-9])
    left = np.delete(np.arange(600), gone)
    files = [earlier.files[0], "", earlier.files[2]]
    known = replace(earlier, slots=earlier.slots[left], files=files)
    now = write_map_page(tmp_path / "new", points[left], some_of(left), earlier=known)
    after = state(tmp_path / "new")
    assert after[0][0] == before[0][0] and after[1][0] != before[1][0] and after[2] == before[2]
    check_sheets(tmp_path / "new", now.slots, colours_of(left))
    check_sheets(tmp_path / "new", np.array([300]), [[0, 0, 0]])


def test_the_page_asks_for_nothing_elsewhere(written):
    page = written if written.suffix else written / "index.html"
    text = page.read_text(encoding="utf-8")
    assert text.count("</script>") == 3 and (written.suffix or len(text) < 100_000)
    assert not re.search(
        r"https?://|//cdn|<link|@import|\bfetch\(|XMLHttpRequest|import\(|<script[^>]+src", text
    )
    assert "default-src 'none'" in text and "{{" not in text
    assert [column["name"] for column in data_of(page)["columns"]] == ["label", "odd"]


def test_hostile_names_come_back_as_they_are_and_end_no_script(tmp_path):
    classes = [f"</script>{i}" for i in range(5)]
    images = images_of(5, names=HOSTILE, labels=np.arange(5), class_names=classes)
    write_map_page(tmp_path / "map.html", torch.randn(5, 2), images, note="</p><b>")
    assert part(tmp_path / "map.html", "names-0") == HOSTILE
    assert [
        group["name"] for group in data_of(tmp_path / "map.html")["columns"][0]["classes"]
    ] == classes
    text = (tmp_path / "map.html").read_text(encoding="utf-8")
    assert text.count("</script>") == 3 and "&lt;/p&gt;&lt;b&gt;</p>" in text


def test_of_more_than_twenty_thousand_images_a_fixed_choice_is_shown(tmp_path):
    count = 20_500
    points = torch.arange(count, dtype=torch.float32)[:, None].expand(count, 2)
    images = images_of(count, side=2, names=[str(i) for i in range(count)])
    for name in ("a.html", "b.html"):
        write_map_page(tmp_path / name, points, images)
    data = data_of(tmp_path / "a.html")
    names = [name for block in range(5) for name in data["parts"][f"names-{block}"]]
    assert (data["total"], data["count"]) == (count, 20_000) and len(set(names)) == 20_000
    assert [f"{x:.0f}" for x in numbers(data["parts"]["points"])[::2]] == names
    assert data == data_of(tmp_path / "b.html")


@pytest.mark.parametrize(("count", "side", "size"), [(20, 100, 64), (5001, 40, 32)])
def test_thumbnails_are_limited_by_the_number_of_images(tmp_path, count, side, size):
    write_map_page(tmp_path / "map.html", torch.randn(count, 2), images_of(count, side=side))
    data = data_of(tmp_path / "map.html")
    assert data["sheets"]["size"] == size and len(data["sheets"]["urls"]) == -(-count // 256)
    assert sheet(tmp_path / "map.html", 0).width == 16 * (-(-size // 8) * 8)


def test_a_full_page_of_noisy_photographs_stays_below_30_megabytes(tmp_path):
    """2000 smooth noise images at 32 px, scaled up to the 20 000 a page holds at most."""
    noise = torch.rand(2000, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    pixels = torch.nn.functional.interpolate(noise, size=(32, 32), mode="bilinear").mul(255).byte()
    images = Images(pixels, names=[f"{i}.png" for i in range(2000)])
    write_map_page(tmp_path / "map.html", torch.randn(2000, 2), images)
    assert 10 * (tmp_path / "map.html").stat().st_size < 30e6


def test_photographs_in_a_folder_are_jpeg_and_few_are_held_at_a_time(tmp_path, monkeypatch):
    read = []
    gather = Images.gather
    monkeypatch.setattr(
        Images, "gather", lambda self, index: read.append(len(index)) or gather(self, index)
    )
    write_map_page(tmp_path / "map", torch.randn(COUNT, 2), images_of(side=40))
    assert max(read) <= 256
    assert Image.open(tmp_path / "map/pictures/0.jpg").size == (640, 640)


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


@pytest.mark.parametrize(
    ("points", "count", "neighbours", "says"),
    [
        (torch.zeros(0, 2), 0, None, "one image for each point"),
        (torch.zeros(3, 2), 2, None, "one image for each point"),
        (torch.full((3, 2), torch.nan), 3, None, "finite"),
        (torch.zeros(3, 2), 3, np.zeros((2, 1), np.int32), "neighbours must have one row"),
    ],
)
def test_points_that_cannot_be_drawn(tmp_path, unchecked, points, count, neighbours, says):
    with pytest.raises(ValueError, match=says):
        write_map_page(tmp_path / "map", points, images_of(count), neighbours=neighbours)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def coordinates():
    return np.random.default_rng(0).normal(size=(700, 2)) * (3, 1) + (10, -4)


def cell_of(place, square, depth):
    column, row = (np.array(place) - (square.left, square.bottom)) / square.side * 2**depth
    return min(int(row), 2**depth - 1), min(int(column), 2**depth - 1)


def test_keys_interleave_the_bits_of_both_coordinates(coordinates):
    square = square_around(coordinates)
    for place, key in zip(coordinates[:50], z_order_keys(coordinates, square), strict=False):
        row, column = cell_of(place, square, 16)
        bits = [(column >> bit & 1) | (row >> bit & 1) << 1 for bit in range(16)]
        assert key == sum(two << 2 * bit for bit, two in enumerate(bits))


def test_each_occupied_cell_has_one_of_its_points_which_stays_when_zooming_in(coordinates):
    square = square_around(coordinates)
    pyramid = levels(coordinates, square)
    assert list(pyramid) == list(range(2, 2 + len(pyramid))) and len(pyramid) > 2
    for depth, (points, counts) in pyramid.items():
        cells = [cell_of(place, square, depth) for place in coordinates]
        assert {cells[i]: count for i, count in zip(points, counts, strict=True)} == {
            cell: cells.count(cell) for cell in set(cells)
        }
        assert len(points) == len(set(cells))
    for (coarse, _), (fine, _) in itertools.pairwise(pyramid.values()):
        assert set(coarse.tolist()) < set(fine.tolist())
    *_, (coarse, _), (fine, _) = pyramid.values()
    assert len(coordinates) / len(coarse) > 2 >= len(coordinates) / len(fine)
    for i in fine:  # nearest to the mean of its cell
        members = coordinates[[cell == cells[i] for cell in cells]]
        far = np.square(members - members.mean(axis=0)).sum(axis=1)
        assert np.square(coordinates[i] - members.mean(axis=0)).sum() == pytest.approx(far.min())


@pytest.mark.parametrize("count", [1, 5])
def test_points_at_one_place_have_one_cell(count):
    coordinates = np.full((count, 2), 7.0)
    for _, counts in levels(coordinates, square_around(coordinates)).values():
        assert counts.tolist() == [count]
