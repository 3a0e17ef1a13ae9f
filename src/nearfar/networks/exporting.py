"""An encoder for other tools, each form tried after writing: ONNX, torch.export, a timm folder, a
file of weights.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import timm
import torch
from jaxtyping import Float, UInt8
from safetensors.torch import load_file, save
from torch import Tensor, nn

from nearfar.atomic import write_file
from nearfar.messages import raise_as_value_error
from nearfar.networks.encoder import Encoder, describe_encoder, state_of
from nearfar.networks.pretrained import CONFIG
from nearfar.views import from_range

TOLERANCE = 1e-3  # of the largest feature; rounding differs by a hundredth of that
TIMM_WEIGHTS = "model.safetensors"
LARGEST_ONNX = 2**31 - 2**20  # bytes, of protobuf, with room for the graph


def check_onnx() -> None:
    """Raise ValueError where a library for ONNX is missing."""
    if missing := [
        name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None
    ]:
        raise ValueError(f"ONNX needs {', '.join(missing)}: pip install 'nearfar[onnx]'")


def export_onnx(
    encoder: Encoder, path: Path, images: UInt8[Tensor, "batch channels size size"]
) -> float:
    """Write an ONNX file with the input "images" and the output "features", any number of rows;
    return its error.

    Images are uint8, those of more than 8 bits the numbers of their files as float32.
    The error is the largest difference of a feature to those of torch on `images`, by onnxruntime
    on the CPU. The preprocessing left to the caller is in the metadata "preprocessing". Raises
    ValueError for a net that cannot be exported, is too large for ONNX, or gives other features
    afterwards.
    """
    check_onnx()
    import onnxruntime

    if sum(value.nbytes for value in encoder.state_dict().values()) > LARGEST_ONNX:
        raise ValueError(
            f"the weights of {encoder.name} are larger than the 2 GB of an ONNX file: use "
            "`to='torch'`"
        )
    with _quiet():
        program = torch.onnx.export(
            _traced(encoder),
            dynamo=True,
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes={"images": {0: "batch"}},
            verbose=False,
        )
        assert program is not None
        program.model.metadata_props["preprocessing"] = json.dumps(_preprocessing(encoder))
        program.save(path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def exported(images: Tensor) -> Tensor:
        numbers = _as_in_files(images, encoder).numpy()
        return torch.from_numpy(session.run(None, {"images": numbers})[0])

    return _difference(encoder, exported, images)


def export_program(
    encoder: Encoder, path: Path, images: UInt8[Tensor, "batch channels size size"]
) -> float:
    """Write a program for `torch.export.load`; see `export_onnx`."""
    with _quiet():
        torch.export.save(
            _traced(encoder),
            path,
            extra_files={"preprocessing.json": json.dumps(_preprocessing(encoder))},
        )
        loaded = torch.export.load(path).module()
    return _difference(encoder, lambda x: loaded(_as_in_files(x, encoder)), images)


def export_weights(
    encoder: Encoder, path: Path, images: UInt8[Tensor, "batch channels size size"]
) -> float:
    """Write the net's tensors as .safetensors, with its description as "nearfar" in the header; see
    `export_onnx`.
    """
    about = {"format": "pt", "nearfar": json.dumps(describe_encoder(encoder))}
    path.write_bytes(save(state_of(encoder), metadata=about))
    backbone = copy.deepcopy(encoder.backbone)
    backbone.net.load_state_dict(load_file(path))
    return _difference(encoder, lambda x: backbone(encoder.preprocess(x)), images)


def write_timm_folder(
    folder: Path,
    encoder: Encoder,
    images: UInt8[Tensor, "batch channels size size"],
    license: str | None = None,
) -> float:
    """Write model.safetensors and config.json, as timm wants them on the Hub; see `export_onnx`.

    The images come to timm's net normalised. license: of the weights. Raises ValueError for a
    user's own module, too.
    """
    if encoder.backbone.architecture is None:
        raise ValueError(
            f"the encoder {encoder.name} is an object of your own, which timm cannot build"
        )
    write_file(folder / CONFIG, json.dumps(describe_encoder(encoder, license), indent=2) + "\n")
    write_file(folder / TIMM_WEIGHTS, save(state_of(encoder), metadata={"format": "pt"}))
    net = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return _difference(encoder, lambda x: net(encoder.preprocess(x)), images)


def _preprocessing(encoder: Encoder) -> dict[str, object]:
    """Describe what an exported encoder leaves to its caller: how an image becomes its input."""
    return {
        "size": encoder.image_size,
        "channels": encoder.channels,
        "resize": "centre square, bicubic, antialiased",
        "dtype": "uint8" if encoder.value_range is None else "float32",
        "value_range": encoder.value_range,
        "layout": "batch, channels, height, width",
    }


def _traced(encoder: Encoder) -> torch.export.ExportedProgram:
    """Trace the encoder on images of its own size and channels, where its preprocessing is the
    normalisation alone.
    """
    size, channels = encoder.image_size, encoder.channels
    blank = _as_in_files(torch.zeros(2, channels, size, size, dtype=torch.uint8), encoder)
    whole = encoder if encoder.value_range is None else _OfNumbers(encoder, encoder.value_range)
    batch = torch.export.Dim("batch", min=1)
    with (
        raise_as_value_error(f"torch.export cannot take the encoder {encoder.name}"),
        torch.no_grad(),
    ):
        return torch.export.export(whole, (blank,), dynamic_shapes={"images": {0: batch}})


class _OfNumbers(nn.Module):
    """An encoder of the numbers in image files that hold more than 8 bits."""

    def __init__(self, encoder: Encoder, value_range: Sequence[float]) -> None:
        super().__init__()
        self.encoder, self.value_range = encoder, value_range

    def forward(self, images: Float[Tensor, "batch channels size size"]) -> Tensor:
        numbers = images.double()  # a change of dtype lets torch.export refuse images of another
        return self.encoder(from_range(numbers, self.value_range).float())


def _as_in_files(images: UInt8[Tensor, "batch channels size size"], encoder: Encoder) -> Tensor:
    """Return images in the numbers of the files that an encoder was trained on."""
    if encoder.value_range is None:
        return images
    low, high = torch.tensor(encoder.value_range).view(-1, 2, 1, 1).unbind(1)
    return low + images / 255 * (high - low)


def _difference(encoder: Encoder, exported: Callable[[Tensor], Tensor], images: Tensor) -> float:
    """Compare in one batch, and one image alone; ValueError where they differ."""
    with torch.no_grad():
        expected = encoder(images)
        given = torch.cat([exported(images[:1]), exported(images[1:])])
    error, scale = (given - expected).abs().max().item(), expected.abs().max().item()
    if not error <= TOLERANCE * max(scale, 1e-6):
        raise ValueError(
            f"the exported encoder differs by {error:.2g} at features up to {scale:.2g}: "
            f"nothing is kept"
        )
    return error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters' warnings and log lines, which are about themselves."""
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
