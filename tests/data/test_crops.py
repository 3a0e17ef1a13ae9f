"""Crops from the original files: where the boxes lie, what they show, and that only seed, epoch and
image decide.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.data import Batches, open_images
from nearfar.views import sample_boxes
from tests.pictures import encoded, tar

CROPS = [(12, (0.2, 1.0), (3 / 4, 4 / 3)), (7, (0.05, 0.2), (1.0, 1.0))]


@pytest.fixture
def images(tmp_path, paint):
    for i in range(9):
        paint(tmp_path / "pics" / f"{i}.png", i, size=(40, 30))
    return open_images(tmp_path / "pics", cache=False)


def everything(images, epoch=0, start=0, **options):
    batches = Batches(images, 4, 5, **{"crops": CROPS, "workers": 0, **options})
    return list(batches.epoch(epoch, start))


def same(first, second):
    return len(first) == len(second) and all(
        (i == j).all() and all((a == b).all() for a, b in zip(x, y, strict=True))
        for (x, i), (y, j) in zip(first, second, strict=True)
    )


def test_a_full_crop_is_the_whole_image_resized(images):
    (views, index), *_ = everything(images, crops=[(10, (1.0, 1.0), (4 / 3, 4 / 3))])
    for view, i in zip(views[0], index, strict=True):
        image = Image.open(images.originals[int(i)])
        expected = np.asarray(image.resize((10, 10), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        assert (view.numpy() == expected).all()


def test_workers_processes_and_start_change_nothing(images):
    whole = everything(images)
    assert same(whole, everything(images, workers=2))
    assert same(whole[1:], everything(images, start=1))
    halves = [everything(images, rank=rank, world_size=2) for rank in range(2)]
    for (views, index), first, second in zip(whole, *halves, strict=True):
        assert (torch.cat([first[1], second[1]]) == index).all()
        assert all(
            (torch.cat([a, b]) == view).all()
            for a, b, view in zip(first[0], second[0], views, strict=True)
        )
    assert not same(whole, everything(images, epoch=1))


def test_the_shown_part_is_what_random_resized_crop_would_take(tmp_path):
    """A ramp in each direction tells from its values which box was taken; many boxes follow the
    promised ranges.
    """
    down, right = np.meshgrid(np.arange(120), np.arange(160), indexing="ij")
    ramps = np.stack([down, right, 0 * down], 2).astype(np.uint8)
    for number in range(8):
        Image.fromarray(ramps).save(tmp_path / f"{number}.png")
    images = open_images(tmp_path, cache=False)
    batches = Batches(images, 8, 0, crops=[(40, (0.2, 0.6), (3 / 4, 4 / 3))], workers=0)
    pixels = torch.cat(
        [views[0] for epoch in range(100) for views, _ in batches.epoch(epoch)]
    ).double()
    tall = (pixels[:, 0, 30].mean(1) - pixels[:, 0, 10].mean(1)) * 2
    wide = (pixels[:, 1, :, 30].mean(1) - pixels[:, 1, :, 10].mean(1)) * 2
    share, shape = wide * tall / (120 * 160), (wide / tall).log()
    np.testing.assert_allclose(
        [share.min(), share.mean(), share.max()], [0.2, 0.4, 0.6], atol=0.025
    )
    reach = math.log(4 / 3)
    np.testing.assert_allclose(
        [shape.min(), shape.mean(), shape.max()], [-reach, 0, reach], atol=0.04
    )
    middle = pixels[:, 1].mean((1, 2)) + 0.5
    free = (middle - wide / 2) / (160 - wide)
    np.testing.assert_allclose([free.mean(), free.std()], [0.5, 1 / math.sqrt(12)], atol=0.04)


def test_large_jpegs_are_shrunk_while_decoding_without_losing_detail(tmp_path):
    waves = 127 + 120 * np.sin(np.arange(1600) / 60)
    image = Image.fromarray(
        np.add.outer(waves, waves).astype(np.int64).clip(0, 255).astype(np.uint8)
    )
    image.save(tmp_path / "a.jpg", quality=95)
    images = open_images(tmp_path, cache=False, image_size=64)
    batches = Batches(images, 1, 0, crops=[(32, (0.25, 0.25), (1.0, 1.0))], workers=0)
    (view,), _ = next(batches.epoch(0))
    assert batches.dataset.at_least == 64
    state = np.random.SeedSequence([0, 0, 0, 0]).generate_state(1, np.uint64)
    uniform = torch.rand(
        1, 22, generator=torch.Generator().manual_seed(int(state[0])), dtype=torch.float64
    )
    [(top, left, tall, wide)] = sample_boxes(uniform, 1600, 1600, (0.25, 0.25), (1.0, 1.0)).tolist()
    box = (left, top, left + wide, top + tall)
    expected = np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR, box=box)).astype(int)
    assert abs(view[0, 0].numpy().astype(int) - expected).mean() < 3


def test_parquet_and_tars_keep_their_originals_within_reach(tmp_path, paint):
    import pyarrow as pa
    import pyarrow.parquet as pq

    cells, members = [], []
    for i in range(6):
        pixels = paint(tmp_path / "pics" / f"{i}.png", i, size=20)
        data = b"broken" if i == 2 else encoded(pixels)
        cells.append({"bytes": data, "path": None})
        members.append((f"{i}.png", data))
    (tmp_path / "pics" / "2.png").write_text("broken")
    (tmp_path / "rows").mkdir()
    pq.write_table(pa.table({"image": cells[:4]}), tmp_path / "rows" / "test-0.parquet")
    pq.write_table(pa.table({"image": cells[4:]}), tmp_path / "rows" / "validation-0.parquet")
    tar(tmp_path / "a.tar", members)
    folder = open_images(tmp_path / "pics", cache=False)
    tars = open_images(tmp_path / "a.tar", cache=False)
    assert len(folder) == 5 and same(everything(folder), everything(tars, workers=1))
    # two splits: validation comes before test
    rows = open_images(tmp_path / "rows", cache=False)
    assert rows.names == [
        "validation/000000",
        "validation/000001",
        "test/000000",
        "test/000001",
        "test/000003",
    ]
    order = [3, 4, 0, 1, 2]
    assert all(
        rows.originals[i] == Path(folder.originals[j]).read_bytes() for i, j in enumerate(order)
    )
    part = rows.subset([4, 0])
    assert part.originals[0] == rows.originals[4] and len(part.originals) == 2


def test_refusals(images, tmp_path):
    with pytest.raises(ValueError, match="no original files"):
        Batches(open_images(np.zeros((9, 4, 4), np.uint8)), 4, 0, crops=CROPS)
    with pytest.raises(ValueError, match="at least one view"):
        Batches(images, 4, 0, crops=[])
    with pytest.raises(ValueError, match="scale"):
        Batches(images, 4, 0, crops=[(8, (0.5, 0.2), (1.0, 1.0))])
    with pytest.raises(ValueError, match="batch_size <= images"):
        Batches(images, 10, 0, crops=CROPS)
    (tmp_path / "pics" / "3.png").unlink()
    with pytest.raises(ValueError, match=r"'3.png' was readable"):
        [everything(images, epoch=epoch) for epoch in range(3)]


def test_pages_of_a_tiff_are_channels_in_crops_too(tmp_path):
    pages = np.random.default_rng(0).integers(0, 256, (6, 4, 16, 16), dtype=np.uint8)
    for number, planes in enumerate(pages):
        first, *others = map(Image.fromarray, planes)
        first.save(tmp_path / f"{number}.tif", save_all=True, append_images=others)
    images = open_images(tmp_path, channels=4, cache=False)
    [(views, index)] = Batches(images, 6, 0, crops=[(16, (1.0, 1.0), (1.0, 1.0))], workers=0).epoch(
        0
    )
    assert (views[0].numpy() == pages[index]).all()
