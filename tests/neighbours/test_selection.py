"""Choices of rows, against loops in float64 and planted answers."""

from itertools import combinations

import pytest
import torch
import torch.nn.functional as F

from nearfar.neighbours import diverse_rows, nearest_rows, outlier_rows, typical_rows


@pytest.fixture
def blobs():
    """Eight groups of 40 rows on the unit sphere, and five rows alone."""
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(8, 12, generator=generator), dim=1)
    rows = centres.repeat_interleave(40, 0) + 0.05 * torch.randn(320, 12, generator=generator)
    return torch.cat([rows, torch.randn(5, 12, generator=generator)])


def distances(rows):
    unit = F.normalize(rows.double(), dim=1)
    return 1 - unit @ unit.T


def test_diverse_rows_are_those_of_a_plain_loop(blobs):
    chosen, apart = diverse_rows(blobs, 30)
    far = distances(blobs)
    for place in range(1, 30):
        near = far[:, chosen[:place]].amin(1)
        near[chosen[:place]] = -1
        assert near.argmax() == chosen[place]
        assert apart[place] == pytest.approx(float(near.max()), abs=1e-5)
    assert sorted({int(i) // 40 for i in chosen[:13]}) == list(
        range(9)
    )  # all groups, and the five alone


def test_diverse_rows_are_at_most_twice_as_far_as_the_best_choice():
    """Gonzalez 1985, theorem 2.2, for the angle, a metric that orders rows as the cosine does."""
    rows = torch.randn(14, 3, generator=torch.Generator().manual_seed(1))
    angle = (1 - distances(rows)).clamp(-1, 1).arccos()
    chosen, _ = diverse_rows(rows, 3)
    best = min(float(angle[:, list(three)].amin(1).max()) for three in combinations(range(14), 3))
    assert float(angle[:, chosen].amin(1).max()) <= 2 * best


def test_diverse_rows_go_on_from_those_that_are_labelled(blobs):
    whole, apart = diverse_rows(blobs, 30)
    rest, far = diverse_rows(blobs, 18, whole[:12])
    assert rest.tolist() == whole[12:].tolist()
    torch.testing.assert_close(far, apart[12:])
    copies, apart = diverse_rows(torch.eye(3).repeat(4, 1), 12)
    assert sorted(copies.tolist()) == list(range(12)) and (apart[3:] == 0).all()


def test_typical_rows_are_one_of_each_cluster_from_its_middle(blobs):
    chosen, _ = typical_rows(blobs, 8)
    assert sorted(int(i) // 40 for i in chosen) == list(range(8))
    far = distances(blobs)
    for i in chosen.tolist():
        group = torch.arange(i // 40 * 40, i // 40 * 40 + 40)
        spread = far[group][:, group].mean(1)
        assert (spread < spread[i % 40]).double().mean() < 0.25


def test_typical_rows_come_from_large_clusters_before_small_ones():
    sizes = [8, 60, 5, 30, 3, 90, 15]  # of three rows: last, when all others are chosen
    generator = torch.Generator().manual_seed(0)
    group = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    rows = torch.eye(7)[group] + 0.01 * torch.randn(len(group), 7, generator=generator)
    order = torch.randperm(len(rows), generator=generator)
    chosen, _ = typical_rows(rows[order], 7)
    assert group[order][chosen].tolist() == [5, 1, 3, 6, 0, 2, 5]
    labelled = (group[order] == 5).nonzero()[:1, 0]  # the largest waits until all others had one
    chosen, _ = typical_rows(rows[order], 6, labelled=labelled)
    assert group[order][chosen].tolist() == [1, 3, 6, 0, 2, 5]


def test_typical_rows_come_from_clusters_without_labels(blobs):
    labelled = torch.tensor([0, 45, 90])
    chosen, _ = typical_rows(blobs[:320], 5, labelled=labelled)
    assert sorted(int(i) // 40 for i in chosen) == [3, 4, 5, 6, 7]
    assert not set(typical_rows(blobs, 322, labelled=labelled)[0].tolist()) & set(labelled.tolist())


def test_as_many_typical_rows_as_there_are_rows(blobs):
    assert sorted(typical_rows(blobs, 325)[0].tolist()) == list(range(325))
    assert sorted(typical_rows(blobs[:30], 29)[0].tolist()) == sorted(
        set(typical_rows(blobs[:30], 29)[0].tolist())
    )


def test_outlier_rows_are_those_alone(blobs):
    chosen, far = outlier_rows(nearest_rows(blobs, k=6).distance, 5)
    assert sorted(chosen.tolist()) == list(range(320, 325))
    assert far.tolist() == sorted(far.tolist(), reverse=True)
