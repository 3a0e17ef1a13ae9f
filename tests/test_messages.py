"""Errors in one line, choices, what a docstring says of each argument, and values as JSON."""

import errno
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import nearfar
import nearfar.losses as L
from nearfar.atomic import check_folder, translate_errors
from nearfar.data.images import say_sample
from nearfar.data.left_out import is_passing
from nearfar.data.opening import open_images
from nearfar.device import find_device
from nearfar.maps.layouts import load_map
from nearfar.messages import (
    as_json,
    check_known,
    did_you_mean,
    first_line,
    lacking,
    load_yaml,
    named_as_options,
    parse_args_section,
    raise_as_value_error,
    to_plain,
    worded,
)
from nearfar.neighbours.nearest import nearest_rows
from nearfar.networks.pretrained import read_tensors
from nearfar.training.run_folder import load_checkpoint
from tests.pictures import encoded, noise


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    """A folder of four photographs in two classes, and files that something is wrong with."""
    home = tmp_path_factory.mktemp("things")
    for number in range(4):
        photo = home / "photos" / ("cats" if number % 2 else "dogs") / f"{number}.png"
        photo.parent.mkdir(parents=True, exist_ok=True)
        photo.write_bytes(encoded(noise(number)))
    for name in ("bad/a.png", "m.safetensors", "last.ckpt"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_bytes(b"no image")
    (home / "empty").mkdir()
    (home / "taken.html").touch()
    (home / "t.csv").write_text("path,kind\nphotos/cats/1.png,cat\n")
    (home / "twice.csv").write_text("path,path\na.png,b.png\n")
    np.save(home / "rows.npy", np.eye(3, 4))
    np.savez(home / "nan.npz", name=["a", "b"], embedding=np.full((2, 3), np.nan))
    np.savez(home / "other.npz", name=["q0", "q1"], embedding=np.eye(2, 3))
    return home


def write_to_a_full_disk():
    with translate_errors(Path("page.html")):
        raise OSError(errno.ENOSPC, "No space left on device")


MISTAKES = {
    # names that are not known
    lambda: nearfar.pretrain("photos", method="simclrr"): (
        "there is no method 'simclrr': did you mean 'simclr'?"
    ),
    lambda: nearfar.pretrain("photos", method="xyzzy"): (
        "there is no method 'xyzzy': `nearfar methods` lists them all"
    ),
    lambda: nearfar.pretrain("photos", methd="dcl"): (
        "there is no setting or hyperparameter 'methd': did you mean 'method'?"
    ),
    lambda: nearfar.pretrain("photos", method="simclr", recipe="cifr"): (
        "there is no recipe of SimCLR 'cifr': did you mean 'cifar'? There are small, cifar, "
        "cifar-solo-learn, imagenet"
    ),
    lambda: nearfar.evaluate("photos", protocol=["knnn"]): (
        "there is no protocol 'knnn': did you mean 'knn'? choose among knn, knn_K, linear, "
        "linear-sgd, few, finetune, finetune-P (such as knn_100)"
    ),
    lambda: nearfar.pretrain("photos", encoder="resnet81"): (
        "there is no encoder 'resnet81': did you mean 'resnet18' or 'resnet61q' or 'resnet51q'?"
    ),
    lambda: nearfar.embed("photos", encoder="resnet999"): (
        "timm has no weights for the encoder 'resnet999': give one such as `encoder='resnet18'`"
    ),
    lambda: find_device("xpu"): (
        "`accelerator='xpu'`: torch finds no such device on this machine, but the CPU alone"
    ),
    # values that are not allowed, or not together
    lambda: nearfar.select("rows.npy", n=5): "`n` must be 1 to 3, not 5",
    lambda: nearfar.select("rows.npy", n=0): "`n` must be at least 1, not 0",
    lambda: nearfar.pretrain("photos", epochs=0): "`epochs` must be 1e-06 to 1000000000, not 0",
    lambda: nearfar.pretrain("photos", temperature="hot"): (
        "`temperature` must be a number, not 'hot'"
    ),
    lambda: nearfar.pretrain("photos", minutes=1, epochs=1): (
        "`minutes` and `epochs` both say how long a run is; give one of them"
    ),
    lambda: nearfar.pretrain("photos", mean=[0.1]): (
        "`mean` and `std` go together: give both or none"
    ),
    lambda: nearfar.pretrain("photos", batch_size=5000, encoder="small"): (
        "`batch_size=5000` is larger than the 4 images to train on"
    ),
    lambda: nearfar.pretrain("photos", views="strong+weak+weak"): (
        "the view plan 'strong+weak+weak' makes 3 views, but simclr needs 2"
    ),
    # data that is not there, or of which nothing can be used
    lambda: open_images("photo"): (
        "there is no file or folder 'photo'; in '.', did you mean 'photos'?"
    ),
    lambda: nearfar.cluster("nowhere"): (
        "there is no nowhere: name a run folder, images or a file of vectors"
    ),
    lambda: open_images("empty"): (
        "the folder 'empty' is empty; images are .png, .jpg, .tif and others, at any depth"
    ),
    lambda: open_images("bad"): (
        "none of the 1 images in 'bad' can be read; a.png: not an image of a known format"
    ),
    lambda: open_images("photos", split="tests"): (
        "'photos' is not divided into splits, so there is no split 'tests'; leave split out"
    ),
    lambda: open_images("t.csv", label_column="sort"): (
        "'t.csv' has no column 'sort' for labels; its columns: kind"
    ),
    lambda: open_images("twice.csv"): (
        "cannot read 'twice.csv': two of its columns have the same name 'path': rename one of them"
    ),
    lambda: open_images(object()): (
        "cannot open images from an object of class object; give a path, an array or a tensor, a "
        "pair (images, labels), a datasets.Dataset, or a map-style torch Dataset with __len__"
    ),
    lambda: open_images("hf:a/b/c"): (
        "'hf:a/b/c' is no name on the Hugging Face Hub: write hf:owner/name; a path needs no hf:"
    ),
    lambda: nearfar.search("photos", "x.png"): (
        "'x.png' is neither an image of the data nor a file: did you mean 'dogs/2.png'?"
    ),
    # images and vectors that do not fit
    lambda: open_images(np.zeros((2, 8, 8, 5), np.uint8), channels=3): (
        "images with 5 channels cannot be made into 3; only 1 and 3 are exchanged"
    ),
    lambda: open_images(np.full((2, 8, 8), np.nan)): "images must hold finite numbers",
    lambda: open_images((np.zeros((2, 8, 8), np.uint8), [0.5, 1.5])): (
        "labels must be whole numbers or texts; what is given for labels holds 0.5"
    ),
    lambda: nearest_rows(torch.eye(3), k=5): (
        "5 neighbours cannot be taken from 2 rows: choose a number from 1 to 2"
    ),
    lambda: nearfar.evaluate("photos", test_share=0.2): (
        "4 images of 2 classes are too few for `test_share=0.2`: both parts need as many images "
        "as there are classes"
    ),
    lambda: nearfar.search("rows.npy", "x.png", data="photos"): (
        "3 vectors without names cannot be those of 4 images"
    ),
    lambda: nearfar.evaluate("rows.npy"): (
        "the vectors of rows.npy have no labels to evaluate with: name their column with "
        "`label_column`, give labelled images beside them, or in Python a pair (vectors, labels)"
    ),
    lambda: nearfar.check("rows.npy", split="test"): (
        "rows.npy holds vectors, which have no splits: leave `split` out"
    ),
    lambda: nearfar.duplicates("other.npz", "photos"): (
        "no name in other.npz is that of an image in photos: first 'q0', and 'cats/1.png' there "
        "(folder and file must agree)"
    ),
    lambda: nearfar.cluster("nan.npz"): (
        "cannot use the vectors of nan.npz: they are not finite (NaN, infinite or beyond float32) "
        "in 2 of 2 rows, first row 0 counted from 0: leave these rows out"
    ),
    # files that are no such thing, or damaged
    lambda: nearfar.resume("photos"): "photos is not a run folder: it holds no config.yaml",
    lambda: nearfar.load("photos"): (
        "no encoder in photos: config.json is missing; a run that was stopped goes on with "
        "`nearfar.resume('photos')`"
    ),
    lambda: load_checkpoint(Path("last.ckpt")): (
        "the checkpoint last.ckpt is damaged or not a checkpoint of nearfar"
    ),
    lambda: load_map("m.safetensors"): (
        "m.safetensors is not a map of nearfar, or damaged: Error while deserializing header: "
        "header too large"
    ),
    lambda: nearfar.pretrain("photos", init="m.safetensors"): (
        "cannot read weights from m.safetensors: use .safetensors or a .pth of plain tensors"
    ),
    lambda: nearfar.pretrain("photos", init="no.safetensors"): (
        "no starting weights at no.safetensors: give nearfar, timm, hf:owner/name, a run or a file"
    ),
    # places that nothing can be written to
    lambda: nearfar.cluster("photos", out="page.csv"): (
        "page.csv ends in .csv; choose an `out` in .html"
    ),
    lambda: nearfar.cluster("photos", out="taken.html"): (
        "taken.html exists already; choose another `out`"
    ),
    lambda: open_images("photos", cache_dir="t.csv/x"): (
        "cannot write the cache in 't.csv/x' ([Errno 20] Not a directory: 't.csv/x'); set "
        "XDG_CACHE_HOME to another folder (in Python also cache_dir)"
    ),
    # losses
    lambda: L.SimCLR()(torch.zeros(1, 3), torch.zeros(1, 3)): (
        "the batch must hold 2 images or more, got 1"
    ),
    lambda: L.SimCLR(math.nan): "temperature must be a finite number above 0, got nan",
    lambda: L.LORAC(prior="student"): (
        "prior must be one of laplace, gaussian, constant, got 'student'"
    ),
    lambda: check_folder("no/such"): "cannot write into no/such: No such file or directory",
    write_to_a_full_disk: "cannot write page.html: No space left on device",
}
"""The wording of each kind of mistake. All other tests assert the type and the fact alone: a name,
a number, a file (tests/test_rooms.py).
"""


@pytest.mark.usefixtures("known_speed")
@pytest.mark.parametrize(("make", "says"), MISTAKES.items(), ids=range(len(MISTAKES)))
def test_each_kind_of_mistake_is_worded_once(make, says, things, monkeypatch):
    monkeypatch.chdir(things)
    before = sorted(things.rglob("*"))
    with pytest.raises((ValueError, OSError)) as caught:
        make()
    assert str(caught.value) == says
    assert sorted(things.rglob("*")) == before


def test_what_is_read_and_left_out_is_worded_once(things, monkeypatch, log):
    monkeypatch.chdir(things)
    nearfar.duplicates(["photos", "bad"])
    say_sample(2, 4, seed=0)
    assert log.lines[1] == "photos + bad: 4 images read, 1 left out: 1 not images"
    assert log.lines[-1] == "`limit`: 2 of 4 images, a random sample (seed 0)"
    assert (
        "0 of 4 images are copies of others: 0 the same file, 0 the same pixels, 0 resized or "
        "encoded again, 0 edited"
    ) in log.lines


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("pretrian", "there is no command 'pretrian': did you mean 'pretrain'?"),
        (
            "pretrain photos --methd dcl",
            "Unknown option: --methd. Did you mean --method? See nearfar pretrain --help",
        ),
        ("select rows.npy --n 5", "--n must be 1 to 3, not 5"),
        ("check photos --seed -1", "--seed must be 0 to 4294967295, not -1"),
        ("cluster photos --out page.csv", "page.csv ends in .csv; choose an --out in .html"),
    ],
)
def test_a_terminal_reads_options(words, says, things, complaint, monkeypatch):
    monkeypatch.chdir(things)
    assert complaint(*words.split()) == f"nearfar: {says}\n"


