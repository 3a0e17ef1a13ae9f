import base64
import json
import re

import numpy as np
import pytest
import torch

import nearfar
from nearfar.commands.map_columns import neighbour_columns, own_view_found
from nearfar.neighbours import nearest_rows


def test_outlierness_and_density_by_plain_loops():
    features = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    features[0] = -features[1:].mean(0)  # apart from all others
    columns = neighbour_columns(nearest_rows(features, k=5))
    unit = (features / features.norm(dim=1, keepdim=True)).double().numpy()
    for i in range(40):
        distance = sorted(1 - unit[i] @ unit[j] for j in range(40) if j != i)[:5]
        assert np.isclose(columns["outlierness"][i], distance[4], atol=1e-5)
        assert np.isclose(columns["density"][i], -np.log10(np.mean(distance)), atol=1e-4)
    assert columns["outlierness"].argmax() == columns["density"].argmin() == 0


def test_an_own_view_is_found_where_no_other_is_nearer():
    second = torch.eye(4)
    first = second + 0.1
    first[2] = torch.tensor([0.0, 1, 0.5, 0])
    assert own_view_found(first, second).tolist() == [True, True, False, True]


def test_copies_are_dense_and_no_outliers():
    features = torch.ones(6, 3)
    columns = neighbour_columns(nearest_rows(features, k=5))
    assert (columns["outlierness"] == 0).all() and np.allclose(columns["density"], 6)


def described(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"))[1])


def test_maps_of_few_and_many_images_carry_columns(images_file, tmp_path, quiet, monkeypatch):
    """End to end through the public function, with 80 images as if they were too many for a page."""
    options = dict(epochs=1, batch_size=16, held_out=16, encoder="small", method="simclr", precision="32-true")
    run = nearfar.pretrain(images_file, out=tmp_path / "run", console=quiet, **options)
    table = tmp_path / "about.csv"
    table.write_text("name,site\n000007,north\n000009,south\n")
    options = dict(epochs=1, num_views=2, columns=table, console=quiet)

    data = described(nearfar.map_images(run, **options))
    assert [one["name"] for one in data["columns"]] == ["site", "outlierness", "density", "own view found", "kept"]
    sites = np.frombuffer(base64.b64decode(data["columns"][0]["bytes"]), "<u2")
    names = [data["columns"][0]["classes"][site]["name"] for site in sites]
    assert dict(zip(data["names"], names, strict=True)).items() >= {"000007": "north", "000009": "south"}.items()
    assert names.count("none") == len(names) - 2
    assert data["neighbours"]["k"] == 15

    monkeypatch.setattr("nearfar.commands.map.MOST_IMAGES", 50)
    page = nearfar.map_images(run, **options)
    assert page == run.path / "map" / "index.html" and not (run.path / "map.html").exists()
    assert [one["name"] for one in described(page)["columns"]][:2] == ["label", "site"]
    assert '<a href="map/index.html">' in (run.path / "report.html").read_text(encoding="utf-8")
    assert nearfar.map_images(run, **options) == page  # replaced

    page = nearfar.map_images(run, out=tmp_path / "elsewhere", **options)
    assert page == tmp_path / "elsewhere" / "index.html" and (tmp_path / "elsewhere.png").is_file()
    with pytest.raises(ValueError, match="elsewhere exists already"):
        nearfar.map_images(run, out=tmp_path / "elsewhere", **options)
