"""The settings of a run, defined once: the command line, YAML, Python signatures and config.yaml
all come from here.

Nothing here imports torch, so that `nearfar pretrain --help` is fast.
"""

from __future__ import annotations

import functools
import inspect
import os
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, MISSING, Field, dataclass, field, fields
from math import inf, isfinite
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
    runtime_checkable,
)

import yaml

from nearfar.atomic import write_file
from nearfar.messages import LARGEST_SEED, check_range, dump_yaml, load_yaml, raise_as_value_error

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T")
CHOSEN = "chosen by pretrain where it is None"
if TYPE_CHECKING:
    Chosen = Annotated[T, CHOSEN]  # a run is only ever read with all of them chosen
else:
    Chosen = Annotated[T | None, CHOSEN]

Precision = Literal["auto", "32-true", "16-mixed", "bf16-mixed"]
OBJECTS = ("data", "method", "encoder", "views")  # settings that may be an object instead of a name
LARGEST_IMAGE = 2**14  # pixels
MOST_CELLS = 32  # a side of a grid


def setting(
    meaning: str,
    default: Any = None,
    *,
    at_least: float = -inf,
    at_most: float = inf,
) -> Any:
    """Declare a field with its documentation and its range."""
    return field(default=default, metadata={"meaning": meaning, "range": (at_least, at_most)})


@dataclass(frozen=True)
class Described:
    """Stands in settings read from a file for an object that the file only describes."""

    words: str


def describe_object(value: Any) -> Described:
    """Describe an object of the user's own by the name of its class or function."""
    kind = value if hasattr(value, "__qualname__") else type(value)
    return Described(f"{kind.__module__}.{kind.__qualname__}")


