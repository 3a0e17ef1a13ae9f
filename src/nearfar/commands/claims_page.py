"""claims.md: all claims of the tables in a folder, from their JSON, with Holm's correction for all of them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nearfar.atomic import replacing
from nearfar.papers import holm

NAME = "claims.md"
VERDICTS = ("yes", "no", "not decided", "not run")
HOW = """\
Written by `nearfar reproduce` from the JSON of the tables beside it.

- **Small** accuracies are those of a net of 0.3 million parameters after 20 epochs (120 on blood cells) on 2000 to 5000
  images; the papers have 9000 images or more and 100 to 1000 epochs. They say nothing of the papers' scale. The page
  of each table says what it ran.
- A claim is **decided**, yes or no, if the 95 % interval of a difference lies on one side of its bound. Intervals are
  over seeds, and over test images where predictions were saved. Counts, and memory of one run, have no interval: they
  are compared as they are, equal within 1 %.
- **Not decided**: the interval lies on both sides, or there is one seed. **Not run**: cells are missing.
- **Holm** says whether a verdict survives Holm's correction for all tested claims of this page. Of claims whose
  difference is nil, 5 % are decided by chance; a verdict that does not survive may be one of them."""


def write_claims(out: Path) -> Path:
    """Write claims.md into a folder of tables, and return its path."""
    tables = tables_in(out)
    tested = [claim for table in tables.values() for claim in table["claims"] if claim.get("p") is not None]
    kept = holm([claim["p"] for claim in tested])
    survives = {id(claim): stays for claim, stays in zip(tested, kept, strict=True)}
    parts = ["# Which claims hold", HOW, _counted(tables, sum(kept), len(tested))]
    for paper in dict.fromkeys(table["paper"] for table in tables.values()):
        lines = ["| claim | table | holds here | Holm | |", "|---|---|---|---|---|"]
        for path, table in tables.items():
            link = f"[{path.stem.split('.')[0].replace('-', ' ').capitalize()}]({path.with_suffix('.md').as_posix()})"
            if table["paper"] == paper:
                lines += [_line(claim, link, survives.get(id(claim))) for claim in table["claims"]]
        if len(lines) > 2:
            parts.append(f"## {paper}\n\n" + "\n".join(lines))
    with replacing(out / NAME) as unfinished:
        unfinished.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return out / NAME


def tables_in(out: Path) -> dict[Path, dict[str, Any]]:
    """Return what was written of each table, by the path of its JSON in the folder, in natural order."""
    paths = sorted(out.glob("*/*.json"), key=_in_words)
    found = {path.relative_to(out): json.loads(path.read_text()) for path in paths}
    return {path: table for path, table in found.items() if "claims" in table}


def _in_words(path: Path) -> list[tuple[str, int]]:
    """Table 9 comes before Table 10."""
    return [(words, int(digits or 0)) for words, digits in re.findall(r"(\D+)(\d*)", path.as_posix())]


def _counted(tables: Mapping[Path, Mapping[str, Any]], kept: int, tested: int) -> str:
    lines = ["| | claims | yes | no | not decided | not run |", "|---|---|---|---|---|---|"]
    papers = dict.fromkeys(table["paper"] for table in tables.values())
    for paper in papers:
        lines.append(_sums(paper, [c for table in tables.values() if table["paper"] == paper for c in table["claims"]]))
    every = [claim for table in tables.values() for claim in table["claims"]]
    lines.append(_sums("all", every))
    decided = sum(claim["holds"] in ("yes", "no") for claim in every if claim.get("p") is not None)
    return (
        "\n".join(line for line in lines if line)
        + f"\n\n{tested} claims were tested, {decided} are decided, and {kept} of these survive Holm's correction."
    )


def _sums(name: str, claims: Sequence[Mapping[str, Any]]) -> str:
    held = Counter(claim["holds"] for claim in claims)
    return f"| {name} | {len(claims)} | " + " | ".join(str(held[each]) for each in VERDICTS) + " |" if claims else ""


def _line(claim: Mapping[str, Any], link: str, survives: bool | None) -> str:
    holm_says = {None: "", True: "survives", False: "does not"}[survives if claim["holds"] in ("yes", "no") else None]
    return f"| {claim['text']} | {link} | **{claim['holds']}** | {holm_says} | {claim['numbers']} |"
