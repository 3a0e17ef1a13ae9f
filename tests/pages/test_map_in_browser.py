"""Behaviour of a map's page; a single file (plain canvas) and a folder (WebGL) behave alike."""

import csv
import io
import json

import numpy as np
import pytest
import torch

from nearfar.data import Images
from nearfar.pages.report import write_report
from nearfar.tools.map.page import write_map_page

COUNT = 60
NAMES = [f"ring/{i:02}, <b>{i % 3}.png" for i in range(COUNT)]
CLASSES = ["cat", "<i>dog</i>", "</script>"]
SHIFT, ALT, ENTER, ESCAPE = "\ue008", "\ue00a", "\ue007", "\ue00c"


def ring_page(path):
    """Sixty images on a ring, image i of the colour (4 i, 255 - 4 i, 50), whose nearest are the
    next two and i - 1.
    """
    i = torch.arange(COUNT)
    angle = i * 2 * torch.pi / COUNT
    colour = torch.stack([4 * i, 255 - 4 * i, torch.full_like(i, 50)], 1).to(torch.uint8)
    pixels = colour[:, :, None, None].expand(COUNT, 3, 12, 12).contiguous()
    labels = np.arange(COUNT) % 3
    images = Images(pixels, names=NAMES, labels=labels, class_names=CLASSES)
    score = np.arange(COUNT, dtype=np.float32)
    score[7] = np.nan
    columns = {"score": score, "site": ["north", "south"] * 30, "kept": np.linspace(0, 1, COUNT)}
    neighbours = (np.arange(COUNT)[:, None] + [1, 2, -1]) % COUNT
    places = torch.stack([3 * angle.cos(), 2 * angle.sin()], 1)
    write_map_page(
        path, places, images, note="A <b>map</b> & more", columns=columns, neighbours=neighbours
    )
    return path if path.suffix else path / "index.html"


@pytest.fixture(scope="module", params=["map.html", pytest.param("map", marks=pytest.mark.slow)])
def written(request, tmp_path_factory):
    return ring_page(tmp_path_factory.mktemp("maps") / request.param)


@pytest.fixture
def page(browser, written):
    browser.console()
    browser.visit(written)
    browser.wait("window.nearfar && nearfar.settled")
    browser.call("execute/async", script="nearfar.namesOf([0]).then(arguments[0])", args=[])
    assert browser.run("nearfar.painter") == ("plain" if written.name == "map.html" else "webgl")
    assert browser.run("document.getElementById('pictures').ariaPressed") == "true"
    click(browser, "pictures")  # to points
    browser.wait("nearfar.settled")
    yield browser
    assert browser.console() == []


def place(page, i):
    """Image i on the screen; a folder has an order of its own, so that images are found by name."""
    return page.run("nearfar.screen(nearfar.find(arguments[0]))", NAMES[i])


def numbers(names):
    return sorted(map(NAMES.index, names))


def chosen(page):
    return numbers(page.run("nearfar.chosen"))


def choose(page, control, value):
    script = "((e, v) => { e.value = v; e.dispatchEvent(new Event('change')); })"
    page.run(script + "(document.getElementById(arguments[0]), arguments[1])", control, value)


def click(page, control):
    page.run("document.getElementById(arguments[0]).click()", control)


def box_around(page, some):
    x, y = np.array([place(page, i) for i in some]).T
    return [(x.min() - 6, y.min() - 6), (x.max() + 6, y.max() + 6)]


def test_points_are_seen_in_the_colours_of_their_classes(page):
    screen, paper = page.screenshot().astype(int), np.array([255, 255, 255])
    colours = [screen[round(y), round(x)] for x, y in (place(page, i) for i in range(6))]
    assert all(np.abs(colour - paper).max() > 60 for colour in colours)
    for i in range(3):
        assert np.abs(colours[i] - colours[i + 3]).max() <= 4
        assert np.abs(colours[i] - colours[(i + 1) % 3]).max() > 60


