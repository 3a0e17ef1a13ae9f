"""Feature sets of the evaluation's tests, and the papers, each read once."""

import functools

import pytest

from nearfar_papers.paper import read_paper
from tests.evaluation.conftest import clouds as clouds

paper = functools.cache(read_paper)


@pytest.fixture(scope="module", autouse=True)
def installed(papers_installed):
    """The commands of nearfar_papers are there."""
