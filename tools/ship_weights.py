"""Copy the encoder of a run into the package as weights to start from, in half the bytes.

    nearfar pretrain data/imagenette --encoder small --image-size 144 --crop-size 96 --epochs 200 --out runs/weights
    python -m tools.ship_weights runs/weights

Numbers are stored as float16. docs/starting-weights.md has the model card, and what the weights are worth.
"""

import argparse
from pathlib import Path

import nearfar
from nearfar.networks import save_encoder
from tools.house import SOURCE


def main() -> None:
    """Write encoder.safetensors and config.json into the folder of the encoder's name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    encoder = nearfar.load(parser.parse_args().run)
    name = encoder.backbone.name
    encoder.backbone.half()
    save_encoder(SOURCE / "weights" / name, encoder)


if __name__ == "__main__":
    main()
