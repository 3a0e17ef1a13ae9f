"""Numbers out of range are refused when the model is built, in one line that names the number."""

from dataclasses import fields

import pytest
from jaxtyping import TypeCheckError

from nearfar.methods import method_class, method_names

WRONG = {
    "alpha": (-0.1, 1.1),
    "bias": (float("inf"),),
    "covariance": (-1.0,),
    "epsilon": (0.0,),
    "eta": (-0.1,),
    "final_momentum": (-0.1, 1.1),
    "frozen_epochs": (-1.0,),
    "gamma": (-0.1, 1.1),
    "group_size": (1,),
    "highest": (0.05, float("inf")),  # below the temperature at the start
    "initial_partition": (0.0,),
    "invariance": (-1.0,),
    "gradient_limit": (0.0,),
    "iterations": (0,),
    "kernel": ("laplace",),
    "key_views": (0,),
    "lam": (-0.1,),
    "large_views": (1,),
    "lowest": (0.0, 0.2),  # above the temperature at the start
    "lr_temperature": (-0.1,),
    "momentum": (-0.1, 1.1),
    "mu": (-0.1,),
    "negatives": (0, "some"),
    "norm_groups": (0,),
    "online_norm_groups": (0,),
    "num_prototypes": (1,),
    "predictor": ((32, 5),),
    "prior": ("uniform",),
    "projector": ((), (32, 0)),
    "queue_size": (-1,),
    "redundancy": (-0.1,),
    "rho": (-0.1,),
    "scale": ("column",),
    "sigma": (0.0,),
    "small_views": (-1,),
    "prior_start": (-0.1, 1.1),
    "stored": (-1,),
    "stored_from": (-1.0,),
    "sub_batch": (1,),
    "target_temperature": (0.0, -0.1),
    "temperature": (0.0, -0.1, float("inf")),
    "variance": (-1.0,),
    "bandwidth": (0.0,),
}
ALSO_WRONG = {
    ("lorac", "beta"): (0.0, -1.0),
    ("lorac-bs", "beta"): (0.0, -1.0),
    ("isogclr", "beta"): (-0.1, 1.1),
    ("sce", "lam"): (1.1,),
    ("saclr", "rho"): (1.1,),
} | {(name, "queue_size"): (0,) for name in method_names() if name != "sce"}  # SCE compares within the batch then

CASES = [
    (name, field.name, value)
    for name in method_names()
    for field in fields(method_class(name))
    for value in WRONG.get(field.name, ()) + ALSO_WRONG.get((name, field.name), ())
]


@pytest.mark.parametrize(("method", "number", "value"), CASES)
def test_refused(method, number, value, build):
    # Where annotations are checked at run time, a word that is no choice is a TypeCheckError before we see it.
    with pytest.raises((ValueError, TypeCheckError) if isinstance(value, str) else ValueError) as error:
        build(method, **{number: value})
    said = str(error.value)
    assert isinstance(error.value, TypeCheckError) or ("\n" not in said and len(said) < 160)
    words = {"lowest": "temperature", "highest": "temperature", "final_momentum": "momentum"}
    assert words.get(number, number) in said


def test_every_number_has_a_wrong_value(name):
    switches = {field.name for field in fields(method_class(name)) if isinstance(field.default, bool)}
    tested = {number for method, number, _ in CASES if method == name}
    assert {field.name for field in fields(method_class(name))} == tested | switches
