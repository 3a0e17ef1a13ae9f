"""Properties of every loss: the contract of `nearfar.testing`, clear errors, learned
temperatures.
"""

import inspect
import math
from functools import partial

import numpy as np
import pytest
import torch

from nearfar import losses as L
from nearfar import testing
from nearfar.pairs import arithmetic, attention, blocks, log_sum_exp

IMAGES, BATCH, DIM = 40, 12, 6
KINDS = {"o": "view", "O": "views", "k": "key", "K": "keys", "q": "queue", "i": "index"}
CASES = {
    "SimCLR": (L.SimCLR, "oo"),
    "SimCLR, cold": (lambda: L.SimCLR(0.01), "oo"),
    "DCL": (L.DCL, "oo"),
    "DCLW": (lambda: L.DCL(weighted=True), "oo"),
    "SACLR": (lambda: L.SACLR(IMAGES, "matrix", "all"), "oo"),
    "SACLR, row": (lambda: L.SACLR(IMAGES, "row", "all"), "ooi"),
    "SACLR, cosine": (lambda: L.SACLR(IMAGES, "row", "all", kernel="cosine"), "ooi"),
    "SACLR, cauchy": (lambda: L.SACLR(IMAGES, "matrix", "all", kernel="cauchy"), "oo"),
    "SACLR, 1 sampled": (lambda: L.SACLR(IMAGES), "oo"),
    "SACLR, row, 3 sampled": (lambda: L.SACLR(IMAGES, "row", 3), "ooi"),
    "SigCLR": (lambda: L.SigCLR(learn_temperature=True), "oo"),
    "SogCLR": (lambda: L.SogCLR(IMAGES), "ooi"),
    "ISogCLR": (lambda: L.ISogCLR(IMAGES), "ooi"),
    "MoCo": (L.MoCo, "okq"),
    "MoCoV3": (L.MoCoV3, "ok"),
    "ReSSL": (L.ReSSL, "okq"),
    "SCE": (L.SCE, "okq"),
    "SCE, batch": (L.SCE, "ok"),
    "SCE, free": (lambda: L.SCE(mu=1.0, eta=0.2), "okq"),
    "TeacherSCE": (L.TeacherSCE, "ook"),
    "TeacherSCE, relation": (lambda: L.TeacherSCE(lam=0.0), "ook"),
    "TeacherSCE, ReSSL": (lambda: L.TeacherSCE(lam=0.0, mu=1.0, eta=0.0), "ook"),
    "MoCo-M": (lambda: L.LORAC(beta=math.inf), "Okq"),
    "LORAC": (L.LORAC, "Okq"),
    "LORAC, gaussian": (lambda: L.LORAC(prior="gaussian"), "Okq"),
    "LORAC-bs": (lambda: L.LORAC(batchwise=True), "Okq"),
    "JCL": (L.JCL, "oKq"),
    "NegativeCosine": (L.NegativeCosine, "ok"),
    "BarlowTwins": (L.BarlowTwins, "oo"),
    "VICReg": (L.VICReg, "oo"),
    "WMSE": (L.WMSE, "oo"),
    "SIGReg": (L.SIGReg, "o"),
    "LeJEPA": (L.LeJEPA, "O"),
    "NNCLR": (L.NNCLR, "koq"),
    "SwAV": (lambda: L.SwAV(DIM, 9, queue_size=20), "O"),
    "WCL": (L.WCL, "oooo"),
}
LEARNED = {
    name: (partial(loss, *numbers, learn_temperature=True, **options), kinds)
    for name, loss, numbers, options, kinds in (
        ("SimCLR", L.SimCLR, [], {}, "oo"),
        ("SimCLR, in groups", L.SimCLR, [], {"group_size": 2}, "oo"),
        ("DCL", L.DCL, [], {}, "oo"),
        ("DCLW", L.DCL, [], {"weighted": True}, "oo"),
        ("SogCLR", L.SogCLR, [IMAGES], {"gamma": 1.0}, "ooi"),
        ("MoCo", L.MoCo, [], {}, "okq"),
        ("MoCoV3", L.MoCoV3, [], {}, "ok"),
        ("ReSSL", L.ReSSL, [], {}, "okq"),
        ("SCE", L.SCE, [], {}, "okq"),
        ("SCE, batch", L.SCE, [], {}, "ok"),
        ("TeacherSCE", L.TeacherSCE, [], {}, "ook"),
        ("LORAC", L.LORAC, [], {}, "Okq"),
        ("LORAC, gaussian", L.LORAC, [], {"prior": "gaussian"}, "Okq"),
        ("LORAC-bs", L.LORAC, [], {"batchwise": True}, "Okq"),
        ("MoCo-M", L.LORAC, [], {"beta": math.inf}, "Okq"),
        ("JCL", L.JCL, [], {}, "oKq"),
        ("NNCLR", L.NNCLR, [], {}, "koq"),
        ("WCL", L.WCL, [], {}, "oooo"),
    )
}
CASES |= {f"{name}, learned": case for name, case in LEARNED.items() if "groups" not in name}
SYMMETRIC = [
    name for name, (_, kinds) in CASES.items() if kinds.startswith("oo") and "sampled" not in name
]
QUEUED = [name for name, (_, kinds) in CASES.items() if kinds.endswith("q")]
WITHOUT_BATCH = [
    "MoCo",
    "ReSSL",
    "SCE",
    "SCE, free",
    "MoCo-M",
    "LORAC",
    "LORAC, gaussian",
    "LORAC-bs",
    "JCL",
]
WITHOUT_BATCH += [f"{name}, learned" for name in WITHOUT_BATCH if name in LEARNED]
ACCEPT_ONE = [*WITHOUT_BATCH, "NegativeCosine"]  # their negatives are past keys, or they have none
every_loss = pytest.mark.parametrize("name", CASES)


