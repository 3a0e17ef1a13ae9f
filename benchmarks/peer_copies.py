"""Recall of imagededup's hashes on its own protocol, beside `nearfar duplicates`, in one run.

    python benchmarks/peer_copies.py DATA PYTHON --out docs/results/peer-copies.json    # DATA holds imagenette/

PYTHON: an interpreter with imagededup (0.3.3.post2 here), in an environment of its own: `python -m venv idd`, then
`idd/bin/pip install imagededup`. The protocol is that of benchmarks/edited_copies.py. Of each hash every pair of files with a
distance is asked for; each threshold of it calls those up to it copies. best: the largest recall of pairs among thresholds
with a precision of 0.999 or more; default: the threshold of the package, 10. nearfar: the pairs of its groups. CPU seconds
are those of whole processes. Its CNN is left out: its weights are fetched, and no network is to be had here.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import resource
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from edited_copies import PROTOCOL, judged, photographs, timed, written

import nearfar
from nearfar.device import hardware

HASHES = ("PHash", "DHash", "WHash", "AHash")
LONGEST = 64  # bits of a hash
CALL = """\
import json, sys
from importlib.metadata import version
from imagededup import methods
hasher = getattr(methods, sys.argv[1])(verbose=False)
near = hasher.find_duplicates(image_dir=sys.argv[2], max_distance_threshold=64, scores=True,
                              num_enc_workers=0, num_dist_workers=0)
with open(sys.argv[3], "w") as file:
    json.dump({"version": version("imagededup"), "near": near}, file)
"""


def at_thresholds(near: dict[str, Any], true: dict[str, int]) -> list[dict[str, Any]]:
    """Recall and precision of pairs at each threshold of a hash."""
    distance = {
        (min(file, other), max(file, other)): float(apart)
        for file, others in near.items()
        for other, apart in others
    }
    all_true = sum(
        true[file] == true[other] for file, other in itertools.combinations(sorted(true), 2)
    )
    rows = []
    for threshold in range(LONGEST + 1):
        called = [pair for pair, apart in distance.items() if apart <= threshold]
        right = sum(file in true and true[file] == true.get(other) for file, other in called)
        rows.append(
            {
                "threshold": threshold,
                "pairs called copies": len(called),
                "wrong pairs": len(called) - right,
                "recall of pairs": right / all_true,
                "precision": right / len(called) if called else 1.0,
            }
        )
    return rows


def measure(name: str, python: Path, folder: Path, true: dict[str, int]) -> dict[str, Any]:
    """The best and the usual threshold of a hash, and its CPU seconds."""
    with tempfile.TemporaryDirectory() as place:
        answer = Path(place, "near.json")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [python, "-c", CALL, name, str(folder), str(answer)]
        subprocess.run(command, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = json.loads(answer.read_text())
    rows = at_thresholds(result["near"], true)
    precise = [row for row in rows if row["precision"] >= 0.999]
    return {
        "version": result["version"],
        "best": max(precise, key=lambda row: row["recall of pairs"], default=None),
        "default": rows[10],
        "CPU seconds": round(
            after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with imagenette/")
    parser.add_argument("python", type=Path, help="interpreter with imagededup")
    parser.add_argument("--seed", type=int, default=415)
    parser.add_argument("--count", type=int, default=32, help="groups of the protocol")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = photographs(args.data, "test", np.random.default_rng(args.seed), 2 * args.count)
        chance = np.random.default_rng([args.seed, 1])
        true, of_kind = written(
            folder, images[: args.count], images[args.count :], PROTOCOL, chance
        )
        columns, seconds = timed(folder, None)
        ours = judged(columns, true, of_kind)
        result: dict[str, Any] = {
            "date": str(datetime.date.today()),
            "seed": args.seed,
            "files": len(list(folder.iterdir())),
            "processor": f"{hardware()['processor']}, one thread, shared",
            "nearfar": {
                "version": nearfar.__version__,
                "recall of pairs": ours["recall of pairs"],
                "pairs called copies": ours["pairs called copies"],
                "wrong pairs": ours["wrong pairs"],
                "CPU seconds": round(seconds, 1),
            },
            "imagededup": {each: measure(each, args.python, folder, true) for each in HASHES},
        }
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
