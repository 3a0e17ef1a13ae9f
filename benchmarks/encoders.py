"""Trained encoders and baselines on small sets of many kinds (kinds.py): kNN, linear, 1 and 5 labels a class.

    OMP_NUM_THREADS=1 python benchmarks/encoders.py ../shared/data --sets flowers --contenders "keep 0" "no colour" \
        --seeds 0 1 --out runs/encoders.jsonl
    python benchmarks/encoders.py ../shared/data --contenders "colours and edges" frozen weights "keep 0.5" ...
    python benchmarks/encoders.py ../shared/data --on test --out runs/kinds.jsonl \
        --contenders "pretrain 10 minutes" "raw pixels" histogram hog pretrained "at once"
    OMP_NUM_THREADS=1 python benchmarks/encoders.py ../shared/data --on test --seeds 1 2 --out runs/kinds.jsonl \
        --contenders "pretrain 10 minutes" --as-long-as-seed 0 --no-averages
    python benchmarks/encoders.py runs/encoders.jsonl                                # the tables, means over seeds
    python benchmarks/encoders.py runs/kinds.jsonl --default "pretrain 10 minutes"   # against the best baseline

`--on held-out`, for choices, tests the classifiers on every fifth training image, so no test image influences a choice;
`--on test`, for reports, trains on all training images and tests on the test images.
"pretrain 10 minutes" (any number) is the default of the product, `nearfar.pretrain(images, minutes=10)`; with
`--as-long-as-seed 0` it has the net and the epochs that seed 0 had time for, so that another seed can be measured on a
busy machine. "pretrain 10 minutes, trained net 0.7" gives the trained net this weight beside the pretrained one.
The other trained contenders train the small net with SimCLR for the same epochs; "lejepa" trains with LeJEPA on the same views, "lejepa, 2 + 4" with four small crops more. "weights" begins
from --weights, "frozen" are these as they are, "at once" the features of verbs without a run, "colours and edges" simple
features alone; "pretrained" are the weights of the installed package alone, and "pretrained, edges" and the like these
with simple features beside them (`JOINED`). "teacher" adds the similarities that these weights see to SimCLR, "teacher,
sce" has them as SCE's targets; "keep 0.5" has no teacher. Each run appends a line to --out, a failure too, with the
error; lines that are in it already are skipped: remove one to measure it again. Sets whose package is missing are named
and left out.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from encoders_report import (
    METRICS,
    against,
    averaged,
    baselines,
    correlations,
    presets,
    read,
    table,
)
from kinds import ON, SETS, Kind, parts
from torch import Tensor
from torchvision.transforms.v2.functional import five_crop

import nearfar
from nearfar.data import Images
from nearfar.device import hardware
from nearfar.embeddings import Opening, resolve
from nearfar.embeddings.untrained import COPIES
from nearfar.evaluation import (
    colour_histogram,
    evaluate_features,
    extract,
    hog,
    linear_accuracy,
    raw_pixels,
)
from nearfar.evaluation.evaluate import largest_class
from nearfar.methods import LeJEPA, Method
from nearfar.networks import Encoder, build_backbone, whiten_stem
from nearfar.networks.pretrained import find_weights
from nearfar.training.health import rankme
from nearfar.training.view_choice import PHOTOGRAPH
from nearfar.views import PRESETS, ViewPlan, fit_views, plan


def default_plan(images: Images, crop: int, small: int = 0) -> ViewPlan:
    """Return the views that `pretrain` chooses for SimCLR at that size, with --keep-colour 0, and
    some small crops.
    """
    preset = "photographs" if crop >= PHOTOGRAPH and images.channels == 3 else None
    names = fit_views(
        ("strong", "strong") + ("local-lejepa",) * small, crop, images.channels, preset
    )
    return plan("+".join(names), crop, images.channels)


@dataclass(frozen=True)
class Contender:
    """Differences from SimCLR with the default views: a change of them or a preset's name, the
    method.

    With minutes, nothing else but the decay is set: views, size and optimiser are what `pretrain`
    chooses.
    """

    change: dict[str, Any] | str = field(
        default_factory=dict
    )  # fields of each view, "keep_colour", or a preset
    method: str | Method = "simclr"
    minutes: float | None = None
    weight_decay: float = 0.01  # the default when most were run
    teacher: str | None = None

    def views(self, images: Images, crop: int) -> ViewPlan:
        """Return the plan for crops of this side."""
        if isinstance(self.change, str):
            return plan(f"{self.change}+{self.change}", crop, images.channels)
        change = dict(self.change)
        keep = change.pop("keep_colour", 0.0)
        small = self.method.small_views if isinstance(self.method, LeJEPA) else 0
        views = default_plan(images, crop, small).views
        return ViewPlan("", tuple(replace(view, **change) for view in views), keep_colour=keep)


PLAIN = dict(jitter=0.0, grayscale=0.0)
MILDER = {"no shear": dict(shear=0.0), "no noise": dict(noise=0.0), "half warped": dict(affine=0.4)}
CONTENDERS = {
    "little colour": Contender(
        dict(brightness=0.2, contrast=0.2, saturation=0.1, hue=0.02, grayscale=0.0)
    ),
    "no colour": Contender(PLAIN),
    **{f"keep {share}": Contender(dict(keep_colour=share)) for share in (0, 0.25, 0.5, 0.75, 1.0)},
    **{
        f"keep {share}, decay 0.1": Contender(dict(keep_colour=share), weight_decay=0.1)
        for share in (0, 0.5)
    },
    **{
        f"crops from {least}": Contender(dict(scale=(least, 1.0)))
        for least in (0.25, 0.4, 0.55, 0.7)
    },
    **{
        f"crops from 0.55, {name}": Contender(dict(scale=(0.55, 1.0)) | change)
        for name, change in MILDER.items()
    },
    "lejepa": Contender(method="lejepa", weight_decay=0.1),
    "lejepa, 2 + 4": Contender(method=LeJEPA(small_views=4), weight_decay=0.1),
    **{preset: Contender(preset) for preset in PRESETS},
    "ten minutes": Contender(minutes=10),
    "weights, ten minutes": Contender(minutes=10),
    "weights": Contender(),
    "weights, keep 0.5": Contender(dict(keep_colour=0.5)),
    "teacher": Contender(dict(keep_colour=0.5), teacher="pretrained"),
    "teacher, sce": Contender(dict(keep_colour=0.5), "sce", teacher="pretrained"),
}


CASE = ("set", "contender", "seed", "on")  # what makes a line another one
PRETRAIN = re.compile(r"pretrain (\d+(?:\.\d+)?) minutes?(?:, trained net (\d+(?:\.\d+)?))?")


@dataclass(frozen=True)
class Task:
    """Data of a contender: the images to train on, their kind, the seed, the starting weights
    of "frozen" and "weights".

    length: encoder and epochs in place of the minutes of "pretrain N minutes", if any.
    """

    train: Images
    kind: Kind
    seed: int
    weights: str
    length: Mapping[str, Any] = field(default_factory=dict)


def _joined(weights: Mapping[str, float], task: Task) -> Encoder:
    """Return encoders side by side for images of this size."""
    return nearfar.join(weights, image_size=task.train.image_size, channels=task.train.channels)


def _untrained(task: Task) -> Encoder:
    images = task.train
    torch.manual_seed(task.seed)
    backbone = build_backbone("small", image_size=images.image_size, channels=images.channels)
    encoder = Encoder(backbone, images.image_size, images.channels, images.mean, images.std)
    if images.channels == 3:
        whiten_stem(backbone.net, encoder.preprocess(images.pixels[:256]))
    return encoder


def _frozen(task: Task) -> Encoder:
    images = task.train
    backbone = build_backbone(
        "small", image_size=task.kind.crop, channels=images.channels, init=task.weights
    )
    moments = find_weights(task.weights, "small").moments(images.channels)
    return Encoder(
        backbone, images.image_size, images.channels, *(moments or (images.mean, images.std))
    )


def _at_once(task: Task) -> Any:
    return resolve(task.train).open(Opening()).encoder


JOINED = {
    "colours and edges": COPIES,
    "pretrained": {"pretrained": 1.0},
    "pretrained, edges": {"pretrained": 1.0, "edges": 0.5},
    "pretrained, 0.5 edges, 0.5 colours": {"pretrained": 1.0, "edges": 0.5, "colours": 0.5},
    "pretrained, 1 edges": {"pretrained": 1.0, "edges": 1.0},
    "pretrained, 1 edges, 0.25 colours": {"pretrained": 1.0, "edges": 1.0, "colours": 0.25},
    "pretrained, 1 edges, 0.5 colours": {"pretrained": 1.0, "edges": 1.0, "colours": 0.5},
}
UNTRAINED: dict[str, Callable[[Task], Any]] = {
    "raw pixels": lambda task: raw_pixels,
    "histogram": lambda task: colour_histogram,
    "hog": lambda task: hog,
    "untrained": _untrained,
    "at once": _at_once,
    **{name: partial(_joined, weights) for name, weights in JOINED.items()},
    "frozen": _frozen,
}


def train(contender: str, task: Task, out: str) -> nearfar.Run:
    """Train a contender into a folder."""
    if default := PRETRAIN.fullmatch(contender):
        length = task.length or {"minutes": float(default[1])}
        weight = {"trained_weight": float(default[2])} if default[2] else {}
        return nearfar.pretrain(task.train, **length, **weight, seed=task.seed, out=out)
    chosen = CONTENDERS[contender]
    same: dict[str, Any] = dict(
        out=out,
        init=task.weights if contender.startswith("weights") else None,
        seed=task.seed,
        weight_decay=chosen.weight_decay,
        teacher=chosen.teacher,
    )
    if chosen.minutes:
        return nearfar.pretrain(task.train, minutes=chosen.minutes, **same)
    return nearfar.pretrain(
        task.train,
        encoder="small",
        method=chosen.method,
        views=chosen.views(task.train, task.kind.crop),
        crop_size=task.kind.crop,
        epochs=task.kind.epochs,
        **same,
    )


def measure(contender: str, task: Task, tested: Images, averages: bool = True) -> dict[str, Any]:
    """Train one contender, or take it untrained; return its accuracies on the tested images.

    epochs: 0 of an untrained one. Where classes are of unequal size, each accuracy has a balanced
    one beside it. largest: that of always answering the largest class. Of trained encoders, also
    measures without labels and, with `averages`, what averaging over changed images gives.
    """
    results: dict[str, Any] = {"epochs": 0}
    if contender in UNTRAINED:
        encoder = UNTRAINED[contender](task)
    else:
        with tempfile.TemporaryDirectory() as folder:
            run = train(contender, task, str(Path(folder) / "run"))
            encoder = nearfar.load(run)
            results = {"epochs": run.settings.epochs, "encoder": run.settings.encoder}
            for health in [line["health"] for line in run.metrics if "health" in line][-1:]:
                results |= {"lidar": health["lidar"], "retrieval": health["view_retrieval"]}
    y, truth = task.train.labels, tested.labels
    fit, features = extract(encoder, task.train), extract(encoder, tested)
    results |= evaluate_features(fit, y, features, truth, seed=0)
    results |= {"largest": largest_class(y, truth)["accuracy"]}
    if not results["epochs"]:
        return results
    results |= {
        "rankme": rankme(fit),
        "rotation": rotation_accuracy(encoder, task.train, tested),
    }
    for name, change in AVERAGED.items() if averages else ():
        means = [
            torch.stack(
                [plain, *(extract(encoder, pixels) for pixels in change(images.pixels))]
            ).mean(0)
            for plain, images in ((fit, task.train), (features, tested))
        ]
        gained = evaluate_features(means[0], y, means[1], truth, seed=0)
        results |= {f"{name}_{key}": value for key, value in gained.items()}
    return results


def shifted(pixels: Tensor) -> list[Tensor]:
    """Return the images moved by a sixteenth of their side up, down, left and right; their border
    is repeated.
    """
    side = pixels.shape[-1]
    by = max(1, side // 16)
    padded = F.pad(pixels.float(), [by] * 4, mode="replicate").to(torch.uint8)
    return [
        padded[..., y : y + side, x : x + side]
        for y, x in ((2 * by, by), (0, by), (by, 2 * by), (by, 0))
    ]


def cropped(pixels: Tensor) -> list[Tensor]:
    """Return the four corners and the centre, of 7/8 of the side."""
    return list(five_crop(pixels, [pixels.shape[-1] * 7 // 8] * 2))


AVERAGED: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "flips": lambda pixels: [pixels.flip(-1)],
    "shifts": shifted,
    "crops": cropped,
}


def rotation_accuracy(encoder: Any, train: Images, held: Images) -> float:
    """Return the accuracy of a linear classifier that tells by how many quarter turns an image was
    turned.

    Each image is turned once. Source: SelfAugment (Reed et al., CVPR 2021).
    """
    turned = []
    for images in (train, held):
        quarters = np.arange(len(images)) % 4
        pixels = torch.stack(
            [image.rot90(int(q), (1, 2)) for image, q in zip(images.pixels, quarters, strict=True)]
        )
        turned += [extract(encoder, pixels), quarters]
    return linear_accuracy(*turned)


def known(contender: str) -> str:
    """Return the name of a contender, as a type of argparse."""
    if contender in UNTRAINED or contender in CONTENDERS or PRETRAIN.fullmatch(contender):
        return contender
    names = ", ".join([*UNTRAINED, *CONTENDERS, "pretrain N minutes"])
    raise argparse.ArgumentTypeError(f"there is no {contender!r}; choose among {names}")


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "data", type=Path, help="the folder of data sets, or a file of lines, to print its tables"
    )
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument(
        "--contenders",
        type=known,
        nargs="+",
        default=["histogram", "untrained", "keep 0", "no colour", "keep 0.5"],
    )
    parser.add_argument(
        "--on", choices=ON, default="held-out", help="evaluate on held-out training or test images"
    )
    parser.add_argument(
        "--weights",
        default="nearfar",
        help="starting weights, for the contenders frozen and weights",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--as-long-as-seed",
        type=int,
        metavar="SEED",
        help="train the same net for as many epochs as this seed, by its line in --out",
    )
    parser.add_argument(
        "--as-long-as",
        type=known,
        metavar="CONTENDER",
        help="of this contender, with --as-long-as-seed; default: of the same",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/encoders.jsonl"))
    parser.add_argument(
        "--no-averages",
        action="store_true",
        help="leave out features averaged over changed images, which take seven more passes",
    )
    parser.add_argument(
        "--default", help="of a file of lines: print this contender against the best baseline"
    )
    return parser.parse_args(argv)


def tables(path: Path) -> str:
    """Return all tables of a file."""
    lines = read(path)
    return "\n".join(
        [
            table(lines),
            *(
                f"\n## Baselines on {on} images, kNN / 5 labels\n\n{baselines(lines, on)}"
                for on in ON
            ),
            "\n## Presets, kNN / 5 labels\n",
            presets(lines, {name: kind.crop for name, kind in SETS.items()}),
            "\n## Rank correlation with kNN accuracy\n",
            correlations(lines),
            "\n## Gain of features averaged with those of changed images\n",
            averaged(lines, AVERAGED),
        ]
    )


def length_of(case: Sequence[Any], lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return encoder and epochs of a case that was measured.

    Ends the program where it was not, or failed.
    """
    for line in lines:
        if [line[key] for key in CASE] == list(case) and "encoder" in line:
            return {"encoder": line["encoder"], "epochs": line["epochs"]}
    raise SystemExit(f"--as-long-as-seed: --out has no run of {', '.join(map(str, case))}")


