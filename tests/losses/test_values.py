"""Every loss against its plain form in value and gradient, the identities between losses, and
special inputs.
"""

import inspect
import math
import re

import pytest
import torch
from torch.nn import functional as F

import references as plain
from nearfar import losses as L
from nearfar.losses import moco


def rows(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


BATCH, DIM = 6, 5
ONE, TWO, THREE = rows(BATCH, DIM), rows(BATCH, DIM, seed=1), rows(3, BATCH, DIM, seed=3)
FIVE, QUEUE = rows(5, BATCH, DIM, seed=4), plain.unit(rows(31, DIM, seed=2))
SPREAD = ONE * torch.tensor([1, 5, 0.1, 2, 1]) + 3  # features of different scales and means
CORRELATED = rows(13, 4) @ rows(4, 4, seed=5) + 2


def drawn_directions(count, dim):
    """The next draws of a loss from torch's global generator, which stays as it is."""
    with torch.random.fork_rng(devices=[]):
        return torch.randn(count, dim)


def case(name, loss, reference, *inputs, learned=1):
    """A loss, its plain form, its inputs (of which the first `learned` get a gradient, and LORAC's
    large crops).
    """
    return pytest.param(loss, reference, inputs, learned, id=name)


CASES = [
    *(
        case(
            f"simclr {t}", L.SimCLR(t), lambda a, b, t=t: plain.simclr(a, b, t), ONE, TWO, learned=2
        )
        for t in (0.05, 1)
    ),
    case(
        "simclr, two images",
        L.SimCLR(0.2),
        lambda a, b: plain.simclr(a, b, 0.2),
        ONE[:2],
        TWO[:2],
        learned=2,
    ),
    case("dcl", L.DCL(0.1), lambda a, b: plain.dcl(a, b, 0.1), ONE, TWO, learned=2),
    case(
        "dclw", L.DCL(0.5, True, 0.2), lambda a, b: plain.dcl(a, b, 0.5, 0.2), ONE, TWO, learned=2
    ),
    *(
        case(
            f"moco {t}", L.MoCo(t), lambda q, k, n, t=t: plain.info_nce(q, k, n, t), ONE, TWO, QUEUE
        )
        for t in (0.07, 1)
    ),
    case("moco v3", L.MoCoV3(0.3), lambda q, k: plain.moco_v3(q, k, 0.3), ONE, TWO),
    case(
        "ressl", L.ReSSL(0.2, 0.1), lambda q, k, n: plain.ressl(q, k, n, 0.2, 0.1), ONE, TWO, QUEUE
    ),
    case("jcl", L.JCL(0.2, 0.5), lambda q, k, n: plain.jcl(q, k, n, 0.2, 0.5), ONE, THREE, QUEUE),
    case(
        "jcl, lam 0",
        L.JCL(0.2, 0.0),
        lambda q, k, n: plain.jcl(q, k, n, 0.2, 0.0),
        ONE,
        THREE,
        QUEUE,
    ),
    *(
        case(
            f"wcl {t}",
            L.WCL(t),
            lambda a, b, c, d, t=t: plain.wcl(a, b, c, d, t),
            *(ONE, TWO, SPREAD, 2 * TWO.flip(0)),
            learned=4,
        )
        for t in (0.1, 1.0)
    ),
    case("cosine", L.NegativeCosine(), plain.negative_cosine, ONE, TWO),
    *(
        case(
            f"barlow {r}",
            L.BarlowTwins(r),
            lambda a, b, r=r: plain.barlow_twins(a, b, r),
            SPREAD,
            TWO,
            learned=2,
        )
        for r in (0.0, 0.0051, 1.0)
    ),
    *(
        case(
            f"vicreg {w}",
            L.VICReg(*w),
            lambda a, b, w=w: plain.vicreg(a, b, *w),
            0.9 * ONE,
            1.1 * TWO,
            learned=2,
        )
        for w in ((25.0, 25.0, 1.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    ),
    case(
        "wmse",
        L.WMSE(eps=0.0),
        lambda a, b: plain.wmse(a, b, eps=0.0),
        CORRELATED,
        CORRELATED + 0.7 * rows(13, 4, seed=1),
        learned=2,
    ),
    case("sigreg", L.SIGReg(7), lambda z: plain.sigreg(z, drawn_directions(7, DIM)), SPREAD),
    *(
        case(
            f"lejepa {lam}, {large_views} large views",
            L.LeJEPA(lam, 7, large_views),
            lambda z, lam=lam, large_views=large_views: plain.lejepa(
                z, drawn_directions(7, DIM), lam, large_views
            ),
            FIVE,
        )
        for lam, large_views in ((0.05, 2), (0.0, 5), (1.0, 1))
    ),
]
for lam in (0.0, 0.4, 1.0):
    for queue in ((QUEUE,), ()):
        CASES.append(
            case(
                f"sce {lam}, {'queue' if queue else 'batch'}",
                L.SCE(0.1, 0.07, lam),
                lambda q, k, n=None, lam=lam: plain.sce(q, k, n, 0.1, 0.07, lam),
                *(ONE, TWO, *queue),
            )
        )
CASES += [
    case(
        f"teacher sce {lam}",
        L.TeacherSCE(0.1, 0.05, lam),
        lambda a, b, t, lam=lam: plain.teacher_sce(a, b, t, 0.1, 0.05, lam),
        *(ONE, TWO, rows(BATCH, 9, seed=6)),
        learned=2,
    )
    for lam in (0.0, 0.4, 1.0)
]
LORAC = {
    "laplace, beta 0.5": (0.5,),
    "gaussian": (2.0, "gaussian"),
    "constant": (4.0, "constant"),
    "batchwise": (2.0, "laplace", True),
    "MoCo-M": (math.inf,),
    "MoCo-M, gaussian": (math.inf, "gaussian"),
}
for name, options in LORAC.items():
    CASES.append(
        case(
            f"lorac, {name}",
            L.LORAC(0.2, *options),
            lambda q, k, n, options=options: plain.lorac(q, k, n, 0.2, *options),
            *(THREE, ONE, QUEUE),
        )
    )
for batchwise in (False, True):
    CASES.append(
        case(
            f"lorac, large crops{', batchwise' * batchwise}",
            L.LORAC(0.2, 2.0, "laplace", batchwise),
            lambda q, k, n, large, batchwise=batchwise: plain.lorac(
                q, k, n, 0.2, 2.0, "laplace", batchwise, large=large
            ),
            *(THREE, ONE, QUEUE, FIVE),
        )
    )


def compare(ours, theirs, inputs):
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(ours, inputs),
        torch.autograd.grad(theirs, inputs),
        rtol=1e-7,
        atol=1e-10,
    )


@pytest.mark.parametrize(("loss", "reference", "inputs", "learned"), CASES)
def test_value_and_gradient_are_those_of_the_plain_form(loss, reference, inputs, learned):
    inputs = [x.clone().requires_grad_(k < learned or k == 3) for k, x in enumerate(inputs)]
    wanted = reference(*inputs)  # first, as it looks at what the loss draws
    compare(loss(*inputs), wanted, [x for x in inputs if x.requires_grad])


@pytest.mark.parametrize("tile", [2**20, 20])
def test_nnclr_is_the_plain_form_by_tiles_of_the_queue(monkeypatch, tile):
    monkeypatch.setattr(moco, "TILE", tile)  # 3 keys at a time, 1 left over
    prediction = TWO.clone().requires_grad_()
    compare(
        L.NNCLR(0.5)(ONE, prediction, QUEUE), plain.nnclr(ONE, prediction, QUEUE, 0.5), [prediction]
    )
    assert torch.equal(moco.nearest(QUEUE, QUEUE), QUEUE)


SIGCLR = {  # the rows of the paper's Table 2, and a fixed bias
    "fixed t, no bias": ({"bias": None}, []),
    "learned t, no bias": ({"bias": None, "learn_temperature": True}, ["log_scale"]),
    "fixed t, learned bias": ({}, ["bias"]),
    "learned t, learned bias": ({"learn_temperature": True}, ["bias", "log_scale"]),
    "fixed t, fixed bias": ({"bias": -3.0, "learn_bias": False}, []),
}


@pytest.mark.parametrize(("options", "learned"), SIGCLR.values(), ids=SIGCLR)
@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_sigclr_and_its_parameters(options, learned, temperature):
    views = [ONE.clone().requires_grad_(), TWO.clone().requires_grad_()]
    loss = L.SigCLR(temperature, **options).double()
    assert sorted(dict(loss.named_parameters())) == learned
    log_scale = torch.tensor(-math.log(temperature), dtype=torch.float64, requires_grad=True)
    bias = torch.tensor(options.get("bias", -10.0) or 0.0, dtype=torch.float64, requires_grad=True)
    value, expected = loss(*views), plain.sigclr(*views, 1 / log_scale.exp(), bias)
    torch.testing.assert_close(
        value, expected, rtol=1e-6, atol=0
    )  # log_scale was rounded to float32 first
    inputs = {"bias": bias, "log_scale": log_scale}
    gradients = torch.autograd.grad(value, [*views, *(getattr(loss, name) for name in learned)])
    wanted = torch.autograd.grad(expected, [*views, *(inputs[name] for name in learned)])
    torch.testing.assert_close(gradients, wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("queue", [QUEUE, None], ids=["queue", "batch"])
@pytest.mark.parametrize(
    ("lam", "mu", "eta"), [(0.3, None, None), (0.5, 0.5, 0.0), (0.2, 2.0, 0.7)]
)
def test_proposition_1_of_sce_and_free_coefficients(queue, lam, mu, eta):
    ours = L.SCE(0.1, 0.05, lam, mu, eta)(ONE, TWO, queue)
    expected = (
        lam * plain.info_nce(ONE, TWO, queue, 0.1)
        + (1 - lam if mu is None else mu) * plain.ressl(ONE, TWO, queue, 0.1, 0.05)
        + (1 - lam if eta is None else eta) * plain.ceil(ONE, TWO, queue, 0.1)
    )
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=0)


def _other_way(keys, lam, mu, eta):
    """The second direction of TeacherSCE with TWO as teacher, in which `keys` are the keys: written
    out.
    """
    x, k = plain.unit(TWO), plain.unit(keys)
    own = torch.eye(BATCH, dtype=torch.bool)
    logits = x @ k.T / 0.2
    others = (x @ x.T / 0.1).masked_fill(own, -math.inf).softmax(1)
    if mu is None:
        return F.cross_entropy(logits, torch.where(own, lam, (1 - lam) * others))
    return -(others * logits.masked_fill(own, -1e9).log_softmax(1)).sum(1).mean()


IDENTITIES = {
    "teacher's keys in place of one's own, but for the gradient of the keys": (
        lambda q: L.TeacherSCE(0.2, 0.1, 0.3)(q, TWO, TWO).mul(2) - _other_way(q, 0.3, None, None),
        lambda q: L.SCE(0.2, 0.1, 0.3)(q, TWO),
    ),
    "teacher and ReSSL, but for the gradient of the keys": (
        lambda q: (
            L.TeacherSCE(0.2, 0.1, 0.0, 1.0, 0.0)(q, TWO, TWO).mul(2) - _other_way(q, 0.0, 1.0, 0.0)
        ),
        lambda q: L.SCE(0.2, 0.1, 0.0, 1.0, 0.0)(q, TWO),
    ),
    "sce, lam 1": (
        lambda q: L.SCE(0.2, 0.1, lam=1.0)(q, TWO, QUEUE),
        lambda q: L.MoCo(0.2)(q, TWO, QUEUE),
    ),
    "jcl, one key": (
        lambda q: L.JCL()(q, THREE[:1], QUEUE),
        lambda q: L.MoCo()(q, THREE[0], QUEUE),
    ),
    "moco-m, one query": (
        lambda q: L.LORAC(beta=math.inf)(q[None], TWO, QUEUE),
        lambda q: L.MoCo()(q, TWO, QUEUE),
    ),
    "moco-m, three queries": (
        lambda q: L.LORAC(beta=math.inf)(torch.stack([q, 2 - q, q * q]), TWO, QUEUE),
        lambda q: sum(L.MoCo()(x, TWO, QUEUE) for x in (q, 2 - q, q * q)) / 3,
    ),
    "sogclr, gamma 1, but for its value": (
        lambda q: L.SogCLR(BATCH, 0.1, gamma=1.0)(q, TWO, torch.arange(BATCH)) - 1,
        lambda q: (
            L.DCL(0.1)(q, TWO)
            - (L.DCL(0.1)(q, TWO) + F.cosine_similarity(q, TWO).mean() / 0.1).detach()
        ),
    ),
    "isogclr without steps": (
        lambda q: L.ISogCLR(BATCH, 0.1, lr=0.0).double()(q, TWO, torch.arange(BATCH)),
        lambda q: 0.1 * L.SogCLR(BATCH, 0.1)(q, TWO, torch.arange(BATCH)),
    ),
}


@pytest.mark.parametrize(("loss", "other"), IDENTITIES.values(), ids=IDENTITIES)
def test_a_loss_is_another_in_value_and_gradient(loss, other):
    query = ONE.clone().requires_grad_()
    ours, theirs = loss(query), other(query)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(
        torch.autograd.grad(ours, query), torch.autograd.grad(theirs, query), rtol=1e-6, atol=1e-9
    )


def test_a_perfect_match_keeps_its_digits():
    """The loss of an easy positive is about the negatives' share, not 0: no cancellation at small
    temperatures.
    """
    query, queue = torch.eye(4)[:2], torch.eye(4)[2:]
    assert L.MoCo(0.03)(query, query, queue).item() == pytest.approx(
        math.log1p(2 * math.exp(-1 / 0.03)), rel=1e-4
    )


@pytest.mark.parametrize(
    "loss", [L.VICReg(), L.WMSE(), L.LORAC(), L.LORAC(prior="gaussian"), L.LORAC(batchwise=True)]
)
def test_collapse_is_finite(loss):
    """All views of an image, or all images, equal."""
    z = torch.ones(16, 4).requires_grad_()
    value = (
        loss(z.expand(3, 16, 4), z.detach(), QUEUE[:, :4].float())
        if isinstance(loss, L.LORAC)
        else loss(z, z)
    )
    value.backward()
    assert value.isfinite() and z.grad.isfinite().all()
    if isinstance(loss, L.VICReg):
        assert value.item() == pytest.approx(25 * (1 - 0.01), rel=1e-5)  # the full hinge


def test_wmse_by_parts_and_iterations():
    z1 = rows(23, 3) @ rows(3, 3, seed=5) + 2
    z2 = z1 + 0.7 * rows(23, 3, seed=1)
    torch.manual_seed(7)
    ours = L.WMSE(sub_batch=7, eps=0.0)(z1, z2)  # 3 parts of 8, 8 and 7
    torch.manual_seed(7)
    order = torch.randperm(23)
    torch.testing.assert_close(
        ours, plain.wmse(z1, z2, [order[:8], order[8:16], order[16:]], eps=0.0)
    )
    torch.manual_seed(3)
    twice = L.WMSE(sub_batch=6, iterations=2)(z1, z2)
    torch.manual_seed(3)
    first, second = L.WMSE(sub_batch=6)(z1, z2), L.WMSE(sub_batch=6)(z1, z2)
    assert first != second
    torch.testing.assert_close(twice, (first + second) / 2)


def test_wmse_whitens_so_scale_and_offset_do_not_matter_and_nan_comes_through():
    z = torch.stack([CORRELATED, CORRELATED + 0.7 * rows(13, 4, seed=1)])
    for whitened in L.WMSE(eps=0.0)._whiten(z):
        torch.testing.assert_close(whitened.T.cov(), torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close(
        L.WMSE()(1e-3 * z[0] + 5, 40 * z[1]), L.WMSE()(*z), rtol=1e-6, atol=0
    )
    assert L.WMSE()(torch.full((16, 4), torch.nan), torch.zeros(16, 4)).isnan()


@pytest.mark.parametrize(
    "make",
    [
        lambda group: L.SimCLR(group_size=group),
        lambda group: L.SimCLR(group_size=group, learn_temperature=True),
        lambda group: L.DCL(group_size=group),
        lambda group: L.SigCLR(group_size=group),
        lambda group: L.SogCLR(BATCH, group_size=group),
        lambda group: L.SACLR(BATCH, "row", "all", group_size=group),
    ],
    ids=["SimCLR", "SimCLR, learned", "DCL", "SigCLR", "SogCLR", "SACLR"],
)
def test_groups_of_negatives_are_batches_of_their_own(make):
    """The mean of the loss on each group alone, which a loss of all negatives is not."""
    index = torch.arange(BATCH)

    def step(loss, own):
        views = [view[own].clone().requires_grad_() for view in (ONE, TWO)]
        given = [*views, index[own]] if isinstance(loss, (L.SogCLR, L.SACLR)) else views
        value = loss.double()(*given)
        return value.detach(), torch.stack(torch.autograd.grad(value, views))

    value, gradient = step(make(3), slice(None))
    groups = [step(make(None), slice(first, first + 3)) for first in range(0, BATCH, 3)]
    torch.testing.assert_close(value, torch.stack([each for each, _ in groups]).mean())
    torch.testing.assert_close(gradient, torch.cat([each for _, each in groups], 1) / len(groups))
    assert (step(make(None), slice(None))[1] - gradient).norm() > 1e-3


DOCUMENTED = [loss for loss in vars(L).values() if "Defaults: " in (inspect.getdoc(loss) or "")]


@pytest.mark.parametrize("loss", DOCUMENTED, ids=lambda loss: loss.__name__)
def test_defaults_are_those_of_the_documentation(loss):
    """Of "Defaults: temperature 0.2 (the paper has 0.5), lam 2" the first number of each name."""
    words = " ".join(inspect.getdoc(loss).partition("Defaults: ")[2].split())
    given = inspect.signature(loss).parameters
    documented = {}
    for name, number in re.findall(r"(\w+) (\d+(?:\.\d+)?)", words):
        if name in given and given[name].default is not None:
            documented.setdefault(name, float(number))
    assert documented == {name: given[name].default for name in documented} != {}
