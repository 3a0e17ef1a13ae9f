"""The rules of the house: who imports whom, what is public, where the special libraries are
known.
"""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nearfar
from nearfar.methods import method_class, method_names
from tools.house import PAPERS, SOURCE, circles, imported, nodes, room_of
from tools.wording import compared_texts, count_words

FILES = sorted(SOURCE.rglob("*.py"))
ROOT = SOURCE.parents[1]
CLEAN = (
    SOURCE,
    PAPERS,
    *(ROOT / name for name in ("benchmarks", "examples", "fuzz", "tests", "tools")),
)
"""Folders whose names and docstrings are held to the style of the house."""

MAY_IMPORT = {
    "rendering": set(),
    "triton_kernels": set(),
    "pairs": {"triton_kernels"},
    "views": {"triton_kernels"},
    "networks": {"views"},
    "data": {"views"},
    "ray": {"data"},
    "losses": {"pairs"},
    "testing": set(),
    "methods": {"losses", "views", "networks"},
    "training": {"methods", "data", "losses", "views", "networks", "pairs", "rendering"},
    "neighbours": {"pairs", "views", "data", "networks"},
    "evaluation": {"pairs", "neighbours", "networks", "data", "losses", "views"},
    "maps": {
        "pairs",
        "views",
        "networks",
        "data",
        "losses",
        "training",
        "neighbours",
        "evaluation",
    },
    "run": {"data", "evaluation", "networks", "training"},
    "embeddings": {
        "run",
        "pairs",
        "views",
        "networks",
        "data",
        "training",
        "neighbours",
        "evaluation",
    },
    "pages": {
        "embeddings",
        "maps",
        "run",
        "views",
        "networks",
        "methods",
        "data",
        "training",
        "neighbours",
        "evaluation",
    },
    "tools": {
        "ray",
        "methods",
        "pages",
        "embeddings",
        "maps",
        "run",
        "views",
        "networks",
        "data",
        "training",
        "neighbours",
        "evaluation",
    },
    "app": {"training", "methods", "tools"},
}
MAY_IMPORT["commands"] = set(MAY_IMPORT)  # all above
MAY_IMPORT |= {
    "sklearn": set(MAY_IMPORT),
    "timm": {"networks"},
}  # adapters, for other libraries
ANYWHERE = {
    "allocator",
    "atomic",
    "device",
    "engine",
    "isolation",
    "messages",
    "plugins",
    "progress",
    "threads",
}  # know nothing of nearfar
ROOTS = {"__init__", "__main__", "cli", "mcp", *ANYWHERE}


def id_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_every_file_is_in_a_room():
    assert {room_of(path) for path in FILES} == set(MAY_IMPORT) | ROOTS


def test_a_room_imports_only_what_it_may():
    wrong = {}
    for path in [path for path in FILES if room_of(path) in MAY_IMPORT]:
        room = room_of(path)
        used = {name.split(".")[1] for name in imported(path) if name.startswith("nearfar.")}
        if not_its_own := used - MAY_IMPORT[room] - ANYWHERE - {room, "__version__"}:
            wrong[id_of(path)] = not_its_own
    assert not wrong


def test_the_rules_have_no_circle():
    order = list(MAY_IMPORT)
    assert all(
        order.index(other) < order.index(room)
        for room, others in MAY_IMPORT.items()
        for other in others
    )


def test_no_modules_import_each_other_not_even_inside_a_room():
    assert circles() == []


IN_DATA = (
    ("table", "bits", "value_range", "left_out", "resources", "text", "column_names", "thumbnails"),
    ("exif", "pictures", "readers", "names", "labels", "layouts", "decoding", "measures"),
    ("sources",),
    ("scanning", "cache"),
    ("images",),
    ("opening", "batches"),
    ("streams",),
)
"""Floors of data/, from the bottom to the top: what an image is, pixels, sources, ..."""
IN_SOURCES = (
    ("source", "splits"),
    ("arrays", "concatenated", "encoded"),
    ("files", "outside", "rows", "tars"),
    ("__init__",),
)


@pytest.mark.parametrize(
    ("folder", "floors"), [("data", IN_DATA), ("data/sources", IN_SOURCES)], ids=["data", "sources"]
)
def test_imports_inside_data_go_downward(folder, floors):
    """To the same floor too: no modules import each other, by the test above."""
    home = SOURCE / folder
    floor_of = {name: floor for floor, names in enumerate(floors) for name in names}
    inside = {path.relative_to(home).with_suffix("").parts[0] for path in home.rglob("*.py")}
    assert inside - {"__init__"} == set(floor_of) - {"__init__"}
    package = f"nearfar.{folder.replace('/', '.')}."
    for path in home.rglob("*.py"):
        own = path.relative_to(home).with_suffix("").parts[0]
        used = {name.removeprefix(package).split(".")[0] for name in imported(path)}
        above = {name for name in used & inside if floor_of[name] > floor_of.get(own, len(floors))}
        assert not above, f"{path.relative_to(SOURCE)} imports {above}"


