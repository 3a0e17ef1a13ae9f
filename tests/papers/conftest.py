"""Feature sets of the evaluation's tests, and the papers, each read once."""

import contextlib
import functools
import io
import json
import subprocess

import pytest

from nearfar.cli import main
from nearfar_papers import runs
from nearfar_papers.paper import read_paper
from tests.evaluation.conftest import clouds as clouds

paper = functools.cache(read_paper)


@pytest.fixture(scope="module", autouse=True)
def installed(papers_installed):
    """The commands of nearfar_papers are there."""


@pytest.fixture
def in_this_process(monkeypatch):
    """`reproduce` runs its commands here, one after another: a process takes seconds to start."""

    def run(self, words, environment, log_file):
        assert list(words[:2]) == ["-m", "nearfar"]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            code = main(words[2:])
        if code:
            raise subprocess.CalledProcessError(code, words)
        return json.loads(printed.getvalue())

    monkeypatch.setattr(runs._Commands, "run", run)
