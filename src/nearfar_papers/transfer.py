"""Evaluate the encoder as the papers' transfer tables do, on other data.

nearfar transfer runs/photos torchvision:flowers102 --root data
nearfar transfer runs/photos torchvision:voc2007 --root data --protocol low-shot
nearfar transfer runs/cells annotated/ --protocol detect
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfar.isolation import isolated

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from nearfar.run import Run


@isolated()
def transfer(
    run: str | Path | Run,
    data: Any = None,
    *,
    protocol: Sequence[str] = ("transfer",),
    root: str | None = None,
    limit: int | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    baselines: bool = True,
    label_column: str | None = None,
    detector: str = "small",
    epochs: float | None = None,
    encoder: nn.Module | None = None,
    console: Console | None = None,
) -> Mapping[str, dict[str, float]]:
    """Evaluate the encoder on other data by the protocols of the papers' transfer tables.

    Args:
        run: run folder.
        data: labelled images with a train and a test split, or without: then a share is kept for
            the test. Or torchvision:NAME, a data set of the tables, from files in --root. For the
            detectors annotated images: a folder in VOC's or COCO's layout or a COCO json. Default:
            the data of the run.
        protocol: "transfer" (logistic regression), "transfer-sgd", "low-shot" (SVMs on few images a
            class, mean average precision), see docs/evaluation.md; or, apart from these, detectors
            trained on the encoder: "detect", "segment", "keypoints", see docs/detection.md.
        root: folder with the files of a data set of torchvision.
        limit: use a random sample of this many training images. Default: as in the run.
        test_share: share of the images that is kept for the test where the data has no test split.
        seed: random seed of that split, of the draws and of the detectors.
        baselines: also evaluate raw pixels, a colour histogram, HOG and the encoder before
            training; for detectors random weights.
        label_column: column of the data with the labels. Default: one of a usual name, such as
            label.
        detector: settings of the detector: "small", "small-c4", or a paper's: "lorac", "sce".
        epochs: of the detector's training. Default: as its settings say.
        encoder: the module that was trained, where it was an object of your own, with its weights
            before training.
        console: where progress is shown.

    Returns:
        A mapping of results 0..1 by "largest_class" (always that answer), "raw_pixels",
        "colour_histogram", "hog", "untrained" ("starting_weights" for a run with `init`) and
        "trained", with what they were measured `on`; also written into results.json and the report,
        beside those of other protocols on the same data and encoder. Columns of a data set of
        torchvision end with its name. Of detectors a plain dictionary of such rows.

    Raises:
        ValueError: for data without labels or annotations, unknown names, and what a protocol
            cannot be measured on.
        FileNotFoundError: for a data set of torchvision that is not there.

    >>> nearfar.transfer("runs/photos", baselines=False)["trained"].keys()
    dict_keys(['transfer'])
    """
    import numpy as np
    from rich.console import Console

    from nearfar.atomic import check_folder
    from nearfar.evaluation.evaluate import largest_class
    from nearfar.messages import check_known, check_range, check_seed
    from nearfar.pages.report import write_report
    from nearfar.progress import waiting
    from nearfar.run import Run, load
    from nearfar.run_evaluation import (
        LabelledSets,
        add_to_results,
        encoders_by_row,
        measured_on,
        measurement,
        open_labelled,
        show_results,
    )
    from nearfar_papers.detection import evaluate_detectors
    from nearfar_papers.detector import TASKS
    from nearfar_papers.protocols import PROTOCOLS, protocol_results
    from nearfar_papers.standard_sets import (
        OWN_DATA,
        features_in_pieces,
        name_with,
        open_standard,
        standard_set,
    )

    console, run = console or Console(), Run.of(run)
    protocols, known = (
        [protocol] if isinstance(protocol, str) else list(protocol),
        (*PROTOCOLS, *TASKS),
    )
    for name in protocols:
        check_known("protocol", name, known)
    check_range("--limit", limit, 1)
    check_seed(seed)
    if not 0 < test_share < 1:
        raise ValueError(f"--test-share must lie between 0 and 1, not {test_share}")
    common: dict[str, Any] = dict(limit=limit, seed=seed)
    if set(protocols) <= set(TASKS):
        common |= dict(test_share=test_share, baselines=baselines, encoder=encoder, console=console)
        return evaluate_detectors(run, data, protocols, detector=detector, epochs=epochs, **common)
    if set(protocols) & set(TASKS):
        alone = min(set(protocols) - set(TASKS))
        raise ValueError(f"{', '.join(TASKS)} take annotations, not labels: run {alone} by itself")
    check_folder(run.path)
    trained = load(run, encoder=encoder)
    name, standard = (standard_set(data) if isinstance(data, str) else None) or ("", OWN_DATA)
    if standard.metric == "eleven_point_map" and "transfer-sgd" in protocols:
        raise ValueError(f"transfer-sgd needs one label an image, those of {name} have several")
    if name:
        opened = LabelledSets(open_standard(standard, root, seed), f"torchvision:{name}")
        sets = opened.limited(limit, seed, console)
    elif root is not None:
        raise ValueError(
            "--root is for data sets of torchvision: name one, such as torchvision:flowers102"
        )
    else:
        splits: dict[str, Any] = dict(share=test_share, validation=True, label_column=label_column)
        splits["image_size"] = trained.image_size
        sets = open_labelled(run.settings, data, console, **splits, **common)
    encoders = encoders_by_row(run, encoder, baselines)
    results: dict[str, dict[str, float]] = {row: {} for row in encoders}
    reading = run.settings.reading_for(trained.image_size)
    pieces = features_in_pieces(sets, reading, encoders, console) if name else None
    for row, found in pieces or sets.features(encoders, console):
        train_y, test_y = (np.asarray(found[part][1]) for part in ("train", "test"))
        for one in protocols:
            with waiting(f"{row.replace('_', ' ')}: {one}"):
                numbers = protocol_results(one, found, standard.metric, standard.steps, seed)
            results[row] |= {name_with(key, name): value for key, value in numbers.items()}
    keys = [key for key in results["trained"] if key.startswith("transfer")]
    if baselines and keys and train_y.ndim == 1:
        balanced = "_balanced" if standard.metric == "mean_per_class" else ""
        [share] = largest_class(train_y, test_y, [f"accuracy{balanced}"]).values()
        results["largest_class"] = dict.fromkeys(keys, share)
    on = measured_on(run, trained, sets, train_y, test_y, seed)
    measured = measurement(on, results, {})
    add_to_results(run, measured)
    write_report(run.path)
    show_results(measured, console)
    return measured
