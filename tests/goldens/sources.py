"""Some forty sources of images, each in a folder of its own: what `open_images` makes of them is frozen in JSON."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tifffile
import torch
from PIL import Image

BUILDERS: dict[str, Callable[[Path], Any]] = {}
"""By name: writes a source into an empty folder and returns what to open, or (source, options)."""


def source(build: Callable[[Path], Any]) -> Callable[[Path], Any]:
    BUILDERS[build.__name__] = build
    return build


def pixels(number: int, width: int = 8, height: int = 8, channels: int = 3) -> np.ndarray:
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)


def encoded(number: int, width: int = 8, height: int = 8, channels: int = 3, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(number, width, height, channels)).save(file, kind)
    return file.getvalue()


def paint(folder: Path, *names: str, **form: Any) -> Path:
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(number, **form))
    return folder


def pack(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def table(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def cells(*numbers: int, **form: Any) -> list[dict[str, Any]]:
    return [{"bytes": encoded(number, **form), "path": f"{number}.png"} for number in numbers]


@source
def flat_folder(folder: Path) -> Any:
    return paint(folder, "b.png", "a.png", "deep/er/c.png")


@source
def classes(folder: Path) -> Any:
    return paint(folder, "cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png")


@source
def classes_and_one_at_the_root(folder: Path) -> Any:
    return paint(folder, "cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png", "stray.png")


@source
def classes_at_two_depths(folder: Path) -> Any:
    return paint(folder, "cat/1.png", "cat/deep/2.png", "dog/1.png")


@source
def splits(folder: Path) -> Any:
    return paint(folder, "train/x/1.png", "train/y/2.png", "test/x/3.png", "val/y/4.png")


@source
def splits_test(folder: Path) -> Any:
    return paint(folder, "train/x/1.png", "train/y/2.png", "test/x/3.png", "test/y/4.png"), {"split": "test"}


@source
def splits_all(folder: Path) -> Any:
    return paint(folder, "training/1.png", "testing/2.png"), {"split": "all"}


@source
def splits_and_a_stray_file(folder: Path) -> Any:
    return paint(folder, "train/x/1.png", "train/y/2.png", "test/x/3.png", "preview.png")


@source
def splits_and_a_stray_folder(folder: Path) -> Any:
    return paint(folder, "train/x/1.png", "train/y/2.png", "test/x/3.png", "extra/4.png")


@source
def damaged_files(folder: Path) -> Any:
    paint(folder, "a.png", "b.png", "c.png")
    (folder / "cut.png").write_bytes(encoded(5, 40, 40)[:200])
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "text.png").write_text("no image")
    (folder / "notes.txt").write_text("not looked at")
    return folder


@source
def hidden_files_and_links(folder: Path) -> Any:
    paint(folder, "a.png", "b.png", ".hidden.png", "__MACOSX/c.png")
    os.symlink(folder / "a.png", folder / "link.png")
    os.symlink(folder / "nowhere.png", folder / "dangling.png")
    os.symlink(folder, folder / "loop")
    return folder


@source
def many_sizes(folder: Path) -> Any:
    paint(folder, "a.png", width=30, height=20)
    paint(folder, "b.png", width=9, height=40)
    return paint(folder, "c.png", width=12, height=12), {"image_size": 10}


@source
def gray_folder(folder: Path) -> Any:
    return paint(folder, "a.png", "b.png", channels=1)


@source
def gray_and_colour(folder: Path) -> Any:
    paint(folder, "a.png", channels=1)
    return paint(folder, "b.png")


@source
def modes(folder: Path) -> Any:
    base = Image.fromarray(pixels(1))
    base.convert("P").save(folder / "palette.png")
    base.convert("RGBA").save(folder / "alpha.png")
    base.convert("LA").save(folder / "gray-alpha.png")
    base.convert("1").save(folder / "bits.png")
    base.convert("CMYK").save(folder / "cmyk.tif")
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(pixels(2, 8, 8)).save(folder / "turned.png", exif=exif)
    return folder


@source
def formats(folder: Path) -> Any:
    for kind, suffix in (("PNG", "png"), ("BMP", "bmp"), ("WEBP", "webp"), ("GIF", "gif"), ("TIFF", "tif")):
        options = {"lossless": True} if kind == "WEBP" else {}
        Image.fromarray(pixels(3, channels=1)).save(folder / f"a.{suffix}", kind, **options)
    Image.fromarray(pixels(4)).save(folder / "UPPER.PNG")
    return folder


@source
def sixteen_bits(folder: Path) -> Any:
    for number in range(4):
        wide = np.random.default_rng(number).integers(100, 4000, (8, 8)).astype(np.uint16)
        tifffile.imwrite(folder / f"{number}.tif", wide)
    return folder


@source
def sixteen_bits_full_range(folder: Path) -> Any:
    return sixteen_bits(folder), {"value_range": "full"}


@source
def sixteen_bits_as_eight(folder: Path) -> Any:
    return sixteen_bits(folder), {"value_range": "uint8"}


@source
def sixteen_bits_among_eight(folder: Path) -> Any:
    paint(folder, "a.png", "b.png", channels=1)
    tifffile.imwrite(folder / "c.tif", np.arange(64, dtype=np.uint16).reshape(8, 8) * 900)
    return folder


@source
def five_channels(folder: Path) -> Any:
    for number in range(3):
        wide = np.random.default_rng(number).integers(0, 2000, (5, 8, 8)).astype(np.uint16)
        tifffile.imwrite(folder / f"{number}.tif", wide, photometric="minisblack", planarconfig="separate")
    return folder


@source
def dicom(folder: Path) -> Any:
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian

    for number in range(3):
        meta = FileMetaDataset()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = "1.2.840.10008.5.1.4.1.1.7", f"1.2.3.{number}"
        one = FileDataset(str(folder / f"{number}.dcm"), {}, file_meta=meta, preamble=b"\0" * 128)
        one.Rows = one.Columns = 8
        one.SamplesPerPixel, one.PhotometricInterpretation, one.PixelRepresentation = 1, "MONOCHROME2", 0
        one.BitsAllocated = one.BitsStored = 16
        one.HighBit = 15
        one.PixelData = np.random.default_rng(number).integers(0, 3000, (8, 8)).astype("<u2").tobytes()
        one.save_as(folder / f"{number}.dcm", enforce_file_format=True)
    return folder


@source
def metadata_csv(folder: Path) -> Any:
    paint(folder, "a.png", "b.png", "c.png")
    (folder / "metadata.csv").write_text("file_name,kind\na.png,x\nb.png,y\nc.png,x\n")
    return folder, {"label_column": "kind"}


@source
def metadata_jsonl(folder: Path) -> Any:
    paint(folder, "a.png", "b.png")
    lines = [{"file_name": "a.png", "kind": 3}, {"file_name": "b.png", "kind": 5}, {"file_name": "lost.png", "kind": 5}]
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder, {"label_column": "kind"}


@source
def parquet_file(folder: Path) -> Any:
    return table(folder / "a.parquet", image=cells(0, 1, 2), label=[1, 0, 1])


@source
def parquet_splits(folder: Path) -> Any:
    table(folder / "train-00000.parquet", img=cells(0, 1), fine_label=[1, 0])
    table(folder / "test-00000.parquet", img=cells(2), fine_label=[1])
    return folder


@source
def parquet_with_damage(folder: Path) -> Any:
    broken = [{"bytes": b"nothing", "path": "broken.png"}, {"bytes": None, "path": None}]
    return table(folder / "a.parquet", image=[*cells(0, 1), *broken], label=[1, 0, 1, 0])


@source
def parquet_of_bytes(folder: Path) -> Any:
    return table(folder / "a.parquet", image=[encoded(0), encoded(1)])


@source
def tar(folder: Path) -> Any:
    pack(folder / "a.tar", {"x/0.png": encoded(0), "x/0.cls": b"1", "x/1.png": encoded(1), "x/1.cls": b"0"})
    return folder / "a.tar"


@source
def tar_splits(folder: Path) -> Any:
    pack(folder / "set-train-000.tar", {"0.png": encoded(0), "1.png": encoded(1)})
    pack(folder / "set-train-001.tar", {"2.png": encoded(2)})
    pack(folder / "set-validation-000.tar", {"3.png": encoded(3)})
    return folder


@source
def tar_cut_short(folder: Path) -> Any:
    pack(folder / "a.tar", {"0.png": encoded(0), "1.png": encoded(1)})
    pack(folder / "b.tar", {"2.png": encoded(2, 64, 64), "3.png": encoded(3, 64, 64)})
    whole = (folder / "b.tar").read_bytes()
    (folder / "b.tar").write_bytes(whole[: 512 + 4096])
    return folder, {"image_size": 8}


@source
def table_of_paths(folder: Path) -> Any:
    paint(folder, "in/a.png", "in/b.png", "in/c.png")
    rows = "path,label,split,place\nin/a.png,x,train,1\nin/b.png,y,train,2\nin/c.png,x,test,3\nin/gone.png,x,train,4\n"
    (folder / "table.csv").write_text(rows)
    return folder / "table.csv"


@source
def table_of_paths_in_parquet(folder: Path) -> Any:
    paint(folder, "a.png", "b.png")
    return table(folder / "table.parquet", file_name=["a.png", "b.png"], label=[7, 9])


@source
def npy_gray(folder: Path) -> Any:
    np.save(folder / "a.npy", np.stack([pixels(number, channels=1) for number in range(5)]))
    return folder / "a.npy"


@source
def npz_labelled(folder: Path) -> Any:
    np.savez(folder / "a.npz", images=np.stack([pixels(number) for number in range(4)]), labels=np.array([0, 1, -1, 1]))
    return folder / "a.npz"


@source
def npz_splits(folder: Path) -> Any:
    images, labels = np.stack([pixels(number) for number in range(5)]), np.array([0, 1, 1, 0, 1])
    np.savez(folder / "a.npz", x_train=images[:3], y_train=labels[:3], x_test=images[3:], y_test=labels[3:])
    return folder / "a.npz"


@source
def array_in_memory(folder: Path) -> Any:
    return np.stack([pixels(number) for number in range(4)])


@source
def array_channel_first(folder: Path) -> Any:
    return np.stack([pixels(number) for number in range(4)]).transpose(0, 3, 1, 2).copy()


@source
def array_of_floats(folder: Path) -> Any:
    return np.random.default_rng(0).random((4, 8, 8), dtype=np.float32)


@source
def pair_of_images_and_labels(folder: Path) -> Any:
    return np.stack([pixels(number) for number in range(4)]), np.array([3, 1, 3, 1])


@source
def list_of_pictures(folder: Path) -> Any:
    return [Image.fromarray(pixels(number)) for number in range(3)], {"image_size": 8}


@source
def list_of_files(folder: Path) -> Any:
    paint(folder, "a.png", "b.png")
    return [str(folder / "b.png"), str(folder / "a.png")]


@source
def two_folders(folder: Path) -> Any:
    paint(folder / "one", "cat/1.png", "dog/2.png")
    paint(folder / "two", "dog/1.png", "emu/2.png")
    return [str(folder / "one"), str(folder / "two")]


@source
def folder_and_array(folder: Path) -> Any:
    paint(folder / "one", "a.png", "b.png")
    np.save(folder / "two.npy", np.stack([pixels(9), pixels(10)]))
    return [str(folder / "one"), str(folder / "two.npy")]


@source
def digits(folder: Path) -> Any:
    return "digits", {"split": "test"}


@source
def nothing(folder: Path) -> Any:
    (folder / "notes.txt").write_text("no image")
    return folder


@source
def unknown_split(folder: Path) -> Any:
    return paint(folder, "a.png"), {"split": "test"}


def described(name: str, folder: Path) -> dict[str, Any]:
    """Open a source: its names, labels, splits, skipped files and sums of pixels, or the line of its error."""
    from nearfar.data import list_splits, open_images

    folder.mkdir(parents=True)
    built = BUILDERS[name](folder)
    given, options = built if isinstance(built, tuple) and isinstance(built[1], dict) else (built, {})
    try:
        images = open_images(given, cache_dir=folder.parent / f"cache-{name}", **options)
    except (ValueError, FileNotFoundError) as error:
        return {"error": str(error).replace(str(folder), "HERE")}
    sums = images.gather(torch.arange(len(images))).double().flatten(1).sum(1)
    return {
        "names": images.names,
        "labels": None if images.labels is None else images.labels.tolist(),
        "classes": images.class_names,
        "split": images.split,
        "splits": [] if isinstance(given, np.ndarray) else list_splits(given),
        "skipped": [[name, reason.replace(str(folder), "HERE")] for name, reason in images.skipped],
        "form": [images.channels, images.image_size, str(images.gather(torch.arange(1)).dtype)],
        "value_range": images.value_range,
        "sums": [round(one, 3) for one in sums.tolist()],
        "mean": [round(one, 5) for one in images.mean],
    }
