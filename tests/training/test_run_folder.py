"""The run folder: who writes it, checkpoints, the metrics, the images that were skipped."""

import json
import math
import os
import platform
import subprocess
import sys
import threading
from hashlib import blake2b

import pytest
import torch
from filelock import FileLock

from nearfar.atomic import NotWrittenError
from nearfar.training.run_folder import (
    CHECKPOINT,
    CONFIG,
    LOCK,
    METRICS,
    PIECE,
    SKIPPED,
    MetricsLog,
    SkippedImages,
    check_unmoved,
    clear,
    content_of,
    create_run_folder,
    kept_encoder,
    load_checkpoint,
    load_optimizer,
    lock_run_folder,
    must_be_finite,
    not_finite,
    read_metrics,
    save_checkpoint,
    was_renamed,
)


def state(**changed):
    """A checkpoint as the loop writes it, of a model of two tensors."""
    model = {"layer.weight": torch.eye(2), "mask": torch.tensor([0.0, -math.inf])}
    optimizer = {"state": {0: {"momentum_buffer": torch.ones(2, 2)}}}
    whole = {"model": model, "optimizer": optimizer, "precision": {}, "pace": {}, "step": 3}
    return whole | {"loss_sum": torch.tensor(1.5), "loss_count": 2} | changed


def test_a_checkpoint_is_read_as_it_was_written_and_what_a_killed_process_left_goes(tmp_path):
    path = tmp_path / CHECKPOINT
    path.parent.mkdir()
    left = path.parent / ".last.1a2b.partial.ckpt"
    left.write_bytes(b"half of one")
    save_checkpoint(path, state())
    assert not left.exists() and [each.name for each in path.parent.iterdir()] == [path.name]
    read = load_checkpoint(path)
    assert read.keys() == state().keys() and read["step"] == 3 and read["loss_count"] == 2
    assert torch.equal(read["model"]["layer.weight"], torch.eye(2))
    zero = state(step=0, loss_count=0, loss_sum=torch.tensor(0.0))
    save_checkpoint(path, zero)
    assert load_checkpoint(path)["step"] == 0
    save_checkpoint(tmp_path / "a" / "b" / "c.ckpt", zero)  # makes its folders
    assert load_checkpoint(tmp_path / "a" / "b" / "c.ckpt")["loss_count"] == 0


WRONG = {
    **{f"without {name}": {name: None} for name in state()},
    "a list of weights": {"model": []},
    "a fraction of a step": {"step": 3.0},
    "a truth value as a step": {"step": True},
    "a truth value as a count": {"loss_count": False},
    "a step below 0": {"step": -1},
    "a count below 0": {"loss_count": -1},
    "a loss of several numbers": {"loss_sum": torch.ones(1)},
}
sparse, meta = torch.eye(2).to_sparse(), torch.ones(2, device="meta")
DAMAGED = {
    "sparse weights": ({"model": {"layer.weight": sparse}}, "layer.weight is no plain"),
    "weights without numbers": ({"model": {"layer.weight": meta}}, "layer.weight is no plain"),
    "a text as weights": ({"model": {"layer.weight": "one"}}, "layer.weight is no plain"),
    "a loss without a number": ({"loss_sum": meta[0]}, "loss_sum is no plain"),
    "a loss in whole numbers": ({"loss_sum": torch.tensor(3)}, "its loss is not a finite"),
    "a loss of nan": ({"loss_sum": torch.tensor(math.nan)}, "its loss is not a finite"),
}


@pytest.mark.parametrize("kind", [*WRONG, *DAMAGED])
def test_a_checkpoint_with_anything_else_is_refused(tmp_path, kind):
    changed, words = DAMAGED[kind] if kind in DAMAGED else (WRONG[kind], "not a checkpoint of")
    torch.save(state(**changed), tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match=words):
        load_checkpoint(tmp_path / "last.ckpt")


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch will remove them
def test_a_checkpoint_with_quantised_weights_is_refused(tmp_path):
    weights = torch.quantize_per_tensor(torch.eye(2), 1.0, 0, torch.quint8)
    torch.save(state(model={"layer.weight": weights}), tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match="weight is no plain"):
        load_checkpoint(tmp_path / "last.ckpt")