@pytest.mark.parametrize("path", [p for p in FILES if room_of(p) == "commands"], ids=id_of)
def test_a_command_imports_no_verb(path):
    """Code that two verbs share lives in a room below."""
    assert not [name for name in imported(path) if name.startswith("nearfar.commands")]


TOOLS = sorted(path for path in (SOURCE / "tools").iterdir() if path.is_dir())


@pytest.mark.parametrize(
    "path", [p for tool in TOOLS for p in tool.rglob("*.py")], ids=lambda path: str(id_of(path))
)
def test_no_tool_imports_another(path):
    """Code that two tools share lies in a room below, or beside their folders."""
    own = path.relative_to(SOURCE / "tools").parts[0]
    others = {f"nearfar.tools.{tool.name}" for tool in TOOLS if tool.name != own}
    assert not {".".join(name.split(".")[:3]) for name in imported(path)} & others


@pytest.mark.parametrize("name", sorted(ANYWHERE))
def test_what_may_be_imported_anywhere_imports_nothing(name):
    assert not [
        module for module in imported(SOURCE / f"{name}.py") if module.startswith("nearfar")
    ]


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("torch.distributed", {"training", "pairs", "testing"}),
        ("matplotlib", {"maps", "pages"}),
        (
            "rich",
            {"commands", "cli", "rendering"},
        ),
        ("cyclopts", {"app", "cli"}),
        ("timm", {"networks", "training"}),
        ("triton", {"pairs", "views"}),
        ("datasets", {"data"}),
        ("jinja2", {"pages"}),
    ],
)
def test_a_library_is_known_only_where_it_belongs(library, homes):
    users = {
        path
        for path in FILES
        if any(n == library or n.startswith(library + ".") for n in imported(path))
    }
    assert users, f"nothing imports {library}; drop it"
    assert {room_of(path) for path in users} <= homes


def test_kinds_of_gpus_are_known_in_one_file():
    others = [path for path in [*FILES, *PAPERS.rglob("*.py")] if path.name != "device.py"]
    wrong = [str(path) for path in others if "cuda" in path.read_text()]
    assert not wrong, "ask nearfar.device"


def test_no_method_imports_another():
    families = {cls.__module__ for cls in map(method_class, method_names())}
    assert len(families) > 5
    for family in families:
        path = SOURCE.parent / f"{family.replace('.', '/')}.py"
        assert not imported(path) & families, path.name


def test_nothing_knows_the_papers_next_door():
    """nearfar_papers is found by entry points alone; no word of its commands stands here."""
    words = re.compile(
        r"nearfar_papers|nearfar (?:reproduce|transfer)\b"
        r"|[\"'`.](?:reproduce|transfer|detection|low[-_]shot\w*)\b"
    )
    files = [path for path in SOURCE.rglob("*") if path.suffix in {".py", ".html", ".js", ".md"}]
    known = {id_of(path): words.findall(path.read_text()) for path in files}
    assert not {name: places for name, places in known.items() if places}


def test_no_grab_bags():
    assert not {path.stem for path in [*FILES, *PAPERS.rglob("*.py")]} & {
        "utils",
        "util",
        "helpers",
        "common",
        "misc",
    }


def test_public_names():
    names = (
        "check cluster doctor duplicates embed evaluate explore export Embeddings "
        "join list_methods load pretrain "
    )
    names += "push resume run_demo search select show_views ProcessLost Run "
    names += "TrainingDiverged TrainingStopped __version__ register_method show_progress"
    assert sorted(nearfar.__all__) == sorted(names.split())
    assert all(hasattr(nearfar, name) for name in nearfar.__all__)


def test_rooms_are_attributes_whatever_was_imported_before():
    """Of docs/interface.md all; before, `nearfar.data` was there once something else needed it."""
    interface = (SOURCE.parents[1] / "docs" / "interface.md").read_text(encoding="utf-8")
    rooms = re.findall(r"^## nearfar\.(\w+)$", interface, re.MULTILINE)
    assert len(rooms) > 10
    code = "import nearfar\n" + "\n".join(f"print(nearfar.{room}.__name__)" for room in rooms)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == [f"nearfar.{room}" for room in rooms], done.stderr


