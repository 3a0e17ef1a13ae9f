"""Write the encoder for other tools: ONNX, torch.export, a timm folder, or one file of weights.

nearfar export runs/photos --to onnx
nearfar export runs/photos --to timm --out photos-encoder
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from nearfar.run import Run

ENDINGS = {"onnx": ".onnx", "torch": ".pt2", "safetensors": ".safetensors"}


def export(
    run: str | Path | Run,
    *,
    to: Literal["onnx", "torch", "timm", "safetensors"],
    out: str | Path | None = None,
    encoder: nn.Module | None = None,
    console: Console | None = None,
) -> Path:
    """Write the encoder for other tools: ONNX, torch.export, a timm folder, or one file of weights.

    What was written is run on eight photographs and compared with the encoder; the largest difference is shown.
    "onnx" and "torch" take uint8 images [batch, channels, size, size], any number of them, and normalise them;
    cutting the centre square and resizing it (bicubic, antialiased) is left to who calls.

    Args:
        run: run folder.
        to: "onnx" (needs nearfar[onnx]), "torch" (for torch.export.load), "timm" (a folder for
            timm.create_model("local-dir:FOLDER"), as `nearfar push` sends it), or "safetensors" (the weights, with the
            preprocessing in the header).
        out: file or folder to write; it must not exist. Default: in the folder "export" of the run, replaced if it is
            there.
        encoder: the module that was trained, where it was an object of your own.
        console: where the result is shown.

    Returns:
        The file or folder that was written.

    Raises:
        ValueError: for an encoder that cannot be exported so, or gives other features afterwards.
    """
    from rich.console import Console
    from rich.text import Text

    from nearfar.atomic import check_folder, check_new_folder, check_output, check_text, replacing
    from nearfar.data import photographs
    from nearfar.networks import check_onnx, export_onnx, export_program, export_weights
    from nearfar.pages.model_card import TRIED, write_hub_folder
    from nearfar.run import Run, load
    from nearfar.training.progress import waiting

    console = console or Console()
    run = Run.of(run)
    writers = {"onnx": export_onnx, "torch": export_program, "safetensors": export_weights}
    if to not in (*writers, "timm"):
        raise ValueError(f"--to must be {', '.join(writers)} or timm, not {to!r}")
    if to == "onnx":
        check_onnx()
    path = run.path / "export" / f"encoder{ENDINGS.get(to, '')}" if out is None else Path(out)
    if out is None:
        path = path.with_name("timm") if to == "timm" else path
        check_folder(run.path)
    elif to == "timm":
        check_new_folder(path)
    else:
        check_text(path)
        check_output(path, [ENDINGS[to]])
    trained = load(run, encoder=encoder)
    path.parent.mkdir(exist_ok=True)
    with waiting(console, "exporting"):
        if to == "timm":
            error = write_hub_folder(path, run, trained, path.name)
        else:
            with replacing(path) as unfinished:
                error = writers[to](trained, unfinished, photographs(TRIED, trained.image_size, trained.channels))
    told = f"{path} gives the same features: largest difference {error:.1e} on {TRIED} photographs"
    console.print(Text(told), highlight=False)
    return path
