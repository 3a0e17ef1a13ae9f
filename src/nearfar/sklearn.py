"""scikit-learn estimators: `ContrastiveEncoder`, images to features, and `ContrastiveMap`, images
to coordinates.
"""

from __future__ import annotations

import math
import os
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

import nearfar
from nearfar.data import Images
from nearfar.data.layouts import unmasked
from nearfar.data.sources import are_paths
from nearfar.data.value_range import EIGHT_BITS
from nearfar.embeddings.embeddings import compute_features
from nearfar.embeddings.sources import read_images
from nearfar.isolation import isolated
from nearfar.maps.layouts import fit_layout
from nearfar.messages import LARGEST_SEED, check_range, listed
from nearfar.networks import Encoder
from nearfar.rendering import shown_if, shown_nowhere
from nearfar.run import Run, load
from nearfar.training.view_choice import resolve_views
from nearfar.views import check_value_range

OWN = {"data", "out", "seed"}  # settings that `fit` gives by itself
OF_ARRAYS = ("stored_type_", "value_range_", "n_features_in_", "feature_names_in_")


def _listed(X: Any) -> list[Any]:
    """List what may be paths: a list, a series, or a table of one column of text, as a column
    transformer gives it; empty for anything else. Raises ValueError for a table in which text
    stands beside other things.
    """
    if isinstance(X, (list, tuple)) or getattr(X, "ndim", 0) == 1:
        return list(X)
    array = isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "OU"
    if not (array or hasattr(X, "columns")) or not all(X.shape):
        return []
    cells = np.asarray(X, dtype=object)
    text = [isinstance(cell, (str, os.PathLike)) for cell in cells.ravel()]
    if not any(text):
        return []
    if cells.shape[1] > 1:
        raise ValueError(
            f"X has {cells.shape[1]} columns, and some hold text: give the column of paths alone"
        )
    if not all(text):
        raise ValueError(f"row {text.index(False)} of X has no path, and other rows have one")
    return list(cells.ravel())


