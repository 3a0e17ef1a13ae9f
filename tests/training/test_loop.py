"""A run that was stopped or killed goes on as if nothing had happened; a run that breaks says
so.
"""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file

import nearfar
from nearfar import threads
from nearfar.cli import main
from nearfar.methods import Model, Recipe, SimCLR
from nearfar.training import loop, progress
from tests.steps import at_step, interrupt, logged, same_runs

pytestmark = pytest.mark.usefixtures("known_speed")

# with numbers of each image, a queue and a momentum encoder, stored embeddings, a loss that learns,
# random directions, a second projector
METHODS = {
    "saclr-row": dict(method="saclr", scale="row", negatives=3),
    "isogclr": dict(method="isogclr"),
    "moco-v2": dict(method="moco-v2", queue_size=50),
    "swav": dict(method="swav", stored=24, stored_from=1.0, small_views=1),
    "sigclr": dict(method="sigclr", learn_temperature=True, optimizer="adamw", lr=1e-3),
    "lejepa": dict(method="lejepa", num_directions=20, small_views=1),
    "wcl": dict(method="wcl"),
}


def run(images_file, out, **options):
    settings = dict(
        epochs=2,
        batch_size=16,
        held_out=16,
        log_every=2,
        encoder="tiny",
        seed=3,
        precision="32-true",
    )
    return nearfar.pretrain(images_file, out=str(out), **(settings | options))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.slow
def test_stopped_and_resumed_is_uninterrupted(name, images_file, tmp_path):
    whole = run(images_file, tmp_path / "whole", **METHODS[name])
    with (
        at_step(5),
        pytest.raises(nearfar.TrainingStopped, match=r"nearfar\.resume"),
    ):  # in the middle of the second epoch
        run(images_file, tmp_path / "parts", **METHODS[name])
    assert nearfar.Run(tmp_path / "parts").metrics[-1]["step"] < 6
    parts = nearfar.resume(tmp_path / "parts")
    same_runs(parts, whole)