def caused(error, cause):
    try:
        raise error from cause
    except type(error) as raised:
        return raised


LACKING = {
    "memory": [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("std::bad_alloc"),
        ValueError("Unable to allocate 8 GiB for an array"),
        caused(ValueError("cannot read a.png"), MemoryError()),
    ],
    "open files": [
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.ENFILE, "File table overflow"),
        RuntimeError("unable to open shared memory: Too many open files (24)"),
    ],
    "threads": [
        RuntimeError("can't start new thread"),
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
    ],
    "": [
        None,
        ValueError("the image is truncated"),
        OSError("image file is truncated"),
        FileNotFoundError(errno.ENOENT, "No such file"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    ],
}


@pytest.mark.parametrize(
    ("resource", "error"), [(w, e) for w, all_ in LACKING.items() for e in all_]
)
def test_what_a_machine_lacks_is_no_fault_of_what_is_read(resource, error):
    assert lacking(error) == resource
    if error is not None:
        assert is_passing(error) == (bool(resource) or isinstance(error, FileNotFoundError))
        kept = type(error) if resource else ValueError
        with pytest.raises(kept) as caught, raise_as_value_error("reading"):
            raise error
        assert (caught.value is error) == bool(resource)


def test_the_nearest_names_are_offered():
    assert did_you_mean("resnet81", ["small", "resnet18"]) == "did you mean 'resnet18'?"
    assert did_you_mean("xyz", ["small"], otherwise="see --help") == "see --help"
    assert (
        did_you_mean("resnt", ["resnet18", "resnet50"], most=2)
        == "did you mean 'resnet50' or 'resnet18'?"
    )
    with pytest.raises(ValueError, match="'nearest': did you mean 'near'"):
        check_known("`by`", "nearest", ["near", "far"])
    with pytest.raises(ValueError, match="'x': there are near, far"):
        check_known("`by`", "x", ["near", "far"])


