"""The encoder for other tools, in files or on the Hugging Face Hub.

nearfar export runs/photos --to onnx
nearfar export runs/photos --to timm --out photos-encoder
nearfar push runs/photos owner/name --private
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nearfar.atomic import check_folder, check_new_folder, check_output, check_text, replacing
from nearfar.isolation import isolated
from nearfar.messages import check_known, first_line
from nearfar.progress import log, waiting

if TYPE_CHECKING:
    from torch import nn

    from nearfar.run import Run

ENDINGS = {"onnx": ".onnx", "torch": ".pt2", "safetensors": ".safetensors", "timm": ""}


@isolated()
def export(
    run: str | Path | Run,
    *,
    to: Literal["onnx", "torch", "timm", "safetensors"],
    out: str | Path | None = None,
    encoder: nn.Module | None = None,
) -> Path:
    """Write the encoder for other tools: ONNX, torch.export, a timm folder, or one file of weights.

    What was written is run on eight crops of photographs and compared with the encoder; it shows
    the largest gap. "onnx" and "torch" take uint8 images [batch, channels, size, size], any number
    of them, and normalise them; those of more than 8 bits as float32, in the numbers of their
    files. Cutting the centre square and resizing it (bicubic, antialiased) is left to the caller.

    Args:
        run: run folder.
        to: "onnx" (needs nearfar[onnx]), "torch" (for torch.export.load), "timm" (a folder for
            timm.create_model("local-dir:FOLDER"), with a model card, as `nearfar push` sends it),
            or "safetensors" (the weights, with the preprocessing in the header).
        out: file or folder to write; it must not exist. Default: in the folder "export" of the run,
            replaced if it is there.
        encoder: the trained module, if it was an object of your own.

    Returns:
        The file or folder that was written.

    Raises:
        ValueError: for an encoder that cannot be exported so, or gives other features afterwards.

    >>> nearfar.export("runs/photos", to="safetensors").name
    'encoder.safetensors'
    """
    from nearfar.data import photographs
    from nearfar.networks import check_onnx, export_onnx, export_program, export_weights
    from nearfar.pages.model_card import TRIED, write_hub_folder
    from nearfar.run import Run, load

    run = Run.of(run)
    check_known("`to`", to, ENDINGS)
    if to == "onnx":
        check_onnx()
    if out is None:
        path = run.path / "export" / ("timm" if to == "timm" else f"encoder{ENDINGS[to]}")
        check_folder(run.path)
        path.parent.mkdir(exist_ok=True)
    else:
        path = Path(out)
        if to == "timm":
            check_new_folder(path)
        else:
            check_text(path)
            check_output(path, [ENDINGS[to]])
    trained = load(run, encoder=encoder)
    with waiting("exporting"), replacing(path) as unfinished:
        if to == "timm":
            apart = write_hub_folder(unfinished, run, trained, path.name)
        else:
            write = {"onnx": export_onnx, "torch": export_program, "safetensors": export_weights}[
                to
            ]
            apart = write(
                trained, unfinished, photographs(TRIED, trained.image_size, trained.channels)
            )
    agreement = "%s gives the same features: largest difference %.1e on %d crops of photographs"
    log.info(agreement, path, apart, TRIED)
    return path


@isolated()
def push(
    run: str | Path | Run,
    repo: str,
    *,
    private: bool = False,
    license: str | None = None,
) -> str:
    """Push the encoder to the Hugging Face Hub in timm's format, with a model card.

    The card states the number of images, the settings, the verdict, the table of results, the
    licence and the command; it does not reveal where the data is.
    `timm.create_model("hf-hub:owner/name", pretrained=True)` loads it.

    Args:
        run: run folder.
        repo: "owner/name" of the model on the Hub; created if it does not exist; its files are
            replaced.
        private: make a private repository.
        license: of the model, such as "apache-2.0". Default: that of the starting weights, where it
            is known.

    Returns:
        The address of the model.

    Raises:
        ValueError: for a wrong name, an encoder that timm cannot build, and where the Hub does not
            take it.

    >>> nearfar.push("runs/photos", "owner/name", private=True)  # doctest: +SKIP
    """
    from huggingface_hub import HfApi

    from nearfar.pages.model_card import write_hub_folder
    from nearfar.run import Run

    run = Run.of(run)
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", repo):
        raise ValueError("name the model as on the Hub: nearfar push RUN owner/name")
    with tempfile.TemporaryDirectory(prefix="nearfar-") as scratch:
        folder = Path(scratch) / "model"
        apart = write_hub_folder(folder, run, run.encoder, repo, license, online=True)
        log.info("timm gives the same features: largest difference %.1e", apart)
        api = HfApi(library_name="nearfar")
        try:
            address = str(api.create_repo(repo, private=private, exist_ok=True))
            api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Push from nearfar")
        except Exception as error:  # the network and the Hub fail in many ways
            raise ValueError(
                f"cannot push to {repo}: {first_line(error)[:200]} Log in with `hf auth "
                f"login`, or write the folder "
                "with `nearfar.export(RUN, to='timm')` and `hf upload` it where there is a network"
            ) from error
    log.info("%s -> %s", run.path, address)
    return address
