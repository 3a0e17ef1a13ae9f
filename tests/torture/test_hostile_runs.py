"""Run folders that somebody else made: what they hold is shown as text and never runs, and each
damage is one line.
"""

import json
import os
import random
import shutil
import signal
from html.parser import HTMLParser

import pytest
import torch
import yaml

import nearfar
from nearfar.cli import main
from nearfar.pages.report import write_report
from tests.pages.conftest import browser  # noqa: F401
from tests.pictures import png

RAN = "document.documentElement.dataset.ran=1"
NAME = f"<img src=x onerror={RAN}>\"'&amp;"  # as a file or a class may be called
PAYLOAD = (
    f"'\"></script></style></title></iframe><script>{RAN}</script><img src=x "
    f"onerror={RAN}><a href=javascript:1>"
)
PAGES = (
    "report.html",
    "map.html",
    "views.html",
    "duplicates.html",
    "clusters.html",
    "selected.html",
    "alike.html",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on images with hostile names in hostile classes, with all pages that are written of
    it.
    """
    folder = tmp_path_factory.mktemp("hostile")
    for number in range(40):
        place = folder / "data" / f"{number % 2}{NAME}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}{NAME}.png").write_bytes(png(number, 16))
    (place / f"broken{NAME}.png").write_bytes(b"x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        options = dict(
            epochs=1, batch_size=8, held_out=6, encoder="tiny", precision="32-true", workers=0
        )
        run = nearfar.pretrain(str(folder / "data"), out=str(folder / "run"), **options)
        nearfar.evaluate(run, protocol=["knn"])
        nearfar.map(run, epochs=1)
        nearfar.duplicates(run, distance=0.5)
        nearfar.cluster(run, clusters=2)
        nearfar.select(run, n=3, by="outlier", out=run.path / "selected.html")
        nearfar.search(run, str(place / f"1{NAME}.png"), k=2, out=run.path / "alike.html")
        yield run.path


class Page(HTMLParser):
    """Parts of a page that could run: scripts, handlers, addresses; its policy; and the pages in
    its frames.
    """

    def __init__(self, text):
        super().__init__()
        self.found, self.policy = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        known = dict(attributes)
        if tag == "meta" and known.get("http-equiv") == "Content-Security-Policy":
            assert not self.found  # the policy comes first
            self.policy = known["content"]
        if tag in ("script", "object", "embed", "link", "base", "form"):
            self.found.append(f"<{tag}>")
        for name, value in attributes:
            if name.startswith("on") or (name == "style" and "url(" in value):
                self.found.append(f"{tag} {name}={value}")
            if name in ("src", "href") and not value.startswith(
                ("data:image/", "file:///", "map/index.html")
            ):
                self.found.append(f"{tag} {name}={value}")
            if name == "srcdoc":
                assert {*known["sandbox"].split()} <= {"allow-scripts", "allow-downloads"}


def is_safe(page):
    parsed = Page(page)
    assert "default-src 'none'" in parsed.policy
    assert (
        "script-src" not in parsed.policy
        or "'unsafe" not in parsed.policy.partition("script-src")[2]
    )
    assert parsed.found == []


def test_of_a_hostile_data_set_every_page_shows_names_as_text(run):
    for name in PAGES:
        page = (run / name).read_text(encoding="utf-8")
        assert "onerror" in page  # the name is there
        parsed = Page(page)
        assert "'unsafe-inline'" not in parsed.policy.partition("script-src")[2], name
        assert set(parsed.found) <= {"<script>", "<form>"}, name


def test_of_a_hostile_data_set_nothing_runs_and_all_pages_work(run, browser):  # noqa: F811
    browser.console()
    for name in PAGES:
        browser.visit(run / name)
        if name == "map.html":
            browser.wait("window.nearfar && nearfar.loaded === nearfar.sheets")
        assert browser.run("document.documentElement.dataset.ran") is None, name
        assert browser.console() == [], name
    browser.visit(run / "duplicates.html")
    assert browser.run("document.querySelectorAll('#copies img, #near-duplicates img').length") > 0
    browser.visit(run / "report.html")
    browser.frame(0)
    browser.wait("window.nearfar && nearfar.loaded === nearfar.sheets")
    browser.frame(None)


def changed(value):
    """Copies of a value, each with one of its parts, or one of its names, in favour of the
    payload.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {**value, PAYLOAD: inner}
            yield {(PAYLOAD if name == key else name): part for name, part in value.items()}
            for variant in changed(inner):
                yield {**value, key: variant}
    elif isinstance(value, list):
        for place, inner in list(enumerate(value))[:2]:
            for variant in changed(inner):
                yield [*value[:place], variant, *value[place + 1 :]]
    yield PAYLOAD


def hostile(text, name):
    if name.endswith(".jsonl"):
        lines = [json.loads(line) for line in text.splitlines()]
        for place, line in enumerate(lines):
            for variant in changed(line):
                yield "".join(
                    json.dumps(each) + "\n"
                    for each in [*lines[:place], variant, *lines[place + 1 :]]
                )
    elif name.endswith(".json"):
        yield from map(json.dumps, changed(json.loads(text)))
    elif name.endswith(".yaml"):
        yield from map(yaml.safe_dump, changed(yaml.safe_load(text)))
    else:
        yield PAYLOAD
        yield f"{PAYLOAD}\t{PAYLOAD}\n"


FILES = [
    "config.yaml",
    "metrics.jsonl",
    "results.json",
    "neighbours.json",
    "environment.json",
    "skipped.txt",
]
FILES += ["views.json", "map.html", "map.json", "config.json", "detection.json"]
DETECTION = {
    "boxes": {
        "results": {"trained": {"ap": 0.5}},
        "detector": "x",
        "train_images": 1,
        "test_images": 2,
    }
}


@pytest.mark.parametrize("name", FILES)
def test_nothing_in_a_file_of_a_run_folder_becomes_part_of_the_report(
    name, run, tmp_path, papers_installed
):
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "detection.json").write_text(json.dumps(DETECTION))
    text = (folder / name).read_text(encoding="utf-8")
    count = 0
    for count, variant in enumerate(hostile(text, name), 1):  # noqa: B007
        (folder / name).write_text(variant, encoding="utf-8")
        is_safe(write_report(folder).read_text(encoding="utf-8"))
    assert count >= 2


