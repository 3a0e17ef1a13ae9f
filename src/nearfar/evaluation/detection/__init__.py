"""Detectors on the trunk of a run: boxes, segmentations and keypoints, trained with annotations."""

from nearfar.evaluation.detection.detector import TASKS, build_detector
from nearfar.evaluation.detection.fit import find_objects, fit_detector, steps_of
from nearfar.evaluation.detection.score import average_precision, check_scorer
from nearfar.evaluation.detection.settings import DETECTORS, DetectorSettings, detector_settings

__all__ = [
    "DETECTORS",
    "TASKS",
    "DetectorSettings",
    "average_precision",
    "build_detector",
    "check_scorer",
    "detector_settings",
    "find_objects",
    "fit_detector",
    "steps_of",
]