@dataclass(frozen=True)
class Settings:
    """Every setting of a pretraining run. `pretrain` chooses those that are None; a run folder
    holds the choices.

    Raises ValueError for a value of another type or out of range.
    """

    data: Any = setting(
        "images: a folder, Parquet file or folder, WebDataset tars, .npy or .npz array, a "
        ".csv, .tsv or .parquet file "
        "of paths, 'hf:owner/name' (a Hub data set) or 'digits'; or several of them; in "
        "Python also an array or "
        "tensor, a datasets.Dataset, a torch Dataset or Images",
    )
    _: KW_ONLY
    out: Chosen[str] = setting("run folder to write; it must not exist. Default: runs/DATA-METHOD")
    method: Any = setting(
        "training method, see `nearfar methods`; in Python also a Method", "simclr"
    )
    hyperparameters: Mapping[str, Any] = field(
        default_factory=dict, metadata={"meaning": "hyperparameters of the method"}
    )
    recipe: str = setting(
        "defaults of the method: 'small' (for small data sets), or those of a paper by the "
        "name of its data set",
        "small",
    )
    encoder: Any = setting(
        "'small', 'medium' or any timm backbone by name, perhaps with arguments, as in "
        "'vit_tiny_patch16_224(patch_size=4, drop_path_rate=0.1)'; in Python also a module. "
        "Default: the largest that the time allows"
    )
    whiten: Chosen[bool] = setting(
        "whiten image patches in the first convolution of 'tiny', 'small' or 'medium', "
        "which is then not trained. "
        "Default: for 'small' and 'medium' on colour images without starting weights"
    )
    init: str | None = setting(
        "starting weights: 'nearfar' (ours for 'small'), 'timm' (timm's for the encoder), "
        "'hf:owner/name' (a timm "
        "model on the Hub), a folder in timm's form, a run folder, or a .safetensors or "
        ".pth file. Only timm and "
        "hf: use the network"
    )
    teacher: str | None = setting(
        "frozen encoder whose similarities between images are learned too: 'pretrained' (the "
        "installed weights), a timm backbone by name, 'hf:owner/name', a run or encoder folder, "
        "or a file of vectors with the images' names, made by any encoder (docs/teachers.md)"
    )
    teacher_weight: float | None = setting(
        "weight of the teacher's term beside the loss; not for sce and ressl, which take its "
        "similarities as their targets. Default: 0.5",
        at_least=0,
        at_most=1,
    )
    teacher_temperature: float | None = setting(
        "temperature of the softmax of the teacher's similarities. Default: 0.05",
        at_least=1e-6,
        at_most=10**6,
    )
    adapt: bool = setting(
        "fine-tune the starting weights without labels, with other defaults: adamw, a low "
        "lr, layer_decay 0.7, frozen "
        "2, a tenth of the epochs as warm-up, 10 minutes",
        False,
    )
    grid: Chosen[int] = setting(
        "cells of a side: the saved encoder gives the mean over its last map and beside it the "
        "mean of each cell of this grid, which tells where things are; 1: the mean alone. "
        "Default: 3 for 'small' and 'medium' where no edges stand beside it, else 1",
        at_least=1,
        at_most=MOST_CELLS,
    )
    beside: Chosen[str] = setting(
        "what the saved encoder has beside the trained net, joined by '+': 'pretrained' (the "
        "weights of nearfar[pretrained]), 'start' (the starting weights as they were), 'edges', "
        "'colours' and 'pixels'; or 'none'. "
        "Default: pretrained+edges where these weights are installed, for images of 28 px or "
        "more in grayscale or colour, and start+edges with `adapt`; else none"
    )
    trained_weight: float | None = setting(
        "length of the trained net's rows in the saved encoder, where those of pretrained or "
        "starting weights beside it have 1. Default: 0.7; 0.35 where the pretrained net knows "
        "many kinds of things among the images (an Inception score of 25 or more); 1 beside "
        "edges, colours and pixels alone",
        at_least=0.01,
        at_most=100,
    )
    layer_decay: Chosen[float] = setting(
        "factor on the learning rate for each layer of the encoder further from the "
        "projector. Default: 1",
        at_least=0,
        at_most=10,
    )
    frozen: Chosen[int] = setting(
        "number of first stages of the encoder to freeze: stem, stages or blocks. Default: 0",
        at_least=0,
    )
    mean: list[float] | None = setting(
        "per-channel mean in 0..1 to normalise images. Default: that of the starting "
        "weights, else that of the images"
    )
    std: list[float] | None = setting("per-channel standard deviation, given with the mean")
    image_size: Chosen[int] = setting(
        "pixels; images are resized to it. Default: their own size up to 96 px, else the "
        "largest that the time allows",
        at_least=2,
        at_most=LARGEST_IMAGE,
    )
    crop_size: Chosen[int] = setting(
        "pixels of a full-size view; below the image size, training is faster and crops "
        "lose less detail. "
        "Default: two thirds of the image size where that is chosen, three quarters of 28 "
        "to 48 px, else all of it",
        at_least=2,
        at_most=LARGEST_IMAGE,
    )
    channels: Chosen[int] = setting(
        "1, 3, or the number of channels in the files. Default: 1 for grayscale images, "
        "else that of most images",
        at_least=1,
    )
    value_range: list[float] | Literal["full", "uint8"] | None = setting(
        "values that become black and white in images of more than 8 bits: LOW HIGH, a "
        "pair for each channel, 'full' "
        "(the range of their type) or 'uint8' (convert to 8 bits). Default: 0.5 and 99.5 "
        "percentiles of each channel"
    )
    show_channels: list[int] | None = setting(
        "channels to display, one or three, counted from 1. Default: the first three"
    )
    max_pixels: int | None = setting(
        "read images of up to this many pixels. Default: 178 956 970, as Pillow allows; "
        "larger ones are left out",
        at_least=1,
    )
    split: str | None = setting(
        "split of the data to train on. Default: 'train' where there is one, else everything"
    )
    limit: int | None = setting(
        "train on a random sample of this many images, drawn by the seed", at_least=1
    )
    views: Any = setting(
        "augmentations: a preset for a kind of images (`nearfar views` lists them), or "
        "names of distributions joined "
        "by '+'; in Python also a ViewPlan or a callable on uint8 batches. Default: the "
        "method's, fitted to the images"
    )
    keep_colour: Chosen[float] = setting(
        "share of images whose views do not change colours, so that the encoder learns "
        "colours too. Default: 0.5 for "
        "the views 'photographs' (images of 64 px or more), that of a ViewPlan, else 0",
        at_least=0,
        at_most=1,
    )
    held_out: Chosen[int] = setting(
        "images in the validation set, which measures health without labels. Default: a "
        "tenth, at most 512",
        at_least=0,
    )
    minutes: float | None = setting(
        "time for the whole run; encoder, image size, precision and epochs are chosen to "
        "fit unless given. "
        "Default: 30, unless epochs or a paper's recipe are given",
        at_least=0.1,
        at_most=10**6,
    )
    epochs: Chosen[float] = setting(
        "passes over the images. Default: as many as fit into the minutes",
        at_least=1e-6,
        at_most=10**9,
    )
    batch_size: Chosen[int] = setting(
        "images in a batch, over all processes. Default: the recipe's, as for the "
        "optimiser's settings below",
        at_least=1,
    )
    micro_batch: int | Literal["auto"] | None = setting(
        "images in memory at a time; the loss sees the batch, batch norm this part; 'auto' "
        "finds a size",
        at_least=1,
    )
    optimizer: Chosen[Literal["sgd", "adam", "adamw", "lars", "larc", "larc-clip", "muon"]] = (
        setting("'sgd', 'adam', 'adamw', 'lars', 'larc' (as in apex), 'larc-clip' or 'muon'")
    )
    lr: Chosen[float] = setting(
        "peak learning rate (not scaled). Default: the recipe's, scaled to the batch", at_least=0
    )
    final_lr: Chosen[float] = setting(
        "final learning-rate ratio: the last learning rate over the peak", at_least=0
    )
    weight_decay: Chosen[float] = setting("weight decay", at_least=0)
    warmup_epochs: Chosen[float] = setting("epochs of linear warm-up", at_least=0)
    clip_gradient: float | None = setting("gradient clipping norm", at_least=1e-12)
    precision: Precision = setting(
        "'32-true', 'bf16-mixed', '16-mixed', or 'auto': the faster of float32 and the "
        "device's half precision",
        "auto",
    )
    accelerator: str = setting(
        "device: 'auto' (a GPU if there is one), 'cpu', 'gpu' of any kind, or its kind", "auto"
    )
    compile: bool | None = setting(
        "compile the encoder and the projector by torch.compile (docs/step.md); the last "
        "digits may then differ "
        "after a run is resumed. Default: in runs of ten minutes or more that fill a time, "
        "where a trial is faster"
    )
    devices: Chosen[int] = setting(
        "processes, one for each device. Default: 1, or all that torchrun started", at_least=1
    )
    threads: Chosen[int] = setting(
        "CPU threads of each process. They stay the same for the whole run, as another "
        "number changes the last digits "
        "of the gradient. Default: the fastest number at the start, or OMP_NUM_THREADS",
        at_least=1,
        at_most=1024,
    )
    sync_batch_norm: Chosen[bool] = setting(
        "batch statistics over all processes. Default: the recipe's"
    )
    seed: int = setting("random seed", 0, at_least=0, at_most=LARGEST_SEED)
    log_every: int = setting("steps between lines of metrics.jsonl", 10, at_least=1)
    save_every: int | None = setting(
        "epochs between encoders that are kept on the way, as folders encoders/epoch-0010 of the "
        "run folder. Default: only the last one is written",
        at_least=1,
    )
    tensorboard: bool = setting("also write tensorboard event files", False)
    cache: bool = setting(
        "cache decoded images on disk; without it, and beyond 8 GiB, workers decode and "
        "crop them in each epoch",
        True,
    )
    workers: int = setting(
        "data-loading workers for images that are not cached", 2, at_least=0, at_most=1000
    )
    stream: bool = setting(
        "read tars in order without a cache, for data larger than the disk; the first "
        "images are the validation set "
        "and are displayed. Only for methods without per-image state (docs/sources.md)",
        False,
    )

    def __post_init__(self) -> None:
        kind: type = type(self)
        hints = _hints(kind)
        for entry in settings_fields():
            if entry.name not in OBJECTS:
                check_value(entry, hints[entry.name], getattr(self, entry.name))

    @classmethod
    def of(cls, **given: Any) -> Settings:
        """Build settings from their values by name; other names are hyperparameters of the
        method.
        """
        own = {
            field.name: given.pop(field.name) for field in settings_fields() if field.name in given
        }
        own = {
            name: list(value) if isinstance(value, tuple) and name not in OBJECTS else value
            for name, value in own.items()
        }
        numbers = {**given.pop("hyperparameters", {}), **given}
        numbers = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in numbers.items()
        }
        return cls(**own, hyperparameters=numbers)

    def given(self, name: str) -> Any:
        """Return a setting that may be an object; raises ValueError where a file only describes
        it.
        """
        value = getattr(self, name)
        if isinstance(value, Described):
            raise ValueError(
                f"the {name} of this run was an object of your own ({value.words}), which "
                f"no file holds: "
                f"give it again, {name}=..."
            )
        return value

    def save(self, path: Path) -> None:
        """Write the settings as YAML that `nearfar pretrain --config` runs again.

        What a file cannot hold must be `Described` by now, as it is in the settings of a `Job`.
        """
        values = {field.name: getattr(self, field.name) for field in settings_fields()} | dict(
            self.hyperparameters
        )
        values = {name: _as_yaml(value) for name, value in values.items()}
        write_file(path, dump_yaml(values))

    @classmethod
    def load(cls, path: Path) -> Settings:
        """Read settings written by `save`; raises ValueError where the file is not such a one."""
        if not path.is_file():
            raise FileNotFoundError(f"{path.parent} is not a run folder: it holds no {path.name}")
        values = read_yaml(path)
        if "method" not in values:
            raise ValueError(f"{path} does not hold the settings of a run")
        with raise_as_value_error(str(path), ValueError, TypeError):
            return cls.of(**{name: read_value(name, value) for name, value in values.items()})

    @property
    def reading(self) -> dict[str, Any]:
        """Options by which the images of a run are opened, and others that its encoder sees:
        options of `open_images`.
        """
        names = ("image_size", "channels", "value_range", "show_channels", "max_pixels")
        return {name: getattr(self, name) for name in names}

    def reading_for(self, image_size: int) -> dict[str, Any]:
        """`reading` for an encoder of another image size than that of training."""
        return {**self.reading, "image_size": image_size}

    def unchosen(self) -> list[str]:
        """List the settings that `pretrain` has yet to choose."""
        hints = get_type_hints(type(self), include_extras=True)
        chosen = [
            name for name, hint in hints.items() if CHOSEN in getattr(hint, "__metadata__", ())
        ]
        return [name for name in chosen if getattr(self, name) is None]


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """Types of the fields of a class, resolved once."""
    return get_type_hints(kind)


