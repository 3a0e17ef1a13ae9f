"""Images of each format, mode, type and layout have the headers and pixels that they had when
tests/goldens/images.json was written.

The pixels are those of a square of 2 x 2, as 8 bits and by a value range, in one, three and as many
channels as the image has; or the words of the error. `python -m tests.goldens.test_images` writes
them anew; a change of them belongs into the changelog, and raises `FORMAT` of the pixel cache.
"""

import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nearfar.data.decoding import decode, header, reason
from nearfar.data.readers import quietly
from nearfar.data.value_range import PixelFormat
from tests.pictures import encoded, png16, write_dicom

tifffile = pytest.importorskip("tifffile")

KEPT = Path(__file__).with_name("images.json")
LOSSY = ("JPEG", "WEBP", "JPEG2000")
HEIGHT, WIDTH = 9, 12


def drawn(channels: int, high: float = 256, kind: Any = np.uint8) -> np.ndarray:
    """Slopes in other directions for each channel, [height, width, channels], in 0..high."""
    down, across = np.mgrid[0:HEIGHT, 0:WIDTH] / np.array([HEIGHT, WIDTH])[:, None, None]
    slopes = [down, across, (down + across) / 2, 1 - down, 1 - across]
    return (np.stack(slopes[:channels], -1) * high).astype(kind)


def pictures() -> Iterator[tuple[str, bytes]]:
    """Pictures of 8 bits in formats and modes of Pillow."""
    colour, gray = Image.fromarray(drawn(3)), Image.fromarray(drawn(1)[..., 0])
    alpha, both = Image.fromarray(drawn(4)), Image.fromarray(drawn(2), "LA")
    for form in ("PNG", "JPEG", "TIFF", "WEBP", "GIF", "BMP", "PPM", "TGA", "JPEG2000"):
        yield f"{form} colour", encoded(colour, form)
        yield f"{form} gray", encoded(gray, form)
    for form in ("PNG", "JPEG", "TIFF"):
        exif = Image.Exif()
        exif[0x0112] = 6
        yield f"{form} turned", encoded(colour, form, exif=exif)
    for form in ("JPEG", "TIFF"):
        yield f"{form} CMYK", encoded(colour.convert("CMYK"), form)
    for form in ("PNG", "TIFF"):
        yield f"{form} alpha", encoded(alpha, form)
        yield f"{form} gray with alpha", encoded(both, form)
        yield f"{form} of 1 bit", encoded(gray.convert("1"), form)
    yield "PNG palette", encoded(colour.quantize(20))
    yield "PNG gray palette", encoded(gray.convert("P"))
    yield "PNG transparent colour", encoded(gray, transparency=85)
    yield "GIF frames", encoded(gray, "GIF", save_all=True, append_images=[both.convert("L")])
    yield "TIFF pages", encoded(gray, "TIFF", save_all=True, append_images=[gray] * 3)
    yield "TIFF pages in colour", encoded(colour, "TIFF", save_all=True, append_images=[colour])


def wide() -> Iterator[tuple[str, bytes]]:
    """Images of more bits or other channels."""
    for channels in (1, 2, 3, 4):
        numbers = drawn(channels, 65536, np.uint16)
        yield f"PNG of 16 bits, {channels}", png16(numbers.squeeze())
    for ending, options in (("turned", {"exif": Image.Exif()}), ("plain", {})):
        for exif in options.values():
            exif[0x0112] = 6
        numbers = drawn(1, 65536, np.uint16)[..., 0]
        for form in ("PNG", "TIFF"):
            yield f"{form} of 16 bits, {ending}", encoded(Image.fromarray(numbers), form, **options)
    big = numbers.astype(">u2").tobytes()
    yield "PGM of 16 bits", f"P5 {WIDTH} {HEIGHT} 65535\n".encode() + big
    yield "JPEG2000 of 16 bits", encoded(Image.fromarray(numbers), "JPEG2000")
    for name, low, high in (("unit", 0, 1), ("bytes", 0, 255), ("signed", -3, 9)):
        for kind in (np.float32, np.int32):
            own = (drawn(1, high - low, np.float32)[..., 0] + low).astype(kind)
            yield f"TIFF {kind.__name__} {name}", encoded(Image.fromarray(own), "TIFF")
    for kind in ("uint8", "int8", "uint16", "int16", "uint32", "float32", "float64"):
        for channels in (1, 2, 3, 5):
            numbers = drawn(channels, 100 if kind == "int8" else 250, kind)
            for layout in ("contig", "separate", "pages") if channels > 1 else ("plane",):
                file = io.BytesIO()
                own = numbers.squeeze() if layout in ("contig", "plane") else numbers
                own = own if own is not numbers or layout == "contig" else own.transpose(2, 0, 1)
                planar = {} if layout in ("plane", "pages") else {"planarconfig": layout}
                options = dict(photometric="minisblack", metadata=None, **planar)
                tifffile.imwrite(file, own, **options)
                yield f"TIFF {kind} {channels} {layout}", file.getvalue()


