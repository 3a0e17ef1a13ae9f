"""scikit-learn estimators: `ContrastiveEncoder`, images to features, and `ContrastiveMap`, images to places."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load, save
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch.utils.data import Dataset

from nearfar.commands.objects import chosen_views
from nearfar.commands.opening import features_shown, open_shown
from nearfar.commands.pretrain import pretrain
from nearfar.commands.run import Run
from nearfar.data import Images
from nearfar.data.building import USUAL
from nearfar.data.decode import to_pil
from nearfar.data.value_range import EIGHT_BITS
from nearfar.maps.projector import Projector, fit_projector
from nearfar.messages import check_range
from nearfar.networks import Encoder, load_encoder, save_encoder
from nearfar.networks.encoder import DESCRIPTION, WEIGHTS
from nearfar.training.seeding import LARGEST_SEED, stream

Shape = Sequence[int]


class _OfImages(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What both estimators share: reading X, and weights that are pickled as safetensors."""

    encoder_: Encoder

    def _open(self, X: Any, fitting: bool, **form: Any) -> Images:
        if isinstance(X, (str, os.PathLike)):
            source: Any = X
        elif _is_list(X) and len(X) and all(isinstance(one, (str, os.PathLike)) for one in X):
            source = _Files(X, form["image_size"])
        else:
            source = self._pixels(X, fitting)
        console = Console(quiet=not self.verbose)
        split = "all" if isinstance(source, (str, os.PathLike)) else None
        images = open_shown(source, console, split=split, **form)
        if isinstance(source, _Files) and images.skipped:
            name, reason = images.skipped[0]
            first = source.paths[int(name)]
            raise ValueError(f"{len(images.skipped)} of the files cannot be read, the first is {first}: {reason}")
        return images

    def _pixels(self, X: Any, fitting: bool) -> np.ndarray:
        """Return arrays as nearfar takes them: with three axes or more, uint8 or uint16."""
        least = 2 if fitting else 1
        if (np.ndim(X) if _is_list(X) else getattr(X, "ndim", 2)) > 2:
            array = check_array(X, allow_nd=True, dtype=None, ensure_min_samples=least, input_name="X", estimator=self)
        else:
            array = validate_data(self, X, reset=fitting, dtype="numeric", ensure_min_samples=least)
            array = array.reshape(len(array), *self._shape(array.shape[1]))
        given = self._estimator.value_range
        whole = given is None and array.dtype in (np.uint8, np.uint16, np.bool_)
        if fitting:
            self.value_range_ = None if whole else tuple(map(float, given or (array.min(), array.max())))
        if whole:
            return array
        seen = getattr(self, "value_range_", None)
        if seen is None:
            raise ValueError(f"the images of fit were no {array.dtype} arrays: set value_range, or give uint8")
        low, high = seen
        unit = np.clip((array.astype(np.float64) - low) / ((high - low) or 1.0), 0, 1)
        return np.rint(255 * unit).astype(np.uint8)  # as files and folders of the same images have them

    def _shape(self, features: int) -> Shape:
        encoder = self._estimator
        if encoder.image_shape is not None:
            return encoder.image_shape
        side = math.isqrt(features)
        if side * side != features:
            raise ValueError(f"rows of {features} numbers are no square images: give image_shape=(height, width)")
        return side, side

    def _features(self, images: Images, **options: Any) -> torch.Tensor:
        return features_shown(self.encoder_, images, Console(quiet=not self.verbose), "features", **options).cpu()

    def _read(self, X: Any) -> Images:
        check_is_fitted(self)
        encoder = self.encoder_
        value_range = encoder.value_range or EIGHT_BITS
        return self._open(X, False, image_size=encoder.image_size, channels=encoder.channels, value_range=value_range)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "encoder_" in state:
            with tempfile.TemporaryDirectory(prefix="nearfar-") as folder:
                save_encoder(folder, state["encoder_"])
                state["encoder_"] = {name: (Path(folder) / name).read_bytes() for name in (WEIGHTS, DESCRIPTION)}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        super().__setstate__(state)
        if isinstance(files := state.get("encoder_"), dict):
            with tempfile.TemporaryDirectory(prefix="nearfar-") as folder:
                for name in (WEIGHTS, DESCRIPTION):
                    (Path(folder) / name).write_bytes(files[name])
                own = self._estimator.encoder
                self.encoder_ = load_encoder(folder, None if isinstance(own, str) else own)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = tags.input_tags.string = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags


