"""Pascal VOC's annotations: one xml for each image, lists of names for the splits."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

import numpy as np

from nearfar.data.annotations import AnnotatedImage, AnnotatedImages, clipped
from nearfar.data.decode import suffixes
from nearfar.messages import one_line

_FOLDERS = ("JPEGImages", "images", ".")


def voc_splits(folder: Path) -> tuple[list[str], list[str]] | None:
    """Return the names to train on and to test on, from ImageSets/Main; None where it does not say.

    trainval and test where there are both (VOC2007), else train and test, or train and val (VOC2012).
    """
    for pair in (("trainval", "test"), ("train", "test"), ("train", "val")):
        files = [folder / "ImageSets" / "Main" / f"{name}.txt" for name in pair]
        if all(file.is_file() for file in files):
            train, test = (
                [
                    line.split()[0]
                    for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
                    if line.strip()
                ]
                for file in files
            )
            if both := set(train) & set(test):
                raise ValueError(f"{files[1]} and {files[0].name} both list {min(both)!r}")
            return train, test
    return None


def read_voc(folder: Path) -> AnnotatedImages:
    """Read all xml files of a folder in VOC's layout; see `nearfar.data.annotations.open_annotated`."""
    place = next((one for one in (folder / "Annotations", folder) if one.is_dir() and any(one.glob("*.xml"))), None)
    if place is None:
        raise FileNotFoundError(
            f"no annotations in {folder}: give a folder with Annotations/*.xml and JPEGImages/ (VOC), "
            "or with annotations/*.json, or one .json (COCO)"
        )
    roots = {file: _parse(file) for file in sorted(place.glob("*.xml"))}
    names = sorted({_text(file, one, "name") for file, root in roots.items() for one in root.iter("object")})
    if not names:
        raise ValueError(f"{place}: no xml names an object")
    images = (_image(folder, file, root, names) for file, root in roots.items())
    return AnnotatedImages(tuple(images), tuple(names))


def _parse(file: Path) -> Element:
    """Parse an xml without expanding entities: a file that declares any is refused, and nothing outside it is read."""
    builder = TreeBuilder()
    parser = expat.ParserCreate()

    def refuse(*declared: object) -> None:
        raise expat.ExpatError("it declares entities, which annotations have no need of")

    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler = refuse
    with one_line(f"{file} is no xml to read", expat.ExpatError, LookupError, ValueError):  # the latter two: encodings
        parser.Parse(file.read_bytes(), True)
        return builder.close()


def _image(folder: Path, file: Path, root: Element, names: list[str]) -> AnnotatedImage:
    boxes, labels, crowd = [], [], []
    size = root.find("size")
    width, height = ((int(_number(file, size, side)) if size is not None else 0) for side in ("width", "height"))
    if width < 1 or height < 1:
        raise ValueError(f"{file} does not say the size of its image")
    for one in root.iter("object"):
        corners = one.find("bndbox")
        if corners is None:
            raise ValueError(f"{file}: an object has no bndbox")
        left, top, right, bottom = (_number(file, corners, side) for side in ("xmin", "ymin", "xmax", "ymax"))
        if right < left or bottom < top:
            raise ValueError(f"{file}: a box ends before it begins, at {left:g}, {top:g}, {right:g}, {bottom:g}")
        boxes.append((left - 1, top - 1, right, bottom))  # VOC counts pixels from 1, the last one included
        labels.append(names.index(_text(file, one, "name")) + 1)
        crowd.append((one.findtext("difficult") or "0").strip() == "1")
    kept, fine = clipped(boxes, width, height)
    areas = (kept[:, 2:] - kept[:, :2]).prod(1)
    path = _picture(folder, file, (root.findtext("filename") or "").strip())
    return AnnotatedImage(
        path, width, height, kept[fine], np.asarray(labels, np.int64)[fine], areas[fine], np.asarray(crowd, bool)[fine]
    )


def _picture(folder: Path, file: Path, named: str) -> Path:
    """The image of an xml: by the xml's own name, as ImageSets has it, or else by what it says."""
    for place in _FOLDERS:
        for name in (*(file.stem + end for end in (".jpg", *sorted(suffixes()))), named):
            if name and (path := folder / place / name).is_file():
                return path
    raise ValueError(f"{file} describes {named or file.stem!r}, which is not in {folder / _FOLDERS[0]}")


def _text(file: Path, element: Element, key: str) -> str:
    text = (element.findtext(key) or "").strip()
    if not text:
        raise ValueError(f"{file}: {element.tag} has no {key}")
    return text


def _number(file: Path, element: Element, key: str) -> float:
    text = _text(file, element, key)
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not abs(number) < 1e6:
        raise ValueError(f"{file}: {key} is no number of pixels: {text[:40]!r}")
    return number
