"""Every pairing calls the loss as its table says, on the views that it names."""

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
    """Embeddings as a model makes them, [views of the branch, batch, dim], each filled with its view's number."""
    online, momentum = (
        torch.tensor(views, dtype=torch.float).view(-1, 1, 1).expand(-1, batch, dim)
        for views in (pairing.online_views, pairing.momentum_views)
    )
    return {"projection": online, "prediction": 100 + online, "key": 200 + momentum}


def calls(pairing, **state):
    """The views in every call of the loss, by the numbers that `embeddings_of` filled in, and its value."""
    loss = Recorder()
    value = pairing(loss, embeddings_of(pairing), **state)
    named = [named for _, named in loss.calls]
    assert all(other == named[0] for other in named)
    seen = [tuple(row[..., 0, 0].int().tolist() for row in rows) for rows, _ in loss.calls]
    for rows, _ in loss.calls:
        assert all(row.shape[-2:] == (3, 2) and row.ndim in (2, 3) for row in rows)
    return seen, named[0], value.item()


def test_keys_against_the_queries_of_all_other_views():
    pairs = [(1, 200), (2, 200), (3, 200), (0, 201), (2, 201), (3, 201)]
    assert calls(queries_against_keys(4, both_ways=True)) == (pairs, {}, (1 + 2 + 4 + 8 + 16 + 32) / 6)
    assert calls(queries_against_keys(2, "prediction", both_ways=True))[0] == [(101, 200), (100, 201)]
    assert calls(queries_against_keys(4))[0] == [(0, 201), (2, 201), (3, 201)]
    assert queries_against_keys(4, both_ways=True).momentum_views == (0, 1)


def test_the_mean_or_the_sum_and_state_and_named_rows_reach_every_call():
    assert calls(both_ways("prediction", "key")) == ([(100, 201), (101, 200)], {}, 1.5)
    assert calls(both_ways("prediction", "key", join="sum")) == ([(100, 201), (101, 200)], {}, 3.0)
    terms = ((("projection", 0),), (("projection", 2),))
    pairing = Pairing(terms=terms, named={"large": (("projection", (2, 0)), ("key", 1))})
    seen, named, _ = calls(pairing, index=None)
    assert seen == [(0,), (2,)] and named["index"] is None
    assert named["large"][:, 0, 0].tolist() == [2, 0, 201]


def test_each_term_reads_its_queue_and_each_entry_fills_one():
    pairing = Pairing(terms=((("key", 0),), (("key", 1),)), queues=(1, 0))
    loss, embeddings, queues = Recorder(), embeddings_of(pairing), [torch.zeros(5, 2), torch.ones(5, 2)]
    pairing(loss, embeddings, queues)
    assert [named["queue"] is queue for (_, named), queue in zip(loss.calls, queues[::-1], strict=True)] == [True, True]
    assert [int(rows[0, 0]) for rows in pairing.rows_to_enqueue(embeddings)] == [200, 201]


def test_views_are_found_by_their_number_and_not_by_their_place():
    """Views 1 and 4 alone pass through the online branch, so they lie at 0 and 1 of its embeddings."""
    pairing = Pairing(terms=((("projection", 4), ("key", (3, 2))), (("projection", 1), ("key", 3))))
    assert (pairing.online_views, pairing.momentum_views) == ((1, 4), (2, 3))
    loss = Recorder()
    pairing(loss, embeddings_of(pairing))
    (four, keys), (one, key) = (rows for rows, _ in loss.calls)
    assert [int(rows[0, 0]) for rows in (four, one, key)] == [4, 1, 203]
    assert keys[:, 0, 0].tolist() == [203, 202]


def test_gradient_flows_through_stacked_views():
    class Weighted(nn.Module):
        def forward(self, rows):
            return (rows * torch.tensor([1.0, 10.0]).view(2, 1, 1)).sum()

    projection = torch.zeros(3, 2, 2, requires_grad=True)
    pairing = Pairing(terms=((("projection", (2, 0)),), (("projection", (1, 2)),)), join="sum")
    pairing(Weighted(), {"projection": projection}).backward()
    assert projection.grad[:, 0, 0].tolist() == [10, 1, 11]


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