def test_a_map_with_labels_opens_with_images_in_frames_of_their_classes(browser, written):
    browser.visit(written)
    browser.wait("window.nearfar && nearfar.settled && nearfar.loaded > 0")
    settle(browser)
    screen = browser.screenshot()[60:, :740].reshape(-1, 3).astype(int)
    seen = {tuple(colour) for colour in np.unique(screen, axis=0).tolist()}
    assert len(seen & {(4 * i, 255 - 4 * i, 50) for i in range(COUNT)}) >= 40
    tints = browser.run("[0, 1, 2].map((i) => nearfar.tint(i).slice(0, 3))")
    assert len({tuple(tint) for tint in tints}) >= 2 and {tuple(tint) for tint in tints} <= seen


def pixel_of(page, element):
    """The colour in the middle of an element on the screen."""
    middle = "(({x, y, width, height}) => [x + width / 2, y + height / 2])"
    x, y = page.run(
        middle + "(document.querySelector(arguments[0]).getBoundingClientRect())", element
    )
    return page.screenshot()[round(y), round(x)].astype(int)


def settle(browser):
    browser.call(
        "execute/async",
        script="requestAnimationFrame(() => requestAnimationFrame(arguments[0]))",
        args=[],
    )


def test_names_are_text_and_hovering_shows_the_right_image(page):
    assert page.run("nearfar.points") == 60 and page.run("nearfar.classes") == 3
    assert page.run("document.getElementById('count').textContent") == "60 images"
    assert page.run("document.getElementById('note').textContent") == "A <b>map</b> & more"
    for i in (1, 41):
        page.mouse(*place(page, i))
        page.wait("!document.getElementById('card').hidden && nearfar.loaded > 0")
        assert page.run("document.getElementById('name').textContent") == NAMES[i]
        assert page.run("document.getElementById('label').textContent") == CLASSES[i % 3]
        settle(page)
        assert np.abs(pixel_of(page, "#picture") - np.array([4 * i, 255 - 4 * i, 50])).max() <= 2
        page.mouse(370, 400)  # the middle of the ring is empty
        page.wait("document.getElementById('card').hidden")
    assert page.run("document.querySelectorAll('b, i').length") == 0


def test_legend_hides_a_class(page):
    page.run("document.querySelectorAll('#classes button')[1].click()")
    assert page.run("nearfar.shown") == 40
    assert (
        page.run("document.querySelectorAll('#classes button')[1].getAttribute('aria-pressed')")
        == "false"
    )
    page.mouse(*place(page, 1))
    settle(page)
    assert page.run("nearfar.selected") != NAMES[1]
    click(page, "none")
    assert page.run("nearfar.shown") == 0
    click(page, "all")
    assert page.run("nearfar.shown") == 60


def test_scrolling_zooms_about_the_mouse_and_fit_goes_back(page):
    before, scale = place(page, 7), page.run("nearfar.scale")
    page.scroll(*before, by=-300)
    page.wait(f"nearfar.scale > {scale * 1.2}")
    assert place(page, 7) == pytest.approx(before, abs=2)
    click(page, "fit")
    assert place(page, 7) == pytest.approx(before, abs=1e-6)


@pytest.mark.parametrize("i", [0, 33])
def test_a_click_shows_path_and_neighbours_that_can_be_walked(page, i):
    page.drag([place(page, i)])
    page.wait("nearfar.strip")
    assert page.run("nearfar.strip") == [NAMES[j % COUNT] for j in (i, i + 1, i + 2, i - 1)]
    assert page.run("document.getElementById('strip-name').textContent") == NAMES[i]
    page.run("document.querySelectorAll('#strip-images button')[2].click()")
    page.wait(f"nearfar.strip[0] === '{NAMES[i + 2]}'")
    page.wait("nearfar.loaded > 0")
    assert (
        np.abs(
            pixel_of(page, "#strip-images canvas") - np.array([4 * i + 8, 247 - 4 * i, 50])
        ).max()
        <= 2
    )
    click(page, "back")
    page.wait(f"nearfar.strip[0] === '{NAMES[i]}'")
    click(page, "select-strip")
    assert chosen(page) == sorted(j % COUNT for j in (i, i + 1, i + 2, i - 1))
    click(page, "close-strip")
    assert page.run("nearfar.strip") is None