def test_no_public_name_shadows_a_module_or_a_builtin():
    """`import nearfar.methods` gives the module, and `from nearfar import *` takes no builtin
    away.
    """
    rooms = (
        importlib.import_module(f"nearfar.{path.parent.name}")
        for path in SOURCE.glob("*/__init__.py")
    )
    for package in (nearfar, *rooms):
        modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
        assert not modules & set(getattr(package, "__all__", [])), package.__name__
    builtins = importlib.import_module("builtins")
    assert not [
        name for name in nearfar.__all__ if hasattr(builtins, name) and not name.startswith("__")
    ]


HEAVY = [
    "timm",
    "torchvision",
    "sklearn",
    "matplotlib",
    "datasets",
    "cyclopts",
    "rich",
]


HELPS = (["--help"], ["pretrain", "--help"], ["search", "--help"])


@pytest.mark.parametrize(
    "steps",
    [
        {
            "import nearfar": ["torch", *HEAVY],
            "import nearfar.losses": HEAVY,
            "import nearfar.testing": HEAVY,
            "import nearfar.ray": HEAVY,  # a worker, and `nearfar.data` with it
        },
        {
            f"from nearfar.cli import main; main({words})": ["torch", "numpy", *HEAVY[:-2]]
            for words in HELPS
        },
    ],
    ids=["rooms", "helps"],
)
def test_what_an_import_does_not_cost(steps):
    """One after another in one process: what one of them loads, none may load."""
    script = "import sys\n" + "".join(
        f"{statement}\nloaded = {{*{spared}}} & {{*sys.modules}}\nassert not loaded, loaded\n"
        for statement, spared in steps.items()
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_public_losses():
    import nearfar.losses

    names = (
        "BarlowTwins DCL ISogCLR JCL LORAC LeJEPA MoCo MoCoV3 NNCLR NegativeCosine ReSSL "
        "SACLR SCE SIGReg SigCLR SimCLR SogCLR"
    )
    assert sorted(nearfar.losses.__all__) == sorted(
        [*names.split(), "SwAV", "TeacherSCE", "VICReg", "WCL", "WMSE", "gather_rows"]
    )


def functions():
    """Every function of the package: (file, name, its node)."""
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef):
                yield path.relative_to(SOURCE).as_posix(), node.name, node


def test_no_message_names_an_option():
    """Messages name parameters, as `limit`; the command line reads `nearfar.messages.worded`."""
    messages = []
    edge = [SOURCE / "app.py", SOURCE / "cli.py"]
    for path in {*FILES, *PAPERS.rglob("*.py")}.difference(edge):
        bare = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
        for node in nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+ ", node.value))
                if id(node) not in bare and words - {"--local-dir ", "--null "}:  # of hf and tar
                    messages.append(f"{path.name}: {node.value}")
    assert not messages


def test_nobody_passes_a_callback_of_progress():
    """Whoever loops opens a bar (`nearfar.progress`), and lines go to the log."""
    callbacks = [
        f"{file}: {name}"
        for file, name, node in functions()
        for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        if argument.arg in ("progress", "report")
    ]
    assert not callbacks


LONGEST = 60  # lines of a function, without its docstring
LONG = {
    ("training/loop.py", "fit"),  # the training loop is read from top to bottom
    ("pairs/fused_kernel.py", "visit"),  # a kernel's parts share a dozen values
    ("views/fused_kernel.py", "make_view"),  # likewise
}


MOST_PARAMETERS = 8
OPTIONS = "each is an option of the command, documented one by one"
PUBLIC = "public: each is a keyword with a default of its own"
DECLARED = "a declaration: written once for each, by name"
MANY = {
    ("commands/embed.py", "embed"): OPTIONS,
    ("commands/pretrain.py", "resume"): OPTIONS,
    ("commands/views.py", "show_views"): OPTIONS,
    ("tools/evaluate/__init__.py", "evaluate"): OPTIONS,
    ("tools/map/__init__.py", "map"): OPTIONS,
    ("data/opening.py", "open_images"): PUBLIC,
    ("evaluation/evaluate.py", "evaluate_features"): PUBLIC,
    ("maps/layouts.py", "fit_layout"): PUBLIC,
    ("neighbours/duplicates.py", "find_links"): PUBLIC,
    ("pairs/fused_kernel.py", "visit"): "a kernel takes pointers and sizes by themselves",
    ("views/fused_kernel.py", "make_view"): "a kernel takes pointers and sizes by themselves",
    ("views/fused_kernel.py", "_blur_view"): "a part of the kernel",
    ("testing.py", "check_loss"): PUBLIC,
    ("losses/saclr.py", "SACLR"): "the paper's hyperparameters",
    ("losses/sogclr.py", "ISogCLR"): "the paper's hyperparameters",
    ("data/images.py", "Images"): "the columns of a data set that is open",
    ("data/streams.py", "StreamBatches"): "those of a torch DataLoader, which it stands in for",
    ("tools/registry.py", "Tool"): DECLARED,
    ("tools/result.py", "Result"): DECLARED,
    ("training/loop.py", "fit"): "everything that a run is made of, and how far it goes",
}


