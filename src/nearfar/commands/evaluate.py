"""The command that evaluates a run on labelled images.

nearfar evaluate runs/photos
nearfar evaluate runs/photos labelled/ --protocol knn linear-sgd
nearfar evaluate labelled/
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfar.atomic import check_folder, replacing
from nearfar.isolation import isolated
from nearfar.messages import check_range, check_seed

if TYPE_CHECKING:
    from torch import nn

    from nearfar.evaluation.results import Measurement


@isolated()
def evaluate(
    target: Any,
    data: Any = None,
    *,
    protocol: Sequence[str] = ("knn", "linear", "few"),
    limit: int | None = None,
    held_out: int | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    baselines: bool = True,
    probe: str | None = None,
    probe_lr: list[float] | None = None,
    knn_temperature: float = 0.07,
    labels: str | None = None,
    label_column: str | None = None,
    encoder: str | nn.Module | None = None,
) -> Measurement:
    """Evaluate the encoder against untrained baselines, on labelled images.

    Args:
        target: run folder; or, without one, labelled images, for which the best features at hand
            are evaluated (docs/starting-weights.md) and nothing is written.
        data: labelled images; without a train and a test split, a share is used for the test. Of
            several sources all must have labels. Default: the data of the run.
        protocol: "knn" (20 neighbours), "knn_K" for other numbers, "linear" (L-BFGS), "few" (1 and
            5 labels a class, 20 trials); the papers' protocols "linear-sgd", "finetune" (all
            labels) and "finetune-P" (P per cent of them), see docs/evaluation.md.
        limit: use a random sample of this many training images. Default: as in the run.
        held_out: test on this many training images beyond the limit instead of the test images, to
            choose settings: a random share of each class.
        test_share: share of the images for the test if the data has no test split.
        seed: random seed of that split and of the trials.
        baselines: also evaluate the largest class, raw pixels, a colour histogram, HOG, the encoder
            before training and, where nearfar[pretrained] is installed, its net as it is.
        probe: settings of linear-sgd by a paper's name, such as "sce". Default: the recipe's, else
            SACLR's.
        probe_lr: learning rates of linear-sgd; several are compared on a fifth of the training
            images.
        knn_temperature: of the neighbours' votes, exp(cosine / temperature); 0.1 in MoCo's CIFAR-10
            notebook.
        labels: file with the names of the labelled images for finetune-P, one a line. Default: a
            draw from each class.
        label_column: column of the data with the labels. Default: one of a usual name, such as
            label.
        encoder: for data without a run: a timm model by name, hf:owner/name, pretrained, nearfar or
            a folder. Default: the best features at hand. In Python also the trained module of a
            run, if it was an object of your own, with its weights before training.

    Returns:
        A mapping of results 0..1 by "largest_class" (always that answer), "raw_pixels",
        "colour_histogram", "hog", "pretrained_frozen" (not fine-tuned), "untrained"
        ("starting_weights" for a run with `init`) and "trained", or without a run "at_hand", with
        what they were measured `on`. Where the test images are of classes of unequal size, each
        accuracy has a balanced one, such as "knn_balanced". Those of a run are also written into
        results.json, beside those of other protocols on the same data, split, limit, seed and
        encoder, and into the report. The predicted labels of kNN, linear and few (of each trial)
        are in predictions.npz.

    Raises:
        ValueError: for data without labels, unknown names, and what a protocol cannot be measured
            on.

    >>> sorted(nearfar.evaluate("runs/photos", protocol=["knn"])["trained"])
    ['knn', 'knn_balanced']
    """
    import numpy as np

    from nearfar import run_evaluation
    from nearfar.data.sources.files import special
    from nearfar.data.text import lines_of, text_of
    from nearfar.device import find_device
    from nearfar.embeddings.sources import OfRun, resolve
    from nearfar.evaluation import check_protocols, evaluate_features, percent_of, probe_settings
    from nearfar.evaluation.evaluate import largest_class
    from nearfar.networks import Encoder
    from nearfar.pages.report import write_report
    from nearfar.progress import log, waiting
    from nearfar.run import PREDICTIONS

    source = resolve(target)
    run = source.run if isinstance(source, OfRun) else None
    row_judged = "at_hand" if run is None else "trained"
    protocol = [protocol] if isinstance(protocol, str) else protocol
    check_range("--limit", limit, 1)
    check_range("--held-out", held_out, 1)
    check_seed(seed)
    check_range("--knn-temperature", knn_temperature, 1e-12)
    if not 0 < test_share < 1:
        raise ValueError(f"--test-share must lie between 0 and 1, not {test_share}")
    tuned = {one: percent for one in protocol if (percent := percent_of(one)) is not None}
    frozen = [one for one in protocol if one not in tuned]
    check_protocols(frozen)
    if run is not None:
        check_folder(run.path)
        _ = run.results  # refused before anything is computed, where it cannot be read
    if labels is not None and min(tuned.values(), default=100) == 100:
        raise ValueError(
            "--labels is for finetune-P, such as finetune-1, which --protocol does not ask for"
        )
    if labels is not None and (what := special(labels)):
        raise ValueError(f"--labels {labels} is {what}, not a text file")
    if (probe or probe_lr) and "linear-sgd" not in protocol:
        raise ValueError(
            "--probe and --probe-lr are for linear-sgd, which --protocol does not ask for"
        )
    listed = None if labels is None else lines_of(text_of(Path(labels).read_bytes()))
    where: dict[str, Any] = dict(
        share=test_share, seed=seed, limit=limit, held_out=held_out, label_column=label_column
    )
    opened = run_evaluation.open_evaluated(source, data, encoder, baselines, **where)
    sets, encoders = opened[0]
    judged = encoders[row_judged]
    assert isinstance(judged, Encoder)
    train_y, test_y = sets.splits["train"].labels, sets.splits["test"].labels
    on = run_evaluation.measured_on(run, judged, sets, train_y, test_y, seed)
    settings = None if run is None else run.settings
    usual = run_evaluation.default_probe_of(settings, judged.image_size)
    chosen = probe_settings(probe or usual, probe_lr)
    how: dict[str, Any] = dict(
        probe=chosen, knn_temperature=knn_temperature, seed=seed, device=find_device()
    )
    options = run_evaluation.options_of(protocol, chosen, knn_temperature, labels)
    results: dict[str, dict[str, float]] = {row: {} for _, rows in opened for row in rows}
    predictions: dict[str, np.ndarray] = {}
    leaks = ""
    features = chain(*(images.features(rows) for images, rows in opened))
    for row, splits in features if frozen else ():
        kept = predictions if row == row_judged else None
        both = *splits["train"], *splits["test"]
        with waiting(f"{row.replace('_', ' ')}: {', '.join(frozen)}"):
            results[row] = evaluate_features(*both, frozen, **how, predictions=kept)
        if kept is not None:
            leaks = run_evaluation.describe_leaks(
                encoders[row], sets, both[0], both[2], predictions
            )
    if run is not None:
        with replacing(run.path / PREDICTIONS) as unfinished:
            np.savez_compressed(unfinished, **predictions)  # type: ignore[arg-type]
    bfloat16 = settings is not None and settings.precision == "bf16-mixed"
    steps: list[tuple[str, float] | None] = [*([None] if frozen else []), *tuned.items()]
    for step in steps:  # what is measured is written at once, before the next training
        if step is not None:
            name, percent = step
            for row, found in run_evaluation.finetuned(
                encoders, sets, bfloat16, percent, listed, seed
            ).items():
                results[row] |= found.named(name)
        if baselines:
            results["largest_class"] = largest_class(train_y, test_y, results[row_judged])
        measured = run_evaluation.measurement(on, results, options)
        if run is not None:
            run_evaluation.add_to_results(run, measured)
    if run is not None:
        write_report(run.path)
    run_evaluation.show_results(measured)
    if leaks:
        log.warning(leaks)
    return measured