def run(given: argparse.Namespace) -> None:
    """Measure what is asked and not in the file yet."""
    given.out.parent.mkdir(parents=True, exist_ok=True)
    lines = read(given.out)
    done = {tuple(line[key] for key in CASE) for line in lines}
    cpu = hardware()["processor"]
    for seed, name in product(given.seeds, given.sets):
        left = [
            contender
            for contender in given.contenders
            if (name, contender, seed, given.on) not in done
        ]
        if not left:
            continue
        try:
            images, tested = parts(SETS[name], given.data, given.on)
        except (FileNotFoundError, ModuleNotFoundError) as error:
            print(f"{name} left out: {error}", file=sys.stderr, flush=True)
            continue
        for contender in left:
            line = dict(zip(CASE, (name, contender, seed, given.on), strict=True)) | {
                "cpu": cpu,
                "images": len(images),
                "tested": len(tested),
            }
            length: dict[str, Any] = {}
            if given.as_long_as_seed is not None:
                measured = given.as_long_as or contender
                case = (name, measured, given.as_long_as_seed, given.on)
                length, line["as_long_as_seed"] = length_of(case, lines), given.as_long_as_seed
            task = Task(images, SETS[name], seed, given.weights, length)
            try:
                line |= measure(contender, task, tested, not given.no_averages)
                cells = [f"{100 * line[key]:.1f}" for key in METRICS]
            except nearfar.TrainingStopped:
                raise
            except Exception as error:  # a failure is a result
                line["error"] = f"{type(error).__name__}: {error}"
                cells = [line["error"]]
            with given.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(name, contender, seed, given.on, *cells, sep=" | ", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is asked, or print the tables of a file."""
    given = arguments(argv)
    if not given.data.is_file():
        run(given)
    elif given.default:
        print(against(read(given.data), given.default))
    else:
        print(tables(given.data))


if __name__ == "__main__":
    main()
