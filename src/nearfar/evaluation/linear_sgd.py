"""Linear probe by SGD, as the papers train it, on cached features."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from nearfar.evaluation.labelled import Features, Labels, accuracy, labelled, numbered


def linear_sgd_accuracy(
    train_x: Features,
    train_y: Labels,
    test_x: Features,
    test_y: Labels,
    lr: float = 30.0,
    weight_decay: float = 0.0,
    epochs: int = 100,
    batch_size: int = 256,
    momentum: float = 0.9,
    drop_at: Sequence[int] | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> float:
    """Accuracy after the last epoch of a linear layer trained by SGD on frozen features, 0..1.

    The learning rate falls to 0 along a cosine, per step; with `drop_at` it is divided by 10 at these epochs instead.
    Features are used as they are, as in the papers: no standardisation. Weights start from N(0, 0.01^2), bias at 0.
    Last epoch only; the test images are looked at once.
    Settings (methods.md, "Evaluation"): CIFAR lr 30, the default; SACLR on ImageNet lr 0.3, weight decay 1e-6;
    SCE lr 30 with drop_at=(60, 80); SCE on ImageNet lr 0.1 * batch / 256, 90 epochs.

    Differs from the papers: features are computed once, so the probe sees every image in one view, not in a new
    random crop and flip in each epoch.
    """
    train_x, labels = labelled(train_x, train_y)
    test_x, truth = labelled(test_x, test_y, "test")
    if min(lr, epochs, batch_size) <= 0:
        raise ValueError(f"lr, epochs and batch_size must be positive, got {lr}, {epochs} and {batch_size}")
    classes, number = numbered(labels)
    x, y = train_x.to(device), number.to(device)
    generator = torch.Generator().manual_seed(seed)
    weight = (0.01 * torch.randn(len(classes), x.shape[1], generator=generator)).to(device).requires_grad_()
    bias = torch.zeros(len(classes), device=device, requires_grad=True)
    optimiser = torch.optim.SGD([weight, bias], lr=lr, momentum=momentum, weight_decay=weight_decay)
    steps_per_epoch = math.ceil(len(x) / batch_size)
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=generator).to(device)
        for step, index in enumerate(order.split(batch_size)):
            if drop_at is None:
                done = (epoch * steps_per_epoch + step) / (epochs * steps_per_epoch)
                factor = (1 + math.cos(math.pi * done)) / 2
            else:
                factor = 0.1 ** sum(epoch >= at for at in drop_at)
            optimiser.param_groups[0]["lr"] = lr * factor
            optimiser.zero_grad()
            F.cross_entropy(F.linear(x[index], weight, bias), y[index]).backward()
            optimiser.step()
    with torch.no_grad():
        predicted = F.linear(test_x.to(device), weight, bias).argmax(1).cpu()
    return accuracy(classes[predicted.numpy()], truth)
