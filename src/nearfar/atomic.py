"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`, and move what was written there to `path` in one step.

    The temporary file keeps the ending of `path`. After an error it is removed and `path` is as it was before.
    """
    path = Path(path)
    unfinished = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        yield unfinished
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
