"""Data sets of the Hub: named as such, asked for once, and read without decoding by `datasets`."""

import re

import pytest

from nearfar.data import list_splits, open_images, open_stream
from tests.pictures import png


@pytest.fixture
def hub_requests(monkeypatch):
    """The names that were requested of a Hub that cannot be reached."""
    import datasets
    import huggingface_hub

    requests = []

    def unreachable(self, name, **options):
        requests.append(name)
        raise ConnectionError("[Errno -2] Name or service not known\nwith many\nlines")

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", unreachable)
    monkeypatch.setattr(datasets, "load_dataset", lambda name: requests.append(f"load {name}"))
    return requests


def test_a_mistyped_folder_is_no_hub_name(tmp_path, paint, monkeypatch, hub_requests):
    monkeypatch.chdir(tmp_path)
    paint(tmp_path / "photos" / "cats" / "0.png", 0)
    assert len(open_images("photos/cats")) == 1
    with pytest.raises(FileNotFoundError, match="'photos', did you mean 'cats'"):
        open_images("photos/catz")
    with pytest.raises(FileNotFoundError, match=r"'\.', did you mean 'photos'"):
        open_images("phtos/cats")
    with pytest.raises(FileNotFoundError, match=r"called 'hf:owner/name'"):
        open_images("owner/name")
    assert hub_requests == []


def test_a_hub_that_cannot_be_reached_is_one_request_and_one_line(hub_requests):
    with pytest.raises(ValueError, match=r"'owner/name' .*Hub: .*not known") as error:
        open_images("hf:owner/name")
    assert hub_requests == ["owner/name"] and "\n" not in str(error.value)


def test_hub_tables_are_read_without_decoding_by_datasets(monkeypatch):
    import datasets

    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["u", "v"])}
    )
    cells = [{"bytes": data, "path": None} for data in (png(0), b"broken", png(2))]
    table = datasets.Dataset.from_dict({"image": cells, "label": [0, 1, 1]}, features=features)
    monkeypatch.setattr(
        datasets, "load_dataset", lambda name: datasets.DatasetDict({"train": table, "test": table})
    )
    images = open_images("hf:owner/name", split="test")
    assert images.names == ["test/000000", "test/000002"] and images.labels.tolist() == [0, 1]
    assert images.skipped == [("test/000001", "not an image of a known format")]


@pytest.mark.parametrize(
    "name",
    ["", "../../etc", "/etc", "own/set/part", "..", "a/..", ".", "own", "imagefolder", "~/x"],
)
def test_a_path_is_no_name_on_the_hub(name, tmp_path, monkeypatch, hub_requests):
    monkeypatch.chdir(tmp_path)
    for ask in (open_images, list_splits, open_stream):
        with pytest.raises(
            ValueError,
            match=rf"'hf:{re.escape(name)}' .* write hf:own",
        ):
            ask(f"hf:{name}")
    assert hub_requests == []
