"""skipped.txt: images that turn out to be unreadable while a stream is read, each once."""

from __future__ import annotations

from pathlib import Path

from nearfar.atomic import told_clearly

FILE = "skipped.txt"


class SkippedImages:
    """Adds the images that it is called with to those that are listed in the folder of a run."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.known = set(self.path.read_text(encoding="utf-8").splitlines()) if self.path.is_file() else set()

    def __call__(self, name: str, reason: str) -> None:
        """Add a line, unless it is there."""
        line = f"{name}\t{reason}"
        if line not in self.known:
            self.known.add(line)
            with told_clearly(self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
