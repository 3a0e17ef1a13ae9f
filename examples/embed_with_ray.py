"""Embed as many images as there are with Ray Data: Parquet files in, Parquet files out, on one machine or a cluster.

    python examples/embed_with_ray.py runs/photos images/ embeddings/ --workers 16 --gpus 1

images/: Parquet with images as Hugging Face datasets writes them, {bytes, path}, or WebDataset tars (--tars).
embeddings/: columns "name" and "embedding", one file for each block of rows. Every worker loads the encoder once, reads
its own rows and holds a few batches, so memory stays the same for any number of rows. The numbers are those of
`nearfar embed`. Ray restarts workers that fail. `examples/neighbours_on_disk.py` searches the result.
Needs `pip install "nearfar[large]"`.
"""

from __future__ import annotations

import argparse

import numpy as np
import ray
import torch

import nearfar
from nearfar.data.decoding import pixels_of, reason
from nearfar.data.value_range import PixelFormat
from nearfar.device import find_device
from nearfar.evaluation import extract


class Embedder:
    """Batches of encoded images -> batches of names and embeddings; an image that cannot be read is
    printed.
    """

    def __init__(self, run: str, name: str, image: str) -> None:
        self.encoder = nearfar.load(run)
        self.form = PixelFormat(
            self.encoder.image_size, self.encoder.channels, self.encoder.value_range
        )
        self.device = find_device()
        self.name, self.image = name, image

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        names, pixels = [], []
        for number, image in enumerate(batch[self.image]):
            encoded, path = (
                (image["bytes"], image["path"]) if isinstance(image, dict) else (image, None)
            )
            name = str(batch[self.name][number] if self.name in batch else path)
            try:
                pixels.append(pixels_of(encoded, self.form))
                names.append(name)
            except Exception as error:
                print(f"skipped {name}: {reason(error)}")
        dim = self.encoder.num_features
        features = (
            extract(self.encoder, torch.stack(pixels), device=self.device)
            if pixels
            else torch.zeros(0, dim)
        )
        return {"name": np.array(names, dtype=str), "embedding": features.numpy()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("images")
    parser.add_argument("out")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gpus", type=float, default=0, help="of each worker")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument(
        "--tars", action="store_true", help="WebDataset tars in place of Parquet files"
    )
    parser.add_argument("--image", default="image", help="column, or extension in tars: jpg")
    parser.add_argument(
        "--name", default="name", help="column; in tars __key__; without it the path of the image"
    )
    given = parser.parse_args()
    read = ray.data.read_webdataset if given.tars else ray.data.read_parquet
    rows = read(given.images, **({"decoder": None} if given.tars else {}))
    embedded = rows.map_batches(
        Embedder,
        fn_constructor_args=[given.run, "__key__" if given.tars else given.name, given.image],
        batch_size=given.batch_size,
        concurrency=given.workers,
        num_cpus=0.5,  # of which reading and writing need some too
        num_gpus=given.gpus,
    )
    embedded.write_parquet(given.out)


if __name__ == "__main__":
    main()