def make(name):
    torch.default_generator.manual_seed(0)
    return CASES[name][0]()


def inputs(name, batch=BATCH, dim=DIM, dtype=torch.float64, keys=40):
    kinds = [KINDS[kind] for kind in CASES[name][1]]
    return testing.make_inputs(kinds, batch, dim, IMAGES, keys, dtype=dtype)


evaluate = testing.step_of

GRADIENT = "gradcheck"
SKIPPED = {  # by loss and check; test_values.py and test_running.py have the plain forms of all
    "DCLW": {GRADIENT: "the weights of the positives are constants"},
    "DCLW, learned": {GRADIENT: "the weights of the positives are constants"},
    "SogCLR": {GRADIENT: "the averages are constants, and the value is not the objective"},
    "SogCLR, learned": {
        GRADIENT: "the averages are constants, and the value is not the objective",
        "learned_temperature": "so too; a test below has its own slope",
    },
    "ISogCLR": {GRADIENT: "the averages are constants, and the value is not the objective"},
    "SwAV": {GRADIENT: "the codes are constants"},
    "SACLR, 1 sampled": {"permutation": "negatives are drawn by their position"},
    "SACLR, row, 3 sampled": {"permutation": "negatives are drawn by their position"},
}


def small_tiles():
    """Let a small batch have several blocks in each process, and each block several tiles."""
    torch.set_num_threads(1)
    blocks.TILE_ROWS["cpu"], attention.TILE["cpu"], attention.ROWS["cpu"] = 4, 40, 3


def case_of(name, loss, kinds):
    """The form that `check_losses` takes: a loss that gathers the rows of all processes."""
    loss.gather = True
    return testing.Case(
        loss,
        tuple(KINDS[kind] for kind in kinds),
        tolerance=2e-5 if "cold" in name else 5e-6,
        fullgraph=True,
        initialise=small_tiles,
        strict=True,
    )


GROUPED = {
    "SACLR, in groups": (lambda: L.SACLR(IMAGES, negatives="all", group_size=2), "oo"),
    "SACLR, the positive counted": (
        lambda: L.SACLR(IMAGES, negatives="all", count_positive=True),
        "oo",
    ),
    "SigCLR, in groups": (lambda: L.SigCLR(group_size=2), "oo"),
    "SimCLR, in groups": (lambda: L.SimCLR(group_size=2), "oo"),
    "SogCLR, in groups": (lambda: L.SogCLR(IMAGES, group_size=2), "ooi"),
    "SimCLR, in groups, learned": LEARNED["SimCLR, in groups"],
    "WMSE, parts": (lambda: L.WMSE(sub_batch=8, iterations=2), "oo"),
}
"""Losses that are tried in other processes alone."""


