"""Edits by which an image becomes another: maps and words against edits of known numbers, and images that are no copies."""

import io
import math

import numpy as np
import pytest
from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageFilter, ImageFont, ImageOps
from sklearn.datasets import load_sample_images

cv2 = pytest.importorskip("cv2", reason="edited copies need OpenCV: pip install 'nearfar[edits]'")

from nearfar.neighbours.copies import inverse, turned  # noqa: E402
from nearfar.neighbours.edit_maps import local_features, matched_map, mirrored  # noqa: E402
from nearfar.neighbours.edits import (  # noqa: E402
    Edit,
    are_large_enough,
    edit_in_words,
    edit_of_turn,
    find_edit,
)

CHINA, FLOWER = (Image.fromarray(image) for image in load_sample_images().images)
PHOTO = CHINA.crop((150, 60, 450, 300))  # 300 x 240
CORNERS = np.array([[-0.5, -0.5, 1], [0.5, -0.5, 1], [0.5, 0.5, 1], [-0.5, 0.5, 1]])


def planes(image):
    return np.ascontiguousarray(np.asarray(image.convert("RGB")).transpose(2, 0, 1))


def saved(image, quality=90):
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


def edit_of(first, second):
    """The edit by the features as they are, else by those of the mirror image."""
    pixels, other = planes(first), planes(second)
    ours, theirs = local_features(pixels), local_features(other)
    for back, features in ((np.eye(2), theirs), (np.diag([-1.0, 1.0]), mirrored(theirs))):
        matrix = matched_map(ours, features)
        if matrix is not None:
            return find_edit(pixels, other, back @ matrix)
    return None


def words_of(first, second):
    edit = edit_of(first, second)
    return None if edit is None else edit_in_words(edit, first.size, second.size)


@pytest.mark.parametrize(
    "second, words",
    [
        (saved(PHOTO.crop((30, 24, 270, 216))), "cropped to 64 %"),
        (saved(PHOTO.transpose(Image.Transpose.FLIP_LEFT_RIGHT)), "mirrored"),
        (saved(PHOTO.transpose(Image.Transpose.FLIP_TOP_BOTTOM)), "mirrored top to bottom"),
        (saved(PHOTO.transpose(Image.Transpose.ROTATE_90)), "turned by 90 degrees left"),
        (
            saved(PHOTO.resize((300, 180), Image.Resampling.BICUBIC)),
            "squeezed to 75 % of its height",
        ),
        (
            saved(PHOTO.resize((210, 240), Image.Resampling.BICUBIC)),
            "squeezed to 70 % of its width",
        ),
        (saved(PHOTO.convert("L").convert("RGB")), "other colours"),
    ],
)
def test_words_have_the_numbers_of_the_edit(second, words):
    assert words_of(PHOTO, second) == words


def test_an_image_on_a_larger_one_has_a_border():
    page = Image.new("RGB", (400, 400), "white")
    page.paste(PHOTO, (50, 100))  # 300 x 240 of 400 x 400 is 45 %
    assert words_of(PHOTO, saved(page)) == "with a border of 55 %"
    assert words_of(saved(page), PHOTO) == "cropped to 45 %"


def test_the_map_of_a_turn_is_exact_to_half_a_pixel():
    angle = 12
    second = saved(PHOTO.rotate(-angle, Image.Resampling.BICUBIC))  # to the right
    edit = edit_of(PHOTO, second)
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    matrix = CORNERS @ np.reshape(edit.matrix, (2, 3)).T * PHOTO.size
    corners = CORNERS[:, :2] * PHOTO.size
    assert np.abs(matrix - corners @ np.array([[cosine, sine], [-sine, cosine]])).max() < 0.5
    words = edit_in_words(edit, PHOTO.size, second.size).split(", ")
    left = np.asarray(Image.new("L", PHOTO.size, 255).rotate(angle)).mean() / 255
    assert words[0] == "turned by 12 degrees right"
    assert abs(float(words[1].split()[2]) / 100 - left) < 0.01


def test_a_blurred_copy_has_the_sigma_of_its_blur():
    blurred = Image.fromarray(cv2.GaussianBlur(np.asarray(PHOTO), (0, 0), 2.1))
    edit = edit_of(PHOTO, saved(blurred))
    assert abs(edit.blur - 2.1) <= 0.7
    assert edit_of(saved(blurred), PHOTO).blur == pytest.approx(-edit.blur, abs=0.7)


