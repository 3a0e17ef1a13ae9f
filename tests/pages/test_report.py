import base64
import html
import io
import json
import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from PIL import Image

from nearfar.data import Images, open_images
from nearfar.evaluation.results import MeasuredOn, Measurement
from nearfar.networks import Encoder, build_backbone
from nearfar.pages import report
from nearfar.pages.report import write_report
from nearfar.pages.template import number
from nearfar.run import Run
from nearfar.tools.map.page import write_map_page

SETTINGS = dict(
    data="some/where/photos", out="runs/<out>", method="saclr", encoder="small", init=None
)
SETTINGS |= dict(image_size=32, channels=3, epochs=10)
RESULTS = {
    "raw_pixels": {"knn": 0.9541, "one_label": 0.661, "one_label_std": 0.034},
    "hog": {"knn": 0.969, "one_label": 0.641, "one_label_std": 0.052},
    "untrained": {"knn": 0.931, "one_label": 0.55, "one_label_std": 0.041},
    "trained": {"knn": 0.98126, "one_label": 0.7824, "one_label_std": 0.0391},
}


def written(rows):
    on = MeasuredOn("photos", "the test split", 4000, 9000, 10, 0.1, 0, "i", "e")
    return json.dumps({"measurements": [Measurement(on, rows).to_json()]})


def health(**changes):
    """Measures of a good run on 256 held-out images."""
    usual = dict(
        images=256, feature_dim=128, embedding_dim=64, effective_rank=60.0, embedding_rank=40.0
    )
    usual |= dict(
        feature_spread=0.7,
        embedding_spread=0.95,
        alignment=0.3,
        uniformity=-3.2,
        view_retrieval=0.9,
    )
    usual |= dict(rankme=31.0, lidar=52.0)
    return usual | changes


