import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.data.thumbnails import data_url, one_sheet, thumbnails


def decoded(url):
    kind, text = url.split(",", 1)
    return kind, np.array(Image.open(io.BytesIO(base64.b64decode(text))))


def test_small_images_keep_their_pixels_and_grayscale_becomes_three_equal_channels():
    images = torch.arange(2 * 8 * 8, dtype=torch.uint8).view(2, 1, 8, 8)
    assert torch.equal(thumbnails(images, 64), images.expand(2, 3, 8, 8))


def test_two_channels_get_a_black_third_and_five_show_their_first_three():
    two, five = (
        torch.full((1, 2, 4, 4), 9, dtype=torch.uint8),
        torch.arange(5, dtype=torch.uint8).view(1, 5, 1, 1),
    )
    assert thumbnails(two, 64)[0, :, 0, 0].tolist() == [9, 9, 0]
    assert thumbnails(five.expand(1, 5, 4, 4), 64)[0, :, 0, 0].tolist() == [0, 1, 2]


def test_large_images_shrink_to_the_mean_of_their_pixels():
    half = torch.zeros(1, 3, 100, 100, dtype=torch.uint8)
    half[..., 50:] = 200
    small = thumbnails(half, 10)
    assert small.shape == (1, 3, 10, 10)
    assert small[..., :4].max() <= 3 and small[..., 6:].min() >= 197


@pytest.mark.parametrize("count", [1, 5, 300])
def test_small_thumbnails_come_back_exactly_from_their_cells(count):
    tiles = torch.randint(256, (count, 3, 5, 5), generator=torch.Generator().manual_seed(0)).to(
        torch.uint8
    )
    kind, sheet = decoded(data_url(one_sheet(tiles, 16), lossless=True))
    assert kind == "data:image/png;base64" and sheet.shape == (5 * -(-count // 16), 80, 3)
    for i in range(count):
        row, column = divmod(i, 16)
        cell = sheet[row * 5 : row * 5 + 5, column * 5 : column * 5 + 5]
        assert np.array_equal(cell, tiles[i].permute(1, 2, 0).numpy())


def test_photographs_are_packed_as_jpeg_without_mixing_neighbours():
    shade = torch.tensor([0, 255] * 20, dtype=torch.uint8)
    tiles = shade[:, None, None, None].expand(40, 3, 30, 30).contiguous()
    kind, sheet = decoded(data_url(one_sheet(tiles, 7)))
    assert kind == "data:image/jpeg;base64" and sheet.shape == (6 * 32, 7 * 32, 3)
    for i in range(40):
        row, column = divmod(i, 7)
        cell = sheet[row * 32 : row * 32 + 30, column * 32 : column * 32 + 30]
        assert np.abs(cell.astype(int) - int(shade[i])).max() <= 4


def test_noise_is_packed_too():
    """Pillow's JPEG of noise with `optimize` is larger than its buffer, and ends in "broken data
    stream".
    """
    tiles = torch.randint(256, (100, 3, 64, 64), generator=torch.Generator().manual_seed(0)).to(
        torch.uint8
    )
    kind, sheet = decoded(data_url(one_sheet(tiles, 10)))
    assert kind == "data:image/jpeg;base64" and sheet.shape == (640, 640, 3)
    assert np.abs(sheet[:64, :64].astype(float) - tiles[0].permute(1, 2, 0).numpy()).mean() < 12