def test_box_and_lasso_replace_add_and_intersect(page):
    click(page, "box")
    page.drag(box_around(page, range(3, 9)))
    assert chosen(page) == [3, 4, 5, 6, 7, 8]
    page.drag(box_around(page, [30, 31]), SHIFT)
    assert chosen(page) == [3, 4, 5, 6, 7, 8, 30, 31]
    (left, top), (right, bottom) = box_around(page, range(6, 12))
    click(page, "lasso")
    page.drag([(left, top), (right, top), (right, bottom), (left, bottom)], ALT)
    assert chosen(page) == [6, 7, 8]
    choose(page, "how", "add")
    page.drag(
        [
            (x, y)
            for x, y in (place(page, 45) + np.array(step) for step in [(-8, -8), (8, -8), (0, 12)])
        ]
    )
    assert chosen(page) == [6, 7, 8, 45]
    assert page.run("document.getElementById('live').textContent") == "4 selected"
    click(page, "invert")
    assert chosen(page) == sorted({*range(COUNT)} - {6, 7, 8, 45})
    choose(page, "how", "replace")
    click(page, "none-chosen")
    assert chosen(page) == []


def test_what_is_not_selected_is_drawn_faint_and_hidden_images_are_not_selected(page):
    page.run("document.querySelectorAll('#classes button')[1].click()")
    click(page, "box")
    page.drag(box_around(page, range(9)))
    assert chosen(page) == [0, 2, 3, 5, 6, 8]
    assert page.run("nearfar.tint(nearfar.find(arguments[0]))[3]", NAMES[3]) > 200
    assert 0 < page.run("nearfar.tint(nearfar.find(arguments[0]))[3]", NAMES[20]) < 60
    assert page.run("nearfar.tint(nearfar.find(arguments[0]))[3]", NAMES[1]) == 0


def test_legend_and_search_select(page):
    page.run("document.querySelectorAll('#classes input')[2].click()")
    assert chosen(page) == list(range(2, COUNT, 3))
    choose(page, "how", "intersect")
    page.run("document.getElementById('search').value = '/1'")
    page.run("document.getElementById('search').focus()")
    page.press(ENTER)
    page.wait("nearfar.chosen.length === 3")
    assert chosen(page) == [11, 14, 17]
    assert page.run("document.getElementById('found').textContent") == "10 found"
    choose(page, "how", "replace")


def test_colour_by_a_number_and_select_a_range(page):
    choose(page, "colour", 2)
    page.wait("document.getElementById('legend').hidden")
    tints = [
        page.run("nearfar.tint(nearfar.find(arguments[0])).slice(0, 3)", NAMES[i])
        for i in (0, 7, 30, 59)
    ]
    assert tints[0] == [47, 111, 219] and tints[3] == [242, 163, 27] and tints[1] == [138, 143, 152]
    assert np.abs(np.array(tints[2]) - (184, 87, 159)).max() < 8
    page.run(
        "[['from', 5], ['to', 9]].forEach(([id, v]) => { document.getElementById(id).value = v; })"
    )
    page.run("document.querySelector('#scale button').click()")
    assert chosen(page) == [5, 6, 8, 9]


def test_places_that_lie_are_faint_when_asked_for(page):
    click(page, "faint")
    alphas = "[0, 15, 59].map((i) => nearfar.tint(nearfar.find(arguments[0][i]))[3])"
    page.wait(
        f"((seen) => seen[0] < seen[1] && seen[1] < "
        f"seen[2])({alphas.replace('arguments[0]', json.dumps(NAMES))})"
    )
    assert page.run(alphas, NAMES)[2] > 200
    click(page, "faint")
    page.wait(f"Math.min(...{alphas.replace('arguments[0]', json.dumps(NAMES))}) > 200")