class _Estimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    random_state: Any
    verbose: bool

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = tags.input_tags.string = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def _seed(self) -> int:
        if isinstance(self.random_state, Integral):  # NumPy's too
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(LARGEST_SEED // 2))


@dataclass(kw_only=True, eq=False, repr=False)
class ContrastiveEncoder(_Estimator):
    """Features of images from an encoder that is pretrained on them, without labels.

    X: an array (N, H, W) or (N, H, W, C), rows of flattened images, image files, or a folder. Where
    `fit` saw uint8 or uint16 arrays, they are taken as they are; other numbers become pixels by
    `value_range`. Equal numbers give equal features whatever their type, and numbers on another
    scale than those of `fit` are refused.

    Parameters ---------- method, encoder, image_size, batch_size : as in `nearfar.pretrain`; None:
    chosen by it epochs : passes over the images image_shape : of flattened images, (H, W) or (H, W,
    C); None: square and grayscale value_range : black and white; None: smallest and largest number
    seen by `fit`, the whole range of uint8 and uint16 settings : other settings of
    `nearfar.pretrain`, by name random_state : seed of weights, batches and views verbose : show
    progress

    Attributes
    ----------
    encoder_ : the module, as `nearfar.load` returns it
    verdict_ : whether it learned anything, in words; empty where there were too few images to tell

    Examples
    --------
    >>> images = np.random.randint(0, 256, (40, 8, 8), dtype=np.uint8)
    >>> ContrastiveEncoder(epochs=1).fit_transform(images).shape
    (40, 2560)
    """

    method: Any = "simclr"
    encoder: Any = "small"
    epochs: float = 100
    image_size: int | None = None
    batch_size: int | None = None
    image_shape: Sequence[int] | None = None
    value_range: tuple[float, float] | None = None
    settings: Mapping[str, Any] | None = None
    random_state: Any = 0
    verbose: bool = False

    def fit(self, X: Any, y: Any = None) -> ContrastiveEncoder:
        """Pretrain on the images; y is ignored. Raises ValueError as `nearfar.pretrain` does."""
        seed = self._seed()  # may come from the global generator, which then moves on
        with tempfile.TemporaryDirectory(prefix="nearfar-") as folder, isolated():
            self._fit(X, folder, seed)
        return self

    @isolated()
    def transform(self, X: Any) -> np.ndarray:
        """Return the features (N, D), float32; of a folder in the order of its files, without
        unreadable ones.
        """
        return self._features(X).numpy()

    def _fit(self, X: Any, folder: str, seed: int) -> tuple[Run, Images]:
        settings = {"precision": "32-true", **(self.settings or {})}
        if doubled := sorted(settings.keys() & (self.get_params(deep=False).keys() | OWN)):
            raise ValueError(
                f"`settings` takes no {listed(doubled)}: the estimator has parameters for what may "
                f"be chosen (random_state is the seed)"
            )
        for known in OF_ARRAYS:  # of an earlier fit
            self.__dict__.pop(known, None)
        images = self._open(X, True, image_size=self.image_size)
        with shown_if(self.verbose):
            run = nearfar.pretrain(
                images,
                out=f"{folder}/run",
                method=self.method,
                encoder=self.encoder,
                epochs=self.epochs,
                batch_size=self.batch_size,
                seed=seed,
                **settings,
            )
        self.encoder_ = load(run, encoder=None if isinstance(self.encoder, str) else self.encoder)
        if not hasattr(self, "value_range_"):  # files say what their numbers mean
            self._fit_range(np.zeros(0, np.uint16 if self.encoder_.value_range else np.uint8))
        self.verdict_ = run.verdict.words if run.verdict else ""
        return run, images

    def _features(self, X: Any) -> torch.Tensor:
        check_is_fitted(self)
        net: Encoder = self.encoder_
        images = self._open(
            X,
            False,
            image_size=net.image_size,
            channels=net.channels,
            value_range=net.value_range or EIGHT_BITS,
        )
        with shown_if(self.verbose):
            return compute_features(net, images).cpu()

    def _open(self, X: Any, fitting: bool, **form: Any) -> Images:
        """Open images; what is left out is a warning, as in scikit-learn, or an error."""
        with shown_if(True) if self.verbose else shown_nowhere():
            return self._opened(X, fitting, **form)

    def _opened(self, X: Any, fitting: bool, **form: Any) -> Images:
        if isinstance(X, (str, os.PathLike)):
            images = read_images(X, split="all", **form)
            if images.skipped:
                warnings.warn(images.line, stacklevel=5)
            return images
        given = _listed(X)
        if not are_paths(given):
            return read_images(self._pixels(X, fitting), **form)
        paths = list(dict.fromkeys(map(os.path.abspath, given)))
        images = read_images(paths, **form)
        if images.skipped:
            first, reason = images.skipped[0]
            raise ValueError(
                f"{len(images.skipped)} of the files cannot be read, the first is {first}: {reason}"
            )
        if len(images) != len(paths):
            raise ValueError(
                f"the {len(paths)} paths hold {len(images)} images: give a list of image files, or "
                f"a folder by itself, not in a list"
            )
        place = {path: number for number, path in enumerate(paths)}
        return images.subset(
            [place[os.path.abspath(path)] for path in given]
        )  # resampling may repeat some

    def _pixels(self, X: Any, fitting: bool) -> np.ndarray:
        """Return arrays as nearfar takes them: with three axes or more, uint8 or uint16."""
        least = 2 if fitting else 1
        if isinstance(X, torch.Tensor):
            X = X.detach().cpu()
        if isinstance(X, np.ma.MaskedArray):
            X = unmasked(X)
        if (np.ndim(X) if isinstance(X, (list, tuple)) else getattr(X, "ndim", 2)) > 2:
            array = check_array(
                X,
                allow_nd=True,
                dtype=None,
                ensure_min_samples=least,
                input_name="X",
                estimator=self,
            )
        else:
            array = validate_data(self, X, reset=fitting, dtype="numeric", ensure_min_samples=least)
            side = math.isqrt(array.shape[1])
            if self.image_shape is None and side**2 != array.shape[1]:
                raise ValueError(
                    f"{array.shape[1]} numbers are no square image: give "
                    f"image_shape=(height, width)"
                )
            array = array.reshape(len(array), *(self.image_shape or (side, side)))
        if fitting:
            self._fit_range(array)
        return self._stored(array)

    def _fit_range(self, array: np.ndarray) -> None:
        """Remember what the numbers of the images mean: a stored type, or the range from black to
        white.
        """
        given: Any = self.value_range
        if given is not None and len(given := check_value_range(given)) != 2:
            raise ValueError(f"value_range takes one pair LOW HIGH, not {given}")
        self.stored_type_: str | None = None
        if given is None and array.dtype.kind == "u" and array.dtype.itemsize <= 2:
            self.stored_type_ = f"uint{8 * array.dtype.itemsize}"
        elif given is None:
            given = [float(array.min()), float(array.max())]
        self.value_range_: Any = None if given is None else tuple(given)

    def _stored(self, array: np.ndarray) -> np.ndarray:
        """Return images as uint8 or uint16: equal numbers become equal pixels, whatever their type.

        Raises ValueError for numbers that cannot be on the scale of those that `fit` saw.
        """
        numbers = array.astype(np.float64)
        low, high = float(numbers.min()), float(numbers.max())
        if self.stored_type_ is not None:
            most = np.iinfo(self.stored_type_).max
            if low < 0 or high > most or not np.array_equal(numbers, np.rint(numbers)):
                raise ValueError(
                    f"the images of fit were {self.stored_type_}, and these hold other "
                    f"numbers than "
                    f"0, 1 ... {most}: set value_range, or give {self.stored_type_}"
                )
            return numbers.astype(self.stored_type_)
        black, white = self.value_range_
        width = (white - black) or 1.0
        other = not black - width <= low <= high <= white + width
        shares = not np.array_equal(numbers, np.rint(numbers))  # of 255, say: dark ones are whole
        other = other or (shares and 0 < high - black <= width / 100)
        if self.value_range is None and other:
            raise ValueError(
                f"the images of fit had numbers from {black:g} to {white:g}, these from {low:g} to "
                f"{high:g}: give them on one scale, or set value_range"
            )
        unit = np.clip((numbers - black) / width, 0, 1)
        return np.rint(255 * unit).astype(np.uint8)  # as in files of the same images

    @property
    def _n_features_out(self) -> int:
        return self.encoder_.num_features


@dataclass(eq=False, repr=False)
class ContrastiveMap(_Estimator):
    """Coordinates of images on a plane, similar ones together, by a projector on the features of
    views of them.

    X: as `ContrastiveEncoder` takes it.

    Parameters
    ----------
    encoder : a ContrastiveEncoder, which is cloned and fitted; None: one with its defaults
    num_views : augmented views of each image that the map learns from
    epochs : passes of the projector over the images; None: adjusted to their number
    random_state : seed of the map; verbose : show progress

    Attributes
    ----------
    estimator_ : the fitted clone. encoder_ : its module. verdict_ : on the encoder.
    projector_ : the net from features to coordinates

    Examples
    --------
    >>> images = np.random.randint(0, 256, (40, 8, 8), dtype=np.uint8)
    >>> ContrastiveMap(ContrastiveEncoder(epochs=1), epochs=1).fit_transform(images).shape
    (40, 2)
    """

    encoder: ContrastiveEncoder | None = None
    _: KW_ONLY
    num_views: int = 8
    epochs: int | None = None
    random_state: Any = 0
    verbose: bool = False

    def fit(self, X: Any, y: Any = None) -> ContrastiveMap:
        """Pretrain an encoder on the images, then a projector; y is ignored. ValueError for one
        view or no epoch.
        """
        for name, least in (("num_views", 2), ("epochs", 1)):
            number = getattr(self, name)
            if number is not None and not isinstance(number, Integral):
                raise ValueError(f"{name} must be a whole number, not {number!r}")
            check_range(name, None if number is None else int(number), least)
        self.estimator_ = clone(self.encoder or ContrastiveEncoder())
        seeds = self.estimator_._seed(), self._seed()
        with isolated():
            self._fit_layout(X, *seeds)
        return self

    def _fit_layout(self, X: Any, of_encoder: int, seed: int) -> None:
        with tempfile.TemporaryDirectory(prefix="nearfar-") as folder:
            run, images = self.estimator_._fit(X, folder, of_encoder)
            plan = resolve_views(run.settings.given("views"), run.settings)
        for name in (
            name for name in vars(self.estimator_) if name.endswith("_") and name != "encoder_"
        ):
            setattr(self, name, getattr(self.estimator_, name))
        with shown_if(self.verbose):
            features = compute_features(self.encoder_, images)
            made = fit_layout(
                "projector",
                self.encoder_,
                images,
                features,
                plan,
                num_views=self.num_views,
                epochs=self.epochs,
                seed=seed,
            )
        self.projector_ = made.function

    @isolated()
    def transform(self, X: Any) -> np.ndarray:
        """Return the coordinates (N, 2), float32."""
        check_is_fitted(self)
        return self.projector_(self.estimator_._features(X)).numpy()

    @property
    def encoder_(self) -> Encoder:
        return self.estimator_.encoder_

    _n_features_out = 2