def test_two_edits_are_undone_in_turn():
    crop, mirror = Edit((1.25, 0, 0.1, 0, 1.5, 0)), edit_of_turn(4)
    both = crop.then(mirror)
    assert np.allclose(both.matrix, (-1.25, 0, -0.1, 0, 1.5, 0))
    assert np.allclose(both.then(both.undone()).matrix, Edit().matrix)


def test_orientations_are_edits():
    first = np.zeros((1, 20, 30))
    first[0, 3, 7] = 1
    unit = np.array([(7 + 0.5) / 30 - 0.5, (3 + 0.5) / 20 - 0.5, 1])
    for turn in range(8):
        second = turned(first, inverse(turn))
        assert np.array_equal(turned(second, turn), first)
        _, y, x = np.argwhere(second)[0]
        matrix = np.reshape(edit_of_turn(turn).matrix, (2, 3)) @ unit
        assert np.allclose((matrix + 0.5) * second.shape[:0:-1] - 0.5, (x, y))


def test_features_of_the_mirror_image_are_those_of_the_image_in_another_order():
    ours = mirrored(local_features(planes(PHOTO)))
    theirs = local_features(planes(PHOTO.transpose(Image.Transpose.FLIP_LEFT_RIGHT)))
    far = np.linalg.norm((ours.points[:, None] - theirs.points) * PHOTO.size, axis=2)
    near = np.argwhere(far < 0.1)
    apart = np.abs(
        ours.descriptors[near[:, 0]].astype(int) - theirs.descriptors[near[:, 1]].astype(int)
    ).max(1)
    assert (apart <= 2).sum() > 60  # one place can have features of two directions


def form(number):
    page = Image.new("RGB", (440, 300), "white")
    draw = ImageDraw.Draw(page)
    for line in range(12):
        draw.text(
            (20, 14 + 23 * line),
            f"line {line} of a form with words",
            fill="black",
            font=ImageFont.load_default(16),
        )
    draw.text((300, 14), f"{number}", fill="black", font=ImageFont.load_default(16))
    return page


def test_forms_that_differ_in_a_digit_are_no_copies():
    first, second = form(123456), form(123956)
    assert edit_of(first, second) is None
    moved = Image.new("RGB", second.size, "white")
    moved.paste(second.crop((0, 0, 430, 292)), (10, 8))
    assert edit_of(first, moved) is None
    assert edit_of(first, first.crop((0, 0, 430, 290))) is not None


def in_gray(image):
    return image.convert("L").convert("RGB")


def test_two_shots_of_a_burst_are_no_copies():
    chance, photo = np.random.default_rng(0), np.asarray(FLOWER, dtype=float)[100:340, 150:450]
    shots = [
        Image.fromarray(
            (photo[y : y + 230, x : x + 290] + chance.normal(0, 3, (230, 290, 3)))
            .round()
            .clip(0, 255)
            .astype(np.uint8)
        )
        for x, y in ((0, 0), (4, 3))
    ]
    assert edit_of(*shots) is None
    assert edit_of(shots[0], in_gray(shots[1])) is None
    assert edit_of(shots[0], shots[0].crop((4, 3, 290, 230))) is not None


@pytest.mark.parametrize("shift", [(7, 0), (0, -9), (40, 25)])
def test_parts_of_one_scale_that_are_only_moved_are_no_copies(shift):
    """Two parts of a page or of a panorama, whose common pixels are equal; each is a crop of the
    whole.
    """
    x, y = 60, 60
    first, second = (
        FLOWER.crop((x + right, y + down, x + right + 300, y + down + 240))
        for right, down in ((0, 0), shift)
    )
    assert edit_of(first, second) is None
    assert edit_of(first, ImageOps.autocontrast(second, cutoff=10)) is None
    whole = FLOWER.crop((30, 30, 430, 350))
    assert edit_of(whole, first) is not None and edit_of(whole, second) is not None


