"""Generated inputs: few and always the same in the suite, many and new ones by `make properties`."""

import os

import pytest
from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
settings.register_profile(
    "ci",
    max_examples=25,
    stateful_step_count=8,
    derandomize=True,
    deadline=None,
    suppress_health_check=_SLOW,
)
settings.register_profile(
    "hours",
    max_examples=int(os.environ.get("NEARFAR_EXAMPLES", 5000)),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=_SLOW,
    print_blob=True,
)
settings.load_profile(os.environ.get("NEARFAR_PROPERTIES", "ci"))


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    """The cache of decoded images, for the examples of one file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