def scans(folder: Path) -> Iterator[tuple[str, bytes]]:
    """DICOM images."""
    path = folder / "a.dcm"
    for kind in (np.uint8, np.uint16):
        numbers = drawn(1, 250, kind)[..., 0]
        for name, elements in {
            "plain": {},
            "inverted": {"PhotometricInterpretation": "MONOCHROME1"},
            "rescaled": {"RescaleSlope": "2", "RescaleIntercept": "-30"},
            "signed": {"PixelRepresentation": 1},
        }.items():
            write_dicom(path, numbers, **elements)
            yield f"DICOM {kind.__name__} {name}", path.read_bytes()
        write_dicom(path, np.tile(numbers, (4, 1)), Rows=HEIGHT, NumberOfFrames="4")
        yield f"DICOM {kind.__name__} frames", path.read_bytes()
    colour = dict(SamplesPerPixel=3, PhotometricInterpretation="RGB", PlanarConfiguration=0)
    write_dicom(path, drawn(3).reshape(HEIGHT, -1), Columns=WIDTH, **colour)
    yield "DICOM colour", path.read_bytes()


def arrays() -> Iterator[tuple[str, np.ndarray]]:
    """Arrays of each type, with channels first and last."""
    for kind in ("bool", "uint8", "int8", "uint16", "int64", "float16", "float32", "float64"):
        for channels in (1, 3):
            for high in (1, 120, 5000):
                if high == 1 or (high == 120 and kind != "bool") or kind in ("uint16", "int64"):
                    own = drawn(channels, high, np.float64)
                    own = own > 0.5 if kind == "bool" else own.astype(kind)
                    yield f"array {kind} {channels} to {high}", own
    yield "array of channels first", drawn(3).transpose(2, 0, 1)
    yield "array not finite", np.full((HEIGHT, WIDTH), np.nan)


def recorded(data: bytes | np.ndarray) -> dict[str, Any]:
    """Header and pixels of an image, or errors in their place."""
    seen: dict[str, Any] = {}
    try:
        known = header(data)
    except Exception as error:
        return {"header": reason(error)}
    seen["header"] = [known.height, known.width, known.bands, known.bits, known.pages]
    for channels in sorted({1, 3, known.bands, known.bands * known.pages}):
        for name, ends in (("8 bits", None), ("range", [10.0, 260.0] * channels)):
            try:
                pixels: Any = decode(data, PixelFormat(2, channels, ends)).reshape(channels, -1)
                pixels = pixels.tolist()
            except Exception as error:
                pixels = reason(error)
            seen[f"{channels} in {name}"] = pixels
    return seen


def recordings() -> dict[str, dict[str, Any]]:
    """Record each image, by its name."""
    pytest.importorskip("pydicom")
    with tempfile.TemporaryDirectory() as scratch, quietly():
        images = {**dict(pictures()), **dict(wide()), **dict(scans(Path(scratch)))}
        return {name: recorded(data) for name, data in {**images, **dict(arrays())}.items()}


def are_near(name: str, now: Any, then: Any, key: str) -> bool:
    """Return whether pixels differ by no more than rounding, or what another encoder does."""
    if isinstance(now, str) or isinstance(then, str) or key == "header":
        return now == then
    gap = np.abs(np.array(now, np.int64) - np.array(then, np.int64)).max()
    return gap <= (4 if name.startswith(LOSSY) else 1) * (257 if "range" in key else 1)


def test_images_are_read_as_they_were():
    then, now = json.loads(KEPT.read_text()), recordings()
    assert now.keys() == then.keys()
    assert [
        f"{name}, {key}: {then[name].get(key)} became {value}"
        for name, recording in now.items()
        for key, value in recording.items()
        if not are_near(name, value, then[name].get(key, ""), key)
    ] == []


if __name__ == "__main__":
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(r)}" for name, r in recordings().items())
    KEPT.write_text(f"{{\n{lines}\n}}\n")
