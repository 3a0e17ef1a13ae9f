"""Experiment 6: the predicted curve against a simulation of the softmax, and its verdicts on
deficits that follow it, that follow m alone, and that differ between losses.
"""

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path

import matplotlib.figure
import numpy as np
import pytest

import nearfar_papers
from nearfar_papers import negatives, pages, runs
from nearfar_papers.negatives import Curve, curves, described, draw, judge_law, lost
from nearfar_papers.pages import draw_table
from tests.papers.conftest import paper

DOCS = Path(__file__).parents[2] / "docs" / "papers"
NUMBERS = {0.05: 3.0, 0.07: 8.0, 0.1: 20.0, 0.2: 90.0, 0.5: 220.0}
TABLE = replace(paper("experiments").tables["6"].small, effective_numbers=NUMBERS)


def values_of(deficit, seeds=("100", "101"), noise=0.2):
    """The numbers of all cells, 60 less deficit(method, m, x, x of all) and some noise."""
    rng, values = np.random.default_rng(0), {}
    for cell in TABLE.cells():
        m = (cell.settings.get("group_size") or 256) - 1
        number = NUMBERS[cell.settings["pair_temperature"]]
        below = deficit(cell.settings["method"], m, m * number / 255, number)
        values[cell.row, cell.column] = {
            seed: 60 - below + noise * rng.standard_normal() for seed in seeds
        }
    return values


def by_x(method, m, x, of_all):
    """As predicted, but for SigCLR."""
    if method == "sigclr":
        return by_m(method, m, x, of_all)
    return 8 * (1 / (1 + x) - 1 / (1 + of_all))


def by_m(method, m, x, of_all):
    return 8 * (1 - np.log(m) / np.log(255))


@pytest.mark.parametrize("spread", [0.5, 1.0, 1.5, 2.0])
def test_the_curve_is_near_the_weight_that_groups_leave_in_a_simulation(spread):
    """Log-normal weights: the expected softmax of random groups, projected on the whole one."""
    rng, count = np.random.default_rng(0), 255
    sizes = [1, 3, 7, 15, 63]
    shares, numbers = [], []
    for _ in range(8):
        weights = np.exp(spread * rng.standard_normal(count))
        p = weights / weights.sum()
        numbers.append(1 / np.square(p).sum())
        for m in sizes:
            groups = np.argsort(rng.random((400, count)), axis=1)[:, :m]
            q = np.zeros(count)
            np.add.at(q, groups, weights[groups] / weights[groups].sum(1, keepdims=True) / 400)
            shares.append(1 - (p @ (q - 1 / count)) / (p @ (p - 1 / count)))
    simulated = np.reshape(shares, (8, -1)).mean(0)
    curve = Curve("dcl", "DCL", 0.1, np.mean(numbers), count, np.array(sizes), np.ones(5))
    assert curve.share[0] == 1 and simulated[0] == pytest.approx(1, abs=0.05)
    assert curve.share == pytest.approx(simulated, abs=0.18)
    falling = np.exp(-curve.x) / np.exp(-curve.x[0])  # where all other images weigh nothing
    assert abs(falling - simulated).max() > abs(curve.share - simulated).max()


def test_deficits_that_follow_the_curve_hold_what_was_predicted():
    values = values_of(by_x)
    verdicts = {law: judge_law(law, TABLE, values) for law in negatives.LAWS}
    assert {law: verdict.holds for law, verdict in verdicts.items()} == dict.fromkeys(
        negatives.LAWS, "yes"
    )
    low, high = verdicts["order"].interval
    assert low <= verdicts["order"].difference <= high
    assert verdicts["strength"].difference < -0.9
    (curve, *_) = curves(TABLE, values_of(by_x, noise=0))
    assert curve.residuals(curve.share) == pytest.approx([0] * 4, abs=1e-9)
    assert curve.x == pytest.approx([m * 3 / 255 for m in (1, 3, 7, 15, 63)])


