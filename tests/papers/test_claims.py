"""Claims of papers: the interval of a difference, and yes, no or not decided by it."""

import statistics
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from nearfar_papers.claims import Difference, compare, contrast, holm, judge, with_test_images
from nearfar_papers.paper import Claim, paper_names, read_paper
from tests.papers.conftest import paper
from tests.papers.test_papers import written

A, B = [80.1, 80.4, 80.2], [79.1, 79.3, 79.0]
# Montgomery, Design and Analysis of Experiments, example 4.1: four pressures, six batches of resin
GRAFTS = {
    "8500": [90.3, 89.2, 98.2, 93.9, 87.4, 97.9],
    "8700": [92.5, 89.5, 90.6, 94.7, 87.0, 95.8],
    "8900": [85.5, 90.8, 89.6, 86.2, 88.0, 93.4],
    "9100": [82.5, 89.5, 85.6, 87.4, 78.9, 90.7],
}


def test_a_difference_is_that_of_randomised_blocks():
    grafts = {(pressure, "yield"): seeds(numbers) for pressure, numbers in GRAFTS.items()}
    comparison = compare(grafts, ("8500", "yield"), ("9100", "yield"))
    assert comparison.variance == pytest.approx(
        7.33, abs=0.005
    )  # the book's mean square of errors, 15 degrees of freedom
    assert comparison.mean == pytest.approx(92.82 - 85.77, abs=0.005)
    assert comparison.half() == pytest.approx(2.131 * (2 * 7.33 / 6) ** 0.5, abs=0.005)


def test_a_difference_of_differences_has_the_one_variance_of_all_cells():
    grafts = {(pressure, "yield"): seeds(numbers) for pressure, numbers in GRAFTS.items()}
    places = list(grafts)
    both = contrast(grafts, dict(zip(places, (1, -1, -1, 1), strict=True)))
    assert both.mean == pytest.approx(92.82 - 91.68 - 88.92 + 85.77, abs=0.01)
    assert both.half() == pytest.approx(2.131 * (4 * 7.33 / 6) ** 0.5, abs=0.01)

    table = paper("experiments").tables["1"]
    claim = next(claim for claim in table.claims if claim.more)
    cells = (tuple(cell.split("/")) for cell in claim.more)
    verdict = judge(claim, table, dict(zip(cells, grafts.values(), strict=True)))
    low, high = verdict.interval
    assert (low, high) == pytest.approx((both.mean - both.half(), both.mean + both.half()))


@pytest.mark.parametrize(("spread", "low", "high"), [(1.0, 180, 198), (8.0, 180, 200)])
def test_intervals_hold_the_truth_in_95_of_100_cases(spread, low, high):
    """Of unequal numbers of seeds, and where one row scatters more."""
    generator, inside = np.random.default_rng(0), 0
    spreads = [spread, *[1.0] * 5]
    for _ in range(200):
        block = 3 * generator.normal(size=5)
        rows = {
            (str(row), ""): seeds(block[:count] + spreads[row] * generator.normal(size=count))
            for row, count in enumerate((5, 3, 4, 5, 5, 5))
        }
        comparison = compare(rows, ("0", ""), ("1", ""))
        inside += abs(comparison.mean) <= comparison.half()
    assert low <= inside <= high


def seeds(numbers):
    return {str(seed): number for seed, number in enumerate(numbers)}


def judged(tmp_path, a, b, change=lambda table: None, **claim):
    table = read_paper(written(tmp_path, change)).tables["table-1"]
    return judge(
        Claim(text="", column="a", **claim), table, {("x", "a"): seeds(a), ("y", "a"): seeds(b)}
    )


def test_a_claim_holds_where_the_interval_says_so(tmp_path):
    assert judged(tmp_path, A, B, better=("x", "y")).holds == "yes"
    assert judged(tmp_path, A, B, better=("y", "x")).holds == "no"
    assert judged(tmp_path, A, B, best="x").holds == "yes"
    assert judged(tmp_path, A, B, best="y").holds == "no"
    lower = judged(tmp_path, A, B, lambda table: table.update(better="lower"), better=("y", "x"))
    assert lower.holds == "yes"


