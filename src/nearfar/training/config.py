"""The resolved settings of a run: what is saved, and what is run again."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

Precision = Literal["32-true", "16-mixed", "bf16-mixed"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Every setting of a pretraining run, with nothing left to be chosen; `nearfar.pretrain` documents each."""

    data: str
    out: str
    method: str
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    recipe: str = "small"
    encoder: str
    init: str | None = None
    image_size: int
    channels: int
    split: str | None = None
    limit: int | None = None
    views: str
    held_out: int
    epochs: int
    batch_size: int
    micro_batch: int | Literal["auto"] | None = None
    optimizer: str
    lr: float
    final_lr: float = 0.0
    weight_decay: float
    warmup_epochs: float
    clip_gradient: float | None = None
    precision: Precision = "32-true"
    accelerator: str = "auto"
    devices: int = 1
    sync_batch_norm: bool = False
    seed: int = 0
    log_every: int = 10
    health_every: int = 1
    tensorboard: bool = False
    cache: bool = True
    workers: int = 2

    def save(self, path: Path) -> None:
        """Write the settings as YAML that `nearfar pretrain --config` runs again."""
        settings = asdict(self)
        settings |= {name: _plain(value) for name, value in settings.pop("hyperparameters").items()}
        path.write_text(yaml.safe_dump(settings, sort_keys=False))

    @classmethod
    def load(cls, path: Path) -> Config:
        """Read settings written by `save`; raises ValueError where the file is not such a one."""
        if not path.is_file():
            raise FileNotFoundError(f"{path.parent} is not a run folder: it holds no {path.name}")
        settings = yaml.safe_load(path.read_text())
        if not isinstance(settings, dict) or "method" not in settings:
            raise ValueError(f"{path} does not hold the settings of a run")
        own = {name: settings.pop(name) for name in list(settings) if name in cls.__dataclass_fields__}
        return cls(**own, hyperparameters={name: _tuples(value) for name, value in settings.items()})


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
