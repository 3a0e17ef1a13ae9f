import numpy as np
import pytest
import torch

from nearfar.data import Images
from nearfar.pages import write_map_page
from nearfar.pages.report import write_report

NAMES = [
    "plain.png",
    "</script><b>bold",
    "quote\"'&amp;.png",
    "zwölf \u2028 图.png",
    *[f"{i}.png" for i in range(4, 60)],
]
CLASSES = ["cat", "<i>dog</i>", "</script>"]


@pytest.fixture(scope="module")
def points():
    angle = torch.arange(60) * 2 * torch.pi / 60
    return torch.stack([3 * angle.cos(), 2 * angle.sin()], 1)


def images_of(labels):
    """Image i is filled with the colour (4 i, 255 - 4 i, 50)."""
    i = torch.arange(60)
    colour = torch.stack([4 * i, 255 - 4 * i, torch.full((60,), 50)], 1).to(torch.uint8)
    pixels = colour[:, :, None, None].expand(60, 3, 12, 12).contiguous()
    return Images(pixels, names=NAMES, image_size=12, channels=3, labels=labels, class_names=CLASSES)


@pytest.fixture
def page(tmp_path, browser, points):
    path = tmp_path / "map.html"
    write_map_page(path, points, images_of(np.arange(60) % 3), note="A <b>map</b> & more")
    browser.console()  # what earlier pages said
    browser.visit(path)
    browser.wait("window.nearfar && nearfar.loaded === nearfar.sheets")
    yield browser
    assert browser.console() == []


def painted_near(browser, points):
    """For each point the opaque colours on the map's canvas in the 9 x 9 px around it; reads the canvas once."""
    pixels = browser.run(
        """((points) => { const c = document.getElementById("map"), b = c.getBoundingClientRect(), r = devicePixelRatio;
        const all = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
        return points.map((i) => {
          const [x, y] = nearfar.screen(i).map((at, k) => Math.round((at - [b.left, b.top][k]) * r)), found = [];
          for (let dx = -4; dx <= 4; dx++) for (let dy = -4; dy <= 4; dy++) {
            const at = 4 * ((y + dy) * c.width + x + dx);
            found.push([...all.slice(at, at + 4)]);
          }
          return found;
        }); })(arguments[0])""",
        list(points),
    )
    return [{tuple(rgba[:3]) for rgba in around if rgba[3] > 200} for around in pixels]


def settle(browser):
    browser.call("execute/async", script="requestAnimationFrame(() => requestAnimationFrame(arguments[0]))", args=[])


def test_page_holds_every_point_and_says_how_many(page):
    assert page.run("nearfar.points") == 60
    assert page.run("nearfar.classes") == 3
    assert page.run("document.getElementById('count').textContent") == "60 images"
    assert page.run("document.getElementById('note').textContent") == "A <b>map</b> & more"
    assert page.run("document.querySelectorAll('b, i').length") == 0


def test_points_are_painted_in_their_class_colour_within_the_canvas(page):
    settle(page)
    box = page.run("(({left, top, right, bottom}) => [left, top, right, bottom])(map.getBoundingClientRect())")
    for i in range(60):
        x, y = page.run("nearfar.screen(arguments[0])", i)
        assert box[0] < x < box[2] and box[1] < y < box[3]
    seen = painted_near(page, range(3))
    assert all(seen)
    assert not (seen[0] & seen[1] or seen[1] & seen[2] or seen[0] & seen[2])


@pytest.mark.parametrize("i", [0, 1, 2, 3, 41])
def test_hover_shows_name_label_and_the_right_image(page, i):
    page.mouse(*page.run("nearfar.screen(arguments[0])", i))
    page.wait("!document.getElementById('card').hidden")
    assert page.run("document.getElementById('name').textContent") == NAMES[i]
    assert page.run("document.getElementById('label').textContent") == CLASSES[i % 3]
    pixel = page.run("[...picture.getContext('2d').getImageData(6, 6, 1, 1).data]")
    assert pixel == [4 * i, 255 - 4 * i, 50, 255]
    page.mouse(500, 400)  # the middle of the ring is empty
    page.wait("document.getElementById('card').hidden")


