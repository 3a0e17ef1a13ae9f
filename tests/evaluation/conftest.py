"""Feature sets whose right answers are known."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


@pytest.fixture
def clouds():
    """Four Gaussian classes with unit covariance in 12 dimensions, means at 2 e_c: train_x,
    train_y, test_x, test_y.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(count):
        label = torch.randint(0, 4, (count,), generator=generator)
        means = 2.0 * torch.eye(12)[:4]
        return means[label] + torch.randn(count, 12, generator=generator), label.numpy()

    return (*draw(1200), *draw(2000))


@pytest.fixture(scope="session")
def digits():
    """scikit-learn's digits as float features in 0..1, a quarter held out: train_x, train_y,
    test_x, test_y.
    """
    data = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(
        data.data.astype(np.float32) / 16,
        data.target,
        test_size=0.25,
        random_state=0,
        stratify=data.target,
    )
    return train_x, train_y, test_x, test_y
