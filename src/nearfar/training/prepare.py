"""The road from the settings of a new run to its networks: look at data and machine, choose a
model, open the images, plan, build.
"""

from __future__ import annotations

from dataclasses import replace

from nearfar.methods import Model
from nearfar.progress import log
from nearfar.training.batch_size import buildable, check_enough_images
from nearfar.training.facts import gather_facts, seconds_left
from nearfar.training.job import Job
from nearfar.training.model_size import choose_model
from nearfar.training.plan import plan_run, split_sizes
from nearfar.training.request import resolve
from nearfar.training.run_data import find_data, open_data
from nearfar.training.settings import Settings
from nearfar.training.trial import Trials


def prepare(given: Settings, began: float) -> tuple[Job, Model]:
    """Plan a new run and build its networks; nothing is written.

    began: when the time of the run began, as `time.perf_counter` gave it.
    Raises ValueError for anything that cannot be run as requested.
    """
    request = resolve(given)
    given, data = find_data(request.settings)
    request = replace(request, settings=given)
    facts = gather_facts(given, data, began)
    if facts.images < 2:  # before anything is measured; says why, if none can be read
        check_enough_images(len(open_data(given, data)))
    split_sizes(given, facts)

    model = choose_model(given, facts, Trials(given, request.method))
    images = open_data(replace(given, image_size=model.image_size), data)
    plan = plan_run(request, facts.of_opened(images, seconds_left(given, began)), model)
    for note in plan.notes:
        log.info("%s", note)

    job = Job(
        plan.settings, plan.method, plan.recipe, plan.encoder, plan.views, images, plan.seconds
    )
    with buildable():
        return job, job.model()
