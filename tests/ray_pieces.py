"""Pieces of work for tests/test_ray.py, apart from it: a worker that starts loads this file alone."""

import os
import signal

import numpy as np


def squared(number):
    return {"square": np.array([number**2])}


def squared_and_killed(folder, number):
    """Kills its worker the first time that it is asked for a multiple of three."""
    mark = folder / str(number)
    if number % 3 == 0 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return squared(number)


def reciprocal(number):
    return 1 / number
