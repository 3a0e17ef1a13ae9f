"""Every view on the GPU: each operation, every plan and preset, crops made beforehand, and
functions of one's own.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from nearfar import triton_kernels
from nearfar.views import (
    View,
    ViewFunction,
    ViewPlan,
    compose,
    fused,
    make_views,
    plan,
    resize_square,
)
from nearfar.views.make import apply_views
from nearfar.views.plans import _DISTRIBUTIONS, _LISTS
from nearfar.views.sampling import sample_views

OPERATIONS = {
    "crop": {},
    "flip": dict(flip=1.0),
    "flip_vertical": dict(flip_vertical=1.0),
    "rot90": dict(rot90=1.0),
    "turn": dict(affine=1.0, degrees=30.0),
    "shift": dict(affine=1.0, translate=0.2),
    "zoom": dict(affine=1.0, zoom=(0.7, 1.4)),
    "shear": dict(affine=1.0, shear=20.0),
    "brightness": dict(jitter=1.0, brightness=0.5),
    "contrast": dict(jitter=1.0, contrast=0.5),
    "saturation": dict(jitter=1.0, saturation=0.5),
    "hue": dict(jitter=1.0, hue=0.3),
    "all colours": dict(jitter=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
    "grayscale": dict(grayscale=0.5),
    "drop": dict(drop=1.0),
    "blur": dict(blur=0.7),
    "solarize": dict(solarize=0.5),
    "noise": dict(noise=0.5),
}


def pictures(channels, height, width=None, count=6, bits=8):
    made = torch.rand(
        count, channels, height, width or height, generator=torch.Generator().manual_seed(height)
    )
    smooth = F.avg_pool2d(made, 5, stride=1, padding=2, count_include_pad=False)
    return (smooth * 255).round().to(torch.uint8) if bits == 8 else smooth


def views_of(images, the_plan, **rows):
    channels = (images if isinstance(images, torch.Tensor) else images[0]).shape[1]
    moments = [0.4] * channels, [0.2] * channels
    return make_views(images, the_plan, torch.Generator().manual_seed(5), *moments, **rows)


def same(on_device, here, device, share=0.0):
    """Equal within 1 of 255, in all pixels but a share of them, in units of the deviation by which
    they are divided.
    """
    for view, other in zip(on_device, here, strict=True):
        assert view.device == device and view.dtype == other.dtype == torch.float32
        assert ((view.cpu() - other).abs() > 1 / 255 / 0.2).float().mean() <= share


@pytest.mark.parametrize(("channels", "bits"), [(1, 8), (3, 8), (3, 16), (5, 16)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_the_views_of_the_cpu(name, channels, bits, device):
    images = pictures(channels, 24, 32, bits=bits)
    the_plan = ViewPlan(
        name, (View(size=20, **OPERATIONS[name]), View(size=11, **OPERATIONS[name]))
    )
    here = views_of(images, the_plan)
    on_device = views_of(images.to(device), the_plan)
    same(
        on_device, here, device, share=2e-3 if name == "solarize" else 0.0
    )  # a value at its threshold may tip over
    part = slice(2, 5)  # of a batch that processes share
    same(
        views_of(images[part].to(device), the_plan, rows=part, total=6),
        [view[part] for view in here],
        device,
        2e-3,
    )


@pytest.mark.parametrize(("size", "bits"), [(32, 8), (72, 16)])
@pytest.mark.parametrize("name", [*_LISTS, *_DISTRIBUTIONS])
def test_a_plan_gives_the_views_of_the_cpu(name, size, bits, device):
    images, the_plan = pictures(3, size, count=2, bits=bits), plan(name, size, 3)
    same(views_of(images.to(device), the_plan), views_of(images, the_plan), device, share=2e-3)


def test_large_images_of_8_bits_are_resized_to_whole_numbers_on_the_cpu_alone(device):
    images, the_plan = pictures(3, 72), plan("weak", 72, 3)
    for view, other in zip(
        views_of(images.to(device), the_plan), views_of(images, the_plan), strict=True
    ):
        assert 0.1 / 255 < (view.cpu() - other).abs().max() * 0.2 < 1.01 / 255  # rounded twice


def test_crops_that_workers_made_give_the_views_of_the_cpu(device):
    the_plan = compose(["strong-gamma", "local-4"], 32, 3)
    crops = [pictures(3, view.size) for view in the_plan.views]
    same(
        views_of([crop.to(device) for crop in crops], the_plan),
        views_of(crops, the_plan),
        device,
        2e-3,
    )


def test_a_function_of_ones_own_runs_on_the_device_and_repeats_itself(device):
    def own(images):
        assert torch.rand(3).shape == (3,)  # the CPU's generator is seeded as well
        noise = torch.rand(images.shape, device=images.device)
        return [images.flip(3), (images.float() / 255 + 0.1 * noise).clamp(0, 1)]

    images, function = pictures(3, 16), ViewFunction(own, 16, 3)
    torch.manual_seed(1)
    before = torch.rand(2, device=device).cpu()
    torch.manual_seed(1)
    on_device, again = (views_of(images.to(device), function) for _ in range(2))
    assert torch.equal(
        torch.rand(2, device=device).cpu(), before
    )  # the global generators are put back
    assert all(
        torch.equal(view.cpu(), other.cpu()) for view, other in zip(on_device, again, strict=True)
    )
    same(on_device[:1], views_of(images, function)[:1], device)
    noise = (on_device[1].cpu() * 0.2 + 0.4 - images / 255) / 0.1
    assert 0.4 < noise.mean() < 0.6 and noise.std() > 0.2


@pytest.mark.parametrize(("height", "width"), [(90, 110), (32, 32), (20, 33)])
def test_images_are_resized_as_on_the_cpu(height, width, device):
    images = pictures(3, height, width)
    on_device, here = resize_square(images.to(device), 32), resize_square(images, 32)
    assert on_device.dtype == torch.uint8 and (on_device.cpu().int() - here.int()).abs().max() <= 1
    floats = images / 255
    torch.testing.assert_close(
        resize_square(floats.to(device), 32).cpu(), resize_square(floats, 32)
    )


class Stub:
    """A kernel that computes nothing and counts its launches."""

    launches = 0

    def __getitem__(self, grid):
        def launch(*given, **named):
            self.launches += 1

        return launch


class Counted(TorchDispatchMode):
    """Operations that a device is given, and those of the host: none that returns a view."""

    def __init__(self, device):
        super().__init__()
        self.kind, self.launches, self.host = device.type, 0, 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        made = operation(*args, **(kwargs or {}))
        is_view = any(r.alias_info and not r.alias_info.is_write for r in operation._schema.returns)
        if not is_view and "empty" not in operation._schema.name:
            leaves = torch.utils._pytree.tree_leaves((args, made))
            on_device = any(
                isinstance(x, torch.Tensor) and x.device.type == self.kind for x in leaves
            )
            self.launches += on_device
            self.host += not on_device
        return made


MOST = {  # launches of a batch, and operations of the host: these may only fall
    "operations": (417, 270),
    "kernel": (2, 195),
    "kernel, sampled ahead": (1, 0),
}


@pytest.mark.parametrize("way", MOST)
def test_launches_of_a_batch(way, device, monkeypatch):
    """Both views of a batch are one launch, and one copy of a table for them or for several
    batches.
    """
    images, the_plan = pictures(3, 32, count=64).to(device), plan("saclr-cifar", 32, 3)
    moments = [0.4] * 3, [0.2] * 3
    work = Stub()
    monkeypatch.setenv(fused.KERNEL.switch, way)
    if way != "operations":
        monkeypatch.setattr(triton_kernels, "compiles_kernels", lambda device: True)
        module = SimpleNamespace(make_view=work)
        monkeypatch.setattr(fused.importlib, "import_module", lambda name: module)
    views_of(images, the_plan)  # sends the moments once
    work.launches = 0
    generators = [torch.Generator().manual_seed(seed) for seed in range(8)]
    sampled = sample_views(the_plan, generators, 64, [(32, 32)] * 2)
    sampled = replace(sampled, table=fused.pack(sampled).to(device))
    with Counted(device) as counted:
        if way == "kernel, sampled ahead":
            apply_views(images, the_plan, sampled[64:128], *moments)
        else:
            make_views(images, the_plan, generators[0], *moments)
    counts = counted.launches + work.launches, counted.host
    assert all(count <= most for count, most in zip(counts, MOST[way], strict=True)), counts
    assert work.launches == (way != "operations")
