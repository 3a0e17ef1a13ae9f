"""Open images with a progress bar for the first decoding."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import Progress

from nearfar.data import Images, open_images


def open_shown(source: Any, console: Console, **options: Any) -> Images:
    """Open images as `nearfar.data.open_images` does and show how far the decoding is."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading images", total=None)

        def shown(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

        return open_images(source, progress=shown, **options)