@pytest.mark.parametrize(
    ("python", "shell"),
    [
        ("`k` must be 1 to 6, not 10", "--k must be 1 to 6, not 10"),
        ("`held_out=1`: or leave `held_out` out", "--held-out 1: or leave --held-out out"),
        ("there is no `by` 'nearst'", "there is no --by 'nearst'"),
        ("`by='near'` needs images", "--by near needs images"),
        ("try `adapt=True` or `adapt=False`", "try --adapt or --no-adapt"),
        ("`projector=(512, 32)`, for 36 images", "--projector 512 32, for 36 images"),
        (f"`out={'a `k` of my son' + chr(39) + 's'!r}`", "--out a `k` of my son's"),
        ("`out=FOLDER`", "--out FOLDER"),
        ("see `nearfar.resume('my runs/a')`", "see nearfar pretrain --resume 'my runs/a'"),
        ("`nearfar.resume(RUN, data=DATA)`", "nearfar pretrain --resume RUN DATA"),
        ("`nearfar.doctor(empty_cache=True)`", "nearfar doctor --empty-cache"),
        ("`nearfar.export(RUN, to='timm')`", "nearfar export RUN --to timm"),
        # not a parameter of this command, a command of another program, a stray backtick
        ("`token` and `hf auth login` ` `)(` `k`", "`token` and `hf auth login` ` `)(` --k"),
    ],
)
def test_parameters_are_options_on_the_command_line_alone(python, shell):
    assert worded(python) == python
    with named_as_options(lambda: {"k", "by", "held_out", "adapt", "projector", "out"}):
        assert worded(python) == shell
    assert worded(python) == python