def test_what_is_too_close_or_of_one_seed_is_not_decided(tmp_path):
    near = [79.3, 80.6, 79.9]
    close = judged(tmp_path, A, near, better=("x", "y"))
    assert close.holds == "not decided" and "seeds would decide it" in close.words
    assert judged(tmp_path, A[:1], B[:1], better=("x", "y")).holds == "not decided"


def test_what_was_not_run_is_not_judged(tmp_path):
    assert judged(tmp_path, [], B, better=("x", "y"))[:2] == (
        "not run",
        "not run here; needs runs of 'X'",
    )
    assert judged(tmp_path, A, [], best="x").holds == "not run"
    table = paper("sce").tables["table-5"]
    claim = next(candidate for candidate in table.claims if candidate.column == "stl10")
    assert judge(claim, table.small, {})[:2] == (
        "not run",
        "not run at this scale; needs stl10-unlabelled",
    )
    margin = Claim(text="", more=("sce/cifar10", "ressl/cifar10", "sce/imagenet", "ressl/imagenet"))
    assert judge(margin, table.small, {}).words.endswith("needs imagenet")
    batches = paper("sigclr").tables["table-3"].small
    lines = Claim(text="", better=("simclr-cifar100/b512", "simclr-cifar100/b64"))
    assert judge(lines, batches, {}).words.endswith("needs cifar100")
    memory = Claim(text="", column="b16k", better=("saclr-1", "simclr"))
    table = paper("saclr").tables["table-8"].small
    assert judge(memory, table, {}).words.endswith(table.needs) and table.needs


def test_what_no_run_can_judge_is_not_here_and_says_what_it_would_take():
    lacking = {}
    for name in paper_names():
        for table in paper(name).tables.values():
            for claim in (each for each in table.claims if each.law is None):
                judgements = {judge(claim, each, {})[:2] for each in (table, table.small) if each}
                if "not here" in {holds for holds, _ in judgements}:
                    ((_, words),) = judgements  # at either scale the same
                    lacking[name, table.name, claim.text] = words
    assert len(lacking) == 24 and all(words.startswith("needs ") for words in lacking.values())
    assert (
        "AdCo"
        in lacking[
            "sce", "table-8", "SCE after 200 epochs is 0.3 points below the best of 800 and more"
        ]
    )
    assert "mean over" in lacking["lorac", "table-2", "LORAC is best on average"]


def test_a_claim_to_be_best_names_whom_it_met_and_who_did_not_run():
    table = paper("sce").tables["table-10"]
    claim = next(each for each in table.claims if each.best == "sce" and each.column == "k64")
    numbers = {"sce": [60, 61.5, 62], "moco-v2": [50.2, 51.1, 51.9], "ressl": [40.6, 41.2, 42]}
    values = {(row, "k64"): seeds(given) for row, given in numbers.items()}
    judgement = judge(claim, replace(table.small, run=tuple(numbers)), values)
    assert judgement.holds == "yes" and judgement.met == ("MoCo v2", "ReSSL")
    assert judgement.missed == ("PCL v2", "SwAV", "WCL")
    assert judgement.words.endswith("; met MoCo v2, ReSSL; did not run: PCL v2, SwAV, WCL")


def test_the_best_is_judged_against_the_row_that_speaks_most_against_it():
    table = paper("lorac").tables["table-3"]
    claim = next(
        candidate
        for candidate in table.claims
        if candidate.best == "lorac" and candidate.column == "p1-top1"
    )
    numbers = {
        "lorac": [60, 61.5, 62],
        "moco-v2": [60.2, 61.1, 61.9],
        "moco-v1": [60.6, 61.2, 62.9],
    }
    values = {(row, "p1-top1"): seeds(given) for row, given in numbers.items()}
    judgement = judge(claim, table.small, values)
    assert judgement.holds == "not decided" and judgement.words.startswith(
        "against MoCo v1: difference -0.4 %"
    )
    values["swav", "p1-top1"] = seeds([])
    assert judge(claim, table.small, values).holds == "not run"
    values["swav", "p1-top1"] = seeds([70, 71.4, 72.1])
    assert judge(claim, table.small, values).words.startswith("against SwAV: difference -10 %")
    values["moco-v1", "p1-top1"] = seeds([])  # one row is enough to refute the claim
    assert judge(claim, table.small, values).holds == "no"


