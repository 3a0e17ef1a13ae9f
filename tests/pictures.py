"""Images for tests: random, encoded, and packed into tars."""

import io
import struct
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def noise(number: int, size: int = 8) -> np.ndarray:
    """Random colours of that number."""
    return np.random.default_rng(number).integers(0, 256, (size, size, 3), dtype=np.uint8)


def encoded(image: Image.Image | np.ndarray, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(
        file, form, **options
    )
    return file.getvalue()


def write_dicom(path: Path, numbers: np.ndarray, **elements: Any) -> None:
    """Grayscale numbers of 8 or 16 bits; elements: of the header, such as
    PhotometricInterpretation.
    """
    import pydicom
    from pydicom.dataset import FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    dataset, dataset.file_meta, bits = (
        pydicom.Dataset(),
        FileMetaDataset(),
        8 * numbers.dtype.itemsize,
    )
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID = SecondaryCaptureImageStorage
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID = generate_uid()
    dataset.Rows, dataset.Columns, dataset.SamplesPerPixel, dataset.PhotometricInterpretation = (
        *numbers.shape,
        1,
        "MONOCHROME2",
    )
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = (
        bits,
        bits,
        bits - 1,
        0,
    )
    dataset.PixelData = numbers.tobytes()
    for name, value in elements.items():
        setattr(dataset, name, value)
    dataset.save_as(path, enforce_file_format=True)


def png(number: int, size: int = 8) -> bytes:
    return encoded(noise(number, size))


def png16(pixels: np.ndarray) -> bytes:
    """A PNG of 16 bits: [h, w] grey, or [h, w, c] with c of 2 to 4."""
    height, width = pixels.shape[:2]
    kind = 0 if pixels.ndim == 2 else {2: 4, 3: 2, 4: 6}[pixels.shape[-1]]

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    lines = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )


def tar(
    path: Path,
    members: Iterable[tuple[str, bytes] | tarfile.TarInfo],
    form: int = tarfile.PAX_FORMAT,
) -> None:
    """Write members by name and content; a TarInfo in place of a pair is written as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as file:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                file.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            file.addfile(info, io.BytesIO(member[1]))
