"""Tables as pictures."""

import contextlib

import matplotlib.axes
import matplotlib.figure
import matplotlib.image
import numpy as np
import pytest

from nearfar_papers import pages
from nearfar_papers.pages import draw_table, side_by_side
from tests.papers.conftest import paper


def test_pictures_of_runs_stand_side_by_side_in_their_order(tmp_path):
    red, blue = np.zeros((8, 8, 3)), np.zeros((8, 8, 3))
    red[..., 0], blue[..., 2] = 1, 1
    pictures = {"one": tmp_path / "one.png", "two": tmp_path / "two.png"}
    for path, pixels in zip(pictures.values(), (red, blue), strict=True):
        matplotlib.image.imsave(path, pixels)
    side_by_side(pictures).savefig(tmp_path / "both.png")
    both = matplotlib.image.imread(tmp_path / "both.png")[..., :3]
    across = [np.argwhere((both == pixels[0, 0]).all(axis=2))[:, 1] for pixels in (red, blue)]
    assert all(len(columns) > 10_000 for columns in across) and across[0].max() < across[1].min()


@pytest.mark.parametrize(
    ("name", "drawn"),
    [("saclr/table-8", False), ("sigclr/table-3", True), ("lorac/figure-3", True)],
)
def test_figures_have_a_picture_and_tables_over_one_quantity_of_one_net(tmp_path, name, drawn):
    table = paper(name.split("/")[0]).tables[name.split("/")[1]]
    values = {(cell.row, cell.column): [1.0, 2.0] for cell in table.small.cells()}
    draw_table(tmp_path / "figure.png", table.small, values, tmp_path)
    assert (tmp_path / "figure.png").is_file() == drawn


def test_a_histogram_holds_all_seeds_of_a_row_and_every_row(tmp_path, monkeypatch):
    drawn, hist = {}, matplotlib.axes.Axes.hist

    def noted(axes, numbers, edges, weights, label, **options):
        drawn[label] = sorted(numbers), edges, sum(weights)
        return hist(axes, numbers, edges, weights=weights, label=label, **options)

    monkeypatch.setattr(matplotlib.axes.Axes, "hist", noted)
    table = paper("lorac").tables["figure-4c"]
    values = {("lorac", "imagenette"): [[1.0, 2.0], [3.0]], ("moco-m", "imagenette"): [[4.0, 9.0]]}
    draw_table(tmp_path / "norms.png", table.small, values, tmp_path)
    assert drawn["LORAC"][0] == [1, 2, 3] and drawn["MoCo-M"][0] == [4, 9]
    for _, edges, percent in drawn.values():
        assert edges[0] == 1 and edges[-1] == 9 and round(percent, 9) == 100


def test_lines_over_doubling_columns_have_colours_of_their_own_and_logarithms(
    tmp_path, monkeypatch
):
    figures = []
    monkeypatch.setattr(
        matplotlib.figure.Figure, "savefig", lambda figure, _: figures.append(figure)
    )
    monkeypatch.setattr(pages, "replacing", lambda path: contextlib.nullcontext(path))
    for name, log in (("saclr/table-9", True), ("batch-sizes/figure-1", False)):
        table = paper(name.split("/")[0]).tables[name.split("/")[1]]
        table = table if log else table.small
        values = {(cell.row, cell.column): [1.0, 2.0] for cell in table.cells()}
        draw_table(tmp_path / "figure.png", table, values, tmp_path)
        axes = figures[-1].axes[0]
        assert axes.get_xscale() == "log" and (axes.get_yscale() == "log") == log
        handles, labels = axes.get_legend_handles_labels()
        assert len({str(handle[0].get_color()) for handle in handles}) == len(labels) > 4


def test_views_and_temperatures_stand_where_their_logarithms_are(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(
        matplotlib.figure.Figure, "savefig", lambda figure, _: figures.append(figure)
    )
    monkeypatch.setattr(pages, "replacing", lambda path: contextlib.nullcontext(path))
    for name, places in (("lorac/figure-4b", [2, 3, 4, 6, 8]), ("sigclr/table-2", [0.1, 0.2, 1])):
        table = paper(name.split("/")[0]).tables[name.split("/")[1]].small
        values = {(cell.row, cell.column): [1.0, 2.0] for cell in table.cells()}
        draw_table(tmp_path / "figure.png", table, values, tmp_path)
        axes = figures[-1].axes[0]
        assert axes.get_xscale() == "log" and list(axes.get_xticks()) == places


def test_claims_are_drawn_with_their_intervals_and_bounds(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(
        matplotlib.figure.Figure, "savefig", lambda figure, _: figures.append(figure)
    )
    monkeypatch.setattr(pages, "replacing", lambda path: contextlib.nullcontext(path))
    table = paper("experiments").tables["3"]
    text = "SigCLR with fixed temperature and bias is at most a point below SimCLR"
    claim = {"text": text, "holds": "yes", "difference": 0.2, "interval": [-0.8, 1.2]}
    values = {(cell.row, cell.column): [1.0, 2.0] for cell in table.cells()}
    draw_table(tmp_path / "figure.png", table, values, tmp_path, [claim])
    lines = [line.get_xdata() for line in figures[0].axes[0].lines]
    assert [-0.8, 1.2] in [list(line) for line in lines]
    assert [-1.0, -1.0] in [list(line) for line in lines]
