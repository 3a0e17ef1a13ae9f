"""Lines and bars: nothing for a library user, lines on a console that is no terminal."""

import io
import logging

from rich.console import Console

import nearfar
from nearfar import rendering
from nearfar.progress import Bar, Table, log, progress, renderer, tracked, waiting
from nearfar.rendering import ConsoleRenderer, shown_on


def console_of(file, terminal=False):
    return Console(file=file, force_terminal=terminal, width=200, soft_wrap=True)


def test_nobody_hears_of_anything_who_does_not_ask(capfd):
    log.info("a line")
    with progress("reading", 3) as bar, waiting("waiting"):
        bar.advance()
        assert type(bar) is Bar and bar.done == 1
    assert list(tracked(range(3), "counting")) == [0, 1, 2]
    assert capfd.readouterr() == ("", "")


def test_a_console_has_lines_tables_and_bars_and_then_not(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(rendering, "INTERVAL", 0.0)
    with shown_on(console_of(file)):
        log.info("[red]%s", "a line")
        table = Table("name", "count")
        table.add("cats", 3)
        log.info(table)
        with progress("reading images", 2) as bar:
            bar.advance()
            bar.update(2, text="epoch 2")
    log.info("after it")
    written = file.getvalue()
    assert written.startswith("[red]a line\n")
    assert "cats" in written and "reading images: 1 of 2\nepoch 2\n" in written
    assert "after it" not in written and renderer() is None and log.level == logging.NOTSET
    assert str(table) == "name  count\ncats  3"


def test_an_exception_has_its_traceback():
    file = io.StringIO()
    with shown_on(console_of(file)):
        try:
            raise KeyError("what")
        except KeyError:
            log.exception("the report is not written")
    assert file.getvalue().startswith("the report is not written\nTraceback")
    assert "KeyError: 'what'" in file.getvalue()


def test_bars_inside_bars_are_drawn_together():
    file = io.StringIO()
    with shown_on(console_of(file, terminal=True)):
        with progress("outer", 2) as outer, progress("inner", 3) as inner:
            inner.advance()
            outer.advance()
        drawing = renderer()
        assert isinstance(drawing, ConsoleRenderer) and drawing._drawing is None


def test_a_short_bar_inside_another_is_not_drawn(monkeypatch):
    def drawn(moment):
        monkeypatch.setattr(rendering, "MOMENT", moment)
        file = io.StringIO()
        shown = shown_on(console_of(file, terminal=True))
        with shown, progress("outer", 2), progress("inner", 3) as inner:
            inner.advance()
            assert (inner.task is None) == (moment > 0)
            renderer()._drawing.refresh()
        return file.getvalue()

    assert "inner" in drawn(0.0) and "outer" in drawn(60.0) and "inner" not in drawn(60.0)


def test_lines_are_recorded_where_a_program_listens(caplog):
    with caplog.at_level(logging.INFO, "nearfar"):
        log.info("%d images", 3)
    assert caplog.messages == ["3 images"]


def test_show_progress_can_be_taken_back(capsys):
    nearfar.show_progress()
    log.info("a line")
    nearfar.show_progress(False)
    log.info("another")
    assert capsys.readouterr().out == "a line\n"