def test_files_that_are_no_checkpoints_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing to resume from"):
        load_checkpoint(tmp_path / "none.ckpt")
    torch.save([state()], tmp_path / "list.ckpt")
    torch.save(state(), tmp_path / "old.ckpt", _use_new_zipfile_serialization=False)
    (tmp_path / "text.ckpt").write_text("weights")
    for name in ("list", "old", "text"):
        with pytest.raises(ValueError, match="not a checkpoint of nearfar"):
            load_checkpoint(tmp_path / f"{name}.ckpt")


def test_a_checkpoint_for_which_memory_is_lacking_is_not_called_damaged(tmp_path, monkeypatch):
    def load(*given, **named):
        raise MemoryError("no room")

    save_checkpoint(tmp_path / "last.ckpt", state())
    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(MemoryError, match="no room"):
        load_checkpoint(tmp_path / "last.ckpt")


def test_what_was_finite_must_stay_so(tmp_path):
    """Of the state's tensors the mask holds infinity from the start."""
    finite, path = {"layer.weight"}, tmp_path / "last.ckpt"
    assert not_finite(state(), finite) == ""
    must_be_finite(path, state(), finite)
    spoiled = state(model={"layer.weight": torch.tensor([1.0, math.nan])})
    momentum = state(
        optimizer={"state": {0: {"step": 3, "momentum_buffer": torch.tensor(math.inf)}}}
    )
    for whole, words in ((spoiled, "layer.weight"), (momentum, "the state of the optimiser")):
        assert not_finite(whole, finite) == words
        with pytest.raises(ValueError, match=f"{words} holds nan or inf"):
            must_be_finite(path, whole, finite)
    for other in (state(optimizer={}), state(optimizer={"state": []}), state(model=[])):
        with pytest.raises(ValueError, match="not a checkpoint of nearfar"):
            must_be_finite(path, other, finite)


def test_the_state_of_an_optimiser_must_fit_its_weights():
    weights = [torch.nn.Parameter(torch.zeros(2, 3)), torch.nn.Parameter(torch.zeros(4))]
    optimizer = torch.optim.SGD([{"params": weights[:1]}, {"params": weights[1:]}], lr=0.3)
    load_optimizer(optimizer, {1: {"momentum_buffer": torch.ones(4), "step": torch.tensor(2.0)}})
    assert torch.equal(optimizer.state[weights[1]]["momentum_buffer"], torch.ones(4))
    assert optimizer.param_groups[0]["lr"] == 0.3
    for number in (2, -1, "0", True):
        with pytest.raises(ValueError, match="that of other weights"):
            load_optimizer(optimizer, {number: {}})
    for value in (torch.ones(3), torch.ones(1), 1.0):
        with pytest.raises(ValueError, match="does not fit the weights"):
            load_optimizer(optimizer, {1: {"momentum_buffer": value}})


def lines_of(folder):
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def test_metrics_are_appended_and_later_ones_dropped_on_resuming(tmp_path):
    log = MetricsLog(tmp_path, 0, tensorboard=False, writes=True)
    for step in (1, 2, 3):
        log.write(step, loss=step / 2, health={"rank": 5})
    assert lines_of(tmp_path)[1] == {"step": 2, "loss": 1.0, "health": {"rank": 5}}
    log = MetricsLog(tmp_path, 2, tensorboard=False, writes=True)
    assert [line["step"] for line in lines_of(tmp_path)] == [1, 2]
    log.write(3, loss=9)
    log.close()
    assert [line["loss"] for line in read_metrics(tmp_path)] == [0.5, 1.0, 9]
    other = MetricsLog(tmp_path, 0, tensorboard=True, writes=False)  # of another rank
    other.write(4, loss=1)
    other.close()
    assert len(lines_of(tmp_path)) == 3 and not (tmp_path / "tensorboard").exists()


def test_a_hook_gets_each_line_until_it_stops_the_run_or_raises(tmp_path):
    shown = []

    def stops(line):
        shown.append(line)
        return len(shown) == 2 or "not True"

    log = MetricsLog(tmp_path, 0, False, True, stops)
    log.write(1, loss=0.5)
    assert not log.stop
    log.write(2, loss=0.25)
    log.write(3, loss=0.125)
    assert log.stop and log.error is None
    assert shown == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}] == lines_of(tmp_path)[:2]

    def raises(line):
        shown.append(line)
        raise KeyError("of the user")

    log = MetricsLog(tmp_path, 0, False, True, raises)
    log.write(1, loss=0.5)
    log.write(2, loss=0.5)
    assert isinstance(log.error, KeyError) and not log.stop and len(shown) == 3
    assert [line["step"] for line in lines_of(tmp_path)] == [1, 2]


