"""Small valid files from which fuzzing starts, made of drawn images; each takes a few hundred
bytes.
"""

from __future__ import annotations

import functools
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import torch
from PIL import Image
from safetensors.torch import save


def drawn(width: int = 9, height: int = 7, channels: int = 3) -> np.ndarray:
    """A ramp in each channel, [height, width, channels] of uint8."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack(
        [(rows * 23 + columns * (11 + 7 * c)) % 256 for c in range(channels)], -1
    ).astype(np.uint8)


def encoded(form: str, mode: str = "RGB", **options: Any) -> bytes:
    """A drawn image as Pillow saves it."""
    file = io.BytesIO()
    Image.fromarray(drawn()).convert(mode).save(file, form, **options)
    return file.getvalue()


def exif() -> Image.Exif:
    """The notes of a camera: time, name, place and orientation."""
    notes = Image.Exif()
    notes[0x0112], notes[0x0110] = 6, "camera"
    notes.get_ifd(0x8769)[0x9003] = "2020:01:02 03:04:05"
    place = notes.get_ifd(0x8825)
    place[1], place[2], place[3], place[4] = "N", (1.0, 2.0, 3.5), "W", (4.0, 5.0, 6.5)
    return notes


def png() -> list[bytes]:
    """PNG files of all modes, with notes, animated, of 16 bits."""
    frames = [Image.fromarray(drawn()[:, ::-1])]
    modes = [encoded("PNG", mode) for mode in ("L", "RGB", "RGBA", "LA", "P", "1", "I;16")]
    return [
        *modes,
        encoded("PNG", exif=exif()),
        encoded("PNG", save_all=True, append_images=frames),
        *(png_of_16_bits(kind) for kind in (2, 4, 6)),
    ]


def png_of_16_bits(kind: int) -> bytes:
    """A PNG of 16 bits: 2 for colour, and 4 more with alpha."""
    import zlib

    lines = drawn(channels={2: 3, 4: 2, 6: 4}[kind]).astype(">u2") * 257
    pixels = b"".join(b"\0" + row.tobytes() for row in lines)
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 9, 7, 16, kind, 0, 0, 0))]
    parts += [(b"IDAT", zlib.compress(pixels)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )


def jpeg() -> list[bytes]:
    """JPEG files: gray, colour, CMYK, progressive, with notes."""
    return [
        *(encoded("JPEG", mode) for mode in ("L", "RGB", "CMYK")),
        encoded("JPEG", progressive=True),
        encoded("JPEG", exif=exif()),
        encoded("MPO", save_all=True, append_images=[Image.fromarray(drawn())]),
    ]


def webp() -> list[bytes]:
    """WebP files: lossy, lossless, with alpha and notes, animated."""
    return [
        encoded("WEBP"),
        encoded("WEBP", lossless=True),
        encoded("WEBP", "RGBA", exif=exif()),
        encoded("WEBP", save_all=True, append_images=[Image.fromarray(255 - drawn())]),
    ]


def gif() -> list[bytes]:
    """GIF files: one frame, several, transparent."""
    frames = [Image.fromarray(255 - drawn())]
    return [
        encoded("GIF", "P"),
        encoded("GIF", "L"),
        encoded("GIF", "RGBA"),
        encoded("GIF", save_all=True, append_images=frames),
    ]


def heif() -> list[bytes]:
    """HEIC, AVIF and JPEG 2000, as far as they can be written here."""
    from nearfar.data.pictures import formats

    forms = [form for form in ("HEIF", "AVIF", "JPEG2000") if form in formats()]
    made = [encoded(form) for form in forms]
    if "JPEG2000" in forms:
        wide = io.BytesIO()
        Image.fromarray(drawn(channels=1)[..., 0].astype(np.uint16) * 257).save(wide, "JPEG2000")
        made += [wide.getvalue(), encoded("JPEG2000", no_jp2=True)]
    return made


def pictures() -> list[bytes]:
    """All other formats that are read and that Pillow writes, and a few that it only reads."""
    forms = ["BMP", "DIB", "PPM", "PCX", "TGA", "SGI", "ICO", "ICNS", "DDS", "IM", "QOI"]
    made = []
    for form in forms:
        if form in Image.SAVE:
            made.append(encoded(form, "RGBA" if form == "ICNS" else "RGB"))
    made += [encoded("XBM", "1"), encoded("MSP", "1"), encoded("PPM", "L"), encoded("TGA", "P")]
    made += [b"P5 9 7 65535\n" + drawn().tobytes()[:126], b"P3 2 1 255 1 2 3 4 5 6"]
    made.append(struct.pack(">8I", 0x59A66A95, 9, 7, 24, 196, 1, 0, 0) + bytes(196))  # SUN
    psd = b"8BPS" + struct.pack(">H6xHIIHH", 1, 3, 7, 9, 8, 3) + bytes(12) + b"\0\0"
    made.append(psd + drawn().transpose(2, 0, 1).tobytes())
    blp = b"BLP2" + struct.pack("<IBBBB2I", 1, 1, 0, 0, 0, 9, 7)
    made.append(blp + struct.pack("<16I16I", 1172, *15 * [0], 63, *15 * [0]) + bytes(1024 + 63))
    return made


def tiff() -> list[bytes]:
    """TIFF files of many forms: types, planes, pages, tiles, byte orders, compressions."""
    import tifffile

    forms: list[tuple[np.ndarray, dict[str, Any]]] = [
        (drawn(), {"photometric": "rgb", "metadata": None}),
        (drawn(channels=1)[..., 0].astype(np.uint16), {"metadata": None, "byteorder": ">"}),
        (drawn(channels=5).transpose(2, 0, 1), {"photometric": "minisblack"}),
        (drawn(channels=2).astype(np.float32), {"planarconfig": "contig", "metadata": None}),
        (drawn(16, 16).astype(np.uint16), {"photometric": "rgb", "tile": (16, 16)}),
        (drawn(channels=4).transpose(2, 0, 1), {"bigtiff": True, "imagej": False}),
        (drawn(channels=2).transpose(2, 0, 1), {"ome": True}),
        (drawn(channels=2).transpose(2, 0, 1), {"imagej": True}),
    ]
    for compression in ("zlib", "packbits", "lzw", "zstd"):
        options = {"photometric": "rgb", "compression": compression, "metadata": None}
        forms.append((drawn(), options))
    made = [encoded("TIFF"), encoded("TIFF", "I;16", exif=exif())]
    made += [encoded("TIFF", compression=kind) for kind in ("jpeg", "tiff_lzw", "tiff_deflate")]
    made.append(encoded("TIFF", "L", save_all=True, append_images=[Image.fromarray(drawn())]))
    for array, options in forms:
        file = io.BytesIO()
        tifffile.imwrite(file, array, **options)
        made.append(file.getvalue())
    return made


def dicom() -> list[bytes]:
    """DICOM images: gray of 8 and 16 bits, inverted, colour, frames, rescaled."""
    narrow = drawn(channels=1)[..., 0]
    wide = narrow.astype(np.uint16) * 16
    return [
        _dicom(narrow),
        _dicom(wide, PhotometricInterpretation="MONOCHROME1"),
        _dicom(wide, RescaleSlope="2", RescaleIntercept="-3"),
        _dicom(np.stack([narrow, narrow]), NumberOfFrames="2"),
        _dicom(drawn(), PhotometricInterpretation="RGB", SamplesPerPixel=3, PlanarConfiguration=0),
    ]


def _dicom(numbers: np.ndarray, **elements: Any) -> bytes:
    import pydicom
    from pydicom.dataset import FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage

    bits = 8 * numbers.dtype.itemsize
    image, image.file_meta = pydicom.Dataset(), FileMetaDataset()
    image.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    image.file_meta.MediaStorageSOPClassUID = image.SOPClassUID = SecondaryCaptureImageStorage
    image.file_meta.MediaStorageSOPInstanceUID = image.SOPInstanceUID = "1.2.3"
    image.Rows, image.Columns, image.SamplesPerPixel = 7, 9, 1
    image.PhotometricInterpretation = "MONOCHROME2"
    image.BitsAllocated, image.BitsStored, image.HighBit = bits, bits, bits - 1
    image.PixelRepresentation = 0
    image.PixelData = numbers.tobytes() + b"\0" * (numbers.nbytes % 2)
    for name, value in elements.items():
        setattr(image, name, value)
    file = io.BytesIO()
    image.save_as(file, enforce_file_format=True)
    return file.getvalue()


def notes() -> list[bytes]:
    """Blocks of EXIF, as they stand in an image."""
    block = exif().tobytes()[6:]
    return [block, block[:40], b"MM\0*\0\0\0\x08\0\0"]


def tars() -> list[bytes]:
    """Tars of examples in several formats."""
    small = encoded("PNG", "L")
    members = {"a/0.png": small, "a/0.cls": b"3", "1.jpg": encoded("JPEG", "L"), "1.txt": b"x"}
    made = []
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        names = {**members, 120 * "n" + ".png": b"P5 1 1 255\n\0"}
        made.append(_tar(members, form))
        if form != tarfile.USTAR_FORMAT:
            made.append(_tar(dict(list(names.items())[-2:]), form))
    return made


def _tar(members: Mapping[str, bytes], form: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue().rstrip(b"\0") + bytes(1024)


def npy() -> list[bytes]:
    """Arrays: images of several types and shapes, and vectors."""
    images = drawn()[None].repeat(2, 0)
    vectors = np.arange(12, dtype=np.float32).reshape(3, 4)
    arrays = [images, images[..., 0], images.astype(np.float32) / 255, images.astype(">u2")]
    arrays += [vectors, vectors.astype(np.float16), np.asfortranarray(vectors)]
    return [_npy(array) for array in arrays] + [_npy(vectors, (2, 0)), _npy(vectors, (3, 0))]


def _npy(array: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version, allow_pickle=False)
    return file.getvalue()


def npz() -> list[bytes]:
    """Archives of arrays: images with labels, in splits, and vectors with names."""
    images, labels = drawn(4, 4)[None].repeat(2, 0), np.array([0, 1])
    vectors = np.arange(12, dtype=np.float32).reshape(3, 4)
    given: list[dict[str, np.ndarray]] = [
        {"images": images, "labels": labels},
        {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels},
        {"images": images, "labels": np.array(["a", "b"]), "other": images},
        {"embedding": vectors, "names": np.array(["a", "b", "c"]), "label": np.array([1, 2, 1])},
    ]
    made = []
    for arrays in given:
        for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            file = io.BytesIO()
            with zipfile.ZipFile(file, "w", compression) as archive:
                for name, array in arrays.items():
                    archive.writestr(f"{name}.npy", _npy(array))
            made.append(file.getvalue())
    return made


TABLES = (".csv", ".tsv", ".jsonl")


def tables() -> list[bytes]:
    """Tables of paths with labels and splits, and of vectors; the first byte is the kind."""
    header = [f"e{i}" for i in range(8)]
    texts = [
        "path,label,split\na.png,cat,train\nb.png,dog,test\n",
        "file_name;class\na.png;1\nb.png;\n",
        'name,label,x\n"a\nb.png",0.5,\nc.png,nan,3\n',
        "path,label\na.png,001\nb.png,é\n",
        ",".join(["name", *header]) + "\n" + "a.png" + 8 * ",0.5" + "\n",
    ]
    made = [b"\0" + text.encode() for text in texts]
    made += [b"\0" + texts[3].encode("utf-16"), b"\0" + texts[3].encode("latin-1")]
    made += [b"\1" + text.replace(",", "\t").encode() for text in texts[:2]]
    lines = [{"path": "a.png", "label": 1, "x": [1, 2]}, {"path": "b.png", "label": None}]
    made.append(b"\2" + "\n".join(map(json.dumps, lines)).encode())
    made.append(b"\2" + b'{"file_name": "a.png", "split": "train", "box": {"x": 1.5}}\n')
    return made


def parquet() -> list[bytes]:
    """Parquet files: of images, of paths, of vectors, with notes of other libraries."""
    small = encoded("PNG", "L")
    cells = pyarrow.array([{"bytes": small, "path": "a.png"}, {"bytes": None, "path": "b.png"}])
    classes = {"names": ["cat", "dog"], "_type": "ClassLabel"}
    features = {"image": {"_type": "Image"}, "label": classes}
    vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(range(8), "float32"), 4)
    given = [
        pyarrow.table({"image": cells, "label": [0, 1]}).replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": features}})}
        ),
        pyarrow.table({"img": pyarrow.array([small]), "label": ["a"], "split": ["train"]}),
        pyarrow.table({"path": ["a.png", "b.png"], "label": [1, 2]}),
        pyarrow.table({"name": ["a", "b"], "embedding": vectors}),
        pyarrow.table({f"e{i}": [0.5, 1.5] for i in range(8)} | {"name": ["a", "b"]}),
    ]
    made = []
    for table in given:
        for compression in ("none", "snappy"):
            file = io.BytesIO()
            pyarrow.parquet.write_table(table, file, compression=compression)
            made.append(file.getvalue())
    return made


def arrow() -> list[bytes]:
    """Tables of data sets, as a run folder has them."""
    table = pyarrow.table({"name": ["a", "b"], "digest": ["0" * 32, None], "label": [1, 2]})
    made = []
    for compression in ("uncompressed", "lz4"):
        file = io.BytesIO()
        pyarrow.feather.write_feather(table, file, compression=compression)
        made.append(file.getvalue())
    return made


def yaml() -> list[bytes]:
    """Settings of runs."""
    return [
        b"data: photos\nmethod: simclr\nencoder: small\nepochs: 1.5\nmean: [0.5, 0.5, 0.5]\n",
        b"data: [a, b]\nhyperparameters: {temperature: 0.5}\nseed: 0x10\nstd: &s [1.0]\nx: *s\n",
        b"{data: {object: array}, views: {crop: 0.2}, out: null, workers: 1_000}\n",
        b"--- !!str a\n...\n--- b\n",
        b"? [a]\n: |\n  x\n",
        b"when: 2020-01-02 03:04:05\nb: !!binary aGk=\nc: !!set {a}\nd: .inf\ne: 1:30\n",
    ]


PAPER = b"""title: a paper
tables:
  table-1:
    title: accuracy
    source: Table 1
    unit: "%"
    protocol: [knn]
    metric: knn
    seeds: 1
    first_seed: 0
    common: {epochs: 1, limit: 64}
    columns: {digits: {data: digits}}
    rows: {simclr: {title: SimCLR, run: {method: simclr}}}
    small: {seeds: 1, columns: {digits: {data: digits}}}