def settings_fields() -> list[Field[Any]]:
    """List the settings in order but for `hyperparameters`, each with its documentation in
    `metadata["meaning"]`.
    """
    return [field for field in fields(Settings) if field.name != "hyperparameters"]


def given_or(given: Any, default: Any) -> Any:
    """Return a setting as it was given, else its default."""
    return default if given is None else given


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the names and values of a YAML file; raises ValueError for any other."""
    try:
        values = load_yaml(path)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ValueError(
            f"{path} does not hold the settings of a run: it must be names with values"
        )
    return values


def read_value(name: str, value: Any) -> Any:
    """Return the value of a setting from what YAML holds; raises ValueError for what cannot be
    one.
    """
    if name not in OBJECTS:
        return value
    if isinstance(value, dict) and set(value) == {"object"}:
        return Described(str(value["object"]))
    several = (
        name == "data"
        and isinstance(value, list)
        and value
        and all(isinstance(entry, str) for entry in value)
    )
    if several or isinstance(value, str | None) or (name == "views" and isinstance(value, dict)):
        return value
    raise ValueError(f"`{name}` must be a text, not {value!r}")


def _as_yaml(value: Any) -> Any:
    if isinstance(value, Described):
        return {"object": value.words}
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):  # also those of NumPy, which YAML does not know
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return list(value) if isinstance(value, tuple) else value


_KINDS: dict[Any, tuple[Any, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a text"),
    bool: (bool, "true or false"),
    type(None): (type(None), ""),
}


def check_hyperparameters(kind: type, given: Mapping[str, Any]) -> None:
    """Raise ValueError for a hyperparameter that is not of the type that the method's class
    declares.
    """
    hints = _hints(kind)
    for entry in fields(kind):
        if entry.name in given and hints[entry.name] is not Any:
            check_value(entry, hints[entry.name], given[entry.name])


def check_value(field: Field[Any], hint: Any, value: Any) -> None:
    """Raise ValueError for a value that is not of the setting's type or out of its range."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if not any(_is(value, kind) for kind in kinds):
        expected = " or ".join(filter(None, map(_words, kinds)))
        raise ValueError(f"`{field.name}` must be {expected}, not {value!r}")
    if "range" in field.metadata and isinstance(value, Real):
        check_range(field.name, cast(float, value), *field.metadata["range"])


