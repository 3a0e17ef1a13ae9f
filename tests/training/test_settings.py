"""One definition of the settings: types and ranges are checked, files read back, and every face has
them all.
"""

import inspect
import re
from dataclasses import dataclass

import numpy as np
import pytest

import nearfar
from nearfar.app import options_of_app, pretrain_app
from nearfar.methods import SimCLR
from nearfar.training.settings import Described, Settings, settings_fields
from nearfar.views import View, ViewPlan

pytestmark = pytest.mark.usefixtures("known_speed")

NAMES = [setting.name for setting in settings_fields()]


def test_what_is_saved_is_read_back(tmp_path, unchecked):
    view = View(scale=(0.5, 1.0), size=24)
    plan = ViewPlan("mine", (view, view)).to_dict()
    settings = Settings(
        Described("array [8, 4, 4] uint8"),
        method="saclr",
        hyperparameters={"projector": (8, 4), "rho": None},
        views=plan,
        epochs=np.int64(3),
        lr=0.5,
        micro_batch="auto",
        encoder=Described("my.Net"),
    )
    settings.save(tmp_path / "config.yaml")
    assert Settings.load(tmp_path / "config.yaml") == settings


def test_a_tuple_serves_where_a_list_is_asked_for():
    """As people write torchvision's means."""
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    given = Settings.of(mean=mean, std=std, value_range=(0, 255), show_channels=(1, 2, 3))
    assert (given.mean, given.std) == (list(mean), list(std))
    assert (given.value_range, given.show_channels) == ([0, 255], [1, 2, 3])
    assert Settings.of(data=("a", "b")).data == ("a", "b")


def test_no_hyperparameter_is_called_like_a_setting(tmp_path):
    """In config.yaml it would take the setting's place."""

    @dataclass(frozen=True, kw_only=True)
    class Mine(SimCLR):
        lr: float = 1.0
        seed: int = 3

    with pytest.raises(ValueError, match=r"field lr and seed has"):
        nearfar.pretrain("digits", method=Mine(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"batch_size": "many"}, "`batch_size` must be a whole number, not 'many'"),
        ({"epochs": True}, "`epochs` must be a number, not True"),
        ({"micro_batch": 0}, "`micro_batch` must be at least 1, not 0"),
        ({"minutes": 0}, "`minutes` must be 0.1 to 1000000, not 0"),
        ({"cache": "yes"}, "`cache` must be true or false, not 'yes'"),
        ({"micro_batch": "most"}, "`micro_batch` must be a whole number or 'auto', not 'most'"),
        (
            {"optimizer": "rms"},
            "`optimizer` must be 'sgd' or 'adam' or 'adamw' or 'lars' or 'larc' or "
            "'larc-clip' or 'muon', not 'rms'",
        ),
        ({"out": 3}, "`out` must be a text, not 3"),
    ],
)
def test_a_value_of_another_type_or_out_of_range(given, says, unchecked):
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        Settings("photos", **given)


def test_the_signature_and_the_documentation_have_every_setting():
    parameters = inspect.signature(nearfar.pretrain).parameters
    assert [*parameters] == [*NAMES, "on_metrics", "hyperparameters"]
    assert (
        parameters["log_every"].default == 10
        and parameters["data"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    )
    documented = inspect.getdoc(nearfar.pretrain)
    assert all(f"\n    {name}: " in documented for name in NAMES)


def test_the_command_line_has_every_setting():
    options = {argument.field_info.name for argument in options_of_app(pretrain_app())}
    assert {*NAMES} <= options


def test_a_mistyped_setting_is_named_with_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"'epoch': did you mean 'epochs'"):
        nearfar.pretrain("digits", epoch=3)
    with pytest.raises(ValueError, match=r"'negative': did you mean 'negatives'"):
        nearfar.pretrain("digits", method="saclr", negative=3)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[1, 2]", "does not hold the settings"),
        (b"epochs: 3", "does not hold the settings"),
        (b"{", "is not YAML"),
        (b"\xff", "is not YAML"),
        (b"[" * 1500, "is not YAML"),
        (b"[" * 10_000 + b"]" * 10_000, "is not YAML"),
        (b"- " * 10_000, "is not YAML"),
        (b"!!python/object/apply:os.getcwd []", "is not YAML"),
    ],
)
def test_a_file_that_holds_no_settings(content, says, tmp_path):
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=rf"config\.yaml {says}"):
        Settings.load(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("1: 2", "does not hold the settings"),
        ("seed: x", "config.yaml: `seed` must be"),
        ("encoder: {object: 1, b: 2}", "`encoder` must be a text"),
        ("mean: [.nan]", "`mean` must be numbers"),
    ],
)
def test_a_file_with_an_odd_value(line, says, tmp_path, unchecked):
    (tmp_path / "config.yaml").write_text(f"method: simclr\n{line}\n")
    with pytest.raises(ValueError, match=re.escape(says)):
        Settings.load(tmp_path / "config.yaml")


def test_settings_that_are_yet_to_be_chosen():
    assert {"batch_size", "epochs", "out"} <= set(Settings("photos").unchosen())
    assert not {"data", "minutes", "init", "batch_size"} & set(
        Settings("photos", batch_size=8).unchosen()
    )


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({"temperature": "hot"}, "`temperature` must be a number"),
        ({"projector": [8, 4.5]}, "`projector` must be whole numbers"),
    ],
)
def test_a_number_of_a_method_of_another_type(numbers, says, tmp_path):
    with pytest.raises(ValueError, match=re.escape(says)):
        nearfar.pretrain("digits", out=tmp_path / "run", **numbers)