DEEP = "[" * 10_000 + "]" * 10_000
VERBS = {
    "embed": lambda folder: nearfar.embed(folder, out=folder / "new.csv"),
    "evaluate": lambda folder: nearfar.evaluate(folder, protocol=["knn"], baselines=False),
    "summary": lambda folder: nearfar.Run(folder).summary(),
    "resume": nearfar.resume,
}
DAMAGE = [
    ("config.json", None, DEEP, ["embed", "evaluate"]),
    ("config.json", "pretrained_cfg", [1], ["embed"]),
    (
        "config.json",
        "pretrained_cfg",
        {"architecture": "nearfar_small", "input_size": True},
        ["embed"],
    ),
    ("config.json", "model_args", [1], ["embed"]),
    ("config.yaml", "method", ["simclr"], ["embed", "evaluate", "resume"]),
    ("config.yaml", "method", None, ["evaluate", "resume"]),
    ("config.yaml", "encoder", None, ["evaluate", "resume"]),
    ("config.yaml", "layer_decay", 1e308, ["resume"]),
    ("config.yaml", "epochs", [1], ["embed", "resume"]),
    ("data.arrow", None, DEEP, ["resume"]),
    ("results.json", None, DEEP, ["evaluate", "summary"]),
    ("metrics.jsonl", None, '{"step": 0, "health": [1]}', ["summary"]),
    ("metrics.jsonl", None, '{"step": 0, "health": {"images": "x"}}', ["summary"]),
    ("checkpoints/last.ckpt", "loss_sum", [1.0], ["resume"]),
    ("checkpoints/last.ckpt", "loss_sum", torch.zeros(3), ["resume"]),
    ("checkpoints/last.ckpt", "step", -1, ["resume"]),
    ("checkpoints/last.ckpt", "pace", {"steps": "x"}, ["resume"]),
    ("checkpoints/last.ckpt", "optimizer", {"state": [1]}, ["resume"]),
    ("checkpoints/last.ckpt", "optimizer", {"state": {0: {"momentum": "x"}}}, ["resume"]),
    (
        "checkpoints/last.ckpt",
        "optimizer",
        {"state": {0: {"momentum": torch.zeros(3)}}},
        ["resume"],
    ),
]


@pytest.mark.parametrize(
    ("name", "key", "value", "verbs"), DAMAGE, ids=lambda value: str(value)[:20]
)
def test_a_damaged_value_is_one_line(name, key, value, verbs, run, tmp_path, unchecked):
    for verb in verbs:
        folder = shutil.copytree(run, tmp_path / verb)
        path = folder / name
        if key is None:
            path.write_text(value)
        elif name.endswith("ckpt"):
            torch.save(torch.load(path, weights_only=True) | {key: value}, path)
        else:
            path.write_text(json.dumps((yaml.safe_load(path.read_text())) | {key: value}))
        with pytest.raises(ValueError) as caught:
            VERBS[verb](folder)
        assert len(str(caught.value).splitlines()) == 1, verb


