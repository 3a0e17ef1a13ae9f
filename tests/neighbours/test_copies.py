"""Confirmation of copies by their pixels."""

import io
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_sample_images

from nearfar.data import open_images
from nearfar.neighbours import copies as copies_module
from nearfar.neighbours.copies import (
    COPY,
    LOCAL,
    compare_pixels,
    local_difference,
    perturb,
    pixel_difference,
    small_images,
)
from nearfar.neighbours.duplicates import components


@pytest.fixture(scope="module")
def photographs():
    """Forty crops of two photographs, 192 px."""
    pictures, places = (
        load_sample_images().images,
        np.random.default_rng(0).integers(0, 230, (40, 2)),
    )
    return open_images(
        np.stack([pictures[i % 2][y : y + 192, x : x + 192] for i, (y, x) in enumerate(places)])
    )


def test_the_difference_is_none_for_the_same_and_root_two_for_unrelated_images():
    noise = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 255
    assert pixel_difference(noise, noise).tolist() == [0, 0]
    assert pixel_difference(noise[:1], noise[1:]).item() == pytest.approx(2**0.5, rel=0.02)
    assert pixel_difference(noise, noise / 10)[0] > 1  # another contrast is another image
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pixel_difference(noise[:0], noise[:0]).shape == (0,)
    plain = torch.full((1, 3, 16, 16), 200.0)
    assert (
        pixel_difference(plain, plain + 0.3).item()
        <= COPY
        < pixel_difference(plain, plain + 2).item()
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_altered_images_are_copies_and_other_crops_are_not(photographs, channels):
    pixels = photographs.gather(torch.arange(40))[:, :channels]
    shrunk = [
        small_images(open_images(altered.clone()), torch.arange(40))
        for altered in (pixels, *perturb(pixels))
    ]
    assert not any(torch.equal(pixels, altered) for altered in perturb(pixels))
    for other in shrunk[1:]:
        assert pixel_difference(shrunk[0], other).max() < COPY
    first, second = torch.triu_indices(40, 40, 1)
    assert pixel_difference(shrunk[0][first], shrunk[0][second]).min() > COPY


def test_components_are_named_by_their_smallest_number():
    assert components(7, [(1, 4), (4, 2), (6, 5)]).tolist() == [0, 1, 1, 3, 1, 5, 5]
    assert components(3, []).tolist() == [0, 1, 2]


def saved(image, form, **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return Image.open(file).convert(image.mode)


def planes(image):
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def numbered(number):
    """A form with a number of six digits, 11 pixels high."""
    page = Image.new("RGB", (160, 96), "white")
    draw = ImageDraw.Draw(page)
    draw.rectangle((8, 8, 60, 24), fill=(20, 60, 120))
    draw.line((8, 60, 150, 60), fill=(120, 120, 120))
    draw.text((70, 40), f"No. {number:06d}", font=ImageFont.load_default(14), fill="black")
    return page


@pytest.fixture(scope="module", params=["photograph", "form"])
def picture(request):
    photograph = Image.fromarray(load_sample_images().images[0][100:324, 200:424])
    return photograph if request.param == "photograph" else numbered(381506)


@pytest.mark.parametrize(
    ("mode", "kernel"), [("RGB", "BOX"), ("L", "BILINEAR"), ("RGB", "LANCZOS")]
)
def test_copies_differ_nowhere_by_more_than_jpeg_would(picture, mode, kernel):
    picture, (width, height) = picture.convert(mode), picture.size
    kernel = Image.Resampling[kernel]
    less = picture.crop((0, 0, width - 1, height - 1))  # as where a size is rounded
    copies = [saved(picture, "JPEG", quality=quality) for quality in (30, 50, 75, 90)]
    copies += [
        saved(picture, "WEBP", quality=80),
        picture.resize((width // 2, height // 2), kernel),
    ]
    copies += [picture.resize((2 * width // 3, 2 * height // 3), kernel)]
    copies += [less.resize((width // 2, height // 2), Image.Resampling.BILINEAR)]
    for copy in copies:
        assert local_difference(planes(picture), planes(copy)) <= LOCAL
        assert local_difference(planes(copy), planes(picture)) <= LOCAL
    assert local_difference(planes(picture), planes(picture)) == 0


def test_one_digit_makes_another_form():
    form = planes(numbered(381506))
    for number in (381508, 881506, 331506):
        other = numbered(number)
        for copy in (other, saved(other, "JPEG", quality=50), saved(other, "JPEG", quality=30)):
            assert local_difference(form, planes(copy)) > 1.5 * LOCAL
        for share in (1.5, 0.75, 0.5, 0.25):
            copy = other.resize(
                (round(share * other.width), round(share * other.height)), Image.Resampling.BICUBIC
            )
            assert local_difference(form, planes(copy)) > LOCAL
            assert local_difference(form, planes(saved(copy, "JPEG", quality=75))) > LOCAL


@pytest.mark.parametrize("share", [1, 0.5])
def test_the_next_frame_of_a_burst_is_no_copy(share):
    picture, chance = load_sample_images().images[1], np.random.default_rng(0)
    for down, across in ((2, 0), (0, 2), (3, 3), (-5, 2)):
        frame = picture[100 + down : 324 + down, 200 + across : 424 + across] + chance.normal(
            0, 3, (224, 224, 3)
        )
        frame = Image.fromarray(frame.clip(0, 255).astype(np.uint8)).resize((int(224 * share),) * 2)
        assert local_difference(picture[100:324, 200:424].transpose(2, 0, 1), planes(frame)) > LOCAL


def test_other_colours_and_what_shows_too_little_are_no_copies():
    form = numbered(381506)
    red = np.array(form)
    red[30:60][(red[30:60] < 128).all(2)] = (200, 20, 20)
    assert local_difference(planes(form), planes(Image.fromarray(red))) > LOCAL  # colour alone
    chance = np.random.default_rng(0)
    noise = chance.integers(0, 256, (5, 64, 64), dtype=np.uint8)
    assert local_difference(noise, noise) == 0
    assert local_difference(noise, noise[:4]) == np.inf
    assert local_difference(noise // 10, noise // 10) == np.inf  # plain
    assert local_difference(noise[:, :12], noise[:, :12]) == np.inf  # small
    assert local_difference(noise, noise[:, :13, :13]) == np.inf  # a fifth of the size
    other = noise.copy()
    other[4, 30:33, 30:33] ^= 255
    assert local_difference(noise, other) > LOCAL  # in the last channel


def test_large_images_are_compared_in_strips(monkeypatch):
    first = np.random.default_rng(0).integers(0, 256, (1, 200, 50), dtype=np.uint8)
    second = first.copy()
    second[0, 99:103, 20:24] ^= 64
    whole = local_difference(first, second)
    monkeypatch.setattr(copies_module, "ROWS", 50 * 20)
    assert local_difference(first, second) == whole > 0


def sprite(colour, side=64, shade=(250, 220, 210)):
    """A drawing of four flat colours, one of which is given."""
    page = Image.new("RGB", (side, side), "white")
    draw, unit = ImageDraw.Draw(page), side / 64
    draw.ellipse([6 * unit, 6 * unit, 58 * unit, 58 * unit], fill=(20, 10, 10))
    draw.ellipse([9 * unit, 9 * unit, 55 * unit, 55 * unit], fill=colour)
    for left in (20, 36):
        draw.rectangle([left * unit, 22 * unit, (left + 8) * unit, 34 * unit], fill=shade)
    return page


def of_colours():
    """36 colours, of which some differ by little: 12 reds, greens and blues."""
    for step in range(12):
        for hue in range(3):
            yield tuple(200 - 8 * step if band == hue else 40 + 2 * step for band in range(3))


@pytest.mark.slow
def test_sprites_in_other_colours_are_no_copies_and_their_own_versions_are():
    colours = list(of_colours())
    made = [sprite(colour) for colour in colours]
    for first, second in zip(made, [*made[3:], *made[:3]], strict=True):
        assert compare_pixels(planes(first), planes(second), lossless=True) == "near-duplicate"
        for quality in (75, 90):
            lossy = saved(second, "JPEG", quality=quality)
            assert compare_pixels(planes(first), planes(lossy)) == "near-duplicate"
            assert (
                compare_pixels(planes(saved(first, "JPEG", quality=90)), planes(lossy))
                == "near-duplicate"
            )
        half = second.resize((48, 48), Image.Resampling.LANCZOS)
        assert compare_pixels(planes(first), planes(half), lossless=True) == "near-duplicate"
        own = [saved(first, "JPEG", quality=quality) for quality in (75, 85, 95)]
        own += [first.resize((side, side), Image.Resampling.LANCZOS) for side in (32, 48, 128)]
        own += [saved(first, "WEBP", quality=80)]
        for copy in own:
            assert compare_pixels(planes(first), planes(copy)) == "copy"
        assert (
            compare_pixels(planes(first), planes(saved(first, "PNG")), lossless=True)
            == "same pixels"
        )


def test_the_same_page_of_gray_and_of_colour_is_a_copy_and_one_pixel_makes_another():
    gray = Image.new("L", (64, 64), 255)
    ImageDraw.Draw(gray).text((8, 8), "No. 7", font=ImageFont.load_default(14), fill=0)
    assert compare_pixels(planes(gray), planes(gray.convert("RGB")), lossless=True) == "copy"
    for changed in (gray.copy(), gray.convert("RGB")):
        changed.putpixel((60, 60), 250 if changed.mode == "L" else (255, 255, 250))
        assert compare_pixels(planes(gray), planes(changed), lossless=True) == "near-duplicate"
        assert compare_pixels(planes(gray), planes(changed)) == "copy"


def stretched_versions(image):
    """An image at other proportions, by several kernels and encodings: of 0.6 to 1.7 times its
    proportions, and squashed to a square at its shorter side and two thirds of that.
    """
    for share, kernel in ((0.6, "BICUBIC"), (0.77, "LANCZOS"), (1.3, "BILINEAR"), (1.7, "BOX")):
        size = round(image.width * share**0.5), round(image.height / share**0.5)
        yield image.resize(size, Image.Resampling[kernel])
    for side in (min(image.size), 2 * min(image.size) // 3):
        square = image.resize((side, side), Image.Resampling.LANCZOS)
        pixels = torch.from_numpy(planes(image).copy())[None].float()
        coarse = F.interpolate(pixels, (side, side), mode="bilinear").round().byte()[0]
        interpolated = coarse.permute(1, 2, 0).squeeze(2).numpy()
        yield from (square, saved(square, "JPEG", quality=75), Image.fromarray(interpolated))


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_stretched_copies_are_found_and_crops_and_other_frames_are_not(mode):
    """The picture is 224 x 160; the other frames are moved by three pixels, as in a burst."""
    pixels = load_sample_images().images[0]
    picture, frame = (
        Image.fromarray(pixels[top : top + 160, 200:424]).convert(mode) for top in (100, 103)
    )
    for copy in stretched_versions(picture):
        assert compare_pixels(planes(picture), planes(copy)) == "stretched copy"
        assert compare_pixels(planes(copy), planes(picture), lossless=True) == "stretched copy"
    for other in stretched_versions(frame):
        assert compare_pixels(planes(picture), planes(other)) == "near-duplicate"
    centre = picture.crop((32, 0, 192, 160))
    for side in (160, 80):
        assert (
            compare_pixels(planes(picture), planes(centre.resize((side, side)))) == "near-duplicate"
        )


def test_a_stretched_form_with_another_digit_is_no_copy():
    """At a quarter of the size a digit is lost, and not even a copy of the form is confirmed."""
    form, other = numbered(381506), numbered(381508)
    for width, height in ((128, 96), (160, 70), (128, 128), (96, 96)):
        copies = [
            image.resize((width, height), Image.Resampling.BICUBIC) for image in (form, other)
        ]
        for encoded in (copies, [saved(image, "JPEG", quality=90) for image in copies]):
            assert local_difference(planes(form), planes(encoded[0])) <= LOCAL
            assert local_difference(planes(form), planes(encoded[1])) > LOCAL
    tiny = form.resize((40, 40), Image.Resampling.BICUBIC)
    assert local_difference(planes(form), planes(tiny)) == np.inf
