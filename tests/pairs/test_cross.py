"""The two-set forms give two-direction InfoNCE and the SigLIP loss."""

import torch
from torch.nn.functional import cross_entropy, logsigmoid, normalize, softplus

from nearfar.pairs import cross_log_sum_exp, cross_logistic_sum


def test_two_direction_info_nce(views, double, relative, small_tiles):
    inputs = views(23, 12)
    positive, rows, columns = cross_log_sum_exp(*inputs, 0.07)
    loss = (torch.logaddexp(rows, positive) + torch.logaddexp(columns, positive) - 2 * positive).mean() / 2
    exact = double(inputs)
    logits = normalize(exact[0], dim=1) @ normalize(exact[1], dim=1).T / 0.07
    expected = (cross_entropy(logits, torch.arange(23)) + cross_entropy(logits.T, torch.arange(23))) / 2
    assert relative([loss], [expected]) < 3e-6  # small differences of logits up to 14
    assert relative(torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, exact)) < 2e-6


def test_siglip(views, double, relative, small_tiles):
    inputs = [*views(23, 12), torch.tensor(10.0, requires_grad=True), torch.tensor(-10.0, requires_grad=True)]
    scale, bias = inputs[2:]
    positive, total = cross_logistic_sum(*inputs)
    loss = (total + softplus(-(scale * positive + bias)).sum()) / 23
    exact = double(inputs)
    logits = normalize(exact[0], dim=1) @ normalize(exact[1], dim=1).T * exact[2] + exact[3]
    expected = -logsigmoid((2 * torch.eye(23) - 1) * logits).sum() / 23
    assert relative([loss], [expected]) < 1e-6
    assert relative(torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, exact)) < 1e-6
