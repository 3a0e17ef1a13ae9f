"""The nearest images of a run, from images to the report."""

import base64
import io
import json
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import nearfar
from nearfar.data import open_images
from nearfar.networks import Encoder, build_backbone
from nearfar.pages import report
from nearfar.pages.report import write_report


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return Encoder(build_backbone("small", image_size=24, channels=3), 24, 3, [0.5] * 3, [0.25] * 3).eval()


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (40, 24, 24, 3), dtype=np.uint8)


def brute_force(features, i, count):
    cosine = F.normalize(features, dim=1) @ F.normalize(features[i], dim=0)
    cosine[i] = -2
    return cosine.topk(count).indices.tolist()


def test_the_six_nearest_are_found_without_the_query_itself(encoder, pixels, tmp_path):
    pixels[1] = pixels[0]  # a copy is a neighbour; the query is not
    images = open_images(pixels)
    report.write_neighbours(tmp_path, encoder, images, seed=3)
    found = json.loads((tmp_path / "neighbours.json").read_text())
    assert found["searched"] == found["images"] == 40 and len(found["queries"]) == 10
    place = {picture["name"]: i for i, picture in found["pictures"].items()}
    position = {int(i): images.names.index(name) for name, i in place.items()}
    batch = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    with torch.no_grad():
        features = {"encoder": encoder(batch), "raw_pixels": batch.flatten(1) / 255}
    for query in found["queries"]:
        for kind, rows in features.items():
            near = [position[i] for i in query[kind]]
            expected = brute_force(rows, position[query["image"]], 6)
            assert [max(i, 1) for i in near] == [max(i, 1) for i in expected]  # 0 and 1 are copies, equally near
    shown = found["pictures"][str(found["queries"][0]["image"])]
    image = np.array(Image.open(io.BytesIO(base64.b64decode(shown["url"].split(",")[1]))))
    own = pixels[images.names.index(shown["name"])].astype(int)
    assert image.shape == (24, 24, 3) and np.abs(image.mean((0, 1)) - own.mean((0, 1))).max() < 3


def test_the_same_seed_asks_for_the_same_images_and_few_images_have_few_neighbours(encoder, pixels, tmp_path):
    written = []
    for seed, count in ((0, 40), (0, 40), (1, 40), (0, 3), (0, 1)):
        folder = tmp_path / str(len(written))
        folder.mkdir()
        report.write_neighbours(folder, encoder, open_images(pixels[:count]), seed)
        written.append([path.read_text() for path in folder.iterdir()])
    assert written[0] == written[1] != written[2]
    assert [len(query["encoder"]) for query in json.loads(written[3][0])["queries"]] == [2, 2, 2]
    assert written[4] == []


def test_a_slow_encoder_searches_fewer_images(encoder, pixels, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "SECONDS", 0.0)
    report.write_neighbours(tmp_path, encoder, open_images(pixels), seed=0)
    found = json.loads((tmp_path / "neighbours.json").read_text())
    assert (found["searched"], found["images"]) == (report.CHUNK, 40)


def test_a_run_shows_them_in_its_report_and_again_without_the_data(tmp_path, quiet):
    data = np.random.default_rng(1).integers(0, 256, (40, 16, 16), dtype=np.uint8)
    np.save(tmp_path / "plain.npy", data)
    options = dict(epochs=1, batch_size=16, held_out=8, limit=30, encoder="small", method="simclr", console=quiet)
    run = nearfar.pretrain(str(tmp_path / "plain.npy"), out=tmp_path / "run", **options)
    (tmp_path / "plain.npy").unlink()
    for page in ((run.path / "report.html").read_text(), write_report(run.path).read_text()):
        assert "among 30 of 30" in page
        figures = re.findall(r'<figure class="near">.*?</figure>', page)
        assert len(figures) == 10
        for figure in figures:
            alts = re.findall(r'<img src="data:image/png;base64,[^"]+" alt="([^"]+)"', figure)
            assert [alt.split(":")[0] for alt in alts][:2] == ["Query", "By the encoder, 1"] and len(alts) == 13
            query = alts[0].removeprefix("Query: ")
            assert query not in [alt.partition(": ")[2] for alt in alts[1:]]
