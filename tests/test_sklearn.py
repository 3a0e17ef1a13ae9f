"""The estimators in scikit-learn: its own checks, a pipeline under a grid search, and what they
take as X.
"""

import os
import pickle
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

import nearfar
from nearfar.sklearn import ContrastiveEncoder, ContrastiveMap
from nearfar.training import run_header

pytestmark = pytest.mark.usefixtures("no_pages")

QUICK = dict(held_out=0, optimizer="sgd", lr=0.01)
OF_ROWS = ContrastiveEncoder(
    encoder="tiny", epochs=1, image_shape=(1, -1), image_size=8, settings=QUICK
)
"""For the checks of scikit-learn, whose X are rows of two numbers or a few: images of one line."""
EXPECTED_FAILURES: dict[str, str] = {}
"""Checks that cannot pass, with the reason."""
OF_MAPS = {
    "check_fit_idempotent",
    "check_n_features_in",
    "check_estimators_pickle",
    "check_dict_unchanged",
}


@pytest.fixture(scope="module")
def digits():
    bunch = load_digits()
    return bunch.images[:240], bunch.target[:240]


@pytest.fixture(scope="module")
def fitted(digits):
    return ContrastiveEncoder(epochs=2, batch_size=64).fit(digits[0])


@pytest.fixture
def lean(unchecked, monkeypatch):
    """Fifty runs."""
    monkeypatch.setattr(run_header, "write_environment", lambda *_: None)
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.slow
def test_the_encoder_passes_the_checks_of_scikit_learn(lean):
    done = check_estimator(
        OF_ROWS, expected_failed_checks=EXPECTED_FAILURES, on_skip=None, on_fail=None
    )
    failed = {
        check["check_name"]: check["exception"] for check in done if check["status"] == "failed"
    }
    assert not failed
    assert len([check for check in done if check["status"] == "passed"]) > 40
    assert {check["check_name"] for check in done if check["status"] == "xfail"} == set(
        EXPECTED_FAILURES
    )


def test_the_map_passes_those_that_concern_more_than_its_encoder(lean):
    passed = set()
    for estimator, check in estimator_checks_generator(
        ContrastiveMap(OF_ROWS, num_views=2, epochs=1)
    ):
        if check.func.__name__ in OF_MAPS - passed:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check(estimator)
            passed.add(check.func.__name__)
    assert passed == OF_MAPS


@pytest.mark.slow
def test_in_a_pipeline_under_a_grid_search(digits):
    images, labels = digits
    rows = images.reshape(len(images), -1)
    steps = make_pipeline(
        ContrastiveEncoder(batch_size=64, settings={"held_out": 0}), KNeighborsClassifier(1)
    )
    grid = {"contrastiveencoder__epochs": [1, 3], "kneighborsclassifier__n_neighbors": [1]}
    search = GridSearchCV(steps, grid, cv=2).fit(rows, labels)
    assert len(search.cv_results_["params"]) == 2
    assert search.best_score_ > 0.75  # ten classes; chance is 0.1
    assert search.predict(rows[:5]).shape == (5,)


@pytest.mark.slow
def test_arrays_rows_files_and_folders_give_the_same_features(fitted, digits, tmp_path):
    images = np.rint(digits[0][:6] * 255 / 16)
    for number, image in enumerate(images):
        Image.fromarray(image.astype(np.uint8)).save(tmp_path / f"{number}.png")
    expected = fitted.transform(digits[0][:6])
    assert expected.shape == (6, fitted.encoder_.num_features) and expected.dtype == np.float32
    assert fitted.value_range_ == (0, 16)
    files = sorted(tmp_path.iterdir())
    for same in (
        digits[0][:6].astype(np.uint8),
        digits[0][:6].astype(np.uint8)[..., None],
        files,
        list(map(str, files)),
        tmp_path,
    ):
        np.testing.assert_allclose(fitted.transform(same), expected, atol=1e-6)
    rows = ContrastiveEncoder(epochs=2, batch_size=64).fit(digits[0].reshape(240, -1))
    np.testing.assert_allclose(rows.transform(digits[0][:6].reshape(6, -1)), expected, atol=1e-6)


