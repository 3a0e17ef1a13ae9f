"""DICOM by pydicom: values as their modality has them, with MONOCHROME1 turned so that black is low."""

from __future__ import annotations

from typing import Any

import numpy as np

from nearfar.data.raw import Planes, Raw, must_be_small, opened


def dicom(data: bytes | str) -> Raw:
    """A DICOM image, whose frames or colours are its channels. ValueError without pydicom and where there is none."""
    try:
        import pydicom
    except ImportError as error:
        raise ValueError("DICOM needs pydicom: pip install 'nearfar[scans]'") from error
    header = pydicom.dcmread(opened(data), stop_before_pixels=True)
    if "Rows" not in header or "Columns" not in header:
        raise ValueError("this DICOM file holds no image")
    width, height = int(header.Columns), int(header.Rows)
    frames, samples = int(header.get("NumberOfFrames") or 1), int(header.get("SamplesPerPixel", 1))
    must_be_small(width, height, frames * samples)

    def read() -> Planes:
        from pydicom.pixels import pixel_array

        whole = pydicom.dcmread(opened(data))
        numbers = pixel_array(whole)  # colour comes as red, green and blue
        if samples > 1:
            numbers = np.moveaxis(numbers, -1, -3)
        numbers = numbers.reshape(frames * samples, height, width)
        if whole.PhotometricInterpretation == "MONOCHROME1":
            numbers = _turned(numbers, whole)
        slope, intercept = _rescale(whole)
        if (slope, intercept) != (1, 0):
            numbers = numbers.astype(np.float32) * np.float32(slope) + np.float32(intercept)
        return numbers

    wide = int(header.get("BitsAllocated", 8)) > 8 or _rescale(header) != (1, 0)
    return Raw(frames * samples, (width, height), wide, False, read)


def _rescale(header: Any) -> tuple[float, float]:
    return float(header.get("RescaleSlope", 1)), float(header.get("RescaleIntercept", 0))


def _turned(numbers: np.ndarray, header: Any) -> np.ndarray:
    """Stored values with lowest and highest of their bits exchanged, so that it is the same in every file."""
    signed, bits = int(header.get("PixelRepresentation", 0)), int(header.BitsStored)
    ends = -1 if signed else 2**bits - 1  # lowest plus highest
    return (ends - numbers.astype(np.int64)).astype(numbers.dtype)
