import pickle

import pytest
import torch
from safetensors.torch import save_file

from nearfar.maps import (
    ClusterEmbedding,
    Map,
    NeighborInterpolation,
    fit_projector,
    load_map,
    save_map,
)


@pytest.fixture(scope="module")
def groups():
    """Views of 60 images in three groups that lie far apart in 8 dimensions; [3, 60, 8]."""
    generator = torch.Generator().manual_seed(1)
    images = 3 * torch.eye(8)[torch.arange(60) % 3] + 0.5 * torch.randn(60, 8, generator=generator)
    return images + 0.2 * torch.randn(3, 60, 8, generator=generator)


def test_a_projector_places_alike_after_it_was_saved(groups, tmp_path):
    projector = fit_projector(groups, epochs=20)
    coordinates = projector(groups[0])
    weights = {"conv.weight": torch.ones(2, 3)}
    save_map(
        tmp_path / "map.safetensors",
        Map(projector, coordinates, {"layout": "projector", "images": 60}, weights),
    )
    loaded = load_map(tmp_path / "map.safetensors")
    assert torch.equal(loaded.function(groups[1]), projector(groups[1]))
    assert torch.equal(loaded.coordinates, coordinates)
    assert loaded.about == {"layout": "projector", "images": 60}
    assert torch.equal(loaded.backbone["conv.weight"], weights["conv.weight"])


def test_a_placement_places_alike_after_it_was_saved(groups, tmp_path):
    coordinates = torch.from_numpy(
        ClusterEmbedding(metric="cosine", max_iter=60, perplexity=5).fit_transform(groups[0])
    )
    placement = NeighborInterpolation(groups[0], coordinates)
    save_map(tmp_path / "map.safetensors", Map(placement, coordinates, {}))
    loaded = load_map(tmp_path / "map.safetensors").function(groups[1])
    assert (
        loaded - placement(groups[1])
    ).abs().max() < 0.02 * coordinates.std()  # the features are kept in half precision
    nearest = torch.cdist(loaded, coordinates).argmin(1)
    assert (nearest % 3 == torch.arange(60) % 3).float().mean() > 0.95


def test_a_file_that_is_no_map_is_refused_and_never_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    (tmp_path / "pickle.safetensors").write_bytes(pickle.dumps(Bomb()))
    save_file({"coordinates": torch.zeros(3, 2)}, tmp_path / "bare.safetensors")
    save_file(
        {"coordinates": torch.zeros(3, 5)}, tmp_path / "wide.safetensors", metadata={"about": "{}"}
    )
    save_file(
        {"coordinates": torch.zeros(3, 2), "function.features": torch.zeros(4, 2)},
        tmp_path / "rows.safetensors",
        {"about": "{}"},
    )
    save_file(
        {"coordinates": torch.zeros(3, 2), "function.centre": torch.zeros(4)},
        tmp_path / "part.safetensors",
        {"about": "{}"},
    )
    for name in ("pickle", "bare", "wide", "rows", "part"):
        with pytest.raises(ValueError, match=rf"{name}\.safetensors is not a map"):
            load_map(tmp_path / f"{name}.safetensors")
    assert not (tmp_path / "ran").exists()
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors"):
        load_map(tmp_path / "none.safetensors")
