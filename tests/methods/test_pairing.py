"""Every pairing calls the loss as its table says, on the views that it names."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from nearfar.methods.pairing import Pairing, both_ways, queries_against_keys


class Recorder(nn.Module):
    """A loss that writes down its arguments and returns 1, 2, 4, ... for its calls."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def forward(self, *rows, **named):
        self.calls.append((rows, named))
        return torch.tensor(2.0 ** (len(self.calls) - 1))


def embeddings_of(pairing, batch=3, dim=2):
    """Embeddings as a model makes them, [views of the branch, batch, dim], each filled with its
    view's number.
    """
    online, momentum = (
        torch.tensor(views, dtype=torch.float).view(-1, 1, 1).expand(-1, batch, dim)
        for views in (pairing.online_views, pairing.momentum_views)
    )
    return {"projection": online, "prediction": 100 + online, "key": 200 + momentum}


def calls(pairing, **state):
    """The views in every call of the loss, by the numbers that `embeddings_of` filled in, and its
    value.
    """
    loss = Recorder()
    value = pairing(loss, embeddings_of(pairing), **state)
    named = [named for _, named in loss.calls]
    assert all(other == named[0] for other in named)
    seen = [tuple(row[..., 0, 0].int().tolist() for row in rows) for rows, _ in loss.calls]
    for rows, _ in loss.calls:
        assert all(row.shape[-2:] == (3, 2) and row.ndim in (2, 3) for row in rows)
    return seen, named[0], value.item()


def test_the_mean_or_the_sum_and_state_and_named_rows_reach_every_call():
    assert calls(both_ways("prediction", "key")) == ([(100, 201), (101, 200)], {}, 1.5)
    assert calls(both_ways("prediction", "key", join="sum")) == ([(100, 201), (101, 200)], {}, 3.0)
    terms = ((("projection", 0),), (("projection", 2),))
    pairing = Pairing(terms=terms, named={"large": (("projection", (2, 0)), ("key", 1))})
    seen, named, _ = calls(pairing, index=None)
    assert seen == [(0,), (2,)] and named["index"] is None
    assert named["large"][:, 0, 0].tolist() == [2, 0, 201]


class Returning(nn.Module):
    """A loss that returns the squares of its first rows as a function makes them one value."""

    def __init__(self, reduce):
        super().__init__()
        self.reduce = reduce

    def forward(self, first, second):
        return self.reduce((first - second).square().sum(1))


@pytest.mark.parametrize("join", ["mean", "sum"])
def test_a_loss_gives_one_number(join):
    pairing = both_ways("prediction", "key", join=join)
    refused = {
        r"\[3\]": lambda rows: rows,
        "float": lambda rows: 1.0,
        "int64": lambda rows: (rows > 1).sum(),
    }
    for words, reduce in refused.items():
        with pytest.raises(ValueError, match=f"Returning .*{words}"):
            pairing(Returning(reduce), embeddings_of(pairing))
    for reduce in (torch.mean, lambda rows: rows.mean(0, keepdim=True)):
        assert pairing(Returning(reduce), embeddings_of(pairing)).ndim == 0


def test_views_are_found_by_their_number_and_not_by_their_place():
    """Views 1 and 4 alone pass through the online branch, so they lie at 0 and 1 of its
    embeddings.
    """
    pairing = Pairing(terms=((("projection", 4), ("key", (3, 2))), (("projection", 1), ("key", 3))))
    assert (pairing.online_views, pairing.momentum_views) == ((1, 4), (2, 3))
    loss = Recorder()
    pairing(loss, embeddings_of(pairing))
    (four, keys), (query, key) = (rows for rows, _ in loss.calls)
    assert [int(rows[0, 0]) for rows in (four, query, key)] == [4, 1, 203]
    assert keys[:, 0, 0].tolist() == [203, 202]


def test_what_enters_the_queue():
    keys = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    embeddings = {"projection": 5 + keys, "key": keys}
    (both,) = queries_against_keys(4, both_ways=True).rows_to_enqueue(embeddings)
    assert torch.equal(both, torch.cat([keys[0], keys[1]]))
    nearest = both_ways("projection", "prediction", enqueued=(("projection", 0),))
    assert torch.equal(nearest.rows_to_enqueue(embeddings)[0], 5 + keys[0])
    mean = Pairing(terms=((("projection", 0), ("key", (1, 2))),), enqueued=(("key", (1, 2)),))
    expected = (F.normalize(keys[0], dim=1) + F.normalize(keys[1], dim=1)) / 2
    torch.testing.assert_close(mean.rows_to_enqueue(embeddings)[0], expected)
