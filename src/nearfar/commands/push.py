"""Push the encoder to the Hugging Face Hub in timm's format, with a model card.

nearfar push runs/photos owner/name --private
nearfar push runs/photos owner/name --to folder
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from nearfar.run import Run


def push(
    run: str | Path | Run,
    repo: str | None = None,
    *,
    to: str | Path | None = None,
    private: bool = False,
    license: str | None = None,
    console: Console | None = None,
) -> str:
    """Push the encoder to the Hugging Face Hub in timm's format, with a model card.

    The card tells the data in counts, the settings, the verdict, the table of results, the licence and the command; it
    does not tell where the data lies. `timm.create_model("hf-hub:owner/name", pretrained=True)` loads it.

    Args:
        run: run folder.
        repo: "owner/name" of the model on the Hub; it is made if need be, and its files are replaced.
        to: folder to write instead, without a network; it must not exist.
        private: make a private repository.
        license: of the model, such as "apache-2.0". Default: that of the starting weights, where it is known.
        console: where progress is shown.

    Returns:
        The address of the model, or the folder.

    Raises:
        ValueError: for a wrong name, an encoder that timm cannot build, and where the Hub does not take it.
    """
    from rich.console import Console
    from rich.text import Text

    from nearfar.atomic import check_new_folder
    from nearfar.pages.model_card import write_hub_folder
    from nearfar.run import Run

    console = console or Console()
    run = Run.of(run)
    if repo is None or not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", repo):
        raise ValueError("name the model as on the Hub: nearfar push RUN owner/name")
    if to is not None:
        check_new_folder(Path(to))
    with tempfile.TemporaryDirectory(prefix="nearfar-") as scratch:
        folder = Path(scratch) / "model" if to is None else Path(to)
        error = write_hub_folder(folder, run, run.encoder, repo, license, to is None)
        console.print(Text(f"timm gives the same features: largest difference {error:.1e}"), highlight=False)
        place = str(folder) if to is not None else _upload(folder, repo, private)
    console.print(Text(f"{run.path} -> {place}"))
    return place


def _upload(folder: Path, repo: str, private: bool) -> str:
    from huggingface_hub import HfApi

    from nearfar.messages import first_line

    api = HfApi(library_name="nearfar")
    try:
        address = api.create_repo(repo, private=private, exist_ok=True)
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Push from nearfar")
    except Exception as error:  # the network and the Hub fail in many ways
        raise ValueError(
            f"cannot push to {repo}: {first_line(error)[:200]} Log in with `hf auth login`, or write the folder with "
            "--to FOLDER and `hf upload` it where there is a network"
        ) from error
    return str(address)