def test_errors_of_the_kinds_given_become_one_line():
    assert first_line(ValueError("one\ntwo")) == "one" and first_line(ValueError()) == "ValueError"
    with (
        pytest.raises(ValueError, match=r"^reading: at byte 7$") as caught,
        raise_as_value_error("reading"),
    ):
        raise RuntimeError("at byte 7\nand more")
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(RuntimeError), raise_as_value_error("reading", OSError, KeyError):
        raise RuntimeError("of another kind")
    with pytest.raises(KeyboardInterrupt), raise_as_value_error("reading"):
        raise KeyboardInterrupt


def test_the_docstring_of_an_argument_is_one_line():
    docs = (
        "First line.\n\nArgs:\n    data: images, as one\n        reads them: a "
        "folder.\n    k: how many.\n"
    )
    docs += "\nReturns:\n    k: no."
    assert parse_args_section(docs) == {
        "data": "images, as one reads them: a folder.",
        "k": "how many.",
    }
    assert parse_args_section("First line.") == {}


def test_every_kind_of_value_has_a_plain_form():
    values = {
        1: np.float32(0.5),
        "rows": np.arange(3),
        "tensor": torch.ones(1, 2),
        "path": Path("a/b"),
        "yes": np.bool_(True),
        "tuple": (1, None),
        "nothing": float("nan"),
        "most": float("inf"),
        "count": np.int64(7),
        "name": "caf\udce9",
    }
    assert json.loads(as_json(values)) == {
        "1": 0.5,
        "rows": [0, 1, 2],
        "tensor": [[1.0, 1.0]],
        "path": "a/b",
        "yes": True,
        "tuple": [1, None],
        "nothing": None,
        "most": None,
        "count": 7,
        "name": "caf\udce9",
    }
    assert type(to_plain(np.int64(7))) is int
    assert as_json(Path("a")) == '{"path": "a"}' and as_json("b") == '{"result": "b"}'


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("unable to allocate 80 GiB")])
def test_a_machine_without_memory_does_not_make_a_file_damaged(tmp_path, monkeypatch, error):
    def load(*_, **__):
        raise error

    path = tmp_path / "last.ckpt"
    torch.save({}, path)
    monkeypatch.setattr(torch, "load", load)
    for read in (load_checkpoint, read_tensors):
        with pytest.raises(type(error)) as caught:
            read(path)
        assert caught.value is error
    error = SyntaxError("what is that?")
    for read in (load_checkpoint, read_tensors):
        with pytest.raises(ValueError, match=r"last\.ckpt"):
            read(path)


