"""Every kind of source opens as it did when tests/goldens/sources.json was written.

`python -m tests.goldens.test_sources` writes it anew; a change of it belongs into the changelog.
"""

import json
import logging
import tempfile
from pathlib import Path

import pytest

from tests.goldens.sources import BUILDERS, described

KEPT = Path(__file__).with_name("sources.json")


@pytest.mark.parametrize("name", BUILDERS)
def test_a_source_opens_as_it_did(name, tmp_path):
    assert json.loads(json.dumps(described(name, tmp_path / "source"))) == json.loads(KEPT.read_text())[name]


if __name__ == "__main__":
    logging.disable()
    with tempfile.TemporaryDirectory() as scratch:
        found = {name: described(name, Path(scratch, name, "source")) for name in BUILDERS}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in found.items())
    KEPT.write_text(f"{{\n{lines}\n}}\n")