@pytest.mark.usefixtures("no_pages")
def test_killed_and_resumed_is_uninterrupted(images_file, tmp_path, monkeypatch):
    whole = run(images_file, tmp_path / "whole", tensorboard=True)
    assert list((whole.path / "tensorboard").glob("events.*"))
    other = run(images_file, tmp_path / "other", epochs=1, seed=4)
    assert logged(other)[0] != logged(whole)[0]
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)

    def die():
        raise MemoryError

    with at_step(7, do=die), pytest.raises(MemoryError):
        run(images_file, tmp_path / "parts")
    with (tmp_path / "parts" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "lo')  # a line that was cut off
    same_runs(nearfar.resume(tmp_path / "parts"), whole)


def test_a_loss_that_is_not_finite_stops_the_run(images_file, tmp_path):
    with pytest.raises(nearfar.TrainingDiverged, match=r"lower `lr`"):
        run(images_file, tmp_path / "run", method="vicreg", lr=1e12, warmup_epochs=0.0)
    assert not (tmp_path / "run" / "encoder.safetensors").exists()


@pytest.mark.usefixtures("no_pages")
def test_micro_batches_leave_the_gradient_of_the_batch(images_file, tmp_path):
    """On a net whose normalisation knows no batch, whole batches and micro-batches log the same
    losses.
    """
    options = dict(
        encoder="test_vit",
        optimizer="adamw",
        lr=1e-4,
        epochs=1,
        image_size=32,
        projector=(16,),
    )
    whole = run(images_file, tmp_path / "whole", **options)
    parts = run(images_file, tmp_path / "parts", **options, micro_batch=5)
    first, second = ([line["loss"] for line in r.metrics if "loss" in line] for r in (whole, parts))
    torch.testing.assert_close(torch.tensor(first), torch.tensor(second), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_bfloat16_trains_as_float32_does_within_the_noise_of_a_seed(tmp_path):
    precisions = [("32-true", 0), ("32-true", 1), ("bf16-mixed", 0)]
    options = dict(method="simclr", epochs=6, limit=800, encoder="tiny")
    runs = [
        nearfar.pretrain(
            "digits",
            precision=precision,
            seed=seed,
            out=str(tmp_path / f"{precision}-{seed}"),
            **options,
        )
        for precision, seed in precisions
    ]
    exact, other, fast = (
        torch.tensor([line["loss"] for line in run.metrics if "loss" in line]) for run in runs
    )
    assert not torch.equal(exact, fast)  # bfloat16 was used
    assert (exact - fast).abs().max() < (exact - other).abs().max()
    assert abs(exact[-1] - fast[-1]) < 0.02 * exact[-1]
    exact, fast = (
        nearfar.evaluate(run, protocol=["knn"], baselines=False)["trained"]["knn"]
        for run in runs[::2]
    )
    assert exact > 0.8 and abs(exact - fast) < 0.03


def test_the_rate_starts_and_drops_as_the_recipe_says(images_file, tmp_path):
    @dataclass(frozen=True, kw_only=True)
    class Dropping(SimCLR):
        """With a recipe of 30 epochs, of which a run of three has the shape."""

        recipes: ClassVar = {
            "small": Recipe("", epochs=30, warmup_start=0.5, lr_drops=(20,), lr_drop=0.2)
        }

    options = dict(method=Dropping(), lr=1e-3, warmup_epochs=1.0, log_every=1, epochs=3)
    made = run(images_file, tmp_path / "run", **options)
    rates = [line["lr"] for line in made.metrics if "lr" in line]
    steps = len(rates) // 3
    rising = [1e-3 * (0.5 + 0.5 * (step + 1) / steps) for step in range(steps)]
    assert rates == pytest.approx(rising + [1e-3] * steps + [2e-4] * steps)


@pytest.mark.slow
def test_a_run_keeps_its_number_of_threads_until_another_is_given(
    images_file, tmp_path, monkeypatch, capsys
):
    before, used = torch.get_num_threads(), []
    advance = loop.TrainingProgress.advance

    def watched(self, step):
        advance(self, step)
        used.append(torch.get_num_threads())
        if step in (3, 5):
            interrupt()

    def fastest(number):
        monkeypatch.setattr(threads, "_chosen", None)  # whatever a test before has measured
        monkeypatch.setattr(
            threads, "_trial", lambda count, at_most: 1.0 if count == number else 2.0
        )

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(loop.TrainingProgress, "advance", watched)
    torch.set_num_threads(2)
    try:
        fastest(1)
        with pytest.raises(nearfar.TrainingStopped):
            run(images_file, tmp_path / "run")
        fastest(2)
        with pytest.raises(nearfar.TrainingStopped):
            nearfar.resume(tmp_path / "run")
        assert used == [1] * 5 and nearfar.Run(tmp_path / "run").settings.threads == 1
        assert torch.get_num_threads() == 2
        assert main(["pretrain", "--resume", str(tmp_path / "run"), "--threads", "2"]) == 0
        assert "--threads 2 in place of 1" in capsys.readouterr().out
        assert used[5:] == [2] * 3 and nearfar.Run(tmp_path / "run").settings.threads == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_a_compiled_encoder_trains_and_is_saved_as_any_other(images_file, tmp_path, monkeypatch):
    """By torch's front end alone: the back end, which makes kernels, takes a minute."""
    whole = run(images_file, tmp_path / "whole", micro_batch=8)
    compiled, compile = [], torch.compile
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]

    def watched(*given, **named):
        compiled.append(given)
        return compile(*given, **named | {"backend": "aot_eager"})

    monkeypatch.setattr(torch, "compile", watched)
    with at_step(5), pytest.raises(nearfar.TrainingStopped):
        run(images_file, tmp_path / "parts", micro_batch=8, compile=True)
    parts = nearfar.resume(tmp_path / "parts")
    assert len(compiled) == 5  # a trial before the run, and two networks in each of its parts
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > graphs + 2  # which ran
    for first, second in zip(whole.metrics, parts.metrics, strict=True):
        assert first.get("loss", 0.0) == pytest.approx(second.get("loss", 0.0), rel=1e-4)
    first, second = (load_file(r.path / "encoder.safetensors") for r in (whole, parts))
    assert first.keys() == second.keys()


def test_where_torch_cannot_compile_one_line_says_so(images_file, tmp_path, monkeypatch):
    def without_compiler(function):
        raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found")

    monkeypatch.setattr(torch, "compile", without_compiler)
    with pytest.raises(ValueError, match=r"`compile` .*No working C"):
        run(images_file, tmp_path / "run", compile=True)
    assert not (tmp_path / "run").exists()


def test_a_state_that_is_not_finite_is_neither_saved_nor_resumed(
    images_file, tmp_path, monkeypatch
):
    """The checkpoint before it stays; one that holds it, of an older version, is refused in one
    line.
    """
    out = tmp_path / "run"
    options = dict(epochs=4, batch_size=16, held_out=16, encoder="small", method="saclr")
    options |= dict(precision="32-true")
    with at_step(6), pytest.raises(nearfar.TrainingStopped):
        nearfar.pretrain(images_file, out=out, **options)
    checkpoint = out / "checkpoints" / "last.ckpt"
    state = torch.load(checkpoint, weights_only=True)
    for name in ("loss.partition", "online.0.net.norm.running_var"):
        name = name if name in state["model"] else next(k for k in state["model"] if "var" in k)
        spoiled = {**state["model"], name: torch.full_like(state["model"][name], torch.nan)}
        torch.save({**state, "model": spoiled}, checkpoint)
        with pytest.raises(ValueError, match=f"{name} holds nan or inf"):
            nearfar.resume(out)
    torch.save(state, checkpoint)
    before = checkpoint.read_bytes()

    after_step = Model.after_step

    def spoiling(self, *given):
        after_step(self, *given)
        self.loss.partition.fill_(torch.inf)

    monkeypatch.setattr(Model, "after_step", spoiling)
    message = r"loss\.partition .*by step 7;"
    with at_step(7), pytest.raises(nearfar.TrainingDiverged, match=message):
        nearfar.resume(out)
    assert checkpoint.read_bytes() == before


def test_the_time_is_kept_whatever_the_lines_of_metrics_are(
    images_file, tmp_path, monkeypatch, log
):
    """A machine ten times as slow as measured: the run takes its time, and says what it left
    out.
    """
    now = [0.0]
    monkeypatch.setattr(progress, "perf_counter", lambda: now[0])
    pace = loop.StepBudget
    monkeypatch.setattr(loop, "StepBudget", lambda *given: pace(*given, clock=lambda: now[0]))

    def slow():
        now[0] += 1.0

    with at_step(*range(10_000), do=slow):
        made = nearfar.pretrain(
            images_file,
            out=tmp_path / "run",
            minutes=0.5,
            log_every=1_000_000,
            batch_size=16,
            held_out=16,
            encoder="tiny",
            image_size=8,
            precision="32-true",
            compile=False,
        )
    assert 10 <= now[0] <= 33  # seconds
    assert made.settings.epochs == pytest.approx(now[0] / 4, abs=0.5)  # steps in an epoch
    assert made.planned_epochs > 100 > made.settings.epochs
    line = next(line for line in log.lines if "planned epochs" in line)
    assert f"of {made.planned_epochs:g} planned epochs" in line
    assert f"init={str(made.path)!r}, minutes=60)`" in line
    assert "planned epochs, as the time was over" in (made.path / "report.html").read_text()


def test_resuming_a_compiled_run_says_that_its_last_digits_may_differ(
    images_file, tmp_path, monkeypatch, log
):
    monkeypatch.setattr(torch, "compile", lambda network: network)
    with at_step(3), pytest.raises(nearfar.TrainingStopped):
        run(images_file, tmp_path / "run", compile=True)
    nearfar.resume(tmp_path / "run")
    assert "this run is compiled (`compile`)" in log.text
