"""Try nearfar with other versions of Python and torch; run it by hand, as each torch is a download of some 5 GB.

    python -m tools.try_versions --python python3.11 --torch 2.8.0 lowest
    python -m tools.try_versions --python python3.11 python3.12 python3.13

Each Python compiles all files of nearfar. With --torch it also gets an environment with that version (or "newest") and
matching versions of the other packages, and runs a short set of tests; "lowest" is constraints-lowest.txt.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMPILES = """
import pathlib, sys
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    compile(path.read_text(encoding="utf-8"), str(path), "exec")
print("Python", sys.version.split()[0], "compiles all files")
"""
TESTS = [
    "tests/losses",
    "tests/pairs",
    "tests/networks",
    "tests/training",
    "tests/commands/test_verbs.py",
    "tests/commands/test_map.py",
    "tests/data/test_wide.py",
    "tests/test_docstrings.py",
    "tests/test_rooms.py",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters")
    parser.add_argument(
        "--torch", nargs="+", default=[], help='versions, such as 2.8.0, "newest" or "lowest"'
    )
    parser.add_argument(
        "--folder", type=Path, help="where the environments are kept; by default they are removed"
    )
    given = parser.parse_args()
    failed = []
    for python in given.python:
        subprocess.run([python, "-c", COMPILES, str(ROOT / "src")], check=True)
        for version in given.torch:
            with tempfile.TemporaryDirectory(prefix="nearfar-versions-") as scratch:
                if not passes(
                    python,
                    version,
                    (given.folder or Path(scratch)) / f"{Path(python).name}-{version}",
                ):
                    failed.append(f"{python} with torch {version}")
    raise SystemExit(f"failed: {', '.join(failed)}" if failed else 0)


def passes(python: str, version: str, folder: Path) -> bool:
    """Return whether the tests pass in a new environment with that version of torch."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", folder], check=True)
    torch = "torch" if version in ("newest", "lowest") else f"torch=={version}"
    wanted: list[str | Path] = [torch, "-e", f"{ROOT}[test]"]
    if version == "lowest":  # the tools of the tests need newer packages
        wanted = ["-c", ROOT / "constraints-lowest.txt", ROOT, "pytest", "beartype"]
    pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *wanted], check=True)
    shown = (
        "import sys, torch, torchvision; print(sys.version.split()[0], "
        "torch.__version__, torchvision.__version__)"
    )
    subprocess.run([folder / "bin" / "python", "-c", shown], check=True)
    return (
        subprocess.run(
            [folder / "bin" / "python", "-m", "pytest", "-m", "not torture", "-x", *TESTS], cwd=ROOT
        ).returncode
        == 0
    )


if __name__ == "__main__":
    main()
