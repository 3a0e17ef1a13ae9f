"""Names in a paper's tables, which become parts of paths: nothing lies outside the folder."""

import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from nearfar.messages import dump_yaml
from nearfar_papers.paper import read_paper
from nearfar_papers.runs import folder_of, path_of

PIECES = ["..", ".", "/", "\\", "~", "a", "é", "\n", "\0", "$HOME", " ", "C:", "%2e", "-", "*"]
NAMES = st.lists(st.sampled_from(PIECES), max_size=5).map("".join) | st.text(max_size=6)
PLAIN = {"table": "table-1", "row": "ours", "column": "n", "data": "digits", "method": "simclr"}


@settings(max_examples=100 if settings.default.derandomize else settings.default.max_examples)
@given(
    st.sampled_from(sorted(PLAIN)), NAMES, st.sampled_from(["run", "common", "column", "evaluate"])
)
@example("row", "../../../a", "run")
@example("column", "/../../a", "run")
def test_whatever_tables_are_called_their_runs_and_pages_lie_in_the_folder(which, name, where):
    named = PLAIN | {which: name}
    row = {"title": "t", "paper": {named["column"]: 1}, "run": {"method": named["method"]}}
    table = {"title": "t", "source": "s", "protocol": ["knn"], "metric": "knn"}
    table |= {"unit": "%", "columns": {named["column"]: {}}, "rows": {named["row"]: row}}
    places = {"run": row["run"], "common": table.setdefault("common", {})}
    places["column"] = table["columns"][named["column"]]
    places["evaluate"] = table.setdefault("evaluate", {})
    places["common"].update({"data": "digits", "epochs": 1})
    places[where].update({"data": named["data"]})
    content = {"title": "a paper", "tables": {named["table"]: table}}
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder, "own.yaml"), Path(folder, "out")
        path.write_text(dump_yaml(content), encoding="utf-8")
        try:
            paper = read_paper(path)
        except ValueError as error:
            assert name != PLAIN[which] and "\n" not in str(error)
            return
        for each in paper.tables.values():
            assert path_of(each, out).resolve().parent == (out / "own").resolve()
            for cell in each.cells():
                for seed in ("", 0):
                    made = folder_of(cell, seed, out).resolve()
                    assert made.parent == (out / "runs").resolve()
