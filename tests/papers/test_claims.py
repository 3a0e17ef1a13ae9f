"""Claims of papers: the interval of a difference, and yes, no or not decided by it."""

import statistics

import numpy as np
import pytest
from scipy import stats

from nearfar.papers import Claim, judge, read_paper
from nearfar.papers.claims import compare
from tests.papers.test_papers import written

A, B = [80.1, 80.4, 80.2], [79.1, 79.3, 79.0]
GRAFTS = {  # Montgomery, Design and Analysis of Experiments, example 4.1: four pressures, six batches of resin
    "8500": [90.3, 89.2, 98.2, 93.9, 87.4, 97.9],
    "8700": [92.5, 89.5, 90.6, 94.7, 87.0, 95.8],
    "8900": [85.5, 90.8, 89.6, 86.2, 88.0, 93.4],
    "9100": [82.5, 89.5, 85.6, 87.4, 78.9, 90.7],
}


def test_a_difference_is_that_of_randomised_blocks():
    grafts = {(pressure, "yield"): seeds(numbers) for pressure, numbers in GRAFTS.items()}
    found = compare(grafts, ("8500", "yield"), ("9100", "yield"))
    assert found.variance == pytest.approx(7.33, abs=0.005)  # the book's mean square of errors, 15 degrees of freedom
    assert found.mean == pytest.approx(92.82 - 85.77, abs=0.005)
    assert found.half == pytest.approx(2.131 * (2 * 7.33 / 6) ** 0.5, abs=0.005)


def test_a_difference_of_two_cells_is_that_of_pairs():
    x, y = GRAFTS["8500"], GRAFTS["8700"]
    found = compare({("x", ""): seeds(x), ("y", ""): seeds(y)}, ("x", ""), ("y", ""))
    pairs = stats.ttest_rel(x, y).confidence_interval(0.95)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((pairs.low, pairs.high))


def test_intervals_of_unequal_numbers_of_seeds_hold_the_truth_in_95_of_100_cases():
    generator, inside = np.random.default_rng(0), 0
    for _ in range(1000):
        block = 3 * generator.normal(size=5)
        rows = {
            (name, ""): seeds(block[:count] + generator.normal(size=count))
            for name, count in {"x": 3, "y": 5, "z": 4}.items()
        }
        found = compare(rows, ("x", ""), ("y", ""))
        inside += abs(found.mean) <= found.half
    assert 930 <= inside <= 970


def seeds(numbers):
    return {str(seed): number for seed, number in enumerate(numbers)}


def judged(tmp_path, a, b, change=lambda table: None, **claim):
    table = read_paper(written(tmp_path, change)).tables["table-1"]
    return judge(Claim(text="", column="a", **claim), table, "full", {("x", "a"): seeds(a), ("y", "a"): seeds(b)})


def test_a_claim_holds_where_the_interval_says_so(tmp_path):
    assert judged(tmp_path, A, B, better=("x", "y")).holds == "yes"
    assert judged(tmp_path, A, B, better=("y", "x")).holds == "no"
    assert judged(tmp_path, A, B, best="x").holds == "yes"
    assert judged(tmp_path, A, B, best="y").holds == "no"
    lower = judged(tmp_path, A, B, lambda table: table.update(better="lower"), better=("y", "x"))
    assert lower.holds == "yes"
    interval = stats.ttest_rel(A, B).confidence_interval(0.95)
    words = judged(tmp_path, A, B, better=("x", "y")).words
    assert f"{interval.low:+.3g} to {interval.high:+.3g}" in words
    assert f"{statistics.mean(A) - statistics.mean(B):+.3g} %" in words


def test_what_is_too_close_or_of_one_seed_is_not_decided(tmp_path):
    near = [79.3, 80.6, 79.9]
    close = judged(tmp_path, A, near, better=("x", "y"))
    assert close.holds == "not decided" and "seeds would decide it" in close.words
    assert judged(tmp_path, A[:1], B[:1], better=("x", "y")).holds == "not decided"
    assert judged(tmp_path, [], B, better=("x", "y")) == ("not decided", "not run here")


