"""Numbers out of range are refused when the model is built, in one line that names the number."""

from dataclasses import fields

import pytest
from jaxtyping import TypeCheckError

from nearfar.methods import method_class, method_names

KINDS = [  # values that are wrong for all of these
    ((-0.1, 1.1), "alpha final_lam final_momentum gamma momentum prior_start"),
    (
        (-0.1,),
        "covariance eta frozen_epochs invariance lam lr_temperature mu redundancy rho "
        "stored_from variance",
    ),
    ((0.0,), "bandwidth epsilon gradient_limit initial_partition sigma"),
    ((-1,), "queue_size small_views stored"),
    ((0,), "iterations key_views norm_groups num_directions online_norm_groups"),
    ((1,), "group_size large_views num_prototypes sub_batch"),
]
WRONG = {name: values for values, names in KINDS for name in names.split()} | {
    "bias": (float("inf"),),
    "highest": (0.05, float("inf")),  # below the temperature at the start
    "kernel": ("laplace",),
    "lowest": (0.0, 0.2),  # above the temperature at the start
    "negatives": (0, "some"),
    "predictor": ((32, 5),),
    "prior": ("uniform",),
    "projector": ((), (32, 0)),
    "scale": ("column",),
    "target_temperature": (0.0, -0.1),
    "temperature": (0.0, -0.1, float("inf")),
}
ALSO_WRONG = {
    ("lorac", "beta"): (0.0, -1.0),
    ("lorac-bs", "beta"): (0.0, -1.0),
    ("isogclr", "beta"): (-0.1, 1.1),
    ("sce", "lam"): (1.1,),
    ("lejepa", "lam"): (1.1,),
    ("saclr", "rho"): (1.1,),
} | {
    (name, "queue_size"): (0,) for name in method_names() if name != "sce"
}  # SCE compares within the batch then

CASES = [
    (name, field.name, value)
    for name in method_names()
    for field in fields(method_class(name))
    for value in WRONG.get(field.name, ()) + ALSO_WRONG.get((name, field.name), ())
]


@pytest.mark.parametrize(("method", "number", "value"), CASES)
def test_refused(method, number, value, build):
    # Where annotations are checked at run time, a word that is no choice is a TypeCheckError before
    # we see it.
    with pytest.raises(
        (ValueError, TypeCheckError) if isinstance(value, str) else ValueError
    ) as error:
        build(method, **{number: value})
    message = str(error.value)
    assert isinstance(error.value, TypeCheckError) or ("\n" not in message and len(message) < 160)
    words = {"lowest": "temperature", "highest": "temperature", "final_momentum": "momentum"}
    assert words.get(number, number) in message


def test_every_number_has_a_wrong_value(name):
    switches = {
        field.name for field in fields(method_class(name)) if isinstance(field.default, bool)
    }
    tested = {number for method, number, _ in CASES if method == name}
    assert {field.name for field in fields(method_class(name))} == tested | switches
