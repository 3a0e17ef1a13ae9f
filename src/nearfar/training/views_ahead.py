"""Parameters of the views of several steps, sampled at once and ahead of them, for the kernel of
the views.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from nearfar.device import send
from nearfar.training.seeding import stream
from nearfar.views import SampledViews, ViewPlan, pack_views, sample_views

STEPS, IMAGES = 8, 2**13
"""Steps that are sampled at once, and their images, at most, but for one step."""


class ViewsAhead:
    """The parameters of every step's views, as one table for several steps.

    `prepare` samples them, in the thread that gathers batches; `take` gives those of one step, and
    sends a table to the device when the first of its steps is taken. A step's numbers depend on the
    seed and the step alone.

    batch: images of a step in all processes, of which `rows` are this one's. sizes: height and
    width of the images that each view is cut from, or, if `is_cropped`, is already.
    """

    def __init__(
        self,
        plan: ViewPlan,
        seed: int,
        batch: int,
        rows: slice,
        sizes: list[tuple[int, int]],
        device: torch.device,
        *,
        is_cropped: bool,
        pin: bool,
    ) -> None:
        self.plan, self.seed, self.batch, self.rows = plan, seed, batch, rows
        self.sizes, self.is_cropped = sizes, is_cropped
        self.device, self.pin = device, pin
        self.steps = max(1, min(STEPS, IMAGES // batch))
        self._sampled: dict[int, SampledViews] = {}  # by the first of their steps

    def prepare(self, step: int) -> None:
        """Sample this step and some that follow, unless it is sampled already."""
        if self._first(step) is not None:
            return
        generators = [
            stream(self.seed, "views", number) for number in range(step, step + self.steps)
        ]
        sampled = sample_views(
            self.plan, generators, self.batch, self.sizes, self.rows, is_cropped=self.is_cropped
        )
        table = pack_views(sampled)
        self._sampled[step] = replace(sampled, table=table.pin_memory() if self.pin else table)

    def take(self, step: int) -> SampledViews:
        """Return the parameters of one step, its table on the device; earlier steps are dropped."""
        self.prepare(step)
        first = self._first(step)
        assert first is not None
        for earlier in [number for number in self._sampled if number < first]:
            del self._sampled[earlier]
        sampled = self._sampled[first]
        if sampled.table is not None and sampled.table.device.type != self.device.type:
            sampled = replace(sampled, table=send(sampled.table, self.device))
            self._sampled[first] = sampled
        own = self.rows.stop - self.rows.start
        return sampled[(step - first) * own : (step - first + 1) * own]

    def _first(self, step: int) -> int | None:
        """The first of the steps that were sampled with this one, if it was."""
        near = [first for first in list(self._sampled) if first <= step < first + self.steps]
        return near[0] if near else None