WHOLE_FILES = [
    "config.yaml",
    "config.json",
    "encoder.safetensors",
    "features.safetensors",
    "map.safetensors",
    "data.arrow",
    "metrics.jsonl",
    "results.json",
    "predictions.npz",
    "neighbours.json",
    "environment.json",
    "views.json",
    "skipped.txt",
    "report.html",
    "checkpoints/last.ckpt",
]
COMMANDS = {
    "evaluate": ["evaluate", "RUN", "--protocol", "knn", "--no-baselines"],
    "embed": ["embed", "RUN", "--out", "RUN/new.npz"],
    "map": ["map", "RUN", "--epochs", "1"],
    "search": ["search", "RUN", "IMAGE", "--k", "2"],
    "duplicates": ["duplicates", "RUN"],
    "export": ["export", "RUN", "--to", "timm", "--overwrite"],
    "resume": ["pretrain", "--resume", "RUN"],
}
PARTS_OF_RUN = {
    "config.yaml": ["embed", "resume"],
    "config.json": ["embed", "export"],
    "metrics.jsonl": ["evaluate", "resume"],
    "results.json": ["evaluate", "export"],
    "neighbours.json": ["export", "evaluate"],
    "environment.json": ["resume"],
    "views.json": ["evaluate"],
}


def other_kinds(value, depth=0):
    """Copies of a value of JSON, each with one part of another kind, out of range, or left out."""
    others = (None, "x", [], {}, [[1]], float("nan"), 1e308, -1, 10**30, True)
    for other in others if depth else ("x", [], {}, 3):
        if type(other) is not type(value) or isinstance(other, (int, float)):
            yield other
    if isinstance(value, dict) and depth < 4:
        for key, inner in value.items():
            yield {name: part for name, part in value.items() if name != key}
            for variant in other_kinds(inner, depth + 1):
                yield {**value, key: variant}
    elif isinstance(value, list) and value and depth < 4:
        for variant in other_kinds(value[0], depth + 1):
            yield [variant, *value[1:]]


def replaced(path):
    """Each kind of damage to a whole file, by its name: a function that makes it."""
    content = path.read_bytes() if path.is_file() else b"x" * 100

    def without(then):
        path.unlink(missing_ok=True)
        then()

    return {
        "empty": lambda: path.write_bytes(b""),
        "noise": lambda: path.write_bytes(random.Random(0).randbytes(1000)),
        "cut": lambda: path.write_bytes(content[: len(content) // 2]),
        "cut late": lambda: path.write_bytes(content[:-7]),
        "zeros": lambda: path.write_bytes(bytes(len(content))),
        "text": lambda: path.write_text("[1, 2, 3]\n"),
        "deep": lambda: path.write_text(DEEP),
        "pipe": lambda: without(lambda: os.mkfifo(path)),
        "folder": lambda: without(path.mkdir),
        "loop": lambda: without(lambda: path.symlink_to(path.name)),
        "gone": lambda: without(lambda: None),
    }


def bounded(words, capsys, case, seconds=60):
    """Run a command line: it ends in time, with 0, or with 2 and one line after those of its
    work.
    """

    def late(*_):
        raise BaseException(f"{case}: it does not end")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        code = main(words)
    except Exception as error:
        raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    output = capsys.readouterr().err
    lines = [line for line in output.splitlines() if line.startswith("nearfar: ")]
    errors = [line for line in lines if not line.startswith("nearfar: warning: ")]
    assert code in (0, 2), (case, code, output[-500:])
    assert "Traceback" not in output and "defect" not in output, (case, output[-500:])
    assert len(errors) == (code == 2), (case, output[-500:])


@pytest.mark.parametrize("name", WHOLE_FILES)
def test_a_damaged_file_of_a_run_is_one_line_or_no_harm(name, run, tmp_path, capsys, unchecked):
    image = str(next((run.parent / "data").rglob("1*.png")))
    for kind in replaced(run / name):
        for verb, words in COMMANDS.items():
            folder = shutil.copytree(run, tmp_path / "run")
            replaced(folder / name)[kind]()
            given = [word.replace("RUN", str(folder)).replace("IMAGE", image) for word in words]
            bounded(given, capsys, f"{name}, {kind}, {verb}")
            shutil.rmtree(folder)


@pytest.mark.parametrize("name", PARTS_OF_RUN)
def test_a_value_of_another_kind_is_one_line_or_no_harm(name, run, tmp_path, capsys, unchecked):
    text = (run / name).read_text(encoding="utf-8")
    read = yaml.safe_load if name.endswith(".yaml") else json.loads
    first, _, rest = text.partition("\n") if name.endswith(".jsonl") else (text, "", "")
    cases = list(other_kinds(read(first)))
    for verb in PARTS_OF_RUN[name]:
        for case in random.Random(0).sample(cases, min(40, len(cases))):
            folder = shutil.copytree(run, tmp_path / "run")
            (folder / name).write_text(f"{json.dumps(case)}\n{rest}", encoding="utf-8")
            given = [word.replace("RUN", str(folder)) for word in COMMANDS[verb]]
            bounded(given, capsys, f"{name}, {verb}: {json.dumps(case)[:300]}")
            shutil.rmtree(folder)
