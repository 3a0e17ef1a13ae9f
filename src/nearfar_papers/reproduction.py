"""Run the papers' tables: "paper | ours", and which claims hold.

nearfar reproduce
nearfar reproduce saclr/table-9 --scale small --data data
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nearfar.isolation import isolated
from nearfar.messages import CommandFailed
from nearfar.progress import log

if TYPE_CHECKING:
    from nearfar_papers.paper import Paper, Table
    from nearfar_papers.runs import Known, Task


class RunsFailed(CommandFailed):
    """Some runs failed; the tables hold what the others measured."""


@isolated()
def reproduce(
    table: str | None = None,
    *,
    scale: Literal["full", "small"] = "full",
    data: str = "data",
    only: Sequence[str] = (),
    seeds: int | None = None,
    jobs: int | None = None,
    out: str = "reproduced",
    run: bool = True,
) -> dict[str, dict[str, Any]]:
    """Run the papers' tables: "paper | ours", and which claims hold.

    `pretrain`, `evaluate` and `transfer` make every number, in processes of their own, and their
    command lines are saved. Finished runs are not repeated, and all tables in `out` share runs with
    the same settings.

    Args:
        table: PAPER/TABLE such as saclr/table-9, PAPER for all of its tables, or the same with a
            file of your own, FILE.yaml/TABLE (docs/reproduce.md); tables that choose its settings
            are run first. Default: list the tables and run nothing.
        scale: "full" as in the paper, or "small": the same comparison at a size for two cores.
        data: folder that holds the data sets by name, such as DATA/cifar10.
        only: rows to run; the table keeps its numbers of the others.
        seeds: runs of each cell. Default: the table's, 3 where an order is claimed at small scale.
        jobs: runs side by side. Default: the number of GPUs, or of cores.
        out: folder for the tables and, in OUT/runs, the run folders, which may be removed
            afterwards.
        run: make the runs that are missing. With false, tables in `out` are only judged and written
            anew.

    Returns:
        What is written as JSON, by PAPER/TABLE; without `table` the list.

    Raises:
        ValueError: for an unknown paper, table, row, setting, option or metric, a table without
            that scale, and `run=False` where none was written.
        RunsFailed: for runs that failed, when all others are done and the tables are written.

    >>> "saclr/table-3" in nearfar_papers.reproduce()
    True
    """
    from nearfar.atomic import check_folder
    from nearfar.device import count_gpus
    from nearfar.messages import check_known, check_range
    from nearfar_papers import runs
    from nearfar_papers.pages import write_claims

    check_range("seeds", seeds, 1, 1000)
    check_range("jobs", jobs, 1, 1000)
    if (only or seeds) and not (table and run):
        raise ValueError("`only` and `seeds` say what to run, and nothing is run")
    if table is None:
        return _listed(Path(out))
    paper, tables = _chosen(table, scale)
    rows = sorted({name for listed in tables for name in listed.run})
    for row in only:
        check_known(f"row that {table} runs,", row, rows)
    for listed in tables:
        runs.check_cells(listed)
    place = Path(out)
    if not run:
        tables = _written_in(place, tables, table)
    place.mkdir(parents=True, exist_ok=True)
    check_folder(place)
    for name in _needed(tables) if run else ():
        of = table.removesuffix(f"/{tables[0].name}")
        with suppress(runs.Waiting):  # said of the table that needs it
            reproduce(f"{of}/{name}", scale=scale, data=data, jobs=jobs, out=out)
    known = runs.known_in(place)
    tasks: dict[Path, runs.Task] = {}
    lacking: dict[str, list[str]] = {}
    if run:
        lacking = _add_tasks(tasks, paper, tables, Path(data), place, known, only, seeds)
        tables = [listed for listed in tables if listed.name in lacking]
    for where in sorted(set().union(*lacking.values())):
        log.warning("not here, so its cells stay empty: %s", where)
    outcomes: dict[str, dict[str, Any]] = {}
    failed, in_order = 0, sorted(tasks.values(), key=lambda task: task.seed)
    try:
        if tasks:
            (place / "runs").mkdir(exist_ok=True)
            failed = runs.run_tasks(in_order, jobs or count_gpus() or os.cpu_count() or 1)
    finally:  # where it is stopped, what there is so far
        for listed in tables:
            outcome = _written(paper, listed, lacking.get(listed.name, []), place, known)
            outcomes[f"{paper.name}/{listed.name}"] = outcome
        log.info("-> %s", write_claims(place))
    if failed:
        raise RunsFailed(f"{failed} of {len(tasks)} runs failed; the same command tries them again")
    return outcomes


def _add_tasks(
    tasks: dict[Path, Task],
    paper: Paper,
    tables: Sequence[Table],
    data: Path,
    out: Path,
    known: Known,
    only: Sequence[str],
    seeds: int | None,
) -> dict[str, list[str]]:
    """Add the runs that tables lack to tasks by folder; returns by table which data is not there.

    A table whose settings are not chosen yet is left out with a line, and is a mistake alone.
    """
    from nearfar_papers.runs import Waiting, add_tasks

    lacking: dict[str, list[str]] = {}
    for table in tables:
        try:
            paths = add_tasks(tasks, table, data, out, known, only, seeds)
        except Waiting as error:
            if len(tables) == 1:
                raise
            log.warning("left out: %s", error)
        else:
            lacking[table.name] = [
                f"{path}: {paper.data.get(path.name, path.name)}" for path in paths
            ]
    return lacking


def _needed(tables: Sequence[Table]) -> list[str]:
    """Return the names of the tables that are run before some others."""
    before = [other for table in tables for other in (table.chosen, table.effective) if other]
    return list(dict.fromkeys(other.name for other in before))


def _written_in(out: Path, tables: Sequence[Table], words: str) -> list[Table]:
    """Return those of some tables, named in words, that were written; ValueError for none."""
    from nearfar_papers.runs import path_of

    written = [table for table in tables if path_of(table, out).is_file()]
    if not written:
        raise ValueError(f"{out} has no {words} of this scale to judge anew")
    return written


def _written(
    paper: Paper, table: Table, lacking: Sequence[str], out: Path, known: Known
) -> dict[str, Any]:
    """Write a table as it stands and show it; returns what its JSON holds."""
    from nearfar_papers.pages import write_outcome

    path = write_outcome(paper, table, lacking, out, known)
    log.info("%s\n-> %s", path.read_text(encoding="utf-8"), path)
    outcome: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
    return outcome


def _chosen(words: str, scale: Literal["full", "small"]) -> tuple[Paper, list[Table]]:
    """Return the paper and the tables that PAPER or PAPER/TABLE names, at a size; of a whole paper
    all that have it.
    """
    from nearfar.messages import check_known
    from nearfar_papers.paper import read_paper

    whole = "/" not in words or words.endswith((".yaml", ".yml"))
    name, _, table = (words, "", "") if whole else words.rpartition("/")
    paper = read_paper(name)
    if table:
        check_known(f"table of {name}", table, paper.tables)
        return paper, [paper.tables[table].at(scale)]
    run = [
        listed
        for listed in paper.tables.values()
        if listed.measure != "none" and (scale == "full" or listed.small)
    ]
    return paper, [listed.at(scale) for listed in run]


def _listed(out: Path) -> dict[str, dict[str, Any]]:
    """Show all tables of all papers, with what they need and whether they were run, into `out` or
    for docs/papers.
    """
    from nearfar_papers.paper import paper_names, read_paper
    from nearfar_papers.runs import state_of

    facts: dict[str, dict[str, Any]] = {}
    for name in paper_names():
        paper = read_paper(name)
        log.info(paper.title)
        for table in paper.tables.values():
            columns = table.columns.values()
            data = dict.fromkeys(column.data for column in columns if column.data)
            protocol = dict.fromkeys(
                [*table.protocol, *(p for column in columns for p in column.protocol or ())]
            )
            fact: dict[str, Any] = {
                "title": table.title,
                "source": table.source,
                "data": list(data),
                "protocol": list(protocol) or [table.measure],
                "cost": table.cost,
                "needs": table.needs,
                "small": table.small is not None,
                "small_not": table.small_not,
                "state": state_of(table, out),
            }
            facts[f"{name}/{table.name}"] = fact
            words = [
                *fact["data"],
                *fact["protocol"],
                f"{table.cost} ({table.needs})" if table.needs else table.cost,
            ]
            small = (
                "also small"
                if table.small
                else f"not small: {table.small_not}"
                if table.small_not
                else ""
            )
            state = "; ".join(filter(None, (", ".join(words), small, fact["state"])))
            log.info("  %s/%s  %s\n      %s", name, table.name, table.title, state)
    log.info(
        "`nearfar_papers.reproduce('PAPER/TABLE', data=FOLDER)` runs one; `scale='small'` at a "
        "size for two cores"
    )
    return facts
