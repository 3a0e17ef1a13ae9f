"""The rules of the house: who imports whom, what is public, where the special libraries are known."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import nearfar
from nearfar.methods import method_class, method_names

SOURCE = Path(nearfar.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

MAY_IMPORT = {
    "pairs": set(),
    "views": set(),
    "networks": {"views"},
    "data": {"views"},
    "losses": {"pairs"},
    "methods": {"losses", "views", "networks"},
    "training": {"methods", "data", "losses", "views", "networks", "pairs"},
    "neighbours": {"pairs", "networks", "data"},
    "evaluation": {"neighbours", "networks", "data", "losses", "views"},
    "maps": {"pairs", "views", "networks", "data", "losses", "neighbours", "evaluation"},
    "papers": set(),
    "pages": {"views", "data", "evaluation", "maps", "training"},
}
MAY_IMPORT["commands"] = set(MAY_IMPORT)  # all above
ADAPTERS = {"sklearn": {*MAY_IMPORT["commands"], "commands"}, "timm": {"networks"}}  # at the root, for other libraries
ANYWHERE = {"allocator", "atomic", "docstrings", "messages", "threads", "yaml_files"}  # know nothing of nearfar
ROOTS = {"__init__", "__main__", "cli", *ANYWHERE}


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


def room_of(path: Path) -> str:
    """The folder of a file, or the name of a file at the root."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def id_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_every_file_is_in_a_room():
    assert {room_of(path) for path in FILES} == set(MAY_IMPORT) | set(ADAPTERS) | ROOTS


@pytest.mark.parametrize("path", [p for p in FILES if room_of(p) in MAY_IMPORT | ADAPTERS], ids=id_of)
def test_a_room_imports_only_what_it_may(path):
    room = room_of(path)
    used = {name.split(".")[1] for name in imported(path) if name.startswith("nearfar.")}
    assert used <= (MAY_IMPORT | ADAPTERS)[room] | ANYWHERE | {room, "__version__"}


def test_the_rules_have_no_circle():
    order = list(MAY_IMPORT)
    assert all(order.index(other) < order.index(room) for room, others in MAY_IMPORT.items() for other in others)


@pytest.mark.parametrize("name", sorted(ANYWHERE))
def test_what_may_be_imported_anywhere_imports_nothing(name):
    assert not [module for module in imported(SOURCE / f"{name}.py") if module.startswith("nearfar")]


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("lightning_fabric", {"training"}),
        ("torch.distributed", {"training", "pairs"}),
        ("matplotlib", {"maps", "papers"}),
        ("rich", {"commands", "training", "cli", "sklearn"}),
        ("cyclopts", {"commands", "cli"}),
        ("timm", {"networks"}),
        ("datasets", {"data"}),
        ("jinja2", {"pages"}),
    ],
)
def test_a_library_is_known_only_where_it_belongs(library, homes):
    found = {path for path in FILES if any(n == library or n.startswith(library + ".") for n in imported(path))}
    assert found, f"nothing imports {library}; drop it"
    assert {room_of(path) for path in found} <= homes


def test_no_method_imports_another():
    families = {cls.__module__ for cls in map(method_class, method_names())}
    assert len(families) > 5
    for family in families:
        path = SOURCE.parent / f"{family.replace('.', '/')}.py"
        assert not imported(path) & families, path.name


def test_no_grab_bags_and_no_long_files():
    assert not {path.stem for path in FILES} & {"utils", "util", "helpers", "common", "misc"}
    long = {id_of(path): n for path in FILES if (n := len(path.read_text().splitlines())) > 450}
    assert not long


def test_public_names():
    verbs = ["cluster_images", "doctor", "embed", "evaluate", "export", "find_duplicates", "list_methods", "load"]
    verbs += ["map_images", "pretrain", "push", "reproduce", "resume", "run_demo", "search_images", "select_images"]
    verbs += ["show_views"]
    others = ["ProcessLost", "Run", "TrainingDiverged", "TrainingStopped", "__version__", "register_method"]
    assert sorted(nearfar.__all__) == sorted(verbs + others)
    assert all(hasattr(nearfar, name) for name in nearfar.__all__)


def test_no_public_name_shadows_a_module_or_a_builtin():
    """`import nearfar.methods` gives the module, and `from nearfar import *` takes no builtin away."""
    packages = [nearfar, *(importlib.import_module(f"nearfar.{room}") for room in MAY_IMPORT)]
    for package in packages:
        modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
        assert not modules & set(getattr(package, "__all__", [])), package.__name__
    builtins = importlib.import_module("builtins")
    assert not [name for name in nearfar.__all__ if hasattr(builtins, name) and not name.startswith("__")]


HEAVY = ["timm", "torchvision", "sklearn", "matplotlib", "lightning_fabric", "datasets", "cyclopts", "rich"]


@pytest.mark.parametrize(
    ("statement", "spared"),
    [
        ("import nearfar", ["torch", *HEAVY]),
        ("import nearfar.losses", HEAVY),
        ("from nearfar.cli import main; main(['--help'])", ["torch", "yaml", "numpy", *HEAVY[:-2]]),
    ],
)
def test_what_an_import_does_not_cost(statement, spared):
    script = f"{statement}\nimport sys\nassert not set({spared}) & set(sys.modules), set({spared}) & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_public_losses():
    import nearfar.losses

    names = "BarlowTwins DCL ISogCLR JCL LORAC MoCo MoCoV3 NNCLR NegativeCosine ReSSL SACLR SCE SigCLR SimCLR SogCLR"
    assert sorted(nearfar.losses.__all__) == sorted([*names.split(), "SwAV", "VICReg", "WMSE", "gather_rows"])
