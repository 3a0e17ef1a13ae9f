"""Parameters of views that are sampled ahead, for several steps at once."""

import pytest
import torch

import nearfar
from nearfar import triton_kernels
from nearfar.training.seeding import stream
from nearfar.training.views_ahead import ViewsAhead
from nearfar.views import apply_views, fused, make_views, plan
from tests.steps import same_runs

pytestmark = pytest.mark.usefixtures("known_speed", "no_pages")
CPU = torch.device("cpu")


def ahead_of(the_plan, **changed):
    given = dict(seed=7, batch=6, rows=slice(2, 5), sizes=[(16, 16)] * 2, device=CPU)
    return ViewsAhead(the_plan, **given | dict(is_cropped=False, pin=False) | changed)


@pytest.mark.parametrize("steps", [range(20), [5, 6, 13, 14], [3]])
def test_each_step_has_the_views_that_it_would_sample_itself(steps):
    """From any step on, whether the thread that gathers was there before or not."""
    images = torch.randint(256, (3, 3, 16, 16), dtype=torch.uint8)
    moments, the_plan = ([0.4] * 3, [0.2] * 3), plan("microscope", 16, 3)
    ahead = ahead_of(the_plan)
    for step in steps:
        if step % 2:
            ahead.prepare(step + 3)
        views = apply_views(images, the_plan, ahead.take(step), *moments)
        expected = make_views(images, the_plan, stream(7, "views", step), *moments, slice(2, 5), 6)
        assert all(map(torch.equal, views, expected))
        assert len(ahead._sampled) <= 3


def test_a_table_is_of_several_steps_and_large_batches_of_one(monkeypatch):
    ahead = ahead_of(plan("weak", 16, 3), batch=512, rows=slice(0, 512))
    tables = [ahead.take(step).table for step in range(16)]
    assert len({id(table) for table in tables}) == 2
    assert tables[0].shape == (2, 8 * 512, fused.COLUMNS)
    assert ahead_of(plan("weak", 16, 3), batch=2**15).steps == 1


@pytest.mark.slow
def test_a_run_with_views_sampled_ahead_is_the_run_without(images_file, tmp_path, monkeypatch):
    """With operations in the place of the kernel, which make the same views of the parameters."""
    options = dict(epochs=2, batch_size=16, held_out=0, encoder="tiny", micro_batch=8, seed=3)
    options |= dict(views="weak", precision="32-true")
    plain = nearfar.pretrain(images_file, out=str(tmp_path / "plain"), **options)
    monkeypatch.setenv("NEARFAR_PAIRS", "tiles")  # the other kernel
    monkeypatch.setattr(triton_kernels, "compiles_kernels", lambda device: True)
    monkeypatch.setattr(fused, "make", lambda *given: None)
    taken, take = [], ViewsAhead.take
    monkeypatch.setattr(
        ViewsAhead, "take", lambda self, step: taken.append(step) or take(self, step)
    )
    ahead = nearfar.pretrain(images_file, out=str(tmp_path / "ahead"), **options)
    assert taken == list(range(10))
    same_runs(ahead, plain)
