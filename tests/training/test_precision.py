"""Training in bfloat16 does what training in float32 does, within the noise of a seed."""

import pytest

import nearfar


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Six epochs on digits, by precision and seed."""
    folder = tmp_path_factory.mktemp("precision")
    asked = [("32-true", 0), ("32-true", 1), ("bf16-mixed", 0)]
    return {
        (precision, seed): nearfar.pretrain(
            "digits", method="simclr", epochs=6, precision=precision, seed=seed, out=str(folder / f"{precision}-{seed}")
        )
        for precision, seed in asked
    }


def test_losses_agree(runs, quiet):
    exact, other, fast = ([line["loss"] for line in run.metrics if "loss" in line] for run in runs.values())
    assert exact != fast  # bfloat16 was used
    noise = max(abs(a - b) for a, b in zip(exact, other, strict=True))
    assert max(abs(a - b) for a, b in zip(exact, fast, strict=True)) < noise
    assert abs(exact[-1] - fast[-1]) < 0.02 * exact[-1]


def test_accuracies_agree(runs, quiet):
    exact, _, fast = (
        nearfar.evaluate(run, protocol=["knn", "linear"], baselines=False, console=quiet)["trained"]
        for run in runs.values()
    )
    assert exact["knn"] > 0.9
    for name in exact:
        assert abs(exact[name] - fast[name]) < 0.03