def test_the_best_of_rows_that_were_not_all_run_is_not_decided(tmp_path):
    assert judged(tmp_path, A, [], best="x").holds == "not decided"


def test_the_best_is_told_against_the_row_that_is_furthest_above_it():
    table = read_paper("lorac").tables["table-3"]
    claim = next(one for one in table.claims if one.best == "lorac" and one.column == "p1-top1")
    numbers = {
        "lorac": [60, 61.5, 62],
        "moco-v2": [60.2, 61.1, 61.9],
        "moco-v1": [60.6, 61.2, 62.9],
        "swav": [70, 71.4, 72.1],
    }
    values = {(row, "p1-top1"): seeds(given) for row, given in numbers.items()}
    assert judge(claim, table, "small", values).words.startswith("against SwAV: difference -10 %")
    del values["swav", "p1-top1"]
    found = judge(claim, table, "small", values)
    assert found.holds == "not decided" and found.words.startswith("against MoCo v1: difference -0.4 %")


def test_within_needs_the_whole_interval(tmp_path):
    assert judged(tmp_path, A, B, within=("x", "y", 3.0)).holds == "yes"
    assert judged(tmp_path, A, B, within=("x", "y", 0.2)).holds == "no"
    assert judged(tmp_path, A, B, within=("x", "y", 1.1)).holds == "not decided"


def test_not_worse_bounds_one_side_alone(tmp_path):
    assert judged(tmp_path, A, B, not_worse=("x", "y", 0.2)).holds == "yes"
    assert judged(tmp_path, B, A, not_worse=("x", "y", 0.2)).holds == "no"
    assert judged(tmp_path, B, A, not_worse=("x", "y", 1.1)).holds == "not decided"

    def lower(table):
        table.update(better="lower")

    assert judged(tmp_path, B, A, lower, not_worse=("x", "y", 0.2)).holds == "yes"
    assert judged(tmp_path, A, B, lower, not_worse=("x", "y", 0.2)).holds == "no"


def test_counts_of_one_run_are_compared_and_equal_within_one_per_cent(tmp_path):
    def counts(table):
        table.update(measure="variables", better="lower")

    assert judged(tmp_path, [1000.0], [1500.0], counts, better=("x", "y")).holds == "yes"
    equal = judged(tmp_path, [1000.0], [1005.0], counts, better=("x", "y"))
    assert equal.holds == "no" and "equal within 1 %" in equal.words


def test_a_claim_is_judged_on_the_data_that_stands_for_the_papers_and_says_so():
    table = read_paper("sce").tables["table-5"]
    claim = next(one for one in table.claims if one.text == "SCE is better than ReSSL on ImageNet100")
    values = {("sce", "imagenette"): seeds([61.0, 62.0, 63.0]), ("ressl", "imagenette"): seeds([50.0, 51.0, 52.5])}
    found = judge(claim, table, "small", values)
    assert found.holds == "yes" and found.words.startswith("on Imagenette: difference +10.8 %")


def test_cells_of_other_data_say_nothing_of_a_difference():
    table = read_paper("sce").tables["table-5"]
    claim = next(one for one in table.claims if one.text == "SCE is better than ReSSL on ImageNet100")
    values = {("sce", "imagenette"): seeds([61.0, 62.0, 63.0]), ("ressl", "imagenette"): seeds([50.0, 51.0, 52.5])}
    wild = {("sce", "cifar10"): seeds([10.0, 90.0, 20.0]), ("ressl", "cifar10"): seeds([50.0, 1.0, 99.0])}
    assert judge(claim, table, "small", values | wild) == judge(claim, table, "small", values)
    same = {("moco-v2", "imagenette"): seeds([10.0, 90.0, 20.0])}
    assert judge(claim, table, "small", values | same).holds == "not decided"


def test_a_difference_has_the_unit_of_its_column():
    table = read_paper("lorac").tables["figure-3"]
    claim = next(one for one in table.claims if one.better == ("moco-m", "beta-2"))
    values = {("moco-m", "nuclear"): seeds([12.3, 12.2]), ("beta-2", "nuclear"): seeds([12.0, 12.1])}
    assert "difference +0.2 norm," in judge(claim, table, "small", values).words