def test_functions_below_the_edge_have_few_parameters():
    """Parameters that belong together are a small dataclass; the exceptions have a reason."""
    long = set()
    for path in FILES:
        owners = {
            id(function): node.name
            for node in nodes(path)
            if isinstance(node, ast.ClassDef)
            for function in node.body
        }
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                names = {argument.arg for argument in given} - {"self", "cls"}
                if len(names) + (node.args.vararg is not None) > MOST_PARAMETERS:
                    name = owners[id(node)] if node.name == "__init__" else node.name
                    long.add((path.relative_to(SOURCE).as_posix(), name))
    assert long == set(MANY)


def test_functions_fit_on_a_screen():
    """A function that is cut leaves the list; none is added."""
    long = set()
    for file, name, node in functions():
        docstring = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
        spared = 0 if docstring is None else docstring.end_lineno - docstring.lineno + 1
        if node.end_lineno - node.lineno + 1 - spared > LONGEST:
            long.add((file, name))
    assert long == LONG


def test_docstrings_begin_with_a_verb_or_a_noun():
    """Not with a clause ("What a tool clauses"): with a verb ("Return ...") or a noun."""
    clauses = []
    for path in [path for folder in CLEAN for path in folder.rglob("*.py")]:
        for node in nodes(path):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                first = (ast.get_docstring(node, clean=False) or "A").split()[0]
                if first in ("What", "Who", "How", "Which", "Where", "When", "Whether"):
                    clauses.append(f"{path.name}: {ast.get_docstring(node)}")
    assert not clauses


VAGUE = {"one", "told", "said", "how", "asked", "found", "there", "what"}
"""Words that stand for a thing and do not name it."""
MAY_BE_VAGUE = {"results.py", "nano.py"}
"""`how` is a key of results.json; nano.py stays as it is."""


def test_variables_are_named_by_their_noun():
    """A name says what a thing is, not how it came to be."""
    vague = []
    for path in [path for folder in CLEAN for path in folder.rglob("*.py")]:
        if path.name in MAY_BE_VAGUE:
            continue
        for node in nodes(path):
            stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            name = node.id if stored else node.arg if isinstance(node, ast.arg) else ""
            if name in VAGUE:
                vague.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
    assert not vague


def test_the_tree_of_contributing_has_a_line_for_each_file():
    root = SOURCE.parents[1]
    text = (root / "CONTRIBUTING.md").read_text()
    tree = text.split("## Every file\n")[1].split("```\n")[1].split("\nexamples/")[0]
    named, folders = set(), []
    for indent, name, words in re.findall(r"^( *)(\S+)(.*)$", tree, re.MULTILINE):
        folders = folders[: len(indent) // 2]
        path = "".join([*folders, name])
        assert path not in named and words.startswith("  "), path
        named.add(path)
        if name.endswith("/"):
            folders.append(name)
    files = [path for package in (SOURCE, PAPERS) for path in package.rglob("*.py")]
    expected = {str(path.relative_to(root)) for path in files}
    expected = {name.removesuffix("__init__.py") for name in expected}
    assert named == expected, f"add {expected - named}, remove {named - expected}"


TESTS = sorted(Path(__file__).parent.rglob("*.py"))


def test_no_test_replaces_a_name_by_its_path_as_text():
    """A name that moves is then an error of the linter, in place of a test that patches nothing."""
    places = ((path, node) for path in TESTS for node in nodes(path))
    for path, node in places:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            target = node.args[0]
            by_text = node.func.attr == "setattr" and len(node.args) == 2
            by_text |= node.func.attr in ("setattr", "delattr") and isinstance(
                target, ast.Constant | ast.JoinedStr
            )
            assert not by_text, f"{path}:{node.lineno}: import {ast.unparse(target)} and patch it"


MOST_WORDS = 5  # of a message that a test repeats
WORDED = {"test_messages.py"}
"""The table of the kinds of mistakes, which has the wording of each."""


def test_a_mistake_is_asserted_by_its_fact():
    """A test names the file, the number or the option; rewording a message breaks one test."""
    wordy = [
        f"{path.name}:{line}: {text!r}"
        for path in TESTS
        if path.name not in WORDED
        for line, text in compared_texts(path)
        if count_words(text) > MOST_WORDS
    ]
    assert not wordy, "assert the fact alone; tests/test_messages.py has the wording"
