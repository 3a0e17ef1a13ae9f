"""Confirmation of copies by their pixels."""

import io
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import gaussian_filter, maximum_filter, uniform_filter
from sklearn.datasets import load_sample_images

from nearfar.data import open_images
from nearfar.neighbours import copies as copies_module
from nearfar.neighbours import duplicates, find_links
from nearfar.neighbours.copies import (
    COPY,
    LOCAL,
    Reduced,
    _box,
    _lost_detail,
    compare_pixels,
    differs,
    largest_around,
    local_difference,
    outlines,
    perturb,
    pixel_difference,
    reduced,
    small_images,
    whole_images,
)
from nearfar.neighbours.groups import components, group_links
from nearfar.neighbours.links import NEAR_DUPLICATE
from nearfar.neighbours.nearest import nearest_rows


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


@pytest.mark.parametrize("side", [6, 16, 64])
def test_means_of_blocks_refuse_most_pairs_and_no_copy(photographs, side):
    halves, jpegs = perturb(photographs.pixels)
    pixels = torch.cat([photographs.pixels, halves, jpegs, photographs.pixels + 3])
    small = F.interpolate(pixels.float(), (side, side), mode="area").round().byte()
    images = open_images(small.numpy())
    rough, shrunk = outlines(images, torch.arange(160)), small_images(images, torch.arange(160))
    first, second = torch.arange(160**2) // 160, torch.arange(160**2) % 160
    refused = rough.refused(first, second)
    near = pixel_difference(shrunk[first], shrunk[second]) <= COPY
    assert not (refused & near).any() and near.sum() >= 400
    assert refused[~near].float().mean() > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("many", [False, True])
def test_copies_are_the_same_for_any_number_of_threads(photographs, tmp_path, monkeypatch, many):
    for number, pixels in enumerate(photographs.pixels[:4].numpy().transpose(0, 2, 3, 1)):
        for quality in (60, 75, 90):  # copies
            Image.fromarray(pixels).save(tmp_path / f"{number}-{quality}.jpg", quality=quality)
        for shift in (1, 2, 3):  # other frames, alike at 16 pixels
            moved = np.roll(pixels, shift, (0, 1))
            Image.fromarray(moved).save(tmp_path / f"{number}-{shift}.png")
    images = open_images(tmp_path, image_size=64)
    features = images.pixels.flatten(1).float()
    features -= features.mean(0)
    known = nearest_rows(features, k=23) if many else None
    monkeypatch.setattr(duplicates, "MANY", 0)
    by_threads = []
    for threads in (1, 2, 6):
        monkeypatch.setattr(duplicates, "usable_cores", lambda threads=threads: threads)
        by_threads.append(find_links(images, features, 0.2, nearest=known))
    assert by_threads[0] == by_threads[1] == by_threads[2]
    sure = [link for link in by_threads[0] if link.kind < NEAR_DUPLICATE]
    copies, _ = group_links(sure, len(images), 0.2)
    assert sorted(map(len, copies)) == [3] * 4 and len(sure) == 8 + 4 * (not many)


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


