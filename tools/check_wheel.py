"""Build the sdist and the wheel, install each into its own environment and run the demo there: `make wheel`.

    python -m tools.check_wheel [--whole] [--minutes N]

The environments reuse the packages of this one, except nearfar, so nothing is downloaded; `--whole` installs all
packages, 5 GB for each. The command checks that two builds have the same bytes, that each archive holds every file
of src, and the wheel nothing else but its metadata and its bill of materials, that `pip check` finds all requirements, and that `nearfar doctor` and `nearfar demo` succeed in a folder without
the sources. The archives remain in dist/.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BORROWED = "borrowed.pth"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--whole", action="store_true", help="install all requirements, instead of borrowing them"
    )
    parser.add_argument(
        "--minutes", help="of training in the demo, where the whole of it takes too long"
    )
    given = parser.parse_args()
    demo = ["demo", "--minutes", given.minutes] if given.minutes else ["demo"]
    with tempfile.TemporaryDirectory(prefix="nearfar-wheel-") as scratch:
        place = Path(scratch)
        archives = build(place / "dist")
        check_same(archives, build(place / "again"))
        check_contents(archives)
        check_bill(archives)
        for archive in archives:
            try_out(archive, place / archive.suffix.lstrip("."), demo, given.whole)
        (ROOT / "dist").mkdir(exist_ok=True)
        for archive in archives:
            archive.replace(ROOT / "dist" / archive.name)
            print(f"dist/{archive.name} passes")


def build(folder: Path) -> list[Path]:
    """Build the sdist and, from it, the wheel, with the build tools of this environment."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return sorted(folder.iterdir())


def check_same(archives: list[Path], others: list[Path]) -> None:
    """Raise SystemExit where two builds differ in any byte."""
    for first, second in zip(archives, others, strict=True):
        if first.read_bytes() != second.read_bytes():
            raise SystemExit(f"two builds of {first.name} differ")


def check_bill(archives: list[Path]) -> None:
    """Raise SystemExit where a wheel has no bill of materials."""
    for archive in archives:
        if archive.suffix == ".whl":
            names = zipfile.ZipFile(archive).namelist()
            if not any(name.endswith(".dist-info/sboms/sbom.cdx.json") for name in names):
                raise SystemExit(f"{archive.name} has no bill of materials")


def check_contents(archives: list[Path]) -> None:
    """Raise SystemExit where the wheel or the sdist lacks a file of the package, or the wheel holds
    anything else.
    """
    tracked = subprocess.run(
        ["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    sources = {name.removeprefix("src/") for name in tracked.splitlines()}
    for archive in archives:
        if archive.suffix == ".whl":
            listed = zipfile.ZipFile(archive).namelist()
            names = {name for name in listed if ".dist-info/" not in name}
        else:
            with tarfile.open(archive) as tar:
                names = {name.partition("/src/")[2] for name in tar.getnames() if "/src/" in name}
                names = {name for name in names if Path(name).suffix}
        if names != sources:
            raise SystemExit(f"{archive.name} is not src/: {sorted(names ^ sources)}")


def try_out(archive: Path, folder: Path, demo: list[str], whole: bool) -> None:
    """Install an archive into a new environment and run nearfar there, with the words of a demo."""
    environment, work = folder / "environment", folder / "work"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    binaries = environment / ("Scripts" if os.name == "nt" else "bin")
    python = next(binaries.glob("python*"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    if whole:
        run(*pip, "install", "-q", archive)
    else:
        site = next(environment.glob("**/site-packages"))
        (site / BORROWED).write_text(sysconfig.get_path("purelib") + "\n")
        run(
            *pip,
            "install",
            "-q",
            "--no-deps",
            "--ignore-installed",
            "--no-index",
            "--no-build-isolation",
            archive,
        )
    run(*pip, "check")
    work.mkdir()
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"XDG_CACHE_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    where = "import nearfar, sys; sys.exit(not nearfar.__file__.startswith(sys.prefix))"
    run(python, "-c", where, cwd=work, env=variables)
    run(binaries / "nearfar", "doctor", cwd=work, env=variables)
    run(binaries / "nearfar", *demo, cwd=work, env=variables)
    run(
        binaries / "nearfar", "reproduce", cwd=work, env=variables
    )  # reads the papers, which are YAML


def run(*words: str | Path, **options: object) -> None:
    """Run a command, shown first; ends this one where it fails."""
    print("$", *words, flush=True)
    if code := subprocess.run([str(word) for word in words], **options).returncode:  # type: ignore[call-overload]
        raise SystemExit(code)


if __name__ == "__main__":
    main()
