"""nearfar_papers is a client of nearfar: it uses the public interface, and exceptions are listed."""

import ast

import pytest

import nearfar
import nearfar_papers
from tests.test_rooms import ANYWHERE, LONGEST
from tools.house import PAPERS, imported
from tools.interface import ROOMS, public_names

FILES = sorted(PAPERS.rglob("*.py"))
PUBLIC = {f"nearfar.{name}" for name in nearfar.__all__} | {
    f"nearfar.{room}.{name}" for room in ROOMS for name in public_names(room)
}
HELPERS = {f"nearfar.{name}" for name in ANYWHERE}
"""Files that know nothing of the rest: errors, files, devices, progress."""
EXCEPTIONS = {
    "annotated images are read whole, at any size, and counted as all others are": """
        data.decoding.whole_planes data.pictures.formats data.left_out.Count
    """,
    "transfer is evaluate with other protocols: the same sets, rows, results and report": """
        tools.evaluate.labelled_sets.LabelledSets tools.evaluate.labelled_sets.divide
        tools.evaluate.rows.encoders_by_row tools.evaluate.table.record
    """,
    "protocols check labels, and train a linear classifier, as those of evaluate do": """
        evaluation.labelled.labelled evaluation.linear.train_classifier
    """,
    "the settings of a table's cells are checked before hours of runs": """
        training.request.resolve_method training.settings.Settings tools.find_tool
    """,
    "tables say what they were made with, and how many images were for validation": """
        training.environment.software training.plan.default_validation
    """,
    "figures are drawn from the same random views as before": "training.seeding.stream",
    "short runs test on the images that their seed leaves, and read the projector of a net of theirs": """
        data.images.sample training.run_folder.CHECKPOINT training.run_folder.load_checkpoint
        training.run_header.resume_plan
    """,
    "training steps without a run, to measure their time and memory": """
        training.trial.training_speed training.view_choice.views_at
    """,
}
"""Why the papers use more than the public interface, and what."""
LISTED = {f"nearfar.{name}" for names in EXCEPTIONS.values() for name in names.split()}


def used():
    """Names that are imported from nearfar, as "nearfar.room.name", with the files that do so."""
    imports = {}
    for path in FILES:
        names = {name for name in imported(path) if name.partition(".")[0] == "nearfar"}
        for name in names:  # of `from a import b` both a and a.b are listed
            if not any(other.startswith(f"{name}.") for other in names):
                imports.setdefault(name, set()).add(path.name)
    return imports


def is_a_helper(name):
    return name in HELPERS or name.rpartition(".")[0] in HELPERS


def test_the_papers_use_the_public_interface_and_the_exceptions():
    beyond = {
        name: files
        for name, files in used().items()
        if name not in PUBLIC and not is_a_helper(name)
    }
    assert not {name: beyond[name] for name in beyond.keys() - LISTED}, "not public"
    assert not LISTED - beyond.keys(), "exceptions that nothing needs any more"


def test_the_public_names_are_functions_of_their_own():
    assert nearfar_papers.__all__ == ["reproduce", "transfer"]
    assert not set(nearfar_papers.__all__) & {path.stem for path in FILES}


@pytest.mark.parametrize("library", ["cyclopts", "datasets", "jinja2", "timm", "torch.distributed"])
def test_what_nearfar_wraps_is_not_used_beside_it(library):
    names = set().union(*map(imported, FILES))
    assert not [name for name in names if f"{name}.".startswith(f"{library}.")]


def test_functions_fit_on_a_screen_and_nobody_passes_a_console():
    violations = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                arguments = node.args
                names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
                below = node.name not in nearfar_papers.__all__
                known = {argument.arg for argument in names}
                documented = ast.get_docstring(node, clean=False) is not None
                first = node.body[0]
                spared = first.end_lineno - first.lineno + 1 if documented else 0
                lines = node.end_lineno - node.lineno + 1 - spared
                if lines > LONGEST or (below and len(names) > 8) or known & {"console", "progress"}:
                    violations.append(f"{path.name}: {node.name}")
    assert not violations
