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
    "annotated images are read, drawn and counted as all others are": """
        data.decoding.whole_planes data.describe data.readers.formats data.images.sample
        data.left_out.Count data.left_out.NO_OBJECT maps.thumbnails.data_url
        embeddings.sources.sampled views.eight_bits views.unit
    """,
    "transfer is evaluate with other protocols: the same sets, rows, baselines and results": """
        evaluation.evaluate.largest_class evaluation.results.Measurement
        embeddings.Opening embeddings.sources.OfRun
        tools.evaluate.labelled_sets.Labelled tools.evaluate.labelled_sets.LabelledSets
        tools.evaluate.labelled_sets.divide tools.evaluate.rows.Encoders
        tools.evaluate.rows.encoders_by_row tools.evaluate.table.add_to_results
        tools.evaluate.table.measured_on tools.evaluate.table.measurement
        tools.evaluate.table.show_results
    """,
    "transfer-sgd trains the heads of linear-sgd, and all protocols take features as it does": """
        evaluation.Score evaluation.labelled.Features evaluation.labelled.Labels
        evaluation.labelled.accuracy evaluation.labelled.features evaluation.labelled.labelled
        evaluation.labelled.numbered evaluation.linear.Probe evaluation.linear.best_rate
        evaluation.linear.held_out_rows evaluation.linear.train_heads
    """,
    "a cell's settings and protocols are checked before hours of runs": """
        evaluation.check_protocols evaluation.percent_of evaluation.result_names
        training.health.Health training.plan.resolve_method training.settings.Settings
    """,
    "tables say what the runs were made on, how long they took and what they held out": """
        training.environment.software training.plan.default_validation training.processes.handled
    """,
    "parts of a training step, and the projector of a run, are measured by themselves": """
        evaluation.extract_view networks.OWN_NETS networks.backbone.with_grid
        rendering.shown_nowhere embeddings.sources.read_images training.budget.training_speed
        training.plan.resolve_views training.plan.views_at training.run_folder.CHECKPOINT
        training.run_folder.load_checkpoint training.seeding.stream training.run_header.resume_plan
    """,
    "a detector is built on the trunk of an encoder": """
        networks.backbone.Backbone networks.first_encoder
    """,
    "pages and the report's section look as those of nearfar do": """
        pages.report.write_report pages.template.page pages.template.write_page
    """,
}
"""Why the papers use more than the public interface, and what."""
LISTED = {f"nearfar.{name}" for names in EXCEPTIONS.values() for name in names.split()}


def used():
    """Names that are imported from nearfar, as "nearfar.room.name", with the files that do so."""
    found = {}
    for path in FILES:
        names = {name for name in imported(path) if name.partition(".")[0] == "nearfar"}
        for name in names:  # of `from a import b` both a and a.b are listed
            if not any(other.startswith(f"{name}.") for other in names):
                found.setdefault(name, set()).add(path.name)
    return found


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


@pytest.mark.parametrize(
    "library", ["cyclopts", "datasets", "jinja2", "lightning_fabric", "timm", "torch.distributed"]
)
def test_what_nearfar_wraps_is_not_used_beside_it(library):
    names = set().union(*map(imported, FILES))
    assert not [name for name in names if f"{name}.".startswith(f"{library}.")]


def test_functions_fit_on_a_screen_and_nobody_passes_a_console():
    found = []
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
                    found.append(f"{path.name}: {node.name}")
    assert not found
