import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import re
import nearfar
from nearfar.training.memory import use_huge_pages

use_huge_pages()
import torch

kept = torch.zeros(64 << 20, dtype=torch.uint8)
kept += 1
start = kept.data_ptr() + (32 << 20)
with open("/proc/self/smaps") as maps:
    for line in maps:
        if place := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(place[1], 16) <= start < int(place[2], 16)
        elif inside and line.startswith("VmFlags"):
            print("advised" if "hg" in line.split() else "plain")
"""


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no huge pages here")
@pytest.mark.parametrize(("setting", "found"), [({}, "advised"), ({"THP_MEM_ALLOC_ENABLE": "0"}, "plain")])
def test_huge_pages_are_asked_for_after_our_imports(setting, found, monkeypatch):
    """The kernel's own list of mappings says whether the memory of a tensor was marked; the user's 0 is kept."""
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == [found], done.stderr