"""


def coco() -> list[bytes]:
    """COCO's annotations of the image a.png, and VOC's; the first byte is the kind."""
    box = {"id": 1, "image_id": 1, "category_id": 7, "bbox": [1, 1, 3, 4], "area": 12}
    masks: list[Any] = [[[1, 1, 4, 1, 4, 5]], {"size": [7, 9], "counts": [10, 5, 48]}]
    image = {"id": 1, "file_name": "a.png", "width": 9, "height": 7}
    category: dict[str, Any] = {"id": 7, "name": "cat"}
    whole: dict[str, Any] = {"images": [image], "categories": [category]}
    points = category | {"keypoints": ["eye"]}
    made = [
        whole | {"annotations": [box]},
        *(whole | {"annotations": [box | {"segmentation": mask}]} for mask in masks),
        whole | {"categories": [points], "annotations": [box | {"keypoints": [1, 2, 2]}]},
    ]
    xml = (
        "<annotation><filename>a.png</filename><size><width>9</width><height>7</height></size>"
        "<object><name>cat</name><difficult>1</difficult><bndbox><xmin>1</xmin><ymin>1</ymin>"
        "<xmax>4</xmax><ymax>5</ymax></bndbox></object></annotation>"
    )
    return [b"\0" + json.dumps(each).encode() for each in made] + [b"\1" + xml.encode()]


def tensors() -> list[bytes]:
    """Weights in the files of torch and safetensors; the first byte is the kind."""
    state = {"a.weight": torch.zeros(2, 3), "b": torch.ones(1, dtype=torch.int64)}
    made = [b"\2" + save(state), b"\2" + save(state, metadata={"format": "pt"})]
    for content in (state, {"state_dict": state, "epoch": 3}, {"model": [1, 2.0, None]}):
        file = io.BytesIO()
        torch.save(content, file)
        made.append(b"\0" + file.getvalue())
    return made


def checkpoint() -> list[bytes]:
    """A checkpoint of a run, in both forms of torch."""
    parts: dict[str, Any] = {"model": {"w": torch.zeros(2)}, "optimizer": {"state": {}}}
    parts |= {"precision": {}, "pace": {}, "step": 3, "loss_count": 1}
    parts["loss_sum"] = torch.tensor(1.5)
    made = []
    for zipped in (True, False):
        file = io.BytesIO()
        torch.save(parts, file, _use_new_zipfile_serialization=zipped)
        made.append(file.getvalue())
    return made


def map_file() -> list[bytes]:
    """Maps of both kinds."""
    from nearfar.maps.projector import Projector

    about = json.dumps({"images": 2, "layout": "projector"})
    net = Projector(3).state_dict()
    tensors = {"coordinates": torch.zeros(2, 2)}
    drawn_by_net = tensors | {f"function.{name}": value for name, value in net.items()}
    digests = torch.zeros(2, 16, dtype=torch.uint8)
    by_features = tensors | {"function.features": torch.zeros(2, 3).half(), "digests": digests}
    return [save(each, metadata={"about": about}) for each in (by_features, drawn_by_net)]


@functools.cache
def metrics() -> list[bytes]:
    """Metrics of a run."""
    health = {"alignment": 0.5, "uniformity": -2.0, "rank": 12.5}
    lines = [
        {"step": 1, "epoch": 0.5, "planned_epochs": 2, "loss": 3.25, "lr": 0.1},
        {"step": 2, "epoch": 1.0, "planned_epochs": 2, "loss": None, "health": health},
    ]
    return [("\n".join(map(json.dumps, lines)) + "\n").encode()]
