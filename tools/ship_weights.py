"""Copy the encoder of a run into the package as weights to start from, in half the bytes.

    nearfar pretrain data/imagenette --encoder small --image-size 144 --crop-size 96 --epochs 200 --out runs/weights
    python -m tools.ship_weights runs/weights

Numbers are stored as float16. docs/results/weights.json keeps how the run went, which docs/starting-weights.md cites.
"""

import argparse
import json
import statistics
from pathlib import Path

import nearfar
from nearfar.networks import save_encoder
from tools.house import SOURCE


def main() -> None:
    """Write encoder.safetensors and config.json into the folder of the encoder's name, and the
    numbers of the run.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    run = nearfar.Run(parser.parse_args().run)
    encoder = nearfar.load(run)
    name = encoder.backbone.name
    encoder.backbone.half()
    save_encoder(SOURCE / "weights" / name, encoder)
    rates = [line["images_per_second"] for line in run.metrics if "images_per_second" in line]
    facts = {
        "encoder": name,
        "epochs": run.settings.epochs,
        "images_per_second": round(statistics.median(rates)),
    }
    facts["health"] = [line["health"] for line in run.metrics if "health" in line][-1]
    (SOURCE.parents[1] / "docs/results/weights.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
