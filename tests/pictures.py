"""Images for tests: random, encoded, and packed into tars."""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def noise(number: int, size: int = 8) -> np.ndarray:
    """Random colours of that number."""
    return np.random.default_rng(number).integers(0, 256, (size, size, 3), dtype=np.uint8)


def encoded(image: Image.Image | np.ndarray, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, form, **options)
    return file.getvalue()


def png(number: int, size: int = 8) -> bytes:
    return encoded(noise(number, size))


def tar(path: Path, members: Iterable[tuple[str, bytes] | tarfile.TarInfo], form: int = tarfile.PAX_FORMAT) -> None:
    """Write members by name and content; a TarInfo in place of a pair is written as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as file:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                file.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            file.addfile(info, io.BytesIO(member[1]))