@pytest.mark.slow
def test_it_is_pretrain_that_runs(fitted, digits, tmp_path):
    """The features are those of a run with the same settings."""
    pixels = np.rint(digits[0] * 255 / 16).astype(np.uint8)
    same = dict(method="simclr", encoder="small", epochs=2, batch_size=64, precision="32-true")
    run = nearfar.pretrain(pixels, out=tmp_path / "run", seed=0, **same)
    for name, weights in run.encoder.backbone.net.state_dict().items():
        assert weights.equal(fitted.encoder_.backbone.net.state_dict()[name]), name
    assert fitted.verdict_ == run.verdict.words


def test_a_pickle_gives_the_same_features(fitted, digits):
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.transform(digits[0][:20]), fitted.transform(digits[0][:20]))
    assert again.get_params() == fitted.get_params()


@pytest.mark.slow
def test_a_map_places_new_images_and_comes_back_from_a_pickle(digits):
    images = digits[0]
    estimator = ContrastiveMap(ContrastiveEncoder(epochs=2, batch_size=64), num_views=2, epochs=20)
    places = estimator.fit_transform(images)
    assert places.shape == (240, 2) and list(estimator.get_feature_names_out()) == [
        "contrastivemap0",
        "contrastivemap1",
    ]
    np.testing.assert_allclose(places.mean(0), 0, atol=1e-3 * np.abs(places).max())
    assert places[:, 0].std() > places[:, 1].std()
    np.testing.assert_allclose(estimator.transform(images[:5]), places[:5], atol=1e-4)
    assert np.array_equal(
        pickle.loads(pickle.dumps(estimator)).transform(images), estimator.transform(images)
    )


def test_mistakes_get_one_line(fitted, tmp_path):
    with pytest.raises(ValueError, match=r"image_shape=\(height, width\)"):
        ContrastiveEncoder().fit(np.zeros((20, 10)))
    (tmp_path / "broken.png").write_bytes(b"no image")
    Image.new("L", (8, 8)).save(tmp_path / "good.png")
    with pytest.raises(ValueError, match=r"1 of the files .*broken\.png: "):
        fitted.transform([tmp_path / "good.png", tmp_path / "broken.png"])
    of_bytes = ContrastiveEncoder(epochs=1, settings=QUICK).fit(
        np.eye(64, dtype=np.uint8).reshape(64, 8, 8)
    )
    for other in (np.full((2, 8, 8), 0.5), np.full((2, 8, 8), 256), np.full((2, 8, 8), -1)):
        with pytest.raises(ValueError, match=r"uint8, .*set value_range"):
            of_bytes.transform(other)
    with pytest.raises(ValueError, match="there is no method 'simclrr'"):
        ContrastiveEncoder(method="simclrr", epochs=1).fit(np.eye(16).reshape(16, 4, 4))


def test_what_a_folder_has_that_is_no_image_is_a_warning(digits, tmp_path):
    for number, image in enumerate(np.rint(digits[0][:20] * 255 / 16)):
        Image.fromarray(image.astype(np.uint8)).save(tmp_path / f"{number}.png")
    estimator = ContrastiveEncoder(encoder="tiny", epochs=1, settings=QUICK)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        estimator.fit(tmp_path)  # all of it is read
    assert not [warning for warning in given if "read" in str(warning.message)]
    (tmp_path / "cut.png").write_bytes((tmp_path / "0.png").read_bytes()[:40])
    (tmp_path / "photo.dng").write_bytes(b"II*\0" + bytes(100))
    message = r"20 images .*2 left out: 1 \.dng "
    with pytest.warns(UserWarning, match=message):
        assert len(estimator.transform(tmp_path)) == 20
    with pytest.warns(UserWarning, match=message):
        estimator.fit(str(tmp_path))


