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
        encoder: the trained module, if it was an object of your own, with its weights before
            training.

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

    >>> nearfar_papers.transfer("runs/photos", baselines=False)["trained"].keys()
    dict_keys(['transfer'])
    """
    from nearfar import Run
    from nearfar.atomic import check_folder
    from nearfar.messages import check_known, check_range, check_seed
    from nearfar.tools.evaluate.rows import encoders_by_row
    from nearfar_papers.detection import detector_encoders, evaluate_detectors
    from nearfar_papers.detector import TASKS, detector_settings
    from nearfar_papers.labelled_evaluation import evaluate_labelled, open_sets
    from nearfar_papers.protocols import PROTOCOLS

    run = Run.of(run)
    protocols = [protocol] if isinstance(protocol, str) else list(protocol)
    for name in protocols:
        check_known("protocol", name, (*PROTOCOLS, *TASKS))
    check_range("limit", limit, 1)
    check_seed(seed)
    if not 0 < test_share < 1:
        raise ValueError(f"`test_share` must lie between 0 and 1, not {test_share}")
    if set(protocols) <= set(TASKS):
        return evaluate_detectors(
            run,
            detector_encoders(run, encoder, baselines, seed),
            data,
            protocols,
            detector_settings(detector, epochs),
            limit=limit,
            test_share=test_share,
            seed=seed,
        )
    if set(protocols) & set(TASKS):
        alone = min(set(protocols) - set(TASKS))
        raise ValueError(f"{', '.join(TASKS)} take annotations, not labels: run {alone} by itself")
    check_folder(run.path)
    sets = open_sets(
        run,
        data,
        encoder=encoder,
        root=root,
        test_share=test_share,
        limit=limit,
        seed=seed,
        label_column=label_column,
    )
    return evaluate_labelled(run, encoders_by_row(run, encoder, baselines), sets, protocols, seed)
