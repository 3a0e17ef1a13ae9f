"""Synthetic annotated images: bright squares and discs on noise, in COCO's and VOC's layout."""

import json

import numpy as np
import pytest
from PIL import Image

NAMES = ("disc", "square")
POINTS = ("left_corner", "right_corner")


def scene(rng, side=64):
    """One image with two objects: (pixels, [(class, left, top, size)])."""
    pixels = rng.integers(0, 60, (side, side, 3), dtype=np.uint8)
    objects = []
    for half in range(2):
        size = int(rng.integers(16, 26))
        left, top = (
            int(rng.integers(1, side // 2 - size)) + half * side // 2,
            int(rng.integers(1, side - size)),
        )
        kind = int(rng.integers(2))
        y, x = np.mgrid[:size, :size] - (size - 1) / 2
        inside = (x**2 + y**2 <= (size / 2) ** 2) if kind == 0 else np.ones((size, size), bool)
        pixels[top : top + size, left : left + size][inside] = (
            (220, 60, 60) if kind == 0 else (60, 220, 60)
        )
        objects.append((kind, left, top, size))
    return pixels, objects


@pytest.fixture(scope="session")
def scenes():
    rng = np.random.default_rng(0)
    return [scene(rng) for _ in range(8)]


@pytest.fixture(scope="session")
def coco_folder(tmp_path_factory, scenes):
    """train.json with six images and test.json with two, in annotations/, with boxes, polygons and
    keypoints.
    """
    root = tmp_path_factory.mktemp("coco")
    (root / "annotations").mkdir()
    (root / "images").mkdir()
    for name, part in (("train", range(6)), ("test", range(6, 8))):
        content = {"images": [], "annotations": [], "categories": []}
        for number, kind in enumerate(NAMES):
            content["categories"].append(
                {"id": 10 * (number + 1), "name": kind, "keypoints": POINTS}
            )
        for i in part:
            pixels, objects = scenes[i]
            Image.fromarray(pixels).save(root / "images" / f"{i}.png")
            content["images"].append({"id": i, "file_name": f"{i}.png", "width": 64, "height": 64})
            for kind, x, y, s in objects:
                content["annotations"].append(
                    {
                        "id": len(content["annotations"]) + 1,
                        "image_id": i,
                        "category_id": 10 * (kind + 1),
                        "bbox": [x, y, s, s],
                        "area": s * s,
                        "iscrowd": 0,
                        "segmentation": [[x, y, x + s, y, x + s, y + s, x, y + s]],
                        "keypoints": [x, y, 2, x + s, y, 2],
                        "num_keypoints": 2,
                    }
                )
        (root / "annotations" / f"{name}.json").write_text(json.dumps(content))
    return root


@pytest.fixture
def voc_folder(tmp_path, scenes):
    """The same eight images in VOC's layout; ImageSets lists six to train on and two to test on."""
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (tmp_path / name).mkdir(parents=True)
    for i, (pixels, objects) in enumerate(scenes):
        Image.fromarray(pixels).save(tmp_path / "JPEGImages" / f"{i}.jpg")
        body = "".join(
            f"<object><name>{NAMES[kind]}</name><difficult>{int(i == 7)}</difficult><bndbox><xmin>{x + 1}</xmin>"
            f"<ymin>{y + 1}</ymin><xmax>{x + s}</xmax><ymax>{y + s}</ymax></bndbox></object>"
            for kind, x, y, s in objects
        )
        size = "<size><width>64</width><height>64</height></size>"
        (tmp_path / "Annotations" / f"{i}.xml").write_text(
            f"<annotation><filename>{i}.jpg</filename>{size}{body}</annotation>"
        )
    (tmp_path / "ImageSets/Main/trainval.txt").write_text("\n".join(map(str, range(6))))
    (tmp_path / "ImageSets/Main/test.txt").write_text("6\n7\n")
    return tmp_path