def test_a_margin_is_compared_with_the_end_of_the_interval(tmp_path):
    def lower(table):
        table.update(better="lower")

    for first, second, change, kind, margin, holds in (
        (A, B, None, "within", 3.0, "yes"),
        (A, B, None, "within", 0.2, "no"),
        (A, B, None, "within", 1.1, "not decided"),
        (A, B, None, "not_worse", 0.2, "yes"),
        (B, A, None, "not_worse", 0.2, "no"),
        (B, A, None, "not_worse", 1.1, "not decided"),
        (B, A, lower, "not_worse", 0.2, "yes"),
        (A, B, lower, "not_worse", 0.2, "no"),
    ):
        judgement = judged(
            tmp_path, first, second, *([change] if change else []), **{kind: ("x", "y", margin)}
        )
        assert judgement.holds == holds


def test_counts_of_one_run_are_compared_and_equal_within_one_per_cent(tmp_path):
    def counts(table):
        table.update(measure="variables", better="lower")

    assert judged(tmp_path, [1000.0], [1500.0], counts, better=("x", "y")).holds == "yes"
    equal = judged(tmp_path, [1000.0], [1005.0], counts, better=("x", "y"))
    assert equal.holds == "no" and "equal within 1 %" in equal.words


def test_a_claim_is_judged_on_the_data_that_stands_for_the_papers_without_cells_of_other_data():
    table = paper("sce").tables["table-5"]
    claim = next(
        candidate
        for candidate in table.claims
        if candidate.text == "SCE is better than ReSSL on ImageNet100"
    )
    values = {
        ("sce", "imagenette"): seeds([61.0, 62.0, 63.0]),
        ("ressl", "imagenette"): seeds([50.0, 51.0, 52.5]),
    }
    judgement = judge(claim, table.small, values)
    assert judgement.holds == "yes" and judgement.words.startswith(
        "on Imagenette: difference +10.8 %"
    )
    wild = {
        ("sce", "cifar10"): seeds([10.0, 90.0, 20.0]),
        ("ressl", "cifar10"): seeds([50.0, 1.0, 99.0]),
    }
    assert judge(claim, table.small, values | wild) == judgement
    same = {("moco-v2", "imagenette"): seeds([10.0, 90.0, 20.0])}
    assert judge(claim, table.small, values | same).holds == "not decided"


def test_a_difference_has_the_unit_of_its_column():
    table = paper("lorac").tables["figure-3"]
    claim = next(
        candidate for candidate in table.claims if candidate.better == ("moco-m", "beta-2")
    )
    values = {
        ("moco-m", "nuclear"): seeds([12.3, 12.2]),
        ("beta-2", "nuclear"): seeds([12.0, 12.1]),
    }
    assert "difference +0.2 norm," in judge(claim, table.small, values).words


def test_p_is_that_of_students_test_of_pairs(tmp_path):
    x, y = A, [79.8, 80.6, 79.9]
    better = judged(tmp_path, x, y, better=("x", "y"))
    assert better.p == pytest.approx(stats.ttest_rel(x, y).pvalue)
    margin = judged(tmp_path, x, y, not_worse=("x", "y", 0.5))
    assert margin.p == pytest.approx(stats.ttest_rel([value + 0.5 for value in x], y).pvalue)
    within = judged(
        tmp_path, A, B, within=("x", "y", 3.0)
    )  # two one-sided tests, each at half the level
    assert within.p == pytest.approx(
        2 * stats.ttest_rel(A, [value + 3 for value in B], alternative="less").pvalue
    )
    interval = stats.ttest_rel(x, y).confidence_interval(0.95)
    assert better.interval == pytest.approx((interval.low, interval.high))
    assert better.difference == pytest.approx(statistics.mean(x) - statistics.mean(y))
    assert better.words.startswith(
        f"difference {better.difference:+.3g} %, 95 % interval {interval.low:+.3g} to "
        f"{interval.high:+.3g};"
    )


def test_the_best_of_many_equal_rows_is_seldom_refuted():
    table = paper("sce").tables["table-13"]
    claim = next(
        candidate for candidate in table.claims if candidate.column == "cifar10" and candidate.best
    )
    generator, refuted = np.random.default_rng(0), 0
    for _ in range(25):
        values = {(row, "cifar10"): seeds(generator.normal(size=3)) for row in table.rows}
        refuted += judge(claim, table.small, values).holds == "no"
    assert len(table.rows) == 16 and refuted <= 4  # 5 %; compared one by one it is about 10 of 25