def _is(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) in (list, tuple):
        item = get_args(kind)[0]
        return isinstance(value, get_origin(kind)) and all(
            _is(entry, item) and isfinite(entry) for entry in value
        )
    if isinstance(value, bool):
        return kind is bool
    if kind not in _KINDS:  # of a user's method
        return True
    return (
        isinstance(value, _KINDS[kind][0]) and value == value
    )  # a method may take infinity, nothing takes nan


def _words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if get_origin(kind) in (list, tuple):
        return _words(get_args(kind)[0]).removeprefix("a ") + "s"
    return _KINDS[kind][1] if kind in _KINDS else str(kind)


@runtime_checkable
class WithSettings(Protocol[P, R]):
    """A function of the settings and the method's hyperparameters, by name."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, data: Any = None, **settings: Any) -> R: ...


def arguments_of(
    settings: Callable[P, Settings],
) -> Callable[[Callable[..., R]], WithSettings[P, R]]:
    """Let a function of `Settings` be called with the settings themselves: `pretrain("photos/",
    epochs=20)`.

    The function's own arguments by name are no settings, and no file holds them. All others are
    hyperparameters of the method. Signature and section "Args" of the docstring
    are those of `settings`, the class; for type checkers and editors as well.
    """

    def decorate(function: Callable[..., R]) -> WithSettings[P, R]:
        _, *others = inspect.signature(function).parameters.values()

        @functools.wraps(function)
        def call(data: Any = None, **given: Any) -> R:
            objects = {
                parameter.name: given.pop(parameter.name)
                for parameter in others
                if parameter.name in given
            }
            given = {
                name: os.fspath(value) if isinstance(value, os.PathLike) else value
                for name, value in {"data": data, **given}.items()
            }
            return function(Settings.of(**given), **objects)

        call.__doc__ = _documented(function.__doc__ or "")
        own = [
            parameter
            for parameter in inspect.signature(Settings).parameters.values()
            if parameter.name != "hyperparameters"
        ]
        numbers = inspect.Parameter(
            "hyperparameters", inspect.Parameter.VAR_KEYWORD, annotation=Any
        )
        signature = inspect.Signature([*own, *others, numbers])
        call.__signature__ = signature  # type: ignore[attr-defined]
        return cast("WithSettings[P, R]", call)

    return decorate


def _documented(docstring: str) -> str:
    """Put the meaning of every setting into a docstring, before its "Returns:"."""
    lines = []
    for declared in settings_fields():
        default = "" if declared.default in (None, MISSING) else f" Default: {declared.default!r}."
        entry = f"{declared.name}: {declared.metadata['meaning']}.{default}"
        lines += textwrap.wrap(entry, 116, initial_indent=" " * 4, subsequent_indent=" " * 8)
    lines += ["    hyperparameters: those of the method."]
    before, after = inspect.cleandoc(docstring).split("Returns:\n", 1)
    before, _, own = before.partition("Args:\n")
    lines += own.rstrip().splitlines()
    return before + "Args:\n" + "\n".join(lines) + "\n\nReturns:\n" + after