@pytest.mark.parametrize(
    "file", ["CITATION.cff", "conda/recipe.yaml", ".github/workflows/tests.yml"]
)
def test_yaml_is_read_as_by_the_loader_in_python(file):
    path = Path(__file__).parents[1] / file
    assert load_yaml(path) == yaml.safe_load(path.read_text())


@pytest.mark.parametrize(
    "text",
    [
        "a: [1\nb: 2",
        "a: 'x",
        "a: \t- b",
        "a: *b",
        "a: 1\n---\nb: 2",
        "a: !!python/name:os.system x",
        "a: 1\n  b: 2",
        "[a]: 1\n{b: 2}: 3",
        "\x07",
    ],
)
def test_a_mistake_in_yaml_is_described_with_its_line(text, tmp_path):
    """As by the loader in Python, which shows the line itself."""
    (tmp_path / "file.yaml").write_text(text)
    with pytest.raises(yaml.YAMLError) as expected:
        yaml.safe_load(text)
    with pytest.raises(yaml.YAMLError) as raised:
        load_yaml(tmp_path / "file.yaml")
    assert str(raised.value) == str(expected.value)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a: 1\nb: 2\na: 3", "1 and 3"),
        ("rows:\n  x: {lr: 1}\n  y: {lr: 2}\n  x: {lr: 3}", "2 and 4"),
        ("- {a: 1, a: 1}", "1 and 1"),
    ],
)
def test_a_name_that_stands_twice_in_yaml_is_refused(text, lines, tmp_path):
    """YAML's parsers take the last, so that a row or a setting vanishes."""
    (tmp_path / "file.yaml").write_text(text)
    with pytest.raises(ValueError, match=lines):
        load_yaml(tmp_path / "file.yaml")


def test_one_name_in_several_parts_of_yaml_is_read(tmp_path):
    text = "x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\nz: [{a: 1}, {a: 2}]\n1: p\n'1': q"
    (tmp_path / "file.yaml").write_text(text)
    assert load_yaml(tmp_path / "file.yaml") == yaml.safe_load(text)


@pytest.mark.parametrize("depth", [3, 60, 200])
def test_nested_yaml_is_read(depth, tmp_path):
    (tmp_path / "file.yaml").write_text("[" * depth + "]" * depth)
    assert json.dumps(load_yaml(tmp_path / "file.yaml")) == "[" * depth + "]" * depth
