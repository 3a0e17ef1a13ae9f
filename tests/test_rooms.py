"""The rules of the house: who imports whom, what is public, where the special libraries are known."""

import ast
from pathlib import Path

import pytest

import nearfar

SOURCE = Path(nearfar.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

ROOMS = ["pairs", "views", "networks", "data", "losses", "methods", "training", "evaluation", "maps", "commands"]
MAY_IMPORT = {
    "pairs": set(),
    "views": set(),
    "networks": {"views"},
    "data": {"views"},
    "losses": {"pairs"},
    "methods": {"losses", "views", "networks"},
    "training": {"methods", "data", "losses", "views", "networks", "pairs"},
    "evaluation": {"views", "networks", "data", "losses"},
    "maps": {"networks", "data", "losses"},
    "commands": {"views", "networks", "data", "methods", "training", "evaluation", "maps"},
}
ANYWHERE = {"atomic", "messages"}  # single files that any room may import


def imported(path: Path) -> set[str]:
    """Names of all modules that a file imports, absolute."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def room_of(path: Path) -> str | None:
    first = path.relative_to(SOURCE).parts[0]
    return first if first in ROOMS else None


def id_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", [p for p in FILES if room_of(p)], ids=id_of)
def test_a_room_imports_only_what_it_may(path):
    room = room_of(path)
    used = {name.split(".")[1] for name in imported(path) if name.startswith("nearfar.")}
    assert used <= MAY_IMPORT[room] | {room} | ANYWHERE


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("lightning_fabric", {"training"}),
        ("torch.distributed", {"training", "pairs"}),
        ("matplotlib", {"maps", "commands"}),
        ("timm", {"networks"}),
        ("datasets", {"data"}),
    ],
)
def test_a_library_is_known_only_where_it_belongs(library, homes):
    found = {path for path in FILES if any(n == library or n.startswith(library + ".") for n in imported(path))}
    assert found, f"nothing imports {library}; drop it"
    assert {room_of(path) for path in found} <= homes
    if library == "matplotlib":
        assert {path.name for path in found if room_of(path) is None} <= {"report.py"}


def test_no_method_imports_another():
    networks = {"method", "model", "recipe", "schedules", "__init__"}
    for path in (SOURCE / "methods").glob("*.py"):
        others = {name.split(".")[2] for name in imported(path) if name.startswith("nearfar.methods.")}
        if path.stem != "__init__":
            assert others <= networks | {path.stem}, path.name


def test_no_grab_bags_and_no_long_files():
    assert not {path.stem for path in FILES} & {"utils", "util", "helpers", "common", "misc"}
    long = {id_of(path): n for path in FILES if (n := len(path.read_text().splitlines())) > 300}
    assert not long


def test_public_names():
    assert sorted(nearfar.__all__) == [
        "ProcessLost",
        "Run",
        "TrainingDiverged",
        "TrainingStopped",
        "__version__",
        "demo",
        "embed",
        "evaluate",
        "load",
        "map",
        "methods",
        "pretrain",
    ]
    assert all(hasattr(nearfar, name) for name in nearfar.__all__)


def test_public_losses():
    import nearfar.losses

    names = "BarlowTwins DCL ISogCLR JCL LORAC MoCo MoCoV3 NNCLR NegativeCosine ReSSL SACLR SCE SigCLR SimCLR SogCLR"
    assert sorted(nearfar.losses.__all__) == sorted([*names.split(), "SwAV", "VICReg", "WMSE"])