@pytest.mark.parametrize(("numbers", "least"), [({"num_views": 1}, 2), ({"epochs": 0}, 1)])
def test_a_map_without_views_or_epochs_is_refused_before_training(
    digits, numbers, least, monkeypatch
):
    monkeypatch.setattr(nearfar, "pretrain", None)
    with pytest.raises(
        ValueError, match=rf"`{next(iter(numbers))}` must .* {least}, not {least - 1}"
    ):
        ContrastiveMap(**numbers).fit(digits)


def test_a_map_refuses_a_share_of_an_epoch_or_a_view_before_training(digits, monkeypatch):
    monkeypatch.setattr(nearfar, "pretrain", None)
    for numbers in ({"num_views": 2.5}, {"epochs": 1.5}):
        with pytest.raises(ValueError, match=f"{next(iter(numbers))} must .* whole"):
            ContrastiveMap(**numbers).fit(digits[0])


def test_masked_numbers_are_refused_and_a_tensor_with_a_gradient_is_read(fitted, digits):
    """scikit-learn reads what lies below a mask, and torch refuses such a tensor with an error of
    its own.
    """
    images = digits[0][:20]
    with pytest.raises(ValueError, match=f"{np.sum(images > 9)} of {images.size}"):
        fitted.transform(np.ma.masked_greater(images, 9))
    leaf = torch.tensor(images, dtype=torch.float32, requires_grad=True)
    assert np.array_equal(fitted.transform(leaf), fitted.transform(images))


def as_types(numbers):
    """The same small whole numbers, 0..16, in every type and layout that an array can have."""
    types = ("u1", "u2", "i1", "i2", "i4", "i8", "u8", "f2", "f4", "f8", ">u2", ">i4", ">f4", "O")
    features = {kind: numbers.astype(kind) for kind in types}
    features["fortran"] = np.asfortranarray(numbers)
    features["strided"] = np.repeat(numbers, 2, axis=1)[:, ::2]
    features["reversed"] = numbers[:, ::-1].copy()[:, ::-1]
    features["read-only"] = numbers.copy()
    features["read-only"].flags.writeable = False
    features["lists"] = numbers.tolist()
    return features


@pytest.mark.parametrize("of_fit", ["f8", "f2", "u1", "i8", ">u2"])
def test_equal_numbers_give_equal_features_whatever_their_type(digits, of_fit):
    few = digits[0][:60]
    estimator = ContrastiveEncoder(encoder="tiny", epochs=1, batch_size=30, settings=QUICK)
    estimator.fit(few.astype(of_fit))
    expected = estimator.transform(few[:4].astype(of_fit))
    assert np.ptp(expected, axis=0).max() > 1e-3  # it sees the images
    for name, same in as_types(few[:4]).items():
        np.testing.assert_array_equal(estimator.transform(same), expected, err_msg=name)
    if of_fit not in ("u1", ">u2"):
        assert estimator.value_range_ == (0, 16)


@pytest.fixture
def files(digits, tmp_path):
    """A folder of 20 images."""
    for number, image in enumerate(np.rint(digits[0][:20] * 255 / 16)):
        Image.fromarray(image.astype(np.uint8)).save(tmp_path / f"{number:02}.png")
    return tmp_path


def test_a_list_that_names_a_folder_or_a_file_of_many_images_is_refused(fitted, digits, files):
    """One row was returned for each path, and rows of other images behind such a path."""
    many = files.parent / f"{files.name}.npz"
    np.savez(many, images=digits[0][:5].astype(np.uint8))
    for paths in ([files], [many], [files, files / "03.png"], [files / "03.png", files]):
        with pytest.raises(ValueError, match=r"hold \d+ images"):
            fitted.transform(paths)


