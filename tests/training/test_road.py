"""The road from the settings of a run to its first step is short."""

import sys
from pathlib import Path

import pytest

import nearfar
from nearfar.training.facts import Facts
from nearfar.training.job import Job
from nearfar.training.model_size import ModelChoice
from nearfar.training.plan import Plan
from nearfar.training.request import Request
from nearfar.training.settings import Settings
from nearfar.training.step import GradientStep

SOURCE = f"{Path(nearfar.__file__).parent}/"
CARRIERS = (Settings, Request, Facts, ModelChoice, Plan, Job)


class Road:
    """Functions that get the settings, or what is made of them, as an argument, each once, in the
    order in which they run, up to the first step.

    Methods of these objects are no stations, nor are functions inside functions.
    """

    def __init__(self):
        self.top = {"file": None, "hands_on": None, "calls": []}  # None: it runs still
        self.open, self.seen = [(None, self.top)], set()

    def __call__(self, frame, event, result):
        code = frame.f_code
        if not code.co_filename.startswith(SOURCE) or code.co_name.startswith("<"):
            return
        if event == "call":
            self.open.append((code, self.station(frame)))
            if code.co_qualname == GradientStep.__call__.__qualname__:
                sys.setprofile(None)
                raise KeyboardInterrupt  # no error handler takes it for its own
        elif event == "return" and self.open[-1][0] is code:
            _, station = self.open.pop()
            if station is not None:
                station["hands_on"] = carries(result)

    def station(self, frame):
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        given = [frame.f_locals.get(name) for name in names if name not in ("self", "cls")]
        begun = self.top["calls"] or code.co_qualname == "pretrain"
        if code in self.seen or not begun or not any(map(carries, given)):
            return None
        self.seen.add(code)
        file = code.co_filename.removeprefix(SOURCE)
        station = {"file": file, "hands_on": None, "calls": []}
        next(above for _, above in reversed(self.open) if above)["calls"].append(station)
        return station

    def stays(self, station=None):
        """Files in the order in which a reader is in them, calls and returns: of functions that
        hand the settings on, or are still running.
        """
        station = station or self.top
        files = [station["file"]]
        for call in station["calls"]:
            if call["hands_on"] is not False:
                files += self.stays(call)
            if call["hands_on"]:
                files.append(station["file"])
        return [file for file, last in zip(files, [None, *files], strict=False) if file != last]


def carries(value):
    """Return whether it is the settings or made of them, or a tuple that holds such."""
    several = value if isinstance(value, tuple) else (value,)
    return any(isinstance(part, CARRIERS) for part in several)


@pytest.mark.usefixtures("known_speed")
def test_from_settings_to_the_first_step_there_are_at_most_30_stays(images_file, tmp_path):
    """A stay is a consecutive time in one file; the plan is entered once."""
    road = Road()
    sys.setprofile(road)
    try:
        with pytest.raises(KeyboardInterrupt):
            nearfar.pretrain(images_file, out=tmp_path / "run", minutes=0.2, threads=1)
    finally:
        sys.setprofile(None)
    stays = [file for file in road.stays() if file is not None]
    assert stays[0] == "commands/pretrain.py" and stays[-1] == "training/loop.py"
    assert len(stays) <= 30, stays
    assert stays.count("training/plan.py") == 1
