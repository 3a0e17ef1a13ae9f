"""Frozen features and what they are worth: kNN, linear probes, few labels."""

from nearfar.evaluation.baselines import colour_histogram, hog, raw_pixels
from nearfar.evaluation.evaluate import PROTOCOLS, check_protocols, evaluate_features
from nearfar.evaluation.features import extract, extract_view
from nearfar.evaluation.few_labels import Score, few_label_accuracy
from nearfar.evaluation.knn import knn_accuracy, knn_predict, neighbours
from nearfar.evaluation.labelled import mean_per_class_accuracy
from nearfar.evaluation.linear import linear_accuracy, linear_predict, linear_sgd_accuracy, transfer_accuracy
from nearfar.evaluation.table import FORMATS, write_table

__all__ = [
    "FORMATS",
    "PROTOCOLS",
    "Score",
    "check_protocols",
    "colour_histogram",
    "evaluate_features",
    "extract",
    "extract_view",
    "few_label_accuracy",
    "hog",
    "knn_accuracy",
    "knn_predict",
    "linear_accuracy",
    "linear_predict",
    "linear_sgd_accuracy",
    "mean_per_class_accuracy",
    "neighbours",
    "raw_pixels",
    "transfer_accuracy",
    "write_table",
]
