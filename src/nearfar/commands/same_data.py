"""The data of a run stays the same: its fingerprint is kept in the folder and compared when the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nearfar.commands.owner import FINGERPRINT
from nearfar.data import Fingerprint, Images, fingerprint_of, fingerprint_of_images
from nearfar.methods import Method


class SameData:
    """Compares the data that a run goes on with to that which it began with.

    Raises ValueError, in one line that says what has changed, unless `changed` lets the run go on with other data; it
    cannot where the method keeps numbers for each image.
    """

    def __init__(self, folder: Path, data: Any, split: str | None, method: Method, changed: bool) -> None:
        self.path, self.method, self.changed = folder / FINGERPRINT, method, changed
        self.now = fingerprint_of(data, split)
        if self.now is not None:
            self._check(self.now)

    def read(self, images: Images) -> Fingerprint:
        """Compare what could only be read with the images; returns the fingerprint of the data as it is now."""
        if self.now is None:
            self._check(now := fingerprint_of_images(images))
            return now
        return self.now

    def _check(self, now: Fingerprint) -> None:
        difference = Fingerprint.load(self.path).difference(now) if self.path.is_file() else ""
        if not difference:
            return
        said = f"the data of this run has changed ({difference})"
        if self.method.setup(now.count or 1).needs_index:
            raise ValueError(
                f"{said}, and its method keeps numbers for each image, which would land on others: "
                "put the data back, or begin a new run"
            )
        if not self.changed:
            raise ValueError(f"{said}: put it back, or go on all the same with --data-changed (data_changed=True)")


def note_data(folder: Path, data: Any, split: str | None, images: Images) -> None:
    """Write the fingerprint of a new run's data into its folder."""
    (fingerprint_of(data, split) or fingerprint_of_images(images)).save(folder / FINGERPRINT)
