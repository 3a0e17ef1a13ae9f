import numpy as np
from matplotlib.colors import to_rgb

from nearfar.maps.colours import GREY, PALETTE, coloured


def linear(colour):
    rgb = np.array(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def luminance(colour):
    return linear(colour) @ [0.2126, 0.7152, 0.0722]


def contrast(a, b):
    """WCAG contrast ratio."""
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def lab(colour):
    """CIE L*a*b* under D65."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear(colour)
    f = np.cbrt(xyz / [0.9505, 1.0, 1.089])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def least_distance(colours):
    points = np.array([lab(colour) for colour in colours])
    distance = np.linalg.norm(points[:, None] - points[None], axis=2)
    return distance[np.triu_indices(len(points), 1)].min()


def test_colours_differ_well_beyond_what_the_eye_just_notices():
    assert len(set(PALETTE)) == 20
    assert least_distance(PALETTE[:10]) > 25  # about 2.3 is just noticeable in CIE76
    assert least_distance(PALETTE) > 15


def test_colours_stand_out_on_light_and_dark():
    for colour in (*PALETTE, GREY):
        assert contrast(colour, "#ffffff") > 1.8
        assert contrast(colour, "#14161a") > 2.2


def test_classes_are_numbered_by_those_that_occur():
    classes, of_point = coloured(np.array([7, 2, 7, 30]), ["a", "b", "c", "d", "e", "f", "g", "h"])
    assert [one.name for one in classes] == ["c", "h", "30"]
    assert of_point.tolist() == [1, 0, 1, 2]
    assert [one.colour for one in classes] == list(PALETTE[:3])


def test_missing_labels_are_grey_and_last():
    classes, of_point = coloured(np.array([-1, 0, 1, -1]), ["a", "b"])
    assert [(one.name, one.colour) for one in classes] == [("a", PALETTE[0]), ("b", PALETTE[1]), ("no label", GREY)]
    assert of_point.tolist() == [2, 0, 1, 2]


def test_no_labels_no_classes():
    assert coloured(None, None)[0] == []
