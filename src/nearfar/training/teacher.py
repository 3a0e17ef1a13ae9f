"""A teacher's features of the training images, in the run folder: written before the first step,
read by every process, and the same when the run is resumed.
"""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nearfar.atomic import replacing
from nearfar.data import Images
from nearfar.data.table import digest
from nearfar.messages import first_line
from nearfar.methods import Teacher
from nearfar.training.run_folder import TEACHER, content_of
from nearfar.training.settings import Settings


def teacher_of(settings: Settings) -> Teacher | None:
    """Return how a run's teacher enters its loss; None without one."""
    if settings.teacher is None:
        return None
    given = {"weight": settings.teacher_weight, "temperature": settings.teacher_temperature}
    return Teacher(**{name: value for name, value in given.items() if value is not None})


def save_teacher(folder: Path, rows: Float[Tensor, "images dim"], images: Images) -> None:
    """Write unit rows, in the order of the training images, whole or not at all.

    ValueError unless each image has a row, and all are finite.
    """
    if len(rows) != len(images) or not rows.isfinite().all():
        raise ValueError(
            f"a teacher needs a row of finite numbers for each of {len(images)} images"
        )
    about = {"images": _key(images), "content": content_of(rows)}
    with replacing(folder / TEACHER) as unfinished:
        save_file({"rows": rows.contiguous()}, unfinished, metadata=about)


def load_teacher(folder: Path, images: Images) -> Float[Tensor, "images dim"]:
    """Read what `save_teacher` wrote; ValueError for any other file, and for other images."""
    path = folder / TEACHER
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, the teacher's features: start a new run")
    try:
        with safe_open(path, "pt") as file:
            about, rows = file.metadata() or {}, file.get_tensor("rows")
        if rows.ndim != 2 or rows.dtype != torch.float32 or not rows.isfinite().all():
            raise ValueError(f"its rows are {rows.dtype} {list(rows.shape)}, or not finite")
        if about.get("content") != content_of(rows):
            raise ValueError("its content has changed")
    except (OSError, SafetensorError, ValueError, TypeError, RuntimeError) as error:
        why = first_line(error)[:200]
        raise ValueError(f"{path}, the teacher's features, is damaged: {why}") from error
    if about.get("images") != _key(images) or len(rows) != len(images):
        raise ValueError(
            f"{path} holds a teacher's features of other images: restore the data, or start a new "
            "run"
        )
    return rows


def _key(images: Images) -> str:
    """Return a digest of which images these are, and in which order."""
    known = zip(images.names, images.digests, strict=True)
    return digest(f"{name}\0{data_digest or ''}\n".encode() for name, data_digest in known)
