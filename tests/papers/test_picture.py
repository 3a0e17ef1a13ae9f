"""Tables as pictures."""

import matplotlib.image
import numpy as np

from nearfar.papers import draw_pictures


def test_pictures_of_runs_stand_side_by_side_in_their_order(tmp_path):
    red, blue = np.zeros((8, 8, 3)), np.zeros((8, 8, 3))
    red[..., 0], blue[..., 2] = 1, 1
    pictures = {"one": tmp_path / "one.png", "two": tmp_path / "two.png"}
    for path, pixels in zip(pictures.values(), (red, blue), strict=True):
        matplotlib.image.imsave(path, pixels)
    draw_pictures(tmp_path / "both.png", pictures)
    both = matplotlib.image.imread(tmp_path / "both.png")[..., :3]
    across = [np.argwhere((both == pixels[0, 0]).all(axis=2))[:, 1] for pixels in (red, blue)]
    assert all(len(found) > 10_000 for found in across) and across[0].max() < across[1].min()
