import math

import numpy as np
import pytest
import torch

from nearfar.evaluation import colour_histogram, evaluate_features, extract, hog, raw_pixels


def images(count=11, side=8, channels=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(
        0, 256, (count, channels, side, side), dtype=torch.uint8, generator=generator
    )


def test_raw_pixels_are_the_pixels():
    x = images()
    features = extract(raw_pixels, x, batch_size=4)
    assert features.shape == (11, 192) and features.dtype == torch.float32
    torch.testing.assert_close(features * 255, x.flatten(1).float())


def test_large_raw_pixels_are_area_means():
    x = images(2, side=64)
    features = raw_pixels(x).reshape(2, 3, 32, 32)
    expected = x.double().reshape(2, 3, 32, 2, 32, 2).mean((3, 5)) / 255
    torch.testing.assert_close(features.double(), expected, rtol=0, atol=1e-6)


def test_colour_histograms_are_those_of_numpy():
    x = images(5, side=12)
    features = extract(colour_histogram, x, batch_size=2)
    assert features.shape == (5, 512) and features.dtype == torch.float32
    for image, row in zip(x.numpy(), features.numpy(), strict=True):
        colours = image.reshape(3, -1).T.astype(float)
        counts, _ = np.histogramdd(colours, bins=(8, 8, 8), range=[(0, 256)] * 3)
        np.testing.assert_allclose(row, np.sqrt(counts.ravel() / 144), atol=1e-6)


@pytest.mark.parametrize("channels", [1, 4])
def test_other_channels_have_a_histogram_each(channels):
    x = images(3, side=9, channels=channels)
    features = colour_histogram(x).reshape(3, channels, 32)
    for image, rows in zip(x.numpy(), features.numpy(), strict=True):
        for plane, row in zip(image, rows, strict=True):
            counts, _ = np.histogram(plane, bins=32, range=(0, 256))
            np.testing.assert_allclose(row, np.sqrt(counts / 81 / channels), atol=1e-6)


def test_a_histogram_tells_colours_and_not_places():
    x = images(2, side=16)
    shuffled = x.flatten(2)[
        :, :, torch.randperm(256, generator=torch.Generator().manual_seed(0))
    ].reshape(x.shape)
    torch.testing.assert_close(colour_histogram(x), colour_histogram(shuffled))
    red, blue = (
        torch.zeros(1, 3, 8, 8, dtype=torch.uint8),
        torch.zeros(1, 3, 8, 8, dtype=torch.uint8),
    )
    red[:, 0], blue[:, 2] = 200, 200
    assert float((colour_histogram(red) * colour_histogram(blue)).sum()) == 0
    torch.testing.assert_close((colour_histogram(x) ** 2).sum(1), torch.ones(2))


def naive_hog(image, cell):
    """HOG of one image [channels, height, width] in 0..1, pixel by pixel, as Dalal and Triggs write
    it.
    """
    channels, height, width = image.shape
    cells = np.zeros((height // cell, width // cell, 9))
    for y in range(cells.shape[0] * cell):
        for x in range(cells.shape[1] * cell):
            best, way = -1.0, 0.0
            for c in range(channels):
                down = image[c, y + 1, x] - image[c, y - 1, x] if 0 < y < height - 1 else 0.0
                across = image[c, y, x + 1] - image[c, y, x - 1] if 0 < x < width - 1 else 0.0
                if math.hypot(down, across) > best:
                    best, way = (
                        math.hypot(down, across),
                        math.degrees(math.atan2(down, across)) % 180,
                    )
            for orientation in range(9):
                away = abs(way - (10 + 20 * orientation))
                away = min(away, 180 - away)
                cells[y // cell, x // cell, orientation] += best * max(0.0, 1 - away / 20)
    blocks = []
    for row in range(cells.shape[0] - 1):
        for column in range(cells.shape[1] - 1):
            block = cells[row : row + 2, column : column + 2].ravel()
            block = np.minimum(block / max(np.linalg.norm(block), 1e-5), 0.2)
            blocks.append(block / max(np.linalg.norm(block), 1e-5))
    return np.concatenate(blocks)


@pytest.mark.parametrize(
    ("side", "channels", "cell", "dim"), [(64, 1, 8, 1764), (37, 3, 8, 324), (8, 1, 2, 324)]
)
def test_hog_is_the_paper_pixel_by_pixel(side, channels, cell, dim):
    x = images(2, side=side, channels=channels)
    features = extract(hog, x)
    assert features.shape == (2, dim)
    expected = np.stack([naive_hog(image / 255, cell) for image in x.double().numpy()])
    np.testing.assert_allclose(features.numpy(), expected, atol=2e-5)


@pytest.mark.parametrize(("turn", "orientations"), [(0, {4}), (90, {0, 8})])
def test_hog_puts_an_edge_into_its_orientation(turn, orientations):
    """A bright lower half has its gradient at 90 degrees, the middle of nine bins; a bright right
    half at 0.
    """
    x = torch.zeros(1, 1, 64, 64, dtype=torch.uint8)
    x[:, :, 36:] = 200
    x = x if turn == 0 else x.transpose(2, 3)
    per_orientation = hog(x).reshape(7, 7, 4, 9).sum((0, 1, 2))
    assert set(per_orientation.nonzero().flatten().tolist()) == orientations
    assert torch.isfinite(hog(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))).all()
    assert hog(images(1, side=200)).shape == (1, 1764) and hog(images(1, side=3)).shape == (1, 324)


def test_hog_beats_a_histogram_on_digits_and_light_does_not_change_it(digits):
    train_x, train_y, test_x, test_y = digits
    accuracy = {}
    for kind in (hog, colour_histogram):
        fit, held = (
            extract(kind, torch.from_numpy((16 * x).reshape(-1, 1, 8, 8)).mul(15).byte())
            for x in (train_x, test_x)
        )
        accuracy[kind] = evaluate_features(fit, train_y, held, test_y, protocols=("knn",))["knn"]
    assert accuracy[hog] > 0.94 and accuracy[colour_histogram] < 0.4
    x = images(3, side=32, channels=1) // 4
    torch.testing.assert_close(hog(x), hog(3 * x + 20), atol=1e-3, rtol=1e-3)
