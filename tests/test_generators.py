"""What nearfar draws does not move the random numbers of the program that calls it."""

import random
import shutil

import numpy as np
import pytest
import torch

import nearfar
from nearfar.arguments import VERBS
from nearfar.generators import generators_kept
from nearfar.sklearn import ContrastiveEncoder, ContrastiveMap

SHORT = dict(epochs=0.5, batch_size=16, encoder="tiny", precision="32-true")
CALLS = {
    "pretrain": lambda run, images, out, quiet: nearfar.pretrain(
        images, out=out / "new", console=quiet, **SHORT
    ),
    "resume": lambda run, images, out, quiet: nearfar.resume(run, console=quiet),
    "evaluate": lambda run, images, out, quiet: nearfar.evaluate(run, console=quiet),
    "embed": lambda run, images, out, quiet: nearfar.embed(
        run, out=out / "rows.npz", console=quiet
    ),
    "map_images": lambda run, images, out, quiet: nearfar.map_images(run, console=quiet),
    "find_duplicates": lambda run, images, out, quiet: nearfar.find_duplicates(run, console=quiet),
    "cluster_images": lambda run, images, out, quiet: nearfar.cluster_images(run, console=quiet),
    "select_images": lambda run, images, out, quiet: nearfar.select_images(run, n=3, console=quiet),
    "check": lambda run, images, out, quiet: nearfar.check(run, console=quiet),
    "show_views": lambda run, images, out, quiet: nearfar.show_views(
        run, out=out / "views.html", console=quiet
    ),
    "load": lambda run, images, out, quiet: nearfar.load(run),
    "ContrastiveEncoder": lambda run, images, out, quiet: ContrastiveEncoder(
        epochs=0.5, encoder="tiny"
    ).fit_transform(np.load(images)["images"]),
    "ContrastiveMap": lambda run, images, out, quiet: ContrastiveMap(
        ContrastiveEncoder(epochs=0.5, encoder="tiny"), epochs=1
    ).fit(np.load(images)["images"]),
}


def states():
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.usefixtures("unchecked")  # the checks of types draw random numbers too
def test_the_global_generators_are_as_before(name, trained, images_file, tmp_path, quiet):
    run = nearfar.Run(shutil.copytree(trained.path, tmp_path / "run"))
    torch.manual_seed(5)
    before = states()
    CALLS[name](run, images_file, tmp_path, quiet)
    assert states() == before


def test_an_estimator_without_a_seed_draws_another_each_time(images_file):
    """`random_state=None` is NumPy's global generator, in scikit-learn's way."""
    images = np.load(images_file)["images"]
    np.random.seed(0)
    made = [
        ContrastiveEncoder(epochs=0.3, encoder="tiny", random_state=None).fit_transform(images)
        for _ in range(2)
    ]
    assert not np.allclose(*made)


@pytest.mark.parametrize(
    "name", sorted(set(VERBS.values()) - {"list_methods", "completion_script"})
)
def test_every_public_function_puts_them_back(name):
    """Also those that draw nothing today: the context wraps them."""
    function = getattr(nearfar, name)
    wrapped = []
    while function is not None:
        wrapped.append(function.__code__)
        function = getattr(function, "__wrapped__", None)
    kept = generators_kept()(lambda: None).__code__
    assert kept in wrapped
