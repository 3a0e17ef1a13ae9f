import torch

from nearfar.views.photometric import noise_


def test_noise_has_each_images_own_deviation_and_is_clamped():
    images = torch.full((3, 3, 40, 40), 0.5)
    noisy = noise_(images.clone(), torch.tensor([0.0, 0.05, 2.0]), torch.tensor([1, 2, 3]))
    torch.testing.assert_close(noisy[0], images[0])
    assert abs(noisy[1].std() - 0.05) < 0.003
    assert abs(noisy[1].mean() - 0.5) < 0.003
    assert noisy[2].min() == 0
    assert noisy[2].max() == 1


def test_noise_depends_on_the_seed_alone():
    images = torch.full((2, 1, 8, 8), 0.5)
    deviation = torch.tensor([0.1, 0.1])
    both = noise_(images.clone(), deviation, torch.tensor([7, 8]))
    alone = noise_(images[:1].clone(), deviation[:1], torch.tensor([8]))
    assert torch.equal(both[1], alone[0])
    assert not torch.equal(both[0], both[1])