def test_holms_correction_is_that_of_his_paper():
    assert holm([0.01, 0.04, 0.03, 0.005]) == [
        True,
        False,
        False,
        True,
    ]  # adjusted: 0.03, 0.06, 0.06, 0.02
    assert holm([0.04]) == [True] and holm([0.04, 0.5]) == [False, False] and holm([]) == []
    generator = np.random.default_rng(0)
    wrong = sum(any(holm(list(generator.uniform(size=40)))) for _ in range(1000))
    assert 30 <= wrong <= 70  # a false one in 5 of 100 families


def test_the_error_of_the_test_images_is_that_of_the_bootstrap():
    generator = np.random.default_rng(0)
    chance = generator.uniform(0.2, 1, size=400)
    first, second = (
        [generator.uniform(size=400) < chance - gain for _ in range(3)] for gain in (0.0, 0.1)
    )
    none = Difference(mean=10.0, error=0.0, freedom=4, variance=0.0, cells=2)
    widened = with_test_images(none, first, second)
    drawn = generator.integers(400, size=(4000, 400))
    means = 100 * (np.mean(first, 0)[drawn] - np.mean(second, 0)[drawn]).mean(1)
    assert (
        widened.error == pytest.approx(means.std(), rel=0.05)
        and widened.freedom == 399
        and widened.mean == 10
    )
    both = with_test_images(
        Difference(mean=10.0, error=3.0, freedom=4, variance=1.0, cells=2), first, second
    )
    assert both.error == pytest.approx((9 + widened.error**2) ** 0.5) and 4 < both.freedom < 403


def test_a_verdict_takes_the_test_images_in_where_it_has_them(tmp_path):
    table = read_paper(written(tmp_path)).tables["table-1"]
    claim = Claim(text="", column="a", better=("x", "y"))
    values = {("x", "a"): seeds(A), ("y", "a"): seeds(B)}
    generator = np.random.default_rng(0)
    right = {
        place: {str(seed): generator.uniform(size=50) < 0.8 for seed in range(3)}
        for place in values
    }
    assert judge(claim, table, values).holds == "yes"
    wide = judge(claim, table, values, right)
    assert wide.holds == "not decided" and wide.difference == pytest.approx(1.1)
    few = {place: {"0": each["0"]} for place, each in right.items()}  # not of all seeds: left out
    assert judge(claim, table, values, few).holds == "yes"


def test_a_margin_that_should_be_larger_is_compared_with_the_other_by_welch():
    table = paper("sce").tables["table-5"]
    claim = next(
        candidate for candidate in table.claims if candidate.more and "25 000" in candidate.text
    )
    numbers = {
        ("sce", "cifar10"): [60.1, 61.2, 59.8],
        ("ressl", "cifar10"): [55.2, 56.0, 55.1],
        ("sce", "cifar10-25k"): [70.3, 71.1, 70.8],
        ("ressl", "cifar10-25k"): [69.5, 70.9, 70.0],
    }
    gains = [
        np.subtract(numbers["sce", where], numbers["ressl", where])
        for where in ("cifar10", "cifar10-25k")
    ]
    judgement = judge(claim, table.small, {place: seeds(given) for place, given in numbers.items()})
    welch = stats.ttest_ind(*gains, equal_var=False)
    interval = welch.confidence_interval(0.95)
    assert judgement.holds == "yes" and judgement.p == pytest.approx(welch.pvalue)
    assert judgement.interval == pytest.approx((interval.low, interval.high))
    assert judge(claim, table.small, {}).holds == "not run"


def test_ratios_are_judged_by_their_logarithms(tmp_path):
    def ratio(table):
        table.update(better="lower", ratio=True)

    first, second = [110.0, 121.0, 115.0], [100.0, 109.0, 105.0]
    logs = stats.ttest_rel(np.log(first), np.log(second))
    judgement = judged(tmp_path, first, second, ratio, not_worse=("x", "y", 5.0))
    assert judgement.holds == "no" and "ratio +10.2 %" in judgement.words
    assert judgement.interval == pytest.approx(100 * np.expm1(logs.confidence_interval(0.95)))
    assert judged(tmp_path, first, second, ratio, not_worse=("x", "y", 20.0)).holds == "yes"
