import json
import re

import numpy as np
import pytest
import torch

from nearfar.data import Images
from nearfar.pages import write_map_page


def images_of(count, side=4, names=None, labels=None, class_names=None, pixels=None):
    pixels = torch.zeros(count, 3, side, side, dtype=torch.uint8) if pixels is None else pixels
    names = names or [f"{i}.png" for i in range(count)]
    return Images(pixels, names=names, image_size=side, channels=3, labels=labels, class_names=class_names)


def data_of(path):
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(encoding="utf-8"))
    assert len(found) == 1
    return json.loads(found[0])


def test_page_asks_for_nothing_outside_itself(tmp_path):
    write_map_page(tmp_path / "map.html", torch.randn(10, 2), images_of(10, side=20))
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|//cdn|<link|@import|\bfetch\(|XMLHttpRequest|<script[^>]+src", page)
    assert "default-src 'none'" in page and "{{" not in page


def test_hostile_names_come_back_as_they_are_and_end_no_script(tmp_path):
    names = ["</script><script>alert(1)</script>", "<!--<script>", "a\"b'c&amp;\\", "\u2028\u2029\n\t", "\ud800 lone"]
    labels, classes = np.arange(5), [f"</script>{i}" for i in range(5)]
    page = tmp_path / "map.html"
    write_map_page(
        page, torch.randn(5, 2), images_of(5, names=names, labels=labels, class_names=classes), note="</p><b>"
    )
    data = data_of(page)
    assert data["names"] == names
    assert [one["name"] for one in data["classes"]] == classes
    text = page.read_text(encoding="utf-8")
    assert text.count("</script>") == 3 and "&lt;/p&gt;&lt;b&gt;</p>" in text


def test_places_and_labels_are_kept(tmp_path):
    points = torch.tensor([[1.23456, -1e-4], [12345.0, 0.0], [-3.0, 7.0]])
    images = images_of(3, labels=np.array([5, -1, 5]), class_names=list("abcdef"))
    write_map_page(tmp_path / "map.html", points, images)
    data = data_of(tmp_path / "map.html")
    assert np.allclose(data["points"], points, rtol=1e-4)
    assert data["labels"] == [0, 1, 0]
    assert [one["name"] for one in data["classes"]] == ["f", "no label"]


def test_of_more_than_twenty_thousand_images_a_fixed_choice_is_shown(tmp_path):
    count = 20_500
    points = torch.arange(count, dtype=torch.float32)[:, None].expand(count, 2)
    for name in ("a.html", "b.html"):
        write_map_page(tmp_path / name, points, images_of(count, side=2))
    data = data_of(tmp_path / "a.html")
    assert data["total"] == count
    assert len(data["names"]) == len(set(data["names"])) == 20_000
    assert all(name == f"{x:.0f}.png" for name, (x, _) in zip(data["names"][:9000], data["points"][:9000], strict=True))
    assert data == data_of(tmp_path / "b.html")


@pytest.mark.parametrize(("count", "side", "size"), [(20, 100, 64), (20, 40, 40), (5001, 40, 32)])
def test_thumbnails_are_limited_by_the_number_of_images(tmp_path, count, side, size):
    write_map_page(tmp_path / "map.html", torch.randn(count, 2), images_of(count, side=side))
    assert data_of(tmp_path / "map.html")["sheets"]["size"] == size


def test_a_full_page_of_noisy_photographs_stays_below_30_megabytes(tmp_path):
    """2000 smooth noise images at 32 px, scaled up to the 20 000 a page holds at most."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(2000, 3, 16, 16, generator=generator)
    pixels = torch.nn.functional.interpolate(noise, size=(32, 32), mode="bilinear").mul(255).byte()
    write_map_page(tmp_path / "map.html", torch.randn(2000, 2), images_of(2000, side=32, pixels=pixels))
    assert 10 * (tmp_path / "map.html").stat().st_size < 30e6


@pytest.mark.parametrize(("points", "images"), [(0, 0), (3, 2)])
def test_one_image_for_each_point(tmp_path, points, images):
    with pytest.raises(ValueError, match="one image for each point"):
        write_map_page(tmp_path / "map.html", torch.zeros(points, 2), images_of(images))
