"""The tool that evaluates an encoder, or vectors made elsewhere, on labelled images.

nearfar evaluate runs/photos
nearfar evaluate runs/photos labelled/ --protocol knn linear-sgd
nearfar evaluate labelled/
nearfar evaluate clip.parquet labelled/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from nearfar.tools.registry import Between, Seed, tool

if TYPE_CHECKING:
    from nearfar.embeddings import Embeddings
    from nearfar.evaluation.results import Measurement


def _check(source: Any, given: Mapping[str, Any]) -> None:
    """Refuse protocols and options that do not go together, before images are opened."""
    from nearfar.embeddings.sources import OfRun
    from nearfar.tools.evaluate.protocols import Protocols, check_run

    Protocols.of(given)
    if isinstance(source, OfRun):
        check_run(source.run)


@tool(
    data="labelled images; without a train and a test split, a share is used for the test. Of "
    "several sources all must have labels",
    split=("train", "test"),
    labels=True,
    saves=True,
    before=_check,
)
def evaluate(
    photos: Embeddings,
    *,
    protocol: Sequence[str] = ("knn", "linear", "few"),
    limit: Annotated[int | None, Between(1)] = None,
    held_out: Annotated[int | None, Between(1)] = None,
    test_share: Annotated[float, Between(0.001, 0.999)] = 0.2,
    seed: Seed = 0,
    baselines: bool = True,
    probe: str | None = None,
    probe_lr: list[float] | None = None,
    probe_views: Annotated[int, Between(0)] = 0,
    knn_temperature: Annotated[float, Between(1e-12)] = 0.07,
    labels: str | None = None,
) -> Measurement:
    """Evaluate an encoder or vectors against untrained baselines, on labelled images.

    Args:
        protocol: "knn" (20 neighbours), "knn_K" for other numbers, "linear" (L-BFGS), "few" (1 and
            5 labels a class, 20 trials); the papers' protocols "linear-sgd", "finetune" (all
            labels) and "finetune-P" (P per cent of them), see docs/evaluation.md.
        limit: use a random sample of this many training images. Default: as in the run.
        held_out: test on this many training images beyond the limit instead of the test images, to
            choose settings: a random share of each class.
        test_share: share of the images for the test if the data has no test split.
        seed: random seed of that split and of the trials.
        baselines: also evaluate the largest class, raw pixels, a colour histogram, HOG, the encoder
            of a run before training and, where nearfar[pretrained] is installed, its net as it is.
        probe: settings of linear-sgd by a paper's name, such as "sce". Default: the recipe's, else
            SACLR's.
        probe_lr: learning rates of linear-sgd; several are compared on a fifth of the training
            images.
        probe_views: linear and linear-sgd fit on this many random crops and flips of each training
            image in place of the image itself; linear-sgd takes another one in each epoch.
        knn_temperature: of the neighbours' votes, exp(cosine / temperature); 0.1 in MoCo's CIFAR-10
            notebook.
        labels: file with the names of the labelled images for finetune-P, one a line. Default: a
            draw from each class.

    Returns:
        A mapping of results 0..1 by "largest_class" (always that answer), "raw_pixels",
        "colour_histogram", "hog", "pretrained_frozen" (not fine-tuned), "untrained"
        ("starting_weights" for a run with `init`; a module of your own as it is given) and
        "trained", or without a run "at_hand", of vectors "given", with what they were measured
        `on`. Vectors without images have the largest class beside them alone. Where the test
        images are of classes of unequal size, each accuracy has a balanced one, such as
        "knn_balanced". Those of a run are also written into results.json, beside those of other
        protocols on the same data, split, limit, seed and encoder, and into the report. The
        predicted labels of kNN, linear and few (of each trial) are in predictions.npz.

    Raises:
        ValueError: for data without labels, unknown names, and what a protocol cannot be measured
            on.

    >>> sorted(nearfar.evaluate("runs/photos", protocol=["knn"])["trained"])
    ['knn', 'knn_balanced']
    """
    from nearfar.tools.evaluate.labelled_sets import divide
    from nearfar.tools.evaluate.measuring import check_embeddings, measure
    from nearfar.tools.evaluate.protocols import Protocols

    names = [protocol] if isinstance(protocol, str) else list(protocol)
    protocols = Protocols(names, probe, probe_lr, probe_views, knn_temperature, labels)
    protocols.check()
    check_embeddings(photos, protocols)
    sets = divide(photos, share=test_share, seed=seed, limit=limit, held_out=held_out)
    return measure(photos, sets, protocols, baselines, seed)
