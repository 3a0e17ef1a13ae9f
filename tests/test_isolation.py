"""Random draws of nearfar do not move the random numbers of the program that calls it, whose modes
do not reach nearfar.
"""

import random
import shutil
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import nearfar
import nearfar_papers
from nearfar.app import command_paths
from nearfar.isolation import isolated
from nearfar.sklearn import ContrastiveEncoder, ContrastiveMap

SHORT = dict(epochs=0.5, batch_size=16, encoder="tiny", precision="32-true")
CALLS = {
    "pretrain": lambda run, images, out: nearfar.pretrain(images, out=out / "new", **SHORT),
    "resume": lambda run, images, out: nearfar.resume(run),
    "evaluate": lambda run, images, out: nearfar.evaluate(run),
    "embed": lambda run, images, out: nearfar.embed(run, out=out / "rows.npz"),
    "map": lambda run, images, out: nearfar.map(run),
    "duplicates": lambda run, images, out: nearfar.duplicates(run),
    "cluster": lambda run, images, out: nearfar.cluster(run),
    "select": lambda run, images, out: nearfar.select(run, n=3),
    "check": lambda run, images, out: nearfar.check(run),
    "show_views": lambda run, images, out: nearfar.show_views(run, out=out / "views.html"),
    "load": lambda run, images, out: nearfar.load(run),
    "ContrastiveEncoder": lambda run, images, out: ContrastiveEncoder(
        epochs=0.5, encoder="tiny"
    ).fit_transform(np.load(images)["images"]),
    "ContrastiveMap": lambda run, images, out: ContrastiveMap(
        ContrastiveEncoder(epochs=0.5, encoder="tiny"), epochs=1
    ).fit(np.load(images)["images"]),
}


def states():
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.usefixtures("unchecked")  # the checks of types draw random numbers too
def test_the_global_generators_are_as_before(name, trained, images_file, tmp_path):
    run = nearfar.Run(shutil.copytree(trained.path, tmp_path / "run"))
    torch.manual_seed(5)
    before = states()
    CALLS[name](run, images_file, tmp_path)
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


@pytest.mark.slow
def test_an_import_does_not_move_the_generators():
    program = (
        "import random; random.seed(3); before = random.getstate(); import nearfar\n"
        "for name in nearfar.__all__: getattr(nearfar, name)\n"
        "assert random.getstate() == before"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@contextmanager
def of(setter, value, before):
    setter(value)
    try:
        yield
    finally:
        setter(before)


MODES = {
    "float64": lambda: of(torch.set_default_dtype, torch.float64, torch.float32),
    "bfloat16": lambda: of(torch.set_default_dtype, torch.bfloat16, torch.float32),
    "another device": lambda: of(torch.set_default_device, "meta", "cpu"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "errors of NumPy": lambda: np.errstate(all="raise"),
}


def modes():
    """The modes of torch and NumPy as they are now."""
    torchs = torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()
    halves = torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    return *torchs, *halves, np.geterr()


def embedded_and_trained(run, images_file, folder):
    """Features by a run, and the losses of a new one."""
    run = nearfar.Run(shutil.copytree(run.path, folder / "run"))
    (run.path / "features.safetensors").unlink(missing_ok=True)
    nearfar.embed(run, out=folder / "rows.npz")
    new = nearfar.pretrain(images_file, out=folder / "new", **SHORT)
    return np.load(folder / "rows.npz")["embedding"], [line.get("loss") for line in new.metrics]


@pytest.fixture(scope="module")
def usual(trained, images_file, tmp_path_factory):
    return embedded_and_trained(trained, images_file, tmp_path_factory.mktemp("usual"))


@pytest.mark.parametrize("name", MODES)
def test_features_and_pages_that_are_asked_for_later_do_not_see_the_modes(
    name, trained, usual, tmp_path
):
    """Features are computed, and pages drawn, after the function has returned."""
    run = nearfar.Run(shutil.copytree(trained.path, tmp_path / "run"))
    (run.path / "features.safetensors").unlink(missing_ok=True)
    photos = nearfar.embed(run)
    nearest = photos.search(photos.images.names[0], k=2)
    later = nearfar.embed(run)
    (run.path / "features.safetensors").unlink()
    with MODES[name]():
        features, page = later.features, nearest.page()
        nearest.write(tmp_path / "page.html")
        mirrored = later.mirrored().features
    np.testing.assert_array_equal(features, usual[0])
    assert features.dtype == mirrored.dtype == torch.float32
    assert (tmp_path / "page.html").read_text() == page == nearest.page()
    np.testing.assert_array_equal(nearfar.embed(run).features, usual[0])  # as the run keeps them


@pytest.mark.parametrize("name", MODES)
def test_modes_that_the_caller_has_set_do_not_reach_nearfar_and_stay(
    name, trained, images_file, usual, tmp_path
):
    """Features in bfloat16 would have been kept in the run folder for all later commands."""
    with MODES[name]():
        before = modes()
        rows, losses = embedded_and_trained(trained, images_file, tmp_path)
        assert modes() == before
    assert np.array_equal(rows, usual[0]) and losses == usual[1]


@pytest.mark.parametrize(
    "name",
    [
        *sorted(
            {path.split(":")[1] for path in command_paths().values() if path.startswith("nearfar:")}
            - {"list_methods", "completion_script"}
        ),
        *nearfar_papers.__all__,
    ],
)
def test_every_public_function_puts_them_back(name):
    """Also those that draw nothing today: the context wraps them."""
    function = getattr(nearfar_papers if name in nearfar_papers.__all__ else nearfar, name)
    wrapped = []
    while function is not None:
        wrapped.append(function.__code__)
        function = getattr(function, "__wrapped__", None)
    kept = isolated()(lambda: None).__code__
    assert kept in wrapped


@pytest.mark.parametrize("called_in", [False, True])
def test_a_training_in_half_precision_computes_with_the_weights_of_each_step(called_in):
    layer = torch.nn.Linear(4, 1, bias=False)
    rows = torch.ones(2, 4)

    @isolated()
    def outputs():
        results = []
        for value in (1.0, 2.0, 3.0):
            with torch.no_grad():
                layer.weight.fill_(value)
            with torch.autocast("cpu", torch.bfloat16):
                results.append(layer(rows)[0, 0].item())
        return results

    with torch.autocast("cpu", torch.bfloat16, enabled=called_in):
        assert outputs() == [4.0, 8.0, 12.0]
        assert torch.is_autocast_enabled("cpu") == called_in
        assert torch.is_autocast_cache_enabled()
