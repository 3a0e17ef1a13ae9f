import pytest
import torch

from nearfar.maps.affinities import entropic_affinities, nearest_squared


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_squared_distances_are_those_of_the_rows_or_of_unit_rows(metric):
    rows = torch.randn(70, 5, generator=torch.Generator().manual_seed(0))
    unit = torch.nn.functional.normalize(rows, dim=1) if metric == "cosine" else rows
    matrix = torch.cdist(unit.double(), unit.double()).square().fill_diagonal_(torch.inf)
    squared, index = nearest_squared(rows, None, 7, metric)
    assert torch.equal(index, matrix.topk(7, largest=False).indices)
    assert torch.allclose(squared.double(), matrix.gather(1, index), atol=1e-5)


def test_entropic_affinities_are_gaussian_and_have_the_perplexity_asked_for():
    squared = torch.rand(40, 30, generator=torch.Generator().manual_seed(0)).double().sort(1).values * 1e4
    squared[1] *= 1e-9
    p = entropic_affinities(squared, 8.0)
    assert torch.allclose(p.sum(1), torch.ones(40).double())
    assert torch.allclose((-(p * p.log()).sum(1)).exp(), torch.full((40,), 8.0).double(), rtol=1e-9)
    slope = (p[:, :1] / p).log()[:, 1:] / (
        squared[:, 1:] - squared[:, :1]
    )  # beta_i, whichever neighbour it is read from
    assert torch.allclose(slope, slope[:, :1].expand(-1, 29), rtol=1e-6)


def test_equal_distances_weigh_the_same_and_too_large_a_perplexity_is_refused():
    assert torch.equal(entropic_affinities(torch.ones(3, 4), 2.0), torch.full((3, 4), 0.25))
    with pytest.raises(ValueError, match="1 to the number of neighbours, 4, not 5"):
        entropic_affinities(torch.ones(3, 4), 5.0)