def test_an_image_in_its_place_is_a_copy_by_its_colours_or_its_blur_alone():
    """The same image, encoded again, is judged without edits."""
    assert edit_of(PHOTO, saved(PHOTO)) is None
    assert words_of(PHOTO, PHOTO.filter(ImageFilter.GaussianBlur(2))) == "blurred"


def test_a_text_on_an_image_is_no_edited_copy():
    image = PHOTO.copy()
    ImageDraw.Draw(image).text((60, 90), "SALE", fill="yellow", font=ImageFont.load_default(48))
    assert edit_of(PHOTO, image) is None


def test_other_images_have_no_map():
    assert matched_map(local_features(planes(PHOTO)), local_features(planes(FLOWER))) is None
    plain = local_features(np.zeros((1, 64, 64), np.uint8))
    assert len(plain.points) == 0 and matched_map(plain, plain) is None


def half(image):
    return image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS)


@pytest.mark.parametrize(
    "edited",
    [
        lambda image: image.crop((8, 6, image.width, image.height)),
        lambda image: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
        lambda image: ImageOps.expand(image, (20, 10, 0, 30), "navy"),
    ],
    ids=["crop", "flip", "border"],
)
def test_small_forms_that_keep_their_pixels_are_copies_unless_a_digit_differs(edited):
    """Digits of 5 pixels, and files of JPEG."""
    first, second = (half(form(number)) for number in (123456, 123956))
    assert edit_of(first, saved(edited(first))) is not None
    assert edit_of(first, saved(edited(second))) is None


@pytest.mark.parametrize("angle, share", [(12, 1), (0, 0.8)])
def test_forms_that_are_resampled_are_no_edited_copies(angle, share):
    """A small digit changes no more than resampling does, so that none can be told from another."""
    first, second = (half(form(number)) for number in (123456, 123956))
    for form_image in (first, second):
        resampled = form_image.rotate(angle, Image.Resampling.BICUBIC, fillcolor="white")
        size = [round(side * share) for side in resampled.size]
        resized = resampled.resize(size, Image.Resampling.BICUBIC).crop((5, 5, *size))
        assert edit_of(first, saved(resized)) is None


def dated(image, text, at=(20, 200), colour="white", size=14):
    image = image.copy()
    ImageDraw.Draw(image).text(at, text, colour, ImageFont.load_default(size))
    return image


def cropped(image):
    return image.crop((10, 8, 300, 240))


def turned_by_ten(image):
    return image.rotate(10, Image.Resampling.BICUBIC)


def cropped_and_resized(image):
    size = round(290 * 0.85), round(232 * 0.85)
    return cropped(image).resize(size, Image.Resampling.BICUBIC)


@pytest.mark.parametrize("edited", [lambda image: image, cropped], ids=["whole", "crop"])
@pytest.mark.parametrize("saturation", [0.15, 0.3, 1])
def test_a_photograph_in_grayscale_is_a_copy_however_pale_it_was_unless_a_digit_differs(
    edited, saturation
):
    """A pale one changes by less than the colours that are said."""
    pale = ImageEnhance.Color(PHOTO).enhance(saturation)
    first, second = (dated(pale, f"{day}.05.2024 16:40") for day in (17, 12))
    assert "other colours" in words_of(first, saved(in_gray(edited(first))))
    assert edit_of(first, saved(in_gray(edited(second)))) is None
    assert edit_of(in_gray(first), saved(edited(second))) is None


def test_a_form_in_grayscale_is_a_copy_unless_a_digit_differs():
    first, second = (
        ImageChops.multiply(half(form(number)), Image.new("RGB", half(form(1)).size, "ivory"))
        for number in (123456, 123956)
    )
    assert edit_of(first, saved(in_gray(first.crop((8, 6, *first.size))))) is not None
    assert edit_of(first, saved(in_gray(second.crop((8, 6, *second.size))))) is None


def test_photographs_whose_dates_differ_in_a_digit_are_no_copies():
    first, second = (dated(PHOTO, f"{day}.05.2024 16:40") for day in (17, 12))
    for version in (cropped, turned_by_ten):
        assert edit_of(first, saved(version(first))) is not None
        assert edit_of(first, saved(version(second))) is None