def test_deficits_that_follow_m_alone_refute_it():
    values = values_of(by_m)
    holds = {law: judge_law(law, TABLE, values).holds for law in negatives.LAWS}
    assert holds["order"] == "no" and holds["shape"] == "no"
    assert holds["departure"] == "not decided"


@pytest.mark.parametrize(("more", "holds"), [(1.0, "yes"), (4.0, "no")])
def test_losses_that_differ_at_one_negative_share_no_curve(more, holds):
    def deficit(method, m, x, of_all):
        return by_x(method, m, x, of_all) + (more if method == "dcl" and m == 1 else 0)

    judgement = judge_law("spread", TABLE, values_of(deficit))
    assert judgement.holds == holds and judgement.difference == pytest.approx(more, abs=0.3)


def test_what_was_not_run_is_not_judged_and_sizes_are_those_of_all():
    assert {judge_law(law, TABLE, {}).holds for law in negatives.LAWS} == {"not run"}
    values = values_of(by_x)
    del values["dcl-g8", "t0.1"]
    assert {tuple(curve.negatives) for curve in curves(TABLE, values)} == {(1, 3, 15, 63)}
    only_seed = {place: {"100": each["100"]} for place, each in values.items()}
    assert "noise" not in described(TABLE, only_seed)


def test_the_page_has_deficits_beside_predictions_and_their_noise():
    page = described(TABLE, values_of(by_x, noise=0.3))
    assert len(page["lines"]) == 2 + 25 and page["lines"][0][3:5] == ["m = 1", "m = 3"]
    deficit, predicted = page["lines"][2][4].rstrip(")").split(" (")
    assert float(deficit) == pytest.approx(float(predicted), abs=1)
    assert float(page["noise"]) == pytest.approx(0.3 * 2**0.5, abs=0.12)  # of a difference
    assert page["cells"] == 125
    four = curves(TABLE, values_of(by_x, noise=0.3))[:20]
    inner = np.concatenate([curve.deficits[1:] for curve in four])
    assert float(page["residuals"]["nothing"]) == pytest.approx((inner**2).mean() ** 0.5, abs=0.006)
    assert float(page["residuals"]["curve"]) < 0.5 < float(page["residuals"]["rule"])


def test_the_figure_has_the_curve_and_every_deficit(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(
        matplotlib.figure.Figure, "savefig", lambda figure, _: figures.append(figure)
    )
    monkeypatch.setattr(pages, "replacing", lambda path: contextlib.nullcontext(path))
    values = values_of(by_x)
    lists = {place: list(each.values()) for place, each in values.items()}
    draw_table(tmp_path / "figure.png", TABLE, lists, tmp_path)
    over_m, over_x, shares, sigclr = figures[0].axes
    drawn = [line.get_ydata() for line in over_x.lines if len(line.get_ydata()) == 5]
    assert np.array(drawn) == pytest.approx(
        np.stack([curve.deficits for curve in curves(TABLE, values)[:20]])
    )
    curve = shares.lines[-1]
    assert curve.get_ydata() == pytest.approx(lost(np.asarray(curve.get_xdata())))
    assert len(over_m.lines) >= 20 and "SigCLR" in sigclr.get_title()
    assert draw(TABLE, values).axes[1].get_xscale() == "log"


@pytest.mark.slow
def test_trials_and_effective_numbers_are_run_before_the_table_that_reads_them(
    tmp_path, monkeypatch
):
    for path in (DOCS / "experiments").glob("6*.small.json"):
        (tmp_path / "experiments").mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / "experiments")
    order = []
    monkeypatch.setattr(
        runs, "add_tasks", lambda tasks, table, *rest: order.append(table.name) or []
    )
    nearfar_papers.reproduce("experiments/6", scale="small", out=str(tmp_path))
    assert list(dict.fromkeys(order)) == ["6-rate", "6-effective", "6"]
