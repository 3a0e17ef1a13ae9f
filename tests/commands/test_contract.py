"""One contract over all tools: what each does on every target, whatever it computes.

A new tool needs a line in OPTIONS, and is held to the rest by its being a tool.
"""

import base64
import csv
import errno
import hashlib
import html
import json
import logging
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nearfar
from nearfar.cli import main
from nearfar.messages import as_json
from nearfar.tools import find_tool
from tests.pictures import noise

OPTIONS = {  # small ones for each tool
    "map": {"epochs": 2},
    "search": {"images": ["train/b/1.png"], "k": 3},
    "duplicates": {},
    "select": {"n": 4},
    "cluster": {"clusters": 2},
    "check": {},
}
TARGETS = ("run", "folder", "two sources", "vectors with images", "vectors", "embeddings")
TRAIN, TEST, OTHERS = 16, 8, 4  # images
TOOLS = [
    name for name in nearfar.tool_names() if name in nearfar._TOOLS and not find_tool(name).saves
]  # those with a `Result`


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Images of 16 px sorted by class, with a training and a test split and a file that is there
    twice; others; a run; and vectors.
    """
    home = tmp_path_factory.mktemp("contract")
    for number in range(TRAIN + TEST):
        split = "train" if number < TRAIN else "test"
        place = home / "photos" / split / "ab"[number % 2] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise(number, 16) // 2 + 100 * (number % 2)).save(place)
    photos = home / "photos"
    shutil.copy(photos / "train/a/0.png", photos / "train/a/2.png")
    (home / "others").mkdir()
    for number in range(OTHERS):
        Image.fromarray(noise(100 + number, 16)).save(home / "others" / f"{number}.png")
    names = sorted(str(path.relative_to(photos)) for path in photos.rglob("*.png"))
    features = np.random.default_rng(0).normal(size=(len(names), 8)).astype(np.float32)
    np.savez(home / "vectors.npz", name=names, embedding=features)
    nearfar.pretrain(
        photos,
        out=home / "run",
        epochs=1,
        batch_size=8,
        held_out=0,
        encoder="tiny",
        method="simclr",
        precision="32-true",
    )
    return home


@pytest.fixture(scope="module")
def own_features(home):
    """Embeddings that a program has made."""
    return nearfar.embed(home / "photos")


def target_of(home, kind, own_features):
    """The target of a tool, and further arguments that go with it."""
    photos = home / "photos"
    return {
        "run": (home / "run", {}),
        "folder": (photos, {}),
        "two sources": ([photos, home / "others"], {}),
        "vectors with images": (home / "vectors.npz", {"data": photos}),
        "vectors": (home / "vectors.npz", {}),
        "embeddings": (own_features, {}),
    }[kind]


def files(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_tool_has_a_contract():
    assert set(TOOLS) == set(OPTIONS)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("tool", TOOLS)
def test_columns_and_page_on_every_target(tool, kind, home, own_features, here, capfd, log):
    target, further = target_of(home, kind, own_features)
    log.clear()
    result = getattr(nearfar, tool)(target, **further, **OPTIONS[tool], out="page.html")

    assert len({len(column) for column in result.values()}) == 1
    assert all(type(column) is list for column in result.values())
    assert set(result["name"]) <= set(result.photos.images.names)
    every = "vectors" in kind or (find_tool(tool).split == "all" and kind != "embeddings")
    count = TRAIN + TEST * every + OTHERS * (kind == "two sources")
    assert len(result.photos) == count
    named = kind != "vectors"
    assert ("path" in result) == named and all(map(os.path.isfile, result.get("path", ())))

    endings = {path.suffix for path in here.iterdir()} - {".html"}
    assert endings <= set(find_tool(tool).beside)
    assert endings >= set(find_tool(tool).beside) - ({".list"} if not named else set())
    if ".csv" in endings:
        with open("page.csv", newline="") as file:
            rows = list(csv.reader(file))
        assert rows[0] == list(result)
        written = [["" if cell is None else str(cell) for cell in row] for row in rows[1:]]
        assert written == [list(map(str, row)) for row in zip(*result.values(), strict=True)]
    if ".list" in endings:
        listed = Path("page.list").read_bytes().decode().split("\0")[:-1]
        assert listed == result.files and set(listed) <= set(result["path"])
    assert result.path == Path("page.html")
    asks_for_nothing(result.path.read_text(encoding="utf-8"))
    assert any("page.html" in line for line in log.lines)

    heard = [record for record in log.records if record.levelno >= logging.WARNING]
    alone = kind == "vectors" and tool == "duplicates"  # nothing is confirmed by pixels
    assert len(heard) == alone and capfd.readouterr() == ("", "")


def asks_for_nothing(page):
    """The page loads nothing, and its policy holds it to that: each script is known by its hash."""
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1])
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert allowed["default-src"] == "'none'" and allowed["img-src"] == "data:"
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    ]
    assert {f"'sha256-{digest}'" for digest in hashes} == set(allowed["script-src"].split()) - {
        "'none'"
    }
    assert not re.search(r"https?://(?!www\.w3\.org/)", page)
    sources = re.findall(r'<(?:img|script|link|iframe)\b[^>]*\b(?:src|href)="([^"]*)"', page)
    assert all(source.startswith("data:image/") for source in sources)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_page_of_a_run_is_replaced_and_json_is_what_python_returns(tool, home, here, capsys):
    run = shutil.copytree(home / "run", here / "run")
    before = {path for path in here.rglob("*") if path.is_file()}
    first = getattr(nearfar.Run(run), tool)(**OPTIONS[tool])
    page = find_tool(tool).default_page
    assert first.path == (None if page is None else run / f"{page}.html")
    written = {path for path in here.rglob("*") if path.is_file()} - before
    assert {path.stem for path in written} <= {page, "features"}
    if page is not None:
        first.path.write_text("old")
    words = [str(word) for word in OPTIONS[tool].get("images", ())]
    for name, value in OPTIONS[tool].items():
        words += [f"--{name}", str(value)] if name != "images" else []
    capsys.readouterr()
    assert main([tool, str(run), *words, "--json"]) == 0
    out = capsys.readouterr().out
    printed = json.loads(out)
    [read] = printed.pop("read")
    assert out.count("\n") == 1 and printed == json.loads(as_json(first.summary()))
    assert read["images"] == len(first.photos) and read["left_out"] == {}
    assert page is None or first.path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert {path for path in here.rglob("*") if path.is_file()} - before == written


@pytest.mark.parametrize("tool", TOOLS)
def test_embeddings_of_a_program_write_nothing_and_give_the_same(tool, home, here):
    photos = nearfar.embed(home / "run", split="all")
    before = files(home / "run")
    alone = getattr(photos, tool)(**OPTIONS[tool])
    assert len(alone.photos) == TRAIN + TEST
    assert alone.path is None and not list(here.iterdir()) and files(home / "run") == before
    same = getattr(nearfar, tool)(home / "run", split="all", **OPTIONS[tool], out="page.html")
    assert same.keys() == alone.keys() and same["name"] == alone["name"]
    for name, column in alone.items():
        assert column == same[name] or column == pytest.approx(same[name], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("tool", TOOLS)
def test_an_unknown_split_is_refused(tool, home, here, own_features):
    for target in (home / "photos", home / "run", home / "vectors.npz", own_features):
        with pytest.raises(ValueError, match="split"):
            getattr(nearfar, tool)(target, split="tests", **OPTIONS[tool], out="no.html")
    assert not list(here.iterdir())


@pytest.mark.parametrize("tool", TOOLS)
def test_what_exists_is_refused_before_any_work(tool, home, here, log):
    call, beside = getattr(nearfar, tool), find_tool(tool).beside
    for ending in (".html", *beside):
        mine = here / f"mine{ending}"
        mine.symlink_to("nowhere") if ending == beside[-1] else mine.write_text("mine")
        with pytest.raises(ValueError, match=rf"mine\{ending} exists already"):
            call(home / "photos", **OPTIONS[tool], out=here / "mine.html")
        mine.unlink()
    with pytest.raises(ValueError, match=r"page\.xyz .*\.xyz"):
        call(home / "photos", **OPTIONS[tool], out=here / "page.xyz")
    with pytest.raises(OSError, match=r"cannot write .*nowhere"):
        call(home / "photos", **OPTIONS[tool], out=here / "nowhere" / "page.html")
    assert not list(here.iterdir()) and log.text == ""  # it is said at once what was read


@pytest.mark.parametrize("tool", TOOLS)
def test_a_number_beyond_its_range_is_refused_before_anything_is_opened(tool, here, unchecked):
    for name, (least, most) in find_tool(tool).ranges.items():
        for value in {least - 1, most + 1}:
            says = rf"^`{name}` must .*{least}.*, not {value}$"
            with pytest.raises(ValueError, match=says):
                getattr(nearfar, tool)("nowhere", **{**OPTIONS[tool], name: value})
        for value in ("3", True, *([float(least) + 0.5] if name in find_tool(tool).whole else [])):
            with pytest.raises(ValueError, match=rf"^`{name}` must be a .*number, not {value!r}$"):
                getattr(nearfar, tool)("nowhere", **{**OPTIONS[tool], name: value})
        if name not in find_tool(tool).optional:
            with pytest.raises(ValueError, match=rf"^`{name}` .* not None$"):
                getattr(nearfar, tool)("nowhere", **{**OPTIONS[tool], name: None})
        if name in find_tool(tool).whole:
            with pytest.raises(FileNotFoundError, match="no nowhere"):
                getattr(nearfar, tool)("nowhere", **{**OPTIONS[tool], name: np.int64(least)})
    with pytest.raises(FileNotFoundError, match="no nowhere"):
        getattr(nearfar, tool)("nowhere", **OPTIONS[tool])


@pytest.mark.parametrize("tool", TOOLS)
def test_a_full_disk_leaves_nothing(tool, own_features, here, monkeypatch):
    """Whichever file of a result is the one that does not fit."""
    real, left = os.fsync, [0]

    def full(number):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    result = getattr(own_features, tool)(**OPTIONS[tool])
    monkeypatch.setattr(os, "fsync", full)
    for written in range(len(find_tool(tool).beside) + 1):
        left[0] = written
        try:
            result.write(here / "page.html")
        except OSError as error:
            assert f"cannot write {here / 'page.html'}: " in str(error)
            assert not list(here.iterdir())
    left[0] = 100
    result.write(here / "page.html")
    assert len(list(here.iterdir())) >= 2


@pytest.mark.parametrize("tool", TOOLS)
def test_an_unreadable_image_is_one_line_and_the_rest_goes_on(tool, home, here, log):
    photos = shutil.copytree(home / "photos", here / "photos")
    (photos / "train" / "a" / "broken.png").write_bytes(b"no image")
    result = getattr(nearfar, tool)(photos, split="train", **OPTIONS[tool])
    [line] = [record for record in log.records if record.levelno >= logging.WARNING]
    says = f"{TRAIN} images read, 1 left out: 1 not images"
    assert line.getMessage().endswith(says) and "split train of train, test" in line.getMessage()
    assert len(result.photos) == TRAIN


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("search photos a.png --kk 4", "Did you mean --k?"),
        ("select photos --n few", "--n"),
        ("select photos --by nearst", 'Did you mean "near"?'),
        ("duplicates photos --distance -1", "--distance must be 0 to 2"),
        ("map photos --num-views 0", "--num-views must be 2 to 1000"),
        ("check photos --seed -1", "--seed must be 0 to 4294967295"),
        ("cluster photso", "no photso"),
        ("cluster photos --out page.csv", "choose an --out in .html"),
        ("cluster photos --split tests", "tests"),
    ],
)
def test_a_mistake_is_one_line(words, says, home, complaint, monkeypatch):
    """Each kind of mistake once; no tool words one of its own."""
    monkeypatch.chdir(home)
    before = files(home)
    assert says in complaint(*words.split()) and files(home) == before