def test_selection_as_list_and_csv(page):
    click(page, "box")
    page.drag(box_around(page, [7, 8]))
    run = "const done = arguments[0]; nearfar.%s().then(done);"
    lines = page.call("execute/async", script=run % "listText", args=[]).splitlines()
    assert numbers(lines) == [7, 8]
    rows = list(
        csv.DictReader(io.StringIO(page.call("execute/async", script=run % "csvText", args=[])))
    )
    rows.sort(key=lambda row: row["name"])
    assert [row["name"] for row in rows] == NAMES[7:9]
    assert [row["label"] for row in rows] == CLASSES[1:]
    assert [row["score"] for row in rows] == ["", "8"] and [row["site"] for row in rows] == [
        "south",
        "north",
    ]
    assert float(rows[0]["x"]) == pytest.approx(3 * np.cos(7 * 2 * np.pi / 60), abs=1e-4)


def test_the_table_lists_what_is_shown_or_selected_in_the_order_of_values(page):
    choose(page, "colour", 2)
    page.wait("document.getElementById('legend').hidden")
    page.run("map.focus()")
    page.press("t")
    choose(page, "order", "down")
    first = "document.querySelector('#rows tr td:nth-child(3)').textContent"
    page.wait(f"document.querySelector('#rows tr') && {first} === '{NAMES[59]}'")
    assert page.run("document.getElementById('table-count').textContent") == "1\u201360 of 60 shown"
    assert (
        page.run("document.querySelector('#rows tr:last-child td:nth-child(3)').textContent")
        == NAMES[7]
    )
    page.run("document.querySelectorAll('#rows input')[1].click()")
    assert chosen(page) == [58]
    page.press(ESCAPE)  # T moved the focus into the table
    assert page.run("document.getElementById('table').hidden")
    assert page.run("document.activeElement.id") == "table-button"


def test_an_open_table_follows_colours_and_legend(page):
    page.run("document.getElementById('table-button').click()")
    choose(page, "colour", 2)
    page.wait("document.getElementById('value-title').textContent === 'score'")
    choose(page, "colour", 1)
    page.run("document.querySelector('#classes button').click()")
    page.wait("document.getElementById('table-count').textContent === '1\u201340 of 40 shown'")


def test_keyboard_alone_reaches_images_moves_the_map_and_opens_the_neighbours(page):
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
    for key in (" ", ENTER):
        page.press(key)
    page.wait("nearfar.strip && document.activeElement.closest('#strip-images')")
    assert page.run("nearfar.chosen") == page.run("nearfar.strip")[:1] == [second]
    page.press(ESCAPE)
    assert page.run("nearfar.strip") is None and page.run("document.activeElement.id") == "map"


def test_regions_and_images_are_drawn(page):
    page.mouse(5, 100)  # over no point
    before = page.screenshot()
    click(page, "regions")
    page.wait("nearfar.settled")
    wanted = {(4 * i, 255 - 4 * i, 50) for i in range(COUNT)}

    def thumbnails():
        screen = page.screenshot()[60:, :740].reshape(-1, 3)
        colours, counts = np.unique(screen, axis=0, return_counts=True)
        return {
            tuple(map(int, c)): n
            for c, n in zip(colours, counts, strict=True)
            if tuple(map(int, c)) in wanted
        }

    page.wait("nearfar.loaded > 0 && nearfar.settled")
    large = thumbnails()
    assert 3 <= len(large) <= 30 and min(large.values()) > 500
    click(page, "regions")
    click(page, "pictures")
    page.wait("nearfar.settled")
    assert len(thumbnails()) >= 40
    click(page, "pictures")
    page.wait("nearfar.settled")
    page.run("document.activeElement.blur()")
    assert np.abs(page.screenshot()[60:, :740].astype(int) - before[60:, :740]).max() <= 2