class ContrastiveEncoder(_OfImages):
    """Features of images from an encoder that is pretrained on them, without labels.

    X: an array (N, H, W) or (N, H, W, C), rows of flattened images, image files, or a folder. Arrays of uint8 are taken
    as they are, other numbers by `value_range`.

    Parameters
    ----------
    method, encoder, image_size, batch_size : as `nearfar.pretrain` has them; None: chosen by it
    epochs : passes over the images
    image_shape : of flattened images, (H, W) or (H, W, C); None: square and grey
    value_range : what is black and white, for numbers other than uint8; None: smallest and largest number seen by `fit`
    settings : other settings of `nearfar.pretrain`, by name
    random_state : seed of weights, batches and views
    verbose : show progress

    Attributes
    ----------
    encoder_ : the module, as `nearfar.load` returns it
    verdict_ : whether it learned anything, in words; empty where there were too few images to tell

    Pickles hold the weights as safetensors, and no code but this class.
    """

    def __init__(
        self,
        *,
        method: Any = "simclr",
        encoder: Any = "small",
        epochs: float = 100,
        image_size: int | None = None,
        batch_size: int | None = None,
        image_shape: Shape | None = None,
        value_range: tuple[float, float] | None = None,
        settings: Mapping[str, Any] | None = None,
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.encoder = encoder
        self.epochs = epochs
        self.image_size = image_size
        self.batch_size = batch_size
        self.image_shape = image_shape
        self.value_range = value_range
        self.settings = settings
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> ContrastiveEncoder:
        """Pretrain on the images; y is not looked at. Raises ValueError as `nearfar.pretrain` does."""
        with tempfile.TemporaryDirectory(prefix="nearfar-") as folder:
            self._fit(X, Path(folder) / "run")
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return the features (N, D), float32; of a folder in the order of its files, without unreadable ones."""
        return self._features(self._read(X)).numpy()

    def _fit(self, X: Any, folder: Path) -> tuple[Run, Images]:
        images = self._open(X, True, image_size=self.image_size)
        settings = {"precision": "32-true", "health_every": 10**9, **(self.settings or {})}
        own = dict(method=self.method, encoder=self.encoder, epochs=self.epochs, batch_size=self.batch_size)
        console = Console(quiet=not self.verbose)
        run = pretrain(images, out=folder, seed=_seed(self.random_state), console=console, **own, **settings)
        self.encoder_ = load_encoder(folder, None if isinstance(self.encoder, str) else self.encoder)
        self.verdict_ = run.verdict.words if run.verdict else ""
        return run, images

    @property
    def _estimator(self) -> ContrastiveEncoder:
        return self

    @property
    def _n_features_out(self) -> int:
        return self.encoder_.num_features


class ContrastiveMap(_OfImages):
    """Places of images on a plane, similar ones together, by a projector on the features of views of them.

    X: as `ContrastiveEncoder` takes it.

    Parameters
    ----------
    encoder : a ContrastiveEncoder, which is cloned and fitted; None: one with its defaults
    num_views : augmented views of each image that the map learns from
    epochs : passes of the projector over the images; None: fitted to their number
    random_state : seed of the map; verbose : show progress

    Attributes
    ----------
    encoder_ : the module. projector_ : the net from its features to places. verdict_ : on the encoder
    """

    def __init__(
        self,
        encoder: ContrastiveEncoder | None = None,
        *,
        num_views: int = 8,
        epochs: int | None = None,
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.encoder = encoder
        self.num_views = num_views
        self.epochs = epochs
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> ContrastiveMap:
        """Pretrain an encoder on the images, then a projector; y is not looked at. ValueError for no view or epoch."""
        check_range("num_views", self.num_views, 1)
        check_range("epochs", self.epochs, 1)
        estimator = clone(self._estimator)
        with tempfile.TemporaryDirectory(prefix="nearfar-") as folder:
            run, images = estimator._fit(X, Path(folder) / "run")
            plan = chosen_views(run.settings.given("views"), run.settings)
        for name in (name for name in vars(estimator) if name.endswith("_")):
            setattr(self, name, getattr(estimator, name))
        seed = _seed(self.random_state)
        views = [
            self._features(images, view=plan.pick([n % len(plan)]), generator=stream(seed, "map", n))
            for n in range(self.num_views)
        ]
        features = self._features(images)
        self.projector_ = fit_projector(torch.stack(views), features, epochs=self.epochs, seed=seed)
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return the places (N, 2), float32."""
        return self.projector_(self._features(self._read(X))).numpy()

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if "projector_" in state:
            state["projector_"] = save(state["projector_"].state_dict())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if isinstance(weights := state.get("projector_"), bytes):
            tensors = load(weights)
            self.projector_ = Projector(len(tensors["centre"])).requires_grad_(False)
            self.projector_.load_state_dict(tensors)

    @property
    def _estimator(self) -> ContrastiveEncoder:
        return self.encoder if self.encoder is not None else ContrastiveEncoder()

    @property
    def _n_features_out(self) -> int:
        return 2


class _Files(Dataset):
    """Image files, which are decoded as those of a folder are."""

    def __init__(self, paths: Sequence[Any], image_size: int | None) -> None:
        self.paths, self.at_least = list(paths), 2 * (image_size or USUAL)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Image.Image:
        return to_pil(Path(self.paths[number]).read_bytes(), at_least=self.at_least)[0]


def _is_list(X: Any) -> bool:
    return isinstance(X, (list, tuple)) or getattr(X, "ndim", 0) == 1


def _seed(random_state: Any) -> int:
    if isinstance(random_state, int):
        return random_state
    return int(check_random_state(random_state).randint(LARGEST_SEED // 2))
