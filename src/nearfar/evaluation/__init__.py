"""Evaluation of features: kNN, linear probes, few-shot classification, and fine-tuning."""

from nearfar.evaluation.evaluate import PROTOCOLS, check_protocols, evaluate_features, result_names
from nearfar.evaluation.features import (
    are_gray,
    extract,
    extract_view,
)
from nearfar.evaluation.finetune import (
    draw_labels,
    finetune_accuracies,
    listed_rows,
    percent_of,
    tuning,
)
from nearfar.evaluation.knn import Score, few_shot_accuracy, knn_accuracy, knn_predict
from nearfar.evaluation.labelled import Accuracies
from nearfar.evaluation.linear import (
    PROBES,
    Probe,
    default_probe,
    linear_accuracy,
    linear_predict,
    linear_sgd_accuracies,
    probe_settings,
)
from nearfar.evaluation.vectors import Vectors, find_vectors
from nearfar.networks.simple_features import colour_histogram, hog, raw_pixels

__all__ = [
    "Probe",
    "evaluate_features",
    "extract",
    "extract_view",
    "few_shot_accuracy",
    "finetune_accuracies",
    "knn_accuracy",
    "knn_predict",
    "linear_accuracy",
    "linear_sgd_accuracies",
    "result_names",
]
