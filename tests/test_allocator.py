"""Memory of large tensors: huge pages asked for, freed memory used again, and the user's own
settings kept.
"""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import re
import nearfar
from nearfar.allocator import reuse_memory

reuse_memory()
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


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no huge pages here"
)
@pytest.mark.parametrize(
    ("setting", "expected"), [({}, "advised"), ({"THP_MEM_ALLOC_ENABLE": "0"}, "plain")]
)
def test_huge_pages_are_asked_for_after_our_imports(setting, expected, monkeypatch):
    """The kernel's own list of mappings says whether the memory of a tensor was marked; the user's
    0 is kept.
    """
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == [expected], done.stderr


REPEATED = """
import resource
import nearfar
from nearfar.allocator import reuse_memory

reuse_memory()
import torch

def three():
    made = [torch.ones(3 << 20) for _ in range(3)]  # 12 MiB each

three()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    three()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")
@pytest.mark.parametrize(("setting", "kept"), [(None, True), ("65536", False)])
def test_freed_memory_is_used_again(setting, kept, monkeypatch):
    """36 MiB made and freed over and over: few pages are asked for again, unless the user wants
    memory given back.
    """
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")  # so that pages are counted in 4 KiB
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
        if setting:
            monkeypatch.setenv(name, setting)
    done = subprocess.run(
        [sys.executable, "-c", REPEATED], capture_output=True, text=True, timeout=120
    )
    share = int(done.stdout) / (20 * 36 * 256)  # of the pages of 20 times 36 MiB
    assert share < 0.4 if kept else share > 0.8, done.stderr