def test_a_table_of_one_column_of_paths_is_a_list_of_files(fitted, files):
    pandas = pytest.importorskip("pandas")
    paths = sorted(map(str, files.glob("*.png")))
    table = pandas.DataFrame({"path": paths, "kind": "digit", "number": 1.5})
    expected = fitted.transform(paths)
    for given in (table[["path"]], table[["path"]].to_numpy(), np.array(paths)[:, None]):
        assert np.array_equal(fitted.transform(given), expected)
    quick = ContrastiveEncoder(encoder="tiny", epochs=1, image_size=8, settings=QUICK)
    chosen = ColumnTransformer([("features", quick, ["path"])]).fit(table)
    assert len(chosen.get_feature_names_out()) == chosen.transform(table).shape[1]
    with pytest.raises(ValueError, match="3 columns"):
        fitted.transform(table)
    table.loc[3, "path"] = None
    with pytest.raises(ValueError, match="row 3 "):
        fitted.transform(table[["path"]])


def test_another_fit_forgets_what_the_last_one_saw(digits, files):
    """Arrays were compared with those of an earlier fit, or asked for what files did not set."""
    images = np.rint(digits[0][:20] * 255 / 16)
    paths = sorted(files.glob("*.png"))
    quick = dict(encoder="tiny", epochs=1, image_size=8, settings=QUICK)
    for estimator in (
        ContrastiveEncoder(**quick),
        ContrastiveEncoder(**quick).fit(images.reshape(20, -1) / 255),
    ):
        expected = estimator.fit(paths).transform(paths)
        assert not hasattr(estimator, "n_features_in_")
        assert np.array_equal(estimator.transform(images.astype(np.uint8)), expected)
        with pytest.raises(ValueError, match="fit were uint8"):
            estimator.transform(images / 255)


@pytest.mark.parametrize("name", ["epochs", "image_size", "value_range", "seed", "out"])
def test_settings_hold_no_parameter_of_the_estimator(name, digits, unchecked):
    with pytest.raises(ValueError, match=f"takes no {name}"):
        ContrastiveEncoder(settings={name: 1}).fit(digits[0][:20])


@pytest.mark.parametrize("scale", [1 / 16, 255 / 16, 4096, -16])
def test_numbers_on_another_scale_than_those_of_fit_are_refused(fitted, digits, scale):
    numbers = digits[0][:4] * scale
    if scale < 1 and scale > 0:  # they may be dark images
        assert np.isfinite(fitted.transform(numbers)).all()
        return
    with pytest.raises(ValueError, match=r"from 0 to 16, these"):
        fitted.transform(numbers)


def test_shares_of_the_numbers_of_fit_are_refused_and_dark_images_are_not(digits):
    """Images of 0..1 were taken for black ones, after a fit on the same images of 0..255."""
    images = np.rint(digits[0][:60] * 255 / 16)
    estimator = ContrastiveEncoder(encoder="tiny", epochs=1, batch_size=30, settings=QUICK)
    estimator.fit(images)
    with pytest.raises(ValueError, match=r"0 to 255, these .*0 to 1"):
        estimator.transform(images[:4] / 255)
    for dark in (images[:4] // 128, np.zeros((1, 8, 8))):
        assert np.isfinite(estimator.transform(dark)).all()


@pytest.mark.parametrize(
    "given", [(1, 0), (1, 1), (0, np.nan), (0, np.inf), (0,), 5, "ab", (0, 1, 2, 3)]
)
def test_a_value_range_that_is_none_is_refused(digits, given, unchecked):
    with pytest.raises(ValueError, match="value_range"):
        ContrastiveEncoder(value_range=given, epochs=1).fit(digits[0][:20])


def test_a_random_state_is_what_scikit_learn_takes_it_for():
    seeds = {ContrastiveEncoder(random_state=kind(3))._seed() for kind in (int, np.int64, np.uint8)}
    assert seeds == {3}
    encoder, twin = (ContrastiveEncoder(random_state=np.random.RandomState(3)) for _ in range(2))
    first = encoder._seed()
    assert first == twin._seed() != encoder._seed()  # drawn, so that the next one differs
    for other in (np.random.default_rng(3), "3", 3.0):
        with pytest.raises(ValueError, match="cannot be used to seed"):
            ContrastiveEncoder(random_state=other)._seed()
