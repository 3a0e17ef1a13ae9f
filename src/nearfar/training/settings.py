"""The settings of a run, defined once: command line, YAML, Python signature and config.yaml all come from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints

import yaml

from nearfar.atomic import replacing
from nearfar.messages import first_line
from nearfar.methods.registry import SETTINGS
from nearfar.training.checking import check_value
from nearfar.training.config import OBJECTS, Described, read_value, read_yaml, written
from nearfar.training.seeding import LARGEST_SEED

T = TypeVar("T")
CHOSEN = "chosen by pretrain where it is None"
if TYPE_CHECKING:
    Chosen = Annotated[T, CHOSEN]  # a run is only ever read with all of them chosen
else:
    Chosen = Annotated[T | None, CHOSEN]

Precision = Literal["auto", "32-true", "16-mixed", "bf16-mixed"]
LARGEST_IMAGE = 2**14  # pixels


def setting(
    meaning: str, default: Any = None, *, at_least: float = -inf, at_most: float = inf,
    kw_only: bool = True,
) -> Any:  # fmt: skip
    """A field with its documentation and its range."""
    metadata = {"meaning": meaning, "range": (at_least, at_most)}
    return field(default=default, kw_only=kw_only, metadata=metadata)


@dataclass(frozen=True, kw_only=True)  # Python 3.10 has no hints of a class with `_: KW_ONLY`
class Settings:
    """Every setting of a pretraining run. What is None is chosen by `pretrain`; a run folder holds the choices.

    Raises ValueError for a value of another type or out of range.
    """

    data: Any = setting(
        "images: a folder, Parquet file or folder, WebDataset tars, .npy or .npz array, a .csv, .tsv or .parquet file "
        "of paths, 'hf:owner/name' (a Hub data set) or 'digits'; or several of them; in Python also an array or "
        "tensor, a datasets.Dataset, a torch Dataset or Images",
        kw_only=False,
    )
    out: Chosen[str] = setting("run folder to write; it must not exist. Default: runs/DATA-METHOD")
    method: Any = setting("what is learned from, see `nearfar methods`; in Python also a Method", "simclr")
    hyperparameters: Mapping[str, Any] = field(default_factory=dict, metadata={"meaning": "the method's own numbers"})
    recipe: str = setting("defaults of the method: 'small' (for small data) or a paper's, by its data's name", "small")
    encoder: Any = setting(
        "'small', 'medium' or any timm backbone by name; in Python also a module. "
        "Default: the largest that the time allows",
    )
    small_stem: Chosen[bool] = setting(
        "3x3 stem with stride 1 and no max-pool for a ResNet. Default: for crops below 64 px, or the recipe's"
    )
    whiten: Chosen[bool] = setting(
        "let the first convolution of 'tiny', 'small' or 'medium' whiten patches of the images, untrained. "
        "Default: for 'small' and 'medium' on colour images without starting weights"
    )
    init: str | None = setting(
        "starting weights: 'timm' (its own for the encoder), 'hf:owner/name' (a timm model on the Hub), a folder in "
        "timm's form, a run folder, or a file, .safetensors or .pth. Only the first two touch the network"
    )
    adapt: bool = setting(
        "go on from the starting weights gently, by other defaults: adamw, a low lr, layer_decay 0.7, frozen 2, a "
        "tenth of the epochs as warm-up, 10 minutes",
        False,
    )
    layer_decay: Chosen[float] = setting(
        "factor on the learning rate for each layer of the encoder further from the projector. Default: 1",
        at_least=0,
        at_most=10,
    )
    frozen: Chosen[int] = setting(
        "first stages of the encoder that stay as they are: stem, stages or blocks. Default: 0", at_least=0
    )
    mean: list[float] | None = setting(
        "of the channels in 0..1, to normalise images by. Default: that of the starting weights where they have one, "
        "else that of the images"
    )
    std: list[float] | None = setting("likewise")
    image_size: Chosen[int] = setting(
        "pixels; images are resized to it. Default: their own up to 96 px, else what the time allows",
        at_least=2,
        at_most=LARGEST_IMAGE,
    )
    crop_size: Chosen[int] = setting(
        "pixels of a view that is not small; below the image size, training is faster and crops lose less. "
        "Default: two thirds of the image size where that is chosen, three quarters of 32 to 48 px, else all of it",
        at_least=2,
        at_most=LARGEST_IMAGE,
    )
    channels: Chosen[int] = setting(
        "1 or 3, or the number that the files have. Default: 1 where all pictures are grey, else what most have",
        at_least=1,
    )
    value_range: list[float] | Literal["full", "uint8"] | None = setting(
        "what stands for black and white in images of more than 8 bits: LOW HIGH, such a pair for each channel, 'full' "
        "(that of their type) or 'uint8' (make 8 bits of them). Default: 0.5 and 99.5 percentiles of each channel"
    )
    show_channels: list[int] | None = setting(
        "channels that pictures of the images show, one or three, counted from 1. Default: the first three"
    )
    split: str | None = setting("part of the data to train on. Default: 'train' where there is one, else everything")
    limit: int | None = setting("train on a random sample of so many images, drawn by the seed", at_least=1)
    views: Any = setting(
        "a preset for a kind of images (`nearfar views` lists them), or names of distributions joined by '+'; in "
        "Python also a ViewPlan or a callable on uint8 batches. "
        "Default: the method's, fitted to the images",
    )
    held_out: Chosen[int] = setting(
        "images held out to measure health on, without labels. Default: a tenth, at most 512", at_least=0
    )
    minutes: float | None = setting(
        "time for the whole run: what is not given of encoder, image size, precision and epochs is chosen to fit. "
        "Default: 30, unless epochs or a paper's recipe are given",
        at_least=0.1,
        at_most=10**6,
    )
    epochs: Chosen[float] = setting(
        "passes over the images. Default: as many as fit into the minutes", at_least=1e-6, at_most=10**9
    )
    batch_size: Chosen[int] = setting(
        "images in a batch, over all processes. Default: the recipe's, as for all below that are not set", at_least=1
    )
    micro_batch: int | Literal["auto"] | None = setting(
        "images in memory at a time, with the exact gradient of the batch; 'auto' finds a size that fits", at_least=1
    )
    optimizer: Chosen[Literal["sgd", "adam", "adamw", "lars", "larc", "larc-clip", "muon"]] = setting(
        "'sgd', 'adam', 'adamw', 'lars', 'larc' (as apex has it), 'larc-clip' or 'muon'"
    )
    lr: Chosen[float] = setting(
        "highest learning rate, taken as it is. Default: the recipe's, scaled to the batch", at_least=0
    )
    final_lr: Chosen[float] = setting("last learning rate as a share of the highest", at_least=0)
    lr_drops: Chosen[list[float]] = setting(
        "epochs at which the learning rate falls, in place of a cosine. Default: none, or the recipe's"
    )
    lr_drop: float | None = setting("share of the learning rate left after each drop", at_least=1e-12, at_most=1)
    vector_lr: Chosen[float] = setting("factor on the learning rate of biases and norms", at_least=0)
    weight_decay: Chosen[float] = setting("weight decay, omitted for biases and norms", at_least=0)
    decay_all: Chosen[bool] = setting("let biases and norms decay too")
    warmup_epochs: Chosen[float] = setting("epochs of linear warm-up", at_least=0)
    warmup_start: float | None = setting(
        "learning rate at which the warm-up starts, as a share of the highest", at_least=0, at_most=1
    )
    clip_gradient: float | None = setting("largest norm of the gradient", at_least=1e-12)
    precision: Precision = setting(
        "'32-true', 'bf16-mixed', '16-mixed', or 'auto': the faster of the first two", "auto"
    )
    accelerator: str = setting("'auto', 'cpu' or 'cuda'", "auto")
    devices: Chosen[int] = setting(
        "processes, one for each device. Default: 1, or all that torchrun started", at_least=1
    )
    threads: Chosen[int] = setting(
        "CPU threads of each process, the same to the end, as other numbers change the last digits of the gradient. "
        "Default: the fastest number when the run begins, or OMP_NUM_THREADS",
        at_least=1,
        at_most=1024,
    )
    sync_batch_norm: Chosen[bool] = setting("batch statistics over all processes")
    seed: int = setting("of weights, batches and views", 0, at_least=0, at_most=LARGEST_SEED)
    log_every: int = setting("steps between lines of metrics.jsonl", 10, at_least=1)
    health_every: Chosen[int] = setting(
        "epochs between measurements of health. Default: about twenty in a run", at_least=1
    )
    tensorboard: bool = setting("also write tensorboard event files", False)
    cache: bool = setting(
        "keep decoded images on disk; without, and beyond 8 GiB, workers decode and crop them again in each epoch", True
    )
    workers: int = setting("processes that do so, or that read a stream", 2, at_least=0, at_most=1000)
    stream: bool = setting(
        "read tars in passing, without a cache, for data larger than the disk; the first images are held out and "
        "shown. Only for methods that keep nothing for each image (docs/sources.md)",
        False,
    )
    steps_per_epoch: int | None = setting("of a stream. Default: as many as one pass over it has", at_least=1)
    stream_buffer: int = setting("images that each worker of a stream holds and shuffles at a time", 1024, at_least=1)

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for one in settings_fields():
            if one.name not in (*OBJECTS, "hyperparameters"):
                check_value(one, hints[one.name], getattr(self, one.name))
        if taken := SETTINGS & self.hyperparameters.keys():
            raise ValueError(f"a method's number is called {' and '.join(sorted(taken))}, like a setting: rename it")

    def given(self, name: str) -> Any:
        """Return a setting that may be an object; raises ValueError where a file only describes it."""
        value = getattr(self, name)
        if isinstance(value, Described):
            raise ValueError(
                f"the {name} of this run was an object of your own ({value.words}), which no file holds: "
                f"give it again, {name}=..."
            )
        return value

    def save(self, path: Path) -> None:
        """Write the settings as YAML that `nearfar pretrain --config` runs again.

        What a file cannot hold must be `Described` by now, as it is in the settings of a `Job`.
        """
        values = {one.name: written(getattr(self, one.name)) for one in settings_fields()}
        values |= {name: written(value) for name, value in values.pop("hyperparameters").items()}
        with replacing(path) as unfinished:
            unfinished.write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Settings:
        """Read settings written by `save`; raises ValueError where the file is not such a one."""
        if not path.is_file():
            raise FileNotFoundError(f"{path.parent} is not a run folder: it holds no {path.name}")
        values = read_yaml(path)
        if "method" not in values:
            raise ValueError(f"{path} does not hold the settings of a run")
        names = [one.name for one in settings_fields() if one.name != "hyperparameters"]
        try:
            own = {name: read_value(name, values.pop(name)) for name in names if name in values}
            numbers = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
            return cls(**own, hyperparameters=numbers)
        except ValueError as error:
            raise ValueError(f"{path}: {first_line(error)}") from error

    @property
    def reading(self) -> dict[str, Any]:
        """How the images of a run are opened, and others that its encoder sees: options of `open_images`."""
        names = ("image_size", "channels", "value_range", "show_channels")
        return {name: getattr(self, name) for name in names}

    def unchosen(self) -> list[str]:
        """List the settings that `pretrain` has yet to choose."""
        hints = get_type_hints(type(self), include_extras=True)
        chosen = [name for name, hint in hints.items() if CHOSEN in getattr(hint, "__metadata__", ())]
        return [name for name in chosen if getattr(self, name) is None]


def settings_fields() -> list[Field[Any]]:
    """The settings in order, each with its documentation in `metadata["meaning"]`."""
    return [one for one in fields(Settings) if one.init]