def write_run(folder, last_health=None, **files):
    folder.mkdir(exist_ok=True)
    first = health(view_retrieval=0.1, effective_rank=9.0, embedding_spread=0.4)
    lines = [{"step": 0, "epoch": 0.0, "health": first}]
    lines += [
        {"step": i, "epoch": i / 10, "loss": 5 - i / 30, "lr": 0.01, "images_per_second": 900.0}
        for i in range(1, 101)
    ]
    lines += [{"step": 100, "epoch": 10.0, "health": last_health or health()}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.yaml").write_text(yaml.safe_dump(SETTINGS))
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def report_of(folder):
    return write_report(folder).read_text(encoding="utf-8")


def text_of(page):
    """The text that a reader sees: no style, no tags, no attributes."""
    without = re.sub(
        r"<style>.*?</style>|<iframe.*?</iframe>|<title>.*?</title>", " ", page, flags=re.DOTALL
    )
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", without)))


def test_a_healthy_run_with_everything(tmp_path):
    skipped = "a/broken.png\tcannot identify\n<b>b</b>.png\tempty\n"
    environment = json.dumps({"versions": {"torch": "9.9"}, "hardware": {"cores": 7}})
    folder = write_run(
        tmp_path / "run",
        results__json=written(RESULTS),
        skipped__txt=skipped,
        environment__json=environment,
    )
    page = report_of(folder)
    text = text_of(page)
    assert "<title>photos</title>" in page and "<h1>photos</h1>" in page
    assert "saclr · small encoder · 32 px, 3 channels · 10 epochs" in text
    assert '<section class="verdict good"' in page and "Healthy" in text and "90.0%" in text
    assert "Raw pixels 95.4 66.1 ± 3.4" in text and "Trained encoder 98.1 78.2 ± 3.9" in text
    assert "kNN 1 label per class" in text
    assert "<td class=best>98.1</td>" in page and page.count("class=best") == 2
    assert "The encoder beats raw pixels, HOG and the untrained encoder in every column." in text
    assert "versions torch 9.9" in text and "hardware cores 7" in text and "init \u2013" in text
    assert "Skipped images (2)" in text and "<b>b</b>.png empty" in text
    assert "<b>b" not in page and "runs/<out>" not in page
    assert "<h2>Map" not in page
    assert not re.search(r"https?://|<link|@import|<script[^>]+src|src=\"(?!data:)", page)
    assert "default-src 'none'" in page


@pytest.mark.parametrize(
    ("trained", "tone", "badge"),
    [
        (0.98, "good", "Healthy in training; better than the baselines"),
        (0.80, "bad", "Healthy in training; worse than"),
        (0.955, "bad", "Healthy in training; no better than"),
    ],
)
def test_the_badge_says_whether_training_was_healthy_and_whether_features_are_worth_it(
    trained, tone, badge, tmp_path
):
    """A healthy run is no green light above "do not keep this encoder"; numbers of other weights do
    not count.
    """
    rows = {"raw_pixels": {"knn": 0.954}, "trained": {"knn": trained}}
    folder = write_run(tmp_path / "run")
    (folder / "results.json").write_text(
        written(rows).replace('"e"', json.dumps(Run(folder).weights))
    )
    page = report_of(folder)
    assert f'<section class="verdict {tone}"' in page
    [shown] = re.findall(r'<span class="badge">(.*?)</span>', page)
    assert shown.startswith(badge)
    assert ("do not keep this encoder" in text_of(page).split("Evaluation")[0]) == (tone == "bad")
    (folder / "results.json").write_text(written(rows))
    page = report_of(folder)
    assert '<section class="verdict good"' in page and '<span class="badge">Healthy</span>' in page


@pytest.mark.parametrize(
    ("changes", "tone", "state"),
    [
        (
            {"embedding_spread": 1e-4, "view_retrieval": 0.004, "embedding_rank": 1.0},
            "bad",
            "Collapsed",
        ),
        ({"view_retrieval": 0.1}, "bad", "Not learning"),
        ({"effective_rank": 1.5, "embedding_rank": 1.5}, "unsure", "Partly collapsed"),
        ({"alignment": math.nan}, "bad", "Diverged"),
    ],
)
def test_an_unhealthy_run_is_named_in_its_colour(tmp_path, changes, tone, state):
    page = report_of(write_run(tmp_path / "run", health(**changes)))
    assert f'<section class="verdict {tone}"' in page
    assert f'<span class="badge">{state}</span>' in page
    assert " Try " in text_of(page)


def test_numbers_of_the_loss_have_curves(tmp_path):
    folder = write_run(tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines[1:-1]:
        line["monitored"] = {"partition": 0.5, "partition_deviation": line["step"] / 1000}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = report_of(folder)
    assert "<h3>Normaliser</h3>" in page and "<h3>Bias</h3>" not in page
    assert "standard deviation: 0.1 at epoch 10" in page and "mean: 0.5 at epoch 0.1" in page


def test_curves_go_through_the_logged_numbers(tmp_path):
    page = report_of(write_run(tmp_path / "run"))
    titles = re.findall(r"<figcaption><h3>(.*?)</h3>", page)
    of_health = (
        "Effective rank, Spread, Positive-pair retrieval, Alignment, Uniformity, RankMe, LiDAR"
    )
    assert titles == ["Loss", "Learning rate", *of_health.split(", ")]
    assert "RankMe: 31 at epoch 10" in page and "LiDAR: 52 at epoch 10" in page
    assert "loss: 4.967 at epoch 0.1" in page and "loss: 1.667 at epoch 10" in page
    assert "features: 9 at epoch 0" in page and "features: 60 at epoch 10" in page


def test_higher_values_lie_higher_inside_the_axes_and_gaps_are_left_out(tmp_path):
    losses = [1.0, 9.0, math.nan, 4.0]
    lines = [
        {"step": i, "epoch": 5.0 * i, "loss": loss, "lr": 0.5} for i, loss in enumerate(losses)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = report_of(tmp_path)
    loss, rate = (
        [tuple(map(float, pair.split(","))) for pair in points.split()]
        for points in re.findall(r'points="(.*?)"', page)
    )
    ticks = dict(
        re.findall(
            r'<text x="40" y="([\d.]+)" text-anchor="end">(.*?)</text>',
            page.partition("<h3>Learning")[0],
        )
    )
    zero, ten = (
        next(float(y) - 4 for y, tick in ticks.items() if tick == shown) for shown in ("0", "10")
    )
    assert [x for x, _ in loss] == pytest.approx(
        [46, 46 + 274 / 3, 320], abs=0.1
    )  # epochs 0, 5 and 15 of an axis to 15
    assert [(zero - y) / (zero - ten) * 10 for _, y in loss] == pytest.approx([1, 9, 4], abs=0.05)
    assert len({y for _, y in rate}) == 1 and "nan" not in page


def test_many_points_become_means(tmp_path):
    lines = [{"step": i, "epoch": i / 100, "loss": float(i % 2)} for i in range(4800)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    titles = re.findall(r"<title>loss: (.*?) at epoch", report_of(tmp_path))
    assert len(titles) == 240 and set(titles) == {"0.5"}


def test_numbers_are_short():
    shown = [number(x) for x in (0, 1.23456, -0.5, 1234.5, 1e-5, 2.5e7)]
    assert shown == ["0", "1.235", "\u22120.5", "1234", "1e\u22125", "2.5e7"]


def test_an_unlabelled_run_has_no_table_and_one_just_begun_has_a_report(tmp_path):
    assert "<h2>Evaluation</h2>" not in report_of(write_run(tmp_path / "run"))
    bare = tmp_path / "bare"
    bare.mkdir()
    text = text_of(report_of(bare))
    assert (
        "bare" in text
        and "No verdict" in text
        and "Training" not in text.replace("training has", "")
    )


def test_the_interactive_map_is_embedded_whole(tmp_path):
    folder = write_run(tmp_path / "run")
    images = Images(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), names=['"q" & <x>', "b"])
    write_map_page(folder / "map.html", torch.eye(2), images)
    page = report_of(folder)
    inner = re.search(r'srcdoc="([^"]*)"', page)
    assert inner and html.unescape(inner[1]) == (folder / "map.html").read_text(encoding="utf-8")
    assert re.search(r'<iframe[^>]*sandbox="allow-scripts allow-downloads"', page)


def test_a_run_on_the_way_shows_its_epochs_a_still_map_and_the_first_skipped_images(tmp_path):
    lines = "".join(f"{i}.png\tbad\n" for i in range(500))
    folder = write_run(
        tmp_path / "run", config__yaml=yaml.safe_dump(SETTINGS | {"epochs": 40}), skipped__txt=lines
    )
    (folder / "map.png").write_bytes(b"\x89PNG")
    page = report_of(folder)
    text = text_of(page)
    assert "10 of 40 epochs so far" in text and 'src="data:image/png;base64,iVBORw=="' in page
    assert "Skipped images (500)" in text and "199.png" in text and "200.png" not in text
    assert "300 more in skipped.txt" in text
    with pytest.raises(FileNotFoundError, match="there is no run folder"):
        write_report(tmp_path / "nothing")


DAMAGED = ("", "null", '{"a": 5}', '{"trained": {"knn": "x"}}', "[" * 100_000, "1" * 5000)
METRICS = (
    '{"step": 1, "health": {"x": 1}}',
    '{"step": 1, "epoch": "a", "loss": [1], "images_per_second": "fast"}',
    "{",
)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        *((file, text) for file in ("results", "environment", "neighbours") for text in DAMAGED),
        *(("metrics", text) for text in (*DAMAGED, *METRICS)),
        *(("config", text) for text in ("{", "[1]", "epochs: many", "image_size: 8")),
    ],
)
def test_a_damaged_file_does_not_take_the_report_with_it(file, text, tmp_path):
    name = file + {"metrics": ".jsonl", "config": ".yaml"}.get(file, ".json")
    folder = write_run(tmp_path / "run", skipped__txt="a/broken.png\tempty\n")
    (folder / name).write_text(text)
    page = report_of(folder)
    assert "a/broken.png" in page
    if file != "metrics" and text[:2] in (
        "{",
        "[[",
        "11",
    ):  # lines of metrics that are none are passed over
        assert f"{name} is damaged and left out" in page


def test_a_defect_of_a_section_does_not_blame_the_file(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run", results__json=written(RESULTS))
    monkeypatch.setattr(report, "points_of", lambda *_: 1 / 0)
    page = text_of(report_of(folder))
    assert "The section curves could not be made, which is a defect of nearfar" in page
    assert "is damaged" not in page and "98.1" in page


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return Encoder(
        build_backbone("small", image_size=24, channels=3), 24, 3, [0.5] * 3, [0.25] * 3
    ).eval()


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
    neighbours = json.loads((tmp_path / "neighbours.json").read_text())
    assert neighbours["searched"] == neighbours["images"] == 40 and len(neighbours["queries"]) == 10
    place = {picture["name"]: i for i, picture in neighbours["pictures"].items()}
    position = {int(i): images.names.index(name) for name, i in place.items()}
    batch = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    with torch.no_grad():
        features = {"encoder": encoder(batch), "raw_pixels": batch.flatten(1) / 255}
    for query in neighbours["queries"]:
        for kind, rows in features.items():
            near = [position[i] for i in query[kind]]
            expected = brute_force(rows, position[query["image"]], 6)
            assert [max(i, 1) for i in near] == [
                max(i, 1) for i in expected
            ]  # 0 and 1 are copies, equally near
    figures = re.findall(r'<figure class="near">.*?</figure>', report_of(tmp_path), re.DOTALL)
    for query, figure in zip(neighbours["queries"], figures, strict=True):
        alts = re.findall(r'<img src="data:image/jpeg;base64,[^"]+" alt="([^"]+)"', figure)
        shown = neighbours["pictures"][str(query["image"])]["name"]
        assert (
            alts[0] == f"Query: {shown}"
            and len(alts) == 13
            and shown not in [alt[-len(shown) :] for alt in alts[1:]]
        )
    shown = neighbours["pictures"][str(neighbours["queries"][0]["image"])]
    image = np.array(Image.open(io.BytesIO(base64.b64decode(shown["url"].split(",")[1]))))
    own = pixels[images.names.index(shown["name"])].astype(int)
    assert image.shape == (24, 24, 3) and np.abs(image.mean((0, 1)) - own.mean((0, 1))).max() < 3


def test_the_same_seed_asks_for_the_same_images_and_few_images_have_few_neighbours(
    encoder, pixels, tmp_path
):
    written = []
    for seed, count in ((0, 40), (0, 40), (1, 40), (0, 3), (0, 1)):
        folder = tmp_path / str(len(written))
        folder.mkdir()
        report.write_neighbours(folder, encoder, open_images(pixels[:count]), seed)
        written.append([path.read_text() for path in folder.iterdir()])
    assert written[0] == written[1] != written[2]
    assert [len(query["encoder"]) for query in json.loads(written[3][0])["queries"]] == [2, 2, 2]
    assert written[4] == []