@pytest.mark.parametrize(
    "photo, at, colour, size, days, version",
    [
        (FLOWER.crop((200, 100, 500, 340)), (20, 200), "gold", 12, (16, 18), cropped),
        (FLOWER.crop((200, 100, 500, 340)), (20, 200), "gold", 14, (17, 12), cropped),
        (FLOWER.crop((300, 180, 600, 420)), (20, 200), "white", 10, (16, 18), turned_by_ten),
        (CHINA.crop((100, 150, 400, 390)), (150, 200), "white", 12, (16, 18), cropped_and_resized),
    ],
)
def test_a_faint_digit_of_a_date_is_seen_in_any_edit(photo, at, colour, size, days, version):
    """Gold on green has the same brightness, and 6 and 8 differ in one thin stroke."""
    first, second = (dated(photo, f"{day}.05.24 16:40", at, colour, size) for day in days)
    assert edit_of(first, saved(version(second))) is None


def test_two_shots_of_a_thing_before_a_white_sky_are_no_copies():
    """Noise is cut off in the sky; the thing shows that there is some."""
    chance, thing = np.random.default_rng(2), np.asarray(CHINA, dtype=float)[150:270, 250:370]
    sky = np.full((240, 240, 3), 262.0)
    sky[70:190, 60:180] = thing
    shots = [
        Image.fromarray(
            (sky + chance.normal(0, 3, sky.shape)).round().clip(0, 255).astype(np.uint8)
        )
        for _ in range(2)
    ]
    box = 12, 9, 228, 225
    assert edit_of(shots[0], saved(shots[0].crop(box))) is not None
    assert edit_of(shots[0], saved(shots[1].crop(box))) is None


def test_a_crop_in_colour_of_a_grayscale_image_is_a_copy():
    gray = planes(PHOTO.convert("L"))[:1]
    crop = planes(saved(PHOTO.convert("L").crop((30, 24, 270, 216)).convert("RGB")))
    for first, second in ((gray, crop), (crop, gray)):
        matrix = matched_map(local_features(first), local_features(second))
        assert find_edit(first, second, matrix) is not None


def test_a_crop_of_a_noisy_shot_is_a_copy_and_one_of_the_next_shot_is_not():
    chance, photo = np.random.default_rng(1), np.asarray(FLOWER, dtype=float)[100:340, 150:450]
    shots = [
        Image.fromarray((photo + chance.normal(0, 3, photo.shape)).clip(0, 255).astype(np.uint8))
        for _ in range(2)
    ]
    box = 12, 9, 282, 225
    assert edit_of(shots[0], saved(shots[0].crop(box))) is not None
    assert edit_of(shots[0], saved(shots[1].crop(box))) is None
    assert edit_of(shots[0], saved(shots[1].rotate(15, Image.Resampling.BICUBIC))) is None


@pytest.mark.parametrize("side", [96, 120])
@pytest.mark.parametrize("turn", [None, Image.Transpose.ROTATE_90, Image.Transpose.TRANSVERSE])
def test_small_parts_of_a_photograph_that_overlap_are_no_edited_copies(side, turn):
    """ECC may turn a shift into a scale of 1.03 where little is common."""
    parts = [
        CHINA.crop((x, x // 2 + 100, x + side, x // 2 + 100 + side)) for x in range(200, 500, 40)
    ]
    others = parts if turn is None else [part.transpose(turn) for part in parts]
    assert [edit_of(*pair) for pair in zip(parts, others[1:], strict=False)] == [None] * 7


@pytest.mark.parametrize("size", [(36, 36), (33, 40), (48, 33)])
def test_images_below_a_size_have_no_edits_whatever_they_show(size):
    """The mirror image of a photograph by its true map, with sides around the smallest."""
    mirror, confirmed = np.array([[-1.0, 0, 0], [0, 1, 0]]), {}
    for less in range(3):
        small = PHOTO.resize((size[0] - less, size[1] - less), Image.Resampling.BICUBIC)
        pixels = planes(small)
        edit = find_edit(pixels, np.ascontiguousarray(pixels[:, :, ::-1]), mirror)
        confirmed[pixels.shape[1:]] = edit is not None
    large = are_large_enough(np.array(list(confirmed)))
    assert confirmed == dict(zip(confirmed, large.tolist(), strict=True))
    assert {*confirmed.values()} == {True, False}