def means(pixels, side):
    """The means of blocks of an image [channels, height, width], of which there are side x side."""
    channels, height, width = pixels.shape
    return pixels.reshape(channels, side, height // side, side, width // side).mean((2, 4))


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_images_are_shrunk_by_area_and_squashed_whatever_their_proportions(tmp_path, bars, kind):
    """A square, which is not read again, a wide and a tall one; each square of 16 pixels has the
    means of blocks.
    """
    chance, sizes = np.random.default_rng(0), [(64, 64), (64, 160), (192, 64)]
    most = 256 if kind == np.uint8 else 51_000
    drawn = [chance.integers(0, most, (1, *size), dtype=kind) for size in sizes]
    for number, pixels in enumerate(drawn):
        Image.fromarray(pixels[0]).save(tmp_path / f"{number}.png")
    images = open_images(tmp_path, image_size=64)
    low, high = images.value_range or (0, 255)
    wanted = [255 * (means(pixels.astype(float), 16) - low) / (high - low) for pixels in drawn]
    rows, square = torch.arange(3), torch.tensor([True, False, False])
    [shrunk] = small_images(images, rows[:1])
    np.testing.assert_allclose(shrunk, wanted[0], atol=0.1)
    np.testing.assert_allclose(whole_images(images, rows, square), wanted, atol=0.1)
    assert bars[-1] == ("shrinking images", 2, 2) and ("shrinking images", 1, 1) in bars
    few = open_images(tmp_path, image_size=8)  # fewer pixels than asked for
    assert small_images(few, rows).shape == whole_images(few, rows, square).shape == (3, 1, 8, 8)


def patches(*squares, side=128, bands=1):
    """Noise with squares of one colour: (side, colour), in a row from the left."""
    ground = np.random.default_rng(0).integers(60, 200, (1, side, side), dtype=np.uint8)
    page, left = np.repeat(ground, bands, 0), 4
    for width, colour in squares:
        page[:, 8 : 8 + width, left : left + width] = np.reshape(colour, (-1, 1, 1))
        left += width + 8
    return page


def test_a_flat_colour_may_change_by_two_and_a_half():
    """In units of LOCAL / 2.5, since the noise is that of the same file: 3 is one too many."""
    for change in (1, 2, 3):
        flat, other = (patches((16, shade)) for shade in (100, 100 + change))
        assert local_difference(flat, other) == pytest.approx(LOCAL * change / 2.5)
    red, redder = (patches((16, (200, 40, blue)), bands=3) for blue in (40, 46))  # 101, 104 of Cb
    assert local_difference(red, redder) == pytest.approx(LOCAL * 3 / 2.5)
    near = [patches((16, shade), (24, 249)) for shade in (244, 247)]  # another colour beside it
    assert local_difference(*near) == pytest.approx(LOCAL * 3 / 2.5)


@pytest.mark.parametrize(("side", "small", "large"), [(128, 13, 14), (64, 11, 12)])
def test_a_flat_colour_covers_half_a_percent_and_64_pixels(side, small, large):
    """Its border of 2 pixels is not flat: 9 x 9 are less than 0.5 % of 128 x 128, and 7 x 7 than
    64.
    """
    for width, counts in ((small, False), (large, True)):
        both = [patches((width, shade), side=side) for shade in (100, 103)]
        assert (local_difference(*both) > LOCAL) == counts


def test_a_flat_colour_varies_by_sixteen_at_most():
    for spread, counts in ((16, True), (17, False)):
        pages = [patches((40, 100)), patches((40, 103))]
        for page in pages:
            page[:, 8:48:2, 4:44] += np.uint8(spread)
        assert (local_difference(*pages) > LOCAL) == counts


def test_a_flat_colour_of_a_resized_copy_may_change_by_three_and_a_half():
    down, across = np.mgrid[:128, :128] / 128
    page = (120 + 60 * np.sin(9 * down) * np.cos(7 * across))[None].round().astype(np.uint8)
    page[:, 40:80, 40:80] = 30
    for change in (2, 3, 4):
        other = page.copy()
        other[:, 40:80, 40:80] += np.uint8(change)
        half = np.asarray(Image.fromarray(other[0]).resize((64, 64), Image.Resampling.BOX))[None]
        assert local_difference(page, half) == pytest.approx(LOCAL * change / 3.5, rel=0.1)


@pytest.mark.parametrize(
    ("height", "width", "high", "wide", "span", "comparable"),
    [
        (16, 16, 16, 16, 32, True),
        (16, 16, 16, 16, 31, False),
        (15, 16, 15, 16, 99, False),
        (72, 72, 16, 16, 99, True),
        (73, 73, 16, 16, 99, False),
        (16, 40, 16, 24, 99, True),
        (40, 16, 24, 15, 99, False),
        (16, 65501, 16, 65501, 99, False),
        (17, 65501, 16, 65501, 99, False),
    ],
)
def test_sizes_and_contrasts_that_can_be_compared(height, width, high, wide, span, comparable):
    """Slopes from 0 to `span`: 16 pixels or more a side, at most 4.5 times as large, 32 of 255."""
    both = [
        np.linspace(0, span, h * w).round().astype(np.uint8).reshape(1, h, w)
        for h, w in ((height, width), (high, wide))
    ]
    assert (local_difference(*both) < np.inf) == comparable
    assert (local_difference(*both[::-1]) < np.inf) == comparable


@pytest.mark.parametrize(("shown", "others"), [(1, 1), (1, 3), (3, 3), (3, 1)])
def test_a_drawing_is_the_see_through_one_that_it_is_on_white(shown, others):
    """A see-through image is stored on white and then on black; it may show nothing on white."""
    drawing = patches((16, 20))
    on_white, on_black = np.repeat(drawing, shown, 0), np.repeat(drawing // 2, shown, 0)
    see_through, stored = np.concatenate([on_white, on_black]), np.repeat(drawing, others, 0)
    for both in ((see_through, stored), (stored, see_through)):
        assert compare_pixels(*both, lossless=True) == "copy"
        assert local_difference(*both) == 0
        assert compare_pixels(both[0], 255 - both[1], lossless=True) == "near-duplicate"
    for darkest, same in ((223, "copy"), (224, "near-duplicate")):  # 32 and 31 of 255
        page = np.full((1, 32, 32), 255, np.uint8)
        page[:, 8:20, 8:20] = darkest
        see_through = np.concatenate([np.repeat(page, shown, 0), np.repeat(page // 2, shown, 0)])
        stored = np.repeat(page, others, 0)
        assert compare_pixels(see_through, stored, lossless=True) == same
        assert compare_pixels(stored, see_through, lossless=True) == same


def test_images_of_more_than_8_bits_are_compared_with_and_without_their_brightest_pixels():
    page = np.random.default_rng(0).integers(0, 1000, (1, 64, 64)).astype(np.uint16)
    page[0, 3, 3] = 60000  # beside which all else is black
    other = page.copy()
    other[0, 30:36, 30:36] = 1000 - other[0, 30:36, 30:36]
    assert local_difference(page, page) == 0
    assert local_difference(page, other) > LOCAL
    assert local_difference(page, page.astype(np.float32)) == np.inf


def test_reduced_versions_are_means_of_blocks_with_the_changes_by_jpeg_around_each():
    page = np.random.default_rng(0).integers(0, 256, (3, 256, 512), dtype=np.uint8)
    page[:, :, 256:] = 90
    small = reduced(page)
    assert (small.height, small.width) == (256, 512)
    wanted = page.astype(float).reshape(3, 128, 2, 128, 4).mean((2, 4))
    assert abs(small.pixels - wanted).max() <= 1  # one direction is rounded after the other
    assert small.changes.shape == (3, 128, 128)
    assert (small.changes[:, :, :60] > 3).all() and (small.changes[:, :, 84:] <= 1).all()
    assert reduced(page[:, :255]) is None and reduced(page.astype(np.uint16)) is None
    assert not differs(small, None) and not differs(None, small) and not differs(small, small)
    assert differs(small, reduced(page[:, ::-1]))


def test_reduced_versions_refuse_beyond_six_of_255_and_of_other_sizes_beyond_eight():
    """On plain ground, where 4 of 255 and what JPEG changes count as 1; by JPEG of 2, 6 do."""
    plain = np.zeros((1, 128, 128), np.float32)
    for size, changes, most in ((256, 0, 6), (300, 0, 8), (256, 2, 9), (300, 2, 12)):
        first = Reduced(plain, plain + changes, 256, 256)
        for value, refused in ((most, False), (most + 0.1, True)):
            second = Reduced(plain + value, plain, size, 256)
            assert differs(first, second) == differs(second, first) == refused
    colours = Reduced(*2 * [np.repeat(plain + 99, 3, 0)], 256, 256)
    assert not differs(first, colours)


def test_the_part_that_a_smaller_copy_shows_is_found_to_a_fiftieth_of_a_pixel():
    noise = np.random.default_rng(0).normal(size=(120, 160))
    page = F.avg_pool2d(torch.tensor(noise)[None], 9, 1, 4).numpy()
    page = (128 + 500 * page).clip(0, 255).astype(np.uint8)
    for box in ((0, 0, 160, 120), (0.9, 0, 160, 119.2), (0.3, 1, 159.2, 119.6)):
        copy = Image.fromarray(page[0]).resize((80, 60), Image.Resampling.BICUBIC, box=box)
        assert _box(page, planes(copy)) == pytest.approx(box, abs=0.02)
    other = np.zeros((1, 60, 80), np.uint8)
    left, top, right, bottom = _box(page, other)  # nothing to find, within reach
    assert 0 <= left <= 1.25 and 0 <= top <= 1.25
    assert 158.75 <= right <= 160 and 118.75 <= bottom <= 120


@pytest.mark.parametrize("contrast", [20, 100])
def test_lost_detail_is_the_deviation_within_pixels_to_that_between_them(contrast):
    """By means of blocks of 2 x 2: the median of the windows of 5 x 5 where the most is lost."""
    chance = np.random.default_rng(0)
    page = 128 + contrast * chance.uniform(-1, 1, (1, 40, 60)) * np.linspace(0, 1, 60)
    page = page.astype(np.uint8)
    blocks = page[0].astype(float).reshape(20, 2, 30, 2)
    kept = blocks.mean((1, 3)) - gaussian_filter(blocks.mean((1, 3)), 2)
    lost, kept = (uniform_filter(x, 5) ** 0.5 for x in (blocks.var((1, 3)), kept**2))
    strong = lost > max(8, lost.max() / 2)
    assert strong.any() and not strong.all()
    wanted = np.median((lost / (kept + 4))[strong])
    assert _lost_detail(page, 20, 30) == pytest.approx(wanted, rel=1e-3)
    assert _lost_detail(page // 16, 20, 30) == 0  # next to nothing


def test_perturbed_images_lose_what_half_the_size_loses():
    tiny = torch.tensor([[0, 100], [100, 200]], dtype=torch.uint8)[None, None]
    back, lossy = perturb(tiny)
    assert back.tolist() == [[[[100, 100], [100, 100]]]] and lossy.shape == tiny.shape
    for side in (1, 3, 8):
        plain = torch.full((2, 3, side, side), 70, dtype=torch.uint8)
        assert torch.equal(perturb(plain)[0], plain)


@pytest.mark.parametrize("kind", [np.float32, np.int16])
@pytest.mark.parametrize("shape", [(40, 57), (5, 90), (16, 16)])
def test_the_largest_number_around_a_pixel_is_that_of_scipy(kind, shape):
    pytest.importorskip("cv2")
    plane = np.random.default_rng(0).normal(scale=200, size=shape).astype(kind)
    for window in (5, 17):
        expected = maximum_filter(plane, window)
        around = largest_around(plane, window)
        assert around.dtype == kind and np.array_equal(around, expected)
