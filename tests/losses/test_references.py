"""The references against numbers that loops over single entries gave, written from the papers'
formulas.
"""

import math

import pytest
import torch

import references as plain


def wave(*shape, phase):
    """Numbers between -1 and 1 without a pattern, the same on every machine."""
    steps = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64)
    return torch.sin(0.7 * steps * steps + phase).reshape(shape)


Z1, Z2, INDEX = (
    wave(6, 5, phase=1),
    wave(6, 5, phase=1) + 0.7 * wave(6, 5, phase=2),
    torch.tensor([3, 0, 7, 5, 1, 8]),
)
QUERIES, QUEUE = wave(3, 6, 5, phase=3), plain.unit(wave(11, 5, phase=4))
WEAK = wave(6, 5, phase=6), wave(6, 5, phase=7)
OTHERS = torch.tensor([[1, 2], [2, 3], [3, 4], [4, 5], [5, 0], [0, 1]])
PROTOTYPES, PARTS = (
    plain.unit(wave(4, 5, phase=5)),
    [torch.tensor([0, 2, 4]), torch.tensor([1, 3, 5])],
)


def third(reference, **options):
    """The third loss of a reference with state, in which images return."""
    state = {}
    for step in range(3):
        value = reference(
            state, wave(6, 5, phase=step), Z2, (INDEX + 2 * step) % 9, images=9, **options
        )
    return value


FOUND = {
    "simclr": (0.6519682919174525, lambda: plain.simclr(Z1, Z2, 0.3)),
    "dcl": (-0.10497937662987218, lambda: plain.dcl(Z1, Z2, 0.3)),
    "dclw": (-0.04683429821193674, lambda: plain.dcl(Z1, Z2, 0.3, sigma=0.4)),
    "saclr, matrix": (2.0221946377870066, lambda: third(plain.saclr, initial=0.05)),
    "saclr, row": (
        2.0359642066741213,
        lambda: third(plain.saclr, initial=0.05, per_image=True, others=OTHERS),
    ),
    "saclr, cosine": (
        -1.3664492772275791,
        lambda: third(plain.saclr, kernel="cosine", bandwidth=0.4, alpha=0.3, rho=0.5),
    ),
    "saclr, cauchy": (
        1.8503201295919516,
        lambda: third(plain.saclr, kernel="cauchy", per_image=True, initial=0.2),
    ),
    "sigclr": (1.8028493854527226, lambda: plain.sigclr(Z1, Z2, 0.4, -3.0)),
    "sogclr": (-1.7581292153215005, lambda: third(plain.sogclr, temperature=0.3, gamma=0.6)),
    "isogclr": (
        -0.4792261584804247,
        lambda: third(
            plain.isogclr,
            temperature=0.3,
            temperature_range=(0.2, 0.4),
            lr=0.2,
            beta=0.8,
            gamma=0.7,
        ),
    ),
    "moco": (5.134963667254266, lambda: plain.info_nce(QUERIES[0], Z1, QUEUE, 0.3)),
    "moco v3": (2.3206500157795316, lambda: plain.moco_v3(QUERIES[0], Z1, 0.3)),
    "ressl": (5.84720728495844, lambda: plain.ressl(QUERIES[0], Z1, QUEUE, 0.2, 0.1)),
    "ressl, in batch": (3.8220025172898406, lambda: plain.ressl(QUERIES[0], Z1, None, 0.2, 0.1)),
    "ceil": (0.002971254612254186, lambda: plain.ceil(QUERIES[0], Z1, QUEUE, 0.2)),
    "sce": (6.269197830751579, lambda: plain.sce(QUERIES[0], Z1, QUEUE, 0.2, 0.1, 0.4)),
    "sce, in batch": (4.384231665369384, lambda: plain.sce(QUERIES[0], Z1, None, 0.2, 0.1, 0.4)),
    "teacher sce": (
        3.5775765255249423,
        lambda: plain.teacher_sce(Z1, Z2, wave(6, 4, phase=6), 0.2, 0.1, 0.4),
    ),
    "lorac": (6.179544312404919, lambda: plain.lorac(QUERIES, Z1, QUEUE, 0.3, 1.5)),
    "lorac, gaussian": (
        4.773420866527527,
        lambda: plain.lorac(
            QUERIES, Z1, QUEUE, 0.3, prior="gaussian", large=torch.cat([QUERIES[:2], Z1[None]])
        ),
    ),
    "lorac, constant": (
        5.361702464845951,
        lambda: plain.lorac(QUERIES, Z1, QUEUE, 0.3, prior="constant"),
    ),
    "lorac, batchwise": (
        4.7647390474828635,
        lambda: plain.lorac(QUERIES, Z1, QUEUE, 0.3, batchwise=True),
    ),
    "moco-m": (4.142119161911456, lambda: plain.lorac(QUERIES, Z1, QUEUE, 0.3, math.inf)),
    "jcl": (4.017595228024386, lambda: plain.jcl(Z1, QUERIES, QUEUE, 0.3, 1.5)),
    "nnclr": (0.6492059196334997, lambda: plain.nnclr(Z1, Z2, QUEUE, 0.3)),
    "wcl": (3.233422107180584, lambda: plain.wcl(Z1, Z2, *WEAK, 0.3)),
    "negative cosine": (3.0064124480893497, lambda: plain.negative_cosine(Z1, QUERIES[0])),
    "barlow twins": (0.7294105221426407, lambda: plain.barlow_twins(Z1, Z2, 0.2)),
    "vicreg": (5.271247188366522, lambda: plain.vicreg(Z1, Z2, 2.0, 3.0, 4.0)),
    "wmse": (0.8791262415831845, lambda: plain.wmse(Z1, Z2, eps=0.0)),
    "wmse, parts": (0.031655351714476455, lambda: plain.wmse(Z1[:, :2], Z2[:, :2], PARTS, eps=0.0)),
    "sigreg": (0.37810067405226827, lambda: plain.sigreg(Z1, QUEUE[:3])),
    "lejepa": (0.4334752349414984, lambda: plain.lejepa(QUERIES, QUEUE[:3], 0.3, 3)),
    "lejepa, small view": (0.4828142917546419, lambda: plain.lejepa(QUERIES, QUEUE[:3], 0.3, 2)),
    "swav": (2.537293779655942, lambda: plain.swav(QUERIES, PROTOTYPES, 0.2, 0.1, 3, 2)),
}


@pytest.mark.parametrize("name", FOUND)
def test_is_what_the_loop_gave(name):
    number, expected = FOUND[name]
    assert expected().item() == pytest.approx(number, rel=1e-9)


def test_every_reference_is_here():
    """Two sets (clip, siglip) have no loss of their own: `tests/pairs` has their numbers; the rest
    are parts.
    """
    used = {name for _, reference in FOUND.values() for name in reference.__code__.co_names}
    assert {*plain.__all__} - used == {"State", "clip", "siglip", "sinkhorn", "unit"}
