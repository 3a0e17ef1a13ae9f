"""What features are worth: kNN, linear probes, few labels, and the protocols of the papers."""

from nearfar.evaluation.baselines import colour_histogram, hog, raw_pixels
from nearfar.evaluation.evaluate import (
    FOR_MANY_LABELS,
    PROTOCOLS,
    WITH_VALIDATION,
    Choices,
    check_protocols,
    evaluate_features,
    name_with,
    result_names,
)
from nearfar.evaluation.features import extract, extract_view
from nearfar.evaluation.few_labels import Score, few_label_accuracy
from nearfar.evaluation.finetune import FINETUNE, draw_labels, finetune_accuracies, listed_rows, tuning
from nearfar.evaluation.knn import knn_accuracy, knn_predict, neighbours
from nearfar.evaluation.labelled import Accuracies, mean_per_class_accuracy
from nearfar.evaluation.linear import linear_accuracy, linear_predict
from nearfar.evaluation.linear_sgd import PROBES, Probe, linear_sgd_accuracies, probe_settings, usual_probe
from nearfar.evaluation.low_shot import low_shot_precision
from nearfar.evaluation.table import FORMATS, write_table
from nearfar.evaluation.transfer import Transfer, transfer_accuracy, transfer_sgd_accuracy

__all__ = [
    "FINETUNE",
    "FORMATS",
    "FOR_MANY_LABELS",
    "PROBES",
    "PROTOCOLS",
    "WITH_VALIDATION",
    "Accuracies",
    "Choices",
    "Probe",
    "Score",
    "Transfer",
    "check_protocols",
    "colour_histogram",
    "draw_labels",
    "evaluate_features",
    "extract",
    "extract_view",
    "few_label_accuracy",
    "finetune_accuracies",
    "hog",
    "knn_accuracy",
    "knn_predict",
    "linear_accuracy",
    "linear_predict",
    "linear_sgd_accuracies",
    "listed_rows",
    "low_shot_precision",
    "mean_per_class_accuracy",
    "name_with",
    "neighbours",
    "probe_settings",
    "raw_pixels",
    "result_names",
    "transfer_accuracy",
    "transfer_sgd_accuracy",
    "tuning",
    "usual_probe",
    "write_table",
]
