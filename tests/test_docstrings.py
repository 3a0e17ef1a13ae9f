"""Every public function and class has an example in its docstring, and it runs.

Examples assume `import torch, nearfar`, `import numpy as np` and the public names of their room, a
folder of 25 photographs in two sub-folders, photos, the same as tar, and a run on them,
runs/photos. Messages are left out.
"""

import doctest
import importlib
import inspect
import shutil
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import nearfar
import nearfar_papers
from nearfar.maps import projector
from nearfar.methods import Method, registry
from tools.interface import ROOMS, public_names

pytestmark = pytest.mark.usefixtures("known_speed")

OBJECTS = {
    f"nearfar.{name}": getattr(nearfar, name) for name in nearfar.__all__ if name != "__version__"
}
OBJECTS |= {
    f"nearfar_papers.{name}": getattr(nearfar_papers, name) for name in nearfar_papers.__all__
}
for room in ROOMS:
    module = importlib.import_module(f"nearfar.{room}")
    OBJECTS |= {f"nearfar.{room}.{name}": getattr(module, name) for name in public_names(room)}
OBJECTS = {
    name: value
    for name, value in OBJECTS.items()
    if (inspect.isfunction(value) or inspect.isclass(value))
    and getattr(value, "__module__", "").startswith("nearfar")
    and not (inspect.isclass(value) and issubclass(value, Exception))
    # one example for all
    and not (inspect.isclass(value) and issubclass(value, Method) and value is not Method)
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    rng = np.random.default_rng(0)
    for number in range(24):
        file = folder / "photos" / ("cat" if number % 2 else "dog") / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        rough = Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8))
        rough.resize((50, 40), Image.Resampling.BICUBIC).save(file)
    shutil.copy(folder / "photos/cat/3.png", folder / "photos/cat/copy.png")
    with tarfile.open(folder / "photos.tar", "w") as tar:
        tar.add(folder / "photos", "photos")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(
            Console, "quiet", property(lambda self: True, lambda self, value: None), raising=False
        )
        patch.setattr(projector, "LEAST_STEPS", 20)
        options = dict(epochs=1, batch_size=8, image_size=32, encoder="tiny")
        nearfar.pretrain("photos", out="runs/photos", **options).map(epochs=5)
        yield


@pytest.mark.parametrize("name", OBJECTS)
def test_an_example_runs(name, place, monkeypatch):
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    room = importlib.import_module(name.rpartition(".")[0])
    names = {public: getattr(room, public) for public in getattr(room, "__all__", vars(room))}
    given = names | {"torch": torch, "np": np, "nearfar": nearfar}
    given["nearfar_papers"] = nearfar_papers
    example = doctest.DocTestParser().get_doctest(
        OBJECTS[name].__doc__ or "", given, name, None, None
    )
    assert example.examples, f"{name} has no example"
    messages = []
    failed, _ = doctest.DocTestRunner(verbose=False).run(example, out=messages.append)
    assert not failed, "".join(messages)


def test_all_rooms_are_there():
    assert len(OBJECTS) > 100