def test_legend_hides_a_class(page):
    x, y = page.run("nearfar.screen(1)")
    page.run("document.querySelectorAll('#classes button')[1].click()")
    assert page.run("nearfar.shown") == 40
    assert page.run("document.querySelectorAll('#classes button')[1].getAttribute('aria-pressed')") == "false"
    assert page.run("document.querySelectorAll('#classes .name')[1].textContent") == "<i>dog</i>"
    page.mouse(x, y)
    settle(page)
    assert page.run("nearfar.selected") != NAMES[1]
    page.run("document.getElementById('none').click()")
    assert page.run("nearfar.shown") == 0
    page.run("document.getElementById('all').click()")
    assert page.run("nearfar.shown") == 60


def test_scrolling_zooms_about_the_mouse_and_fit_goes_back(page):
    before, scale = page.run("nearfar.screen(7)"), page.run("nearfar.scale")
    page.scroll(*before, by=-300)
    page.wait(f"nearfar.scale > {scale * 1.2}")
    assert page.run("nearfar.screen(7)") == pytest.approx(before, abs=2)
    page.run("document.getElementById('fit').click()")
    assert page.run("nearfar.screen(7)") == pytest.approx(before, abs=1e-6)


def test_keyboard_alone_reaches_images_and_moves_the_map(page):
    page.run("map.focus()")
    page.press("\ue014")  # right arrow: the image nearest to the middle, then on
    first = page.run("nearfar.selected")
    page.press("\ue014")
    second = page.run("nearfar.selected")
    assert first in NAMES and second in NAMES and first != second
    assert page.run("document.getElementById('live').textContent").startswith(second)
    scale = page.run("nearfar.scale")
    page.press("+")
    assert page.run("nearfar.scale") == pytest.approx(1.4 * scale)
    page.press("0")
    assert page.run("nearfar.scale") == pytest.approx(scale)
    page.press("\ue00c")  # Escape
    assert page.run("nearfar.selected") is None


def test_images_are_drawn_in_place_of_points(page):
    page.run("document.getElementById('pictures').click()")
    settle(page)
    seen = painted_near(page, range(60))
    assert sum((4 * i, 255 - 4 * i, 50) in seen[i] for i in range(60)) >= 20
    page.run("document.getElementById('pictures').click()")


def test_without_labels_there_is_no_legend(tmp_path, browser, points):
    browser.console()
    write_map_page(tmp_path / "map.html", points, images_of(None))
    browser.visit(tmp_path / "map.html")
    browser.wait("window.nearfar && nearfar.loaded === nearfar.sheets")
    assert browser.run("document.getElementById('legend').offsetWidth") == 0
    browser.mouse(*browser.run("nearfar.screen(5)"))
    browser.wait("nearfar.selected === '5.png'")
    assert browser.run("document.getElementById('label').offsetHeight") == 0
    assert browser.console() == []


def test_map_inside_a_report_works_and_lets_the_report_scroll(tmp_path, browser, points):
    browser.console()
    write_map_page(tmp_path / "map.html", points, images_of(np.arange(60) % 3))
    browser.visit(write_report(tmp_path))
    browser.run("document.querySelector('iframe').scrollIntoView()")
    frame = "document.querySelector('iframe')"
    left, top = browser.run(
        f"((f, r) => [r.x + f.clientLeft, r.y + f.clientTop])({frame}, {frame}.getBoundingClientRect())"
    )

    def inside(expression):
        """Evaluate in the map; the mouse is moved from the page around it, as a person would."""
        browser.frame(0)
        value = browser.run(expression)
        browser.frame(None)
        return value

    def wait_inside(condition):
        browser.frame(0)
        browser.wait(condition)
        browser.frame(None)

    wait_inside("window.nearfar && nearfar.loaded === nearfar.sheets")
    browser.mouse(left + 1, top + 1)
    settle(browser)  # a busy browser knows only then that the mouse is over the frame
    scale, (x, y) = inside("nearfar.scale"), inside("nearfar.screen(20)")
    browser.mouse(left + x, top + y)
    wait_inside("nearfar.selected === '20.png'")
    browser.scroll(left + x, top + y, by=40)
    browser.wait("scrollY > 0")
    assert inside("nearfar.scale") == scale
    assert browser.run("document.querySelector('iframe').offsetWidth") > 500
    assert browser.console() == []