def without_gathering(name):
    return f"{name}, each process alone"


def checked(cases, checks):
    """Reports by loss, of some checks alone."""
    others = {check: "another test" for check in testing.CHECKS if check not in checks}
    skipped = {name: others | SKIPPED.get(name, {}) for name in cases}
    return {report.loss: report for report in testing.check_losses(cases, skipped)}


def all_cases():
    return {name: case_of(name, make(name), kinds) for name, (_, kinds) in CASES.items()}


@pytest.fixture(scope="module")
def reports_of_processes():
    """Of all losses at once: each check in other processes starts them once."""
    grouped = {name: case_of(name, made(), kinds) for name, (made, kinds) in GROUPED.items()}
    alone = {without_gathering(name): case for name, case in all_cases().items()}
    for case in alone.values():
        case.loss.gather = False
    reports = checked(all_cases() | grouped, testing.TOGETHER)
    return reports | checked(alone, ["unequal_parts"])


def keeps_the_contract(report, name, check):
    outcome = report[check]
    assert outcome.skipped == (check in SKIPPED.get(name, {}))
    assert outcome.passed or outcome.skipped, outcome.words


@pytest.fixture
def halved(monkeypatch):
    """A batch that is wide, and tiles: half as high as usual, for a quarter of the work."""
    monkeypatch.setattr(testing, "WIDE", testing.WIDE // 2)
    for tiles, part in ((blocks.TILE_ROWS, 2), (attention.ROWS, 2), (attention.TILE, 4)):
        monkeypatch.setitem(tiles, "cpu", tiles["cpu"] // part)


@every_loss
@pytest.mark.usefixtures("halved")
def test_keeps_the_contract(name):
    """Value, gradients and state, as nearfar.testing says of each check."""
    [report] = checked({name: case_of(name, make(name), CASES[name][1])}, testing.ALONE).values()
    assert not report.failures
    for check in testing.ALONE:
        assert report[check].skipped == (check in SKIPPED.get(name, {}) or check == "reference")


@pytest.mark.slow
@pytest.mark.parametrize("check", testing.TOGETHER)
@pytest.mark.parametrize("name", [*CASES, *GROUPED])
def test_keeps_the_contract_in_other_processes(name, check, reports_of_processes):
    keeps_the_contract(reports_of_processes[name], name, check)


@pytest.mark.slow
@every_loss
def test_without_gathering_every_process_has_another_loss(name, reports_of_processes):
    """So the check can fail, for every loss: local negatives, or means of unequal batches."""
    assert "is off by" in reports_of_processes[without_gathering(name)]["unequal_parts"].words


@pytest.mark.parametrize("name", SYMMETRIC)
def test_the_order_of_the_views_does_not_matter(name):
    first, second, *others = inputs(name)
    value, gradients = evaluate(make(name), [first, second, *others])
    other, swapped = evaluate(make(name), [second, first, *others])
    torch.testing.assert_close([other, *swapped[1::-1]], [value, *gradients[:2]])


def numbers_of(loss):
    """Values that a loss keeps beside weights: running averages, temperatures, a bias."""
    return {
        key: value
        for key, value in loss.state_dict().items()
        if value.ndim < 2 and "_extra" not in key
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("as_default", [False, True], ids=["converted", "made so"])
@pytest.mark.parametrize("name", [name for name in CASES if numbers_of(make(name))])
def test_averages_and_learned_numbers_keep_their_digits_in_a_model_in_half_precision(
    name, dtype, as_default
):
    """In bfloat16 SACLR's normaliser ended 12 % too low, and no temperature moved at all."""
    exact = make(name)
    if as_default:
        torch.set_default_dtype(dtype)
        try:
            half = make(name)
        finally:
            torch.set_default_dtype(torch.float32)
    else:
        half = torch.nn.Sequential(make(name)).to(dtype)[0]
    given = inputs(name, dtype=torch.float32)
    for loss in (exact, half):
        optimizer = torch.optim.SGD(
            [*loss.parameters(), torch.nn.Parameter(torch.ones(1))], lr=1e-3
        )
        for step in range(6):
            torch.default_generator.manual_seed(step)
            optimizer.zero_grad()
            loss(*given).backward()
            optimizer.step()
        if loss is half:
            loss.to(dtype)  # again, on its way
    start = numbers_of(make(name))
    assert numbers_of(half).keys() == start.keys()
    for key, value in numbers_of(exact).items():
        assert not torch.equal(value, start[key])
        torch.testing.assert_close(numbers_of(half)[key], value)  # the type too


@every_loss
def test_a_batch_of_one(name):
    given = inputs(name, batch=1)
    if name in ACCEPT_ONE:
        assert make(name)(*given).isfinite()
    else:
        with pytest.raises(ValueError, match="2 images or more, got 1"):
            make(name)(*given)


@every_loss
@pytest.mark.usefixtures("unchecked")
def test_an_empty_batch(name):
    with pytest.raises(ValueError, match=r"images? or more, got 0"):
        make(name)(*inputs(name, batch=0))


@pytest.mark.parametrize("name", [name for name, (_, kinds) in CASES.items() if len(kinds) > 1])
@pytest.mark.usefixtures("unchecked")
def test_unequal_shapes(name):
    first, second, *rest = inputs(name)
    with pytest.raises(ValueError, match=r"(the same shape|\[(views, )?batch, dim\])"):
        make(name)(first, second[..., :11, :], *rest)
    with pytest.raises(ValueError, match=r"must be"):
        make(name)(first[0], second, *rest)


@pytest.mark.parametrize("name", QUEUED)
@pytest.mark.usefixtures("unchecked")
def test_wrong_queues(name):
    *given, queue = inputs(name)
    with pytest.raises(ValueError, match=r"queue .* 1 key .* got 0"):
        make(name)(*given, queue[:0])
    with pytest.raises(ValueError, match=r"queue must be \[keys, 6\]"):
        make(name)(*given, queue[:, :5])
    assert make(name)(*given, queue[:1]).isfinite()


@pytest.mark.parametrize("name", ["SACLR, row", "SogCLR", "ISogCLR"])
@pytest.mark.parametrize("index", [None, torch.arange(3)])
@pytest.mark.usefixtures("unchecked")
def test_a_missing_or_short_index_is_refused(name, index):
    first, second, _ = inputs(name)
    helped = "works? without" if index is None else ""
    with pytest.raises(ValueError, match=f"index.*{helped}"):
        make(name)(first, second, index)


X = torch.zeros(3, 6, 5)
WRONG = {  # beside those that tests/methods/test_ranges.py reaches through the methods
    "temperature must be .* above 0": [
        lambda: L.SimCLR(math.nan),
        lambda: L.SwAV(6, temperature=0.0),
    ],
    "beta must be above 0": [lambda: L.LORAC(beta=math.nan)],
    "prior must .* laplace, gaussian, constant": [lambda: L.LORAC(prior="student")],
    "batchwise=True needs prior='laplace'": [lambda: L.LORAC(prior="gaussian", batchwise=True)],
    "2 rows of an image": [lambda: L.LORAC(batchwise=True)(X[:1], X[0], X[0])],
    "large must be": [lambda: L.LORAC()(X, X[0], X[0], large=X[:, :4])],
    "whitening 5 features .* got 2": [lambda: L.WMSE(sub_batch=2)(X[0, :5], X[0, :5])],
    "temperature": [
        lambda: L.ISogCLR(8, 0.9),
        lambda: L.ISogCLR(8, 0.5, (0.001, 0.7)),
        lambda: L.SogCLR(8, 0.01),
    ],
    "negatives must be": [lambda: L.SACLR(10, negatives=1.5)],
    "bandwidth must be": [lambda: L.SACLR(10, kernel="cosine", bandwidth=0.01)],
    "num_images must be": [lambda: L.SACLR(0)],
    "batch of at least 7": [lambda: L.SACLR(10, negatives=6)(X[0], X[0])],
    "projections must be": [lambda: L.SwAV(5)(X[:1]), lambda: L.SwAV(4)(X)],
    "projections must be .2 views": [lambda: L.LeJEPA()(X[:1]), lambda: L.LeJEPA()(X[0])],
    "projections must be .4 views": [lambda: L.LeJEPA(large_views=4)(X)],
    "z must be .batch, dim.": [lambda: L.SIGReg()(X)],
    "lam must be between 0 and 1": [lambda: L.LeJEPA(lam=1.5)],
    "num_directions must be 1 or more": [lambda: L.SIGReg(0), lambda: L.LeJEPA(0.1, 0)],
    "large_views must be 1 or more": [lambda: L.LeJEPA(large_views=0)],
}


@pytest.mark.parametrize("message", WRONG)
@pytest.mark.usefixtures("unchecked")
def test_wrong_arguments_are_named_in_one_line(message):
    for wrong in WRONG[message]:
        with pytest.raises(ValueError, match=message) as error:
            wrong()
        assert "\n" not in str(error.value)


@every_loss
def test_a_step_that_torch_compiles_is_without_an_operation_that_its_compiler_cannot_lower(
    name, monkeypatch
):
    """oneDNN's product, which losses take on a CPU otherwise: the compiler has it for constant
    weights alone.
    """
    given = inputs(name, dtype=torch.float32)
    wanted = evaluate(make(name), given)

    def not_lowered(x, y):
        raise AssertionError("weight must be a graph constant")

    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(arithmetic, "_onednn", not_lowered)
    torch.testing.assert_close(evaluate(make(name), given), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["SACLR, row", "SogCLR", "ISogCLR"])
def test_any_whole_numbers_below_the_number_of_images_are_an_index(name):
    first, second, index = inputs(name)
    wanted = make(name)(first, second, index)
    for kind in (torch.int32, torch.int16, torch.uint16):
        loss = make(name)
        assert torch.equal(loss(first, second, index.to(kind)), wanted)
    wrong = {"0 to 39, got -1": -1, "0 to 39, got 40": IMAGES}
    for message, number in wrong.items():
        with pytest.raises(ValueError, match=f"index must hold numbers of {message}"):
            make(name)(first, second, torch.where(index == index[3], number, index))


@pytest.mark.parametrize("name", ["SACLR, row", "SogCLR", "ISogCLR"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bool])
@pytest.mark.usefixtures("unchecked")
def test_an_index_of_other_numbers_is_refused(name, kind):
    first, second, index = inputs(name)
    with pytest.raises(ValueError, match="index must hold whole numbers"):
        make(name)(first, second, index.to(kind))


WITH_TEMPERATURE = [
    "SimCLR",
    "DCL",
    "SigCLR",
    "SogCLR",
    "ISogCLR",
    "MoCo",
    "MoCoV3",
    "ReSSL",
    "SCE",
    "LORAC",
    "JCL",
    "NNCLR",
    "SwAV",
    "WCL",
]


@pytest.mark.parametrize("name", WITH_TEMPERATURE)
@pytest.mark.parametrize(
    "value", [torch.nn.Parameter(torch.tensor(0.2)), torch.tensor(0.2), "0.2", True, None]
)
@pytest.mark.usefixtures("unchecked")
def test_a_temperature_that_is_no_plain_number_is_refused(name, value):
    given = {"SogCLR": {"num_images": 9}, "ISogCLR": {"num_images": 9}, "SwAV": {"dim": 4}}
    with pytest.raises(ValueError, match=r"temperature must be .* number") as error:
        getattr(L, name)(**given.get(name, {}), temperature=value)
    assert "\n" not in str(error.value)
    if name in ("ReSSL", "SCE"):
        with pytest.raises(ValueError, match=r"target_temperature must be .* number"):
            getattr(L, name)(target_temperature=value)


@pytest.mark.usefixtures("unchecked")
def test_numbers_of_numpy_are_plain_numbers():
    assert L.SimCLR(np.float32(0.5)).temperature == L.SimCLR(np.int64(1)).temperature / 2


@pytest.mark.parametrize("log_scale", [89.0, 1000.0, -1000.0])
def test_the_scale_of_sigclr_is_held_as_clips(log_scale):
    loss = L.SigCLR(learn_temperature=True)
    with torch.no_grad():
        loss.log_scale.fill_(log_scale)
    value, gradients = evaluate(loss, inputs("SigCLR", dtype=torch.float32))
    assert value.isfinite() and all(gradient.isfinite().all() for gradient in gradients)
    assert abs(loss.log_scale.item()) == pytest.approx(math.log(100))


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("temperature", [0.05, 0.3])
def test_a_learned_temperature_has_the_gradient_of_the_value(name, temperature):
    """Against the fixed temperature: the same value and rows' gradients, and the difference
    quotient of values.
    """
    made, kinds = LEARNED[name]
    plain = {"SimCLR, in groups": "SimCLR"}.get(name, name)
    given = inputs(plain)
    loss = made(temperature=temperature).double()
    with torch.no_grad():
        loss.log_scale.fill_(-math.log(temperature))  # in full precision
    rows = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in given]
    value = loss(*rows)
    value.backward()
    fixed, gradients = evaluate(
        made(temperature=temperature, learn_temperature=False).double(), given
    )
    torch.testing.assert_close(value, fixed, rtol=1e-9, atol=1e-12)
    for kind, x, gradient in zip(kinds, rows, gradients, strict=False):
        if kind in "oO":
            torch.testing.assert_close(x.grad, gradient, rtol=1e-7, atol=1e-12)

    if name == "SogCLR":  # the average, here that of the batch, stands still in the derivative

        def at(log_scale):
            t = math.exp(-log_scale)
            positive, negative = log_sum_exp(*given[:2], t)
            mean = (negative - math.log(2 * BATCH - 2)).exp()
            base = (log_sum_exp(*given[:2], temperature)[1] - math.log(2 * BATCH - 2)).exp()
            return ((mean / base).mean() - positive.mean()).item()
    else:

        def at(log_scale):
            other = made(temperature=math.exp(-log_scale), learn_temperature=False)
            return evaluate(other.double(), given)[0].item()

    step, log_scale = 1e-4, -math.log(temperature)
    slope = (at(log_scale + step) - at(log_scale - step)) / (2 * step)
    assert loss.log_scale.grad.item() == pytest.approx(slope, rel=1e-5, abs=1e-7)


BEFORE = {  # value, norm of the first gradient, as computed before a temperature could be learned
    "SimCLR": ("0x1.276c852c64701p+2", "0x1.02f991dc24a4ap-2"),
    "DCL": ("0x1.24b96416ac532p+2", "0x1.0f62f417882c5p-2"),
    "DCLW": ("0x1.6fcbdde013917p+2", "0x1.1edc1628bb239p-2"),
    "SogCLR": ("0x1.6cc99888211c2p-1", "0x1.17bd603e56661p-1"),
    "MoCo": ("0x1.4069293977812p+2", "0x1.d5d7f09455ca9p-3"),
    "MoCoV3": ("0x1.93c41dbd700fdp+0", "0x1.8d18ea2506d50p-4"),
    "ReSSL": ("0x1.ede2ff5d6cf08p+2", "0x1.ac8cdaa4a825ap-2"),
    "SCE": ("0x1.f4ac751d2bfc8p+2", "0x1.b3b2f6607f877p-2"),
    "SCE, batch": ("0x1.ce5feba6d2ec0p+2", "0x1.b9de760b4dc68p-2"),
    "MoCo-M": ("0x1.475c48b4a8dd8p+2", "0x1.0b1427477e0e0p-3"),
    "LORAC": ("0x1.d93c0947d915ep+2", "0x1.1701ea5f64107p-3"),
    "LORAC, gaussian": ("0x1.b8a4ac26bf864p+2", "0x1.37a98a56425adp-3"),
    "LORAC-bs": ("0x1.77aec725ab28ap+2", "0x1.1331664c7d0a0p-3"),
    "JCL": ("0x1.56ab30716622cp+2", "0x1.cec1991cb2598p-3"),
    "NNCLR": ("0x1.8c6576f4eda13p+2", "0x1.ecbe81d85fc78p-2"),
}


@pytest.mark.parametrize("name", BEFORE)
def test_a_fixed_temperature_gives_what_it_gave_before_one_could_be_learned(name):
    """Bit for bit on the CPU that computed them; others may round their last digits in another
    way.
    """
    loss = make(name).double()
    assert not list(loss.parameters()) and loss.log_scale is None
    value, gradients = evaluate(loss, inputs(name))
    first = next(gradient for gradient in gradients if gradient is not None)
    for number, before in zip((value.item(), first.norm().item()), BEFORE[name], strict=True):
        assert number == pytest.approx(float.fromhex(before), rel=1e-13, abs=0)


def test_a_bandwidth_and_the_temperature_of_prototypes_cannot_be_learned():
    for loss in (L.SACLR, L.SwAV):
        assert "learn_temperature" not in inspect.signature(loss).parameters
        assert "cannot be learned" in " ".join(loss.__doc__.split())
