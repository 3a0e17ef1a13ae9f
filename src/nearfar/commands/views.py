"""The command that shows augmented views of images.

nearfar views photos/ --views microscope
nearfar views
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nearfar.atomic import PAGES, check_output
from nearfar.isolation import isolated
from nearfar.messages import check_range, check_seed
from nearfar.progress import Table, log, say_read

if TYPE_CHECKING:
    from nearfar.data import Images
    from nearfar.training.settings import Settings
    from nearfar.views import Views

PAGE = "views.html"
MOST_SHOWN = 1000  # images, or samples of a view: all are held in memory and on one page


@isolated()
def show_views(
    data: Any = None,
    *,
    out: str | Path = PAGE,
    method: Any = None,
    views: Any = None,
    image_size: int | None = None,
    crop_size: int | None = None,
    channels: int | None = None,
    value_range: list[float] | Literal["full", "uint8"] | None = None,
    show_channels: list[int] | None = None,
    split: str | None = None,
    images: int = 12,
    samples: int = 4,
    seed: int = 0,
) -> Path | dict[str, str]:
    """Show what the augmentation does to your images: originals and samples of their views, on one
    page.

    Args:
        data: images, as for pretrain; or a run folder, for the data and views of that run. Without:
            list the presets.
        out: page to write, .html; it must not exist.
        method: method whose views to show, by name or as an object. Default: that of pretrain, or
            of the run.
        views: preset or view plan by name, a ViewPlan, or a callable on uint8 batches. Default: as
            pretrain chooses.
        image_size: pixels. Default: the images' own up to 96, else 224.
        crop_size: pixels of a view that is not small. Default: as pretrain chooses.
        channels: 1 or 3, or what the files have. Default: 1 where all images are grayscale, else
            what most have.
        value_range: pixel values that become black and white, as for pretrain. Default: as pretrain
            chooses.
        show_channels: channels to display, one or three, counted from 1. Default: the first three.
        split: part of the data. Default: that which pretrain would take.
        images: number of images to show, evenly spaced over the data.
        samples: samples of each view of an image.
        seed: random seed of the samples.

    Returns:
        The page that was written; without data, for each preset when to take it.

    Raises:
        ValueError: for anything that pretrain would refuse, a page that exists already, and
            options without data.

    >>> nearfar.show_views("photos", views="microscope").name
    'views.html'
    """
    from nearfar.data import open_images
    from nearfar.pages.template import write_page
    from nearfar.pages.views import about, title_of, views_shown
    from nearfar.views import PRESETS

    given = dict(
        method=method,
        views=views,
        image_size=image_size,
        crop_size=crop_size,
        channels=channels,
        split=split,
    )
    given |= dict(value_range=value_range, show_channels=show_channels)
    given = {name: value for name, value in given.items() if value is not None}
    page = Path(out)
    if data is None:
        if given or page != Path(PAGE):
            raise ValueError("name the images whose views to show: options alone show none")
        table = Table("`views`", "take it for", title="presets of views")
        for name, preset in PRESETS.items():
            table.add(name, preset.when)
        log.info(table)
        return {name: preset.when for name, preset in PRESETS.items()}
    check_output(page, PAGES)
    check_range("images", images, 1, MOST_SHOWN)
    check_range("samples", samples, 1, MOST_SHOWN)
    check_seed(seed)
    settings = _settings(data, given)
    few = open_images(settings.given("data"), few=images, split=settings.split, **settings.reading)
    say_read(few)
    plan = _plan(settings, few, method_given="method" in given)
    title = title_of(settings.data, settings.method)
    content = views_shown(few, plan, samples=samples, seed=seed)
    write_page(page, "views.html", title=title, about=about(few), content=content)
    log.info("%d images and their views -> %s", len(few), page)
    return page


def _settings(data: Any, given: dict[str, Any]) -> Settings:
    """Return the settings of a run, or those of data with nothing else known."""
    from nearfar.run import Run
    from nearfar.training.settings import Settings

    if isinstance(data, Run) or (
        isinstance(data, (str, Path)) and (Path(data) / "environment.json").is_file()
    ):
        if "method" in given:
            given = {"views": None, "hyperparameters": {}, "recipe": "small", **given}
        return replace(Run.of(data).settings, **given)
    return Settings(data=data, **given)


def _plan(settings: Settings, few: Images, method_given: bool) -> Views:
    """Return the views that `pretrain` would take; where no method was named, of any number."""
    from nearfar.data.table import SMALL
    from nearfar.training.model_size import model_candidates
    from nearfar.training.request import resolve_method
    from nearfar.training.view_choice import (
        check_num_views,
        keep_colour_for,
        resolve_views,
        views_for,
    )

    method, _ = resolve_method(settings)
    free = (
        settings.image_size is None
        and few.image_size > SMALL
        and isinstance(settings.views, str | None)
    )
    if free:
        chosen = few.image_size * 2 // 3
    elif settings.image_size is None and few.image_size > SMALL:
        chosen = few.image_size
    else:
        chosen = model_candidates(settings, few.image_size)[0].crop_size
    crop_size = settings.crop_size or chosen
    settings = replace(
        settings, image_size=few.image_size, crop_size=crop_size, channels=few.channels
    )
    views = views_for(settings, method, crop_size, few.channels)
    plan = resolve_views(views, replace(settings, keep_colour=keep_colour_for(settings, views)))
    if method_given:
        check_num_views(plan, method)
    return plan
