"""metrics.jsonl: one JSON object for each log step, appended as training goes."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any

from nearfar.atomic import replacing, told_clearly
from nearfar.training.checkpoint import check_unmoved


class MetricsLog:
    """Appends lines to metrics.jsonl and, where asked for, scalars to tensorboard event files beside it."""

    def __init__(self, folder: Path, resume_step: int = -1, tensorboard: bool = False, writes: bool = True) -> None:
        """resume_step: drop what an earlier process logged after this step, so that it is logged again, once; all by
        default.

        writes: False on all processes but the first, whose log this is.
        """
        self.path, self.writes = folder / "metrics.jsonl", writes
        self.writer: Any = None
        if not writes:
            return
        self.home = folder.stat()
        kept = [line for line in read_metrics(folder) if line["step"] <= resume_step]
        with replacing(self.path) as unfinished:
            unfinished.write_text("".join(json.dumps(line) + "\n" for line in kept))
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=max(0, resume_step))

    def write(self, step: int, **values: Any) -> None:
        """Append one line; nested numbers are allowed and become name/inner in tensorboard.

        Raises NotWrittenError where the folder is no longer there.
        """
        if not self.writes:
            return
        check_unmoved(self.path.parent, self.home)
        with told_clearly(self.path), self.path.open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        if self.writer is not None:
            for name, value in values.items():
                inner = value.items() if isinstance(value, dict) else [(None, value)]
                for key, number in inner:
                    if isinstance(number, (int, float)):
                        self.writer.add_scalar(name if key is None else f"{name}/{key}", number, step)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.writer is not None:
            self.writer.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.jsonl; a last line that was cut off is left out, and what is no such line."""
    path = folder / "metrics.jsonl"
    lines: list[dict[str, Any]] = []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else []:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            break
        if isinstance(values, dict) and isinstance(values.get("step"), int):
            lines.append(values)
    return lines