def test_a_folder_without_webgl_draws_on_a_plain_canvas(tmp_path, browser):
    path = ring_page(tmp_path / "map")
    without = (
        "const all = HTMLCanvasElement.prototype.getContext; "
        "HTMLCanvasElement.prototype.getContext ="
        " function (kind, more) { return kind === 'webgl2' ? null : all.call(this, kind, more); };"
    )
    params = {"cmd": "Page.addScriptToEvaluateOnNewDocument", "params": {"source": without}}
    added = browser.call("goog/cdp/execute", **params)["identifier"]
    try:
        browser.visit(path)
        browser.wait("window.nearfar && nearfar.settled")
        assert browser.run("nearfar.painter") == "plain"
        x, y = browser.run("nearfar.screen(5)")
        assert np.abs(browser.screenshot()[round(y), round(x)].astype(int) - 255).max() > 60
    finally:
        remove = {
            "cmd": "Page.removeScriptToEvaluateOnNewDocument",
            "params": {"identifier": added},
        }
        browser.call("goog/cdp/execute", **remove)


def test_without_labels_there_is_no_legend(tmp_path, browser):
    browser.console()
    images = Images(torch.zeros(3, 3, 8, 8, dtype=torch.uint8), names=["a", "b", "c"])
    write_map_page(tmp_path / "map.html", torch.eye(3)[:, :2], images)
    browser.visit(tmp_path / "map.html")
    browser.wait("window.nearfar && nearfar.loaded === nearfar.sheets")
    assert browser.run("document.getElementById('legend').offsetWidth") == 0
    browser.mouse(*browser.run("nearfar.screen(1)"))
    browser.wait("nearfar.selected === 'b'")
    assert browser.run("document.getElementById('label').offsetHeight") == 0
    assert browser.console() == []


def test_numbers_as_labels_are_a_scale(tmp_path, browser):
    browser.console()
    images = Images(torch.zeros(3, 3, 8, 8, dtype=torch.uint8), names=["a", "b", "c"])
    columns = {"label": np.array([2024.05, 2024.77, np.nan]), "id": np.array([1234767, 3, 5000.5])}
    write_map_page(tmp_path / "map.html", torch.eye(3)[:, :2], images, columns=columns)
    browser.visit(tmp_path / "map.html")
    browser.wait("window.nearfar && nearfar.loaded === nearfar.sheets")
    assert browser.run("nearfar.classes") == 0
    browser.mouse(*browser.run("nearfar.screen(1)"))
    browser.wait("nearfar.selected === 'b'")
    ends = browser.run("['low', 'high'].map((end) => document.getElementById(end).textContent)")
    assert [float(end) for end in ends] == pytest.approx([2024.06, 2024.76], abs=0.005)
    browser.run("document.getElementById('table-button').click()")
    browser.wait("document.querySelectorAll('#rows tr').length === 3")
    values = "Array.from(document.querySelectorAll('#rows tr'), (row) => row.cells[3].textContent)"
    assert browser.run(values) == ["2024.05", "2024.77", "none"]
    choose(browser, "colour", 2)
    browser.wait("document.getElementById('value-title').textContent === 'id'")
    assert browser.run(values) == ["1234767", "3", "5000.5"]
    assert browser.console() == []


def test_map_inside_a_report_works_and_lets_the_report_scroll(tmp_path, browser):
    browser.console()
    ring_page(tmp_path / "map.html")
    browser.visit(write_report(tmp_path))
    browser.run("document.querySelector('iframe').scrollIntoView()")
    frame = "document.querySelector('iframe')"
    left, top = browser.run(
        f"((f, r) => [r.x + f.clientLeft, r.y + f.clientTop])({frame}, "
        f"{frame}.getBoundingClientRect())"
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
    wait_inside(f"nearfar.selected === '{NAMES[20]}'")
    browser.scroll(left + x, top + y, by=40)
    browser.wait("scrollY > 0")
    assert inside("nearfar.scale") == scale
    assert browser.run("document.querySelector('iframe').offsetWidth") > 500
    assert browser.console() == []
