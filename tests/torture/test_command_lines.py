"""Random command lines: one line for each mistake, never a traceback, and what is refused leaves
nothing behind.
"""

import contextlib
import io
import os
import random
import shutil
import tempfile

import jaxtyping
import pytest

from nearfar.app import command_app, options_of_app, pretrain_app
from nearfar.cli import main
from nearfar.methods import method_names

BASE = {
    "pretrain": "DATA --out new --epochs 1 --batch-size 16 --held-out 16 --encoder small "
    "--precision 32-true",
    "evaluate": "run --protocol knn --no-baselines",
    "embed": "run --out new.csv",
    "map": "run --epochs 1",
    "search": "run 000000 --k 2 --out new.html",
    "duplicates": "run --distance 0.01 --out new.html",
    "select": "run --n 4 --out new.html",
    "cluster": "run --clusters 3 --out new.html",
    "views": "DATA --out new.html --images 2 --samples 1",
    "methods": "",
    "demo": "DATA --out new --minutes 0",
}
WORDS = (  # noqa: SIM905
    "0 1 2 -1 -5 1.5 0.5 1e-30 1e30 -1e30 99999999999999999999999 5000 nan inf -inf true "
    "false null auto none "
    "[] [1] [1,2] [0] [-1,1] [nan,1] [[1]] {} {a:1} { [ ] : - -- --- = ' \" \\ % %s $HOME "
    "~ . .. / * ? ! & "
    "[bold] [/] [red]x :cat: x.html x.png x.csv x.npz x/y.html /dev/full /dev/null/x run "
    "run/config.yaml new digits "
    "small resnet18 saclr lars cuda cpu train test all weak strong knn knn_0 hf:a/b timm ü 猫"
).split()
WORDS += ["", " ", "a b", "a\nb", "a\x00b", "\x1b[31m", "\udcff", "x" * 300]
SLOW = {  # options whose larger values are as they should be, but take long
    "epochs": ("5000",),
    "minutes": ("1", "2", "1.5", "0.5", "5000"),
    "image-size": ("5000",),
    "crop-size": ("5000",),
    "devices": ("2",),
    "num-views": ("5000",),
    "micro-batch": ("auto",),
    "encoder": ("resnet18",),
}
NUMBERS, COUNT = 15, 250


@pytest.fixture(scope="module")
def place(images_file, tmp_path_factory):
    """A folder with images and a run in it, and a cache elsewhere."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copy(images_file, folder / "DATA.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("scratch")))
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as it is outside the tests
        words = BASE["pretrain"].replace("DATA", "DATA.npz").replace("new", "run").split()
        assert main(["pretrain", *words]) == 0
        yield folder


def command(chance):
    """A command line that works, with one to three options changed at random."""
    verb = chance.choice([*BASE, "pretrain", "pretrain", "pretrain"])
    words = [verb, *BASE[verb].replace("DATA", "DATA.npz").split()]
    method = chance.choice(method_names()) if verb == "pretrain" else None
    words += ["--method", method] if method else []
    arguments = options_of_app(pretrain_app([method]) if method else command_app(verb))
    options = sorted(
        {
            name.lstrip("-")
            for argument in arguments
            for name in argument.names
            if name.startswith("--")
        }
        | {"help"}
    )
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        kind = chance.random()
        if kind < 0.05:
            words.append(chance.choice(WORDS))
        elif kind < 0.1:
            words[chance.randrange(len(words))] = chance.choice(WORDS)
        elif kind < 0.15 and len(words) > 1:
            del words[chance.randrange(len(words))]
        else:
            option = chance.choice(options)
            values = chance.choice([WORDS, WORDS[:NUMBERS]])
            value = chance.choice([word for word in values if word not in SLOW.get(option, ())])
            words += chance.choice([[f"--{option}", value], [f"--{option}={value}"]])
    return words


def run(words):
    """Exit code and what was printed."""
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)
    )
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as ending:
            code = ending.code
    return code, *(stream.buffer.getvalue().decode() for stream in (out, err))


def ends_in_one_line(err):
    """True if the last line, behind those on what was read, is the one of the mistake."""
    *before, last, end = ["", *err.split("\n")]
    return not end and last.startswith("nearfar: ") and "\nnearfar: " not in "\n".join(before)


def listing(folder):
    return {
        path: path.is_file() and (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("seed", range(10))
def test_random_command_lines(seed, place):
    chance, wrong = random.Random(seed), []
    for _ in range(COUNT // 10):
        words, before = command(chance), listing(place)
        code, out, err = run(words)
        left = sorted(set(listing(place).items()) ^ set(before.items()))
        if code not in (0, 1, 2, 130):
            wrong.append((words, f"exit code {code!r}"))
        elif "Traceback" in out + err or "defect" in err:
            wrong.append((words, err))
        elif code == 2 and not ends_in_one_line(err):
            wrong.append((words, f"not one line: {err!r}"))
        elif code == 2 and left:
            wrong.append((words, f"left behind: {left}"))
        for path in set(listing(place)) - set(before):
            if path.exists():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert not wrong, os.linesep.join(f"{words}: {output}" for words, output in wrong)
