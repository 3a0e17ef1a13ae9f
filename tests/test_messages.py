"""Errors in one line, choices, what a docstring says of each argument, and values as JSON."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from nearfar.data.readers import is_passing
from nearfar.messages import (
    as_json,
    check_known,
    did_you_mean,
    first_line,
    lacking,
    named_as_options,
    parse_args_section,
    raise_as_value_error,
    to_plain,
    worded,
)
from nearfar.networks import pretrained
from nearfar.networks.pretrained import read_tensors
from nearfar.training.run_folder import load_checkpoint


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
    for word, says in (
        ("nearest", "there is no `by` 'nearest': did you mean 'near'"),
        ("x", "there are near, far"),
    ):
        with pytest.raises(ValueError, match=says):
            check_known("`by`", word, ["near", "far"])


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
        pytest.raises(ValueError, match=r"^cannot read it: at byte 7$") as caught,
        raise_as_value_error("cannot read it"),
    ):
        raise RuntimeError("at byte 7\nand more")
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(RuntimeError), raise_as_value_error("cannot read it", OSError, KeyError):
        raise RuntimeError("of another kind")
    with pytest.raises(KeyboardInterrupt), raise_as_value_error("cannot read it"):
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
    path.write_bytes(b"x")
    monkeypatch.setattr(torch, "load", load)
    monkeypatch.setattr(pretrained, "load_state_dict", load)
    for read in (load_checkpoint, read_tensors):
        with pytest.raises(type(error)) as caught:
            read(path)
        assert caught.value is error
    error = SyntaxError("what is that?")
    for read in (load_checkpoint, read_tensors):
        with pytest.raises(ValueError, match=r"last\.ckpt"):
            read(path)