def test_scalars_of_tensorboard_have_the_names_and_steps_of_the_lines(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log = MetricsLog(tmp_path, 0, tensorboard=True, writes=True)
    for step in (4, 5, 6):
        log.write(step, loss=step / 2, health={"rank": 10 * step, "missing": None})
    log.close()
    log = MetricsLog(tmp_path, 5, tensorboard=True, writes=True)  # takes back what came after
    log.write(6, loss=0.5)
    log.close()
    read = events.EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert sorted(read.Tags()["scalars"]) == ["health/rank", "loss"]
    assert [(each.step, each.value) for each in read.Scalars("loss")] == [
        (4, 2),
        (5, 2.5),
        (6, 0.5),
    ]
    assert [(each.step, each.value) for each in read.Scalars("health/rank")] == [(4, 40), (5, 50)]


def test_lines_that_are_cut_off_or_no_lines_are_left_out(tmp_path):
    assert read_metrics(tmp_path) == []
    good = {"step": 1, "epoch": 0.5, "loss": None, "note": "slow", "health": {"rank": 3}}
    others = ["3", '{"loss": 1}', '{"step": 1.0}', '{"step": true}', "[1]"]
    (tmp_path / METRICS).write_text("\n".join([*others, json.dumps(good), '{"step": 2, "lo']))
    assert read_metrics(tmp_path) == [good]
    for cut in (b'{"step": 2, "note": "\xff"}\n', b"[" * 100_000):  # not UTF-8; too deep
        (tmp_path / METRICS).write_bytes(json.dumps(good).encode() + b"\n" + cut)
        assert read_metrics(tmp_path)[:1] == [good]


@pytest.mark.parametrize(
    "wrong",
    [
        {"epoch": None},
        {"epoch": "one"},
        {"epoch": True},
        {"planned_epochs": math.nan},
        {"planned_epochs": math.inf},
        {"step": 10**301},
        {"loss": [1]},
        {"loss": True},
        {"health": {"rank": [3]}},
    ],
    ids=str,
)
def test_a_line_with_anything_else_than_numbers_is_refused(tmp_path, wrong):
    (tmp_path / METRICS).write_text(json.dumps({"step": 7} | wrong) + "\n")
    with pytest.raises(ValueError, match=f"'{next(iter(wrong))}' of step .* is no number"):
        read_metrics(tmp_path)


def test_skipped_images_are_written_once_and_known_on_resuming(tmp_path):
    (tmp_path / SKIPPED).write_text("a.png\tcut off\n", encoding="utf-8")
    skipped = SkippedImages(tmp_path)
    for name, reason in (("a.png", "cut off"), ("b.png", "cut off"), ("é.png", "empty")):
        skipped(name, reason)
        skipped(name, reason)
    skipped("a.png", "empty")
    expected = "a.png\tcut off\nb.png\tcut off\né.png\tempty\na.png\tempty\n"
    assert (tmp_path / SKIPPED).read_text(encoding="utf-8") == expected
    (tmp_path / "new").mkdir()
    SkippedImages(tmp_path / "new")("c.png", "empty")
    assert (tmp_path / "new" / SKIPPED).read_text(encoding="utf-8") == "c.png\tempty\n"


def test_the_digest_of_tensors_is_that_of_their_numbers():
    """Of 16 bytes by BLAKE2b, however the numbers lie in memory, and in pieces."""
    first, second = torch.arange(12.0).reshape(3, 4), torch.arange(PIECE + 5)
    numbers = first.numpy().tobytes() + second.numpy().tobytes()
    assert content_of(first, second) == blake2b(numbers, digest_size=16).hexdigest()
    assert content_of(first.T.contiguous().T, second) == content_of(first, second)
    assert content_of(second, first) != content_of(first, second)


def test_the_encoder_after_some_epochs_has_a_folder(tmp_path):
    assert kept_encoder(tmp_path, 7) == tmp_path / "encoders" / "epoch-0007"


def test_a_folder_that_was_renamed_is_not_written(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    log, home = MetricsLog(folder, 0, False, True), folder.stat()
    assert not was_renamed(folder, home)
    check_unmoved(folder, home)
    folder.rename(tmp_path / "moved")
    assert was_renamed(folder, home)
    folder.mkdir()  # another one of that name
    assert was_renamed(folder, home)
    with pytest.raises(NotWrittenError, match="was renamed or removed"):
        log.write(1, loss=1)
    assert not (folder / METRICS).exists() and lines_of(tmp_path / "moved") == []


def test_one_process_at_a_time_writes_a_folder_and_is_named(tmp_path):
    with lock_run_folder(tmp_path):
        assert (tmp_path / LOCK).read_text().split() == [str(os.getpid()), platform.node()]
        with (
            pytest.raises(ValueError, match=f"by process {os.getpid()} on {platform.node()};"),
            lock_run_folder(tmp_path),
        ):
            raise AssertionError("two have the lock")
        for note in ("", "seven here", "1 2 3"):
            (tmp_path / LOCK).write_text(note)
            with (
                pytest.raises(ValueError, match="by another process;"),
                lock_run_folder(tmp_path),
            ):
                raise AssertionError("two have the lock")
    with lock_run_folder(tmp_path):
        pass
    (tmp_path / "other" / LOCK).mkdir(parents=True)
    with pytest.raises(ValueError, match="not a regular file"), lock_run_folder(tmp_path / "other"):
        pass
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ValueError, match="cannot be written"), lock_run_folder(tmp_path / "file"):
        pass


def test_the_workers_of_a_killed_process_of_this_machine_are_waited_for(tmp_path):
    """They hold its lock for a moment longer; no other owner is waited for."""
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    (tmp_path / LOCK).touch()
    workers = FileLock(tmp_path / LOCK, thread_local=False)
    workers.acquire()
    for owner in (f"{os.getpid()} {platform.node()}", f"{ended.pid} another.host", "0 here"):
        (tmp_path / LOCK).write_text(owner)
        with pytest.raises(ValueError, match="is being written"), lock_run_folder(tmp_path):
            raise AssertionError("two have the lock")
    (tmp_path / LOCK).write_text(f"{ended.pid} {platform.node()}")
    threading.Timer(0.2, workers.release).start()
    with lock_run_folder(tmp_path):
        assert not workers.is_locked


def test_a_run_that_has_not_begun_leaves_nothing(tmp_path):
    folder = tmp_path / "a" / "run"
    with pytest.raises(KeyError), create_run_folder(folder):
        (folder / "checkpoints").mkdir()
        (folder / "environment.json").write_text("{}")
        (folder / ".table.1a.partial").write_text("half")
        raise KeyError("of the data")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").mkdir()  # made by someone else, and kept
    with pytest.raises(KeyError), create_run_folder(folder):
        raise KeyError("of the data")
    assert list(tmp_path.iterdir()) == [tmp_path / "a"] and not folder.exists()


def test_a_run_that_has_begun_stays_and_is_written_again_only_without_a_checkpoint(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(KeyError), create_run_folder(folder):
        (folder / CONFIG).write_text("epochs: 1")
        raise KeyError("of the training")
    assert {path.name for path in folder.iterdir()} == {CONFIG, LOCK}
    with create_run_folder(folder):
        clear(folder)
        assert [path.name for path in folder.iterdir()] == [LOCK]
        (folder / CONFIG).write_text("epochs: 2")
        (folder / CHECKPOINT).parent.mkdir()
        (folder / CHECKPOINT).write_text("")
    with pytest.raises(ValueError, match=r"exists already; .* resume"), create_run_folder(folder):
        pass


def test_the_settings_of_a_run_go_first(tmp_path):
    """Without them there is no run, wherever the removal stops."""
    (tmp_path / CONFIG).write_text("epochs: 1")
    (tmp_path / ".table.1a.partial").mkdir()  # cannot be removed as a file
    with pytest.raises(OSError):
        clear(tmp_path)
    assert not (tmp_path / CONFIG).exists()


@pytest.mark.parametrize("locked", [False, True])
def test_a_folder_with_other_files_is_not_written(tmp_path, locked):
    (tmp_path / "thesis.tex").write_text("a year's work")
    if locked:
        (tmp_path / LOCK).write_text("")
    with pytest.raises(ValueError, match="exists already"), create_run_folder(tmp_path):
        pass
    assert (tmp_path / "thesis.tex").read_text() == "a year's work"
    with (
        pytest.raises(ValueError, match="exists already"),
        create_run_folder(tmp_path / "thesis.tex"),
    ):
        pass
