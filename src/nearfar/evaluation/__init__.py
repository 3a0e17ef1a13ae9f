"""Frozen features and what they are worth: kNN, linear probes, few labels."""

from nearfar.evaluation.evaluate import PROTOCOLS, evaluate_features
from nearfar.evaluation.features import extract, raw_pixels
from nearfar.evaluation.few_labels import Score, few_labels
from nearfar.evaluation.knn import knn, knn_predict
from nearfar.evaluation.labelled import mean_per_class_accuracy
from nearfar.evaluation.linear import linear, linear_predict
from nearfar.evaluation.linear_sgd import linear_sgd
from nearfar.evaluation.table import check_format, write_table
from nearfar.evaluation.transfer import transfer

__all__ = [
    "PROTOCOLS",
    "Score",
    "check_format",
    "evaluate_features",
    "extract",
    "few_labels",
    "knn",
    "knn_predict",
    "linear",
    "linear_predict",
    "linear_sgd",
    "mean_per_class_accuracy",
    "raw_pixels",
    "transfer",
    "write_table",
]
