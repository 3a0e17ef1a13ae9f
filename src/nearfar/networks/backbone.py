"""Backbones by name or from a module, with a stem that suits the image size."""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import timm
import torch
from jaxtyping import Float
from timm.models import group_modules, group_parameters
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn

from nearfar.messages import did_you_mean, raise_as_value_error
from nearfar.networks.pretrained import StartingWeights, find_weights, load_tensors
from nearfar.networks.small import OWN_NETS, SmallNet
from nearfar.networks.timm_entries import ENTRIES, JOINED, SMALL, SMALL_STEM, shrink_stem, stem_of
from nearfar.progress import log

SMALL_STEM_BELOW = 64  # pixels

ARGUMENTS = set(
    "in_chans img_size image_size dynamic_img_size dynamic_img_pad global_pool "  # noqa: SIM905
    "patch_size embed_dim depth depths dims num_heads mlp_ratio qkv_bias qk_norm "
    "init_values class_token reg_tokens "
    "no_embed_class pre_norm fc_norm pos_embed drop_rate drop_path_rate proj_drop_rate "
    "attn_drop_rate act_layer "
    "norm_layer norm_eps window_size layers channels width num_features stem_width "
    "stem_type base_width "
    "cardinality grid members".split()
)
"""Arguments of a net that a file may set: its form. timm's builders take more, such as a checkpoint
to load.
"""


@dataclass(frozen=True)
class Architecture:
    """The form of a net, from which it is built again, without weights.

    `name` is "tiny", "small", "medium" or timm's, `arguments` those of the net's constructor.
    `small_stem`: the first convolution is 3x3 with stride 1 and no max-pool follows; timm has no
    argument for that, and all but that convolution fits its net.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    small_stem: bool = False

    def check_size(self, most: int) -> None:
        """Raise ValueError where the net has more than `most` weights, before memory is taken for
        them.
        """
        with torch.device("meta"):
            net = self.create()
        if (count := sum(weights.numel() for weights in net.parameters())) > most:
            raise ValueError(f"the net would have {count} weights, and the file has {most} bytes")

    def create(self) -> nn.Module:
        """Create the net with random weights."""
        net = _create(self.name, self.arguments)
        if self.small_stem:
            shrink_stem(net)
        return net

    def build(self, image_size: int) -> Backbone:
        """Build the backbone with random weights; raises ValueError for images that it cannot
        take.
        """
        return _finished(self.create(), self, image_size, self.arguments["in_chans"])


OF_IMAGES = {"in_chans", "img_size", "image_size", "grid", "members"}
CLASSIFIERS = ("fc", "classifier", "head", "heads")  # of torchvision's models


class Backbone(nn.Module):
    """A net without classifier: normalised images [batch, channels, size, size] -> features [batch,
    num_features].

    `net` is timm's own module, a SmallNet or a user's; `architecture` is its form, None for a
    user's. Convolution weights are kept in channels-last order: the feature maps then follow, which
    takes a third less time on a CPU and is as good on a GPU. `build_backbone` makes one.

    >>> build_backbone("tiny", image_size=32, channels=3).name
    'tiny'
    """

    def __init__(
        self, net: nn.Module, architecture: Architecture | None, num_features: int
    ) -> None:
        super().__init__()
        flat = all(
            weights.ndim < 5 for weights in net.parameters()
        )  # the order is not defined for 3-D convolutions
        self.net = net.to(memory_format=torch.channels_last) if flat else net
        self.architecture, self.num_features = architecture, num_features
        self._still: list[str] = []

    @property
    def name(self) -> str:
        """The architecture's name, ours or timm's; for a user's net its class, as
        "package.module.Class".
        """
        return qualified_name(self.net) if self.architecture is None else self.architecture.name

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch features"]:
        """Apply the net."""
        return self.net(images)

    def freeze(self, stages: int) -> None:
        """Keep the first so many stages as they are, statistics of batch normalisation included.

        A stage is one of timm's coarse groups: the stem, the stages of a ResNet or ConvNeXt, the
        blocks of a transformer. The layers stay what they are (timm's own `freeze` swaps them for
        others), so that the weights keep their names. Raises ValueError for a net without such
        groups, or where none would be left to train.
        """
        if not stages:
            return
        group_matcher: Any = getattr(self.net, "group_matcher", None)
        if group_matcher is None:
            raise ValueError(
                f"the encoder {self.name!r} has no stages that timm knows: use `frozen=0`"
            )
        matcher = group_matcher(coarse=True)
        groups = group_parameters(self.net, matcher)
        if stages >= len(groups):
            raise ValueError(
                f"`frozen={stages}` leaves nothing of {self.name!r} to train: it has "
                f"{len(groups)} stages"
            )
        still = {name for group in range(stages) for name in groups[group]}
        for name in still:
            self.net.get_parameter(name).requires_grad_(False)
        owners = {name for names in group_modules(self.net, matcher).values() for name in names}
        self._still = sorted(owners & {name.rpartition(".")[0] for name in still})

    def train(self, mode: bool = True) -> Backbone:
        """Set the mode as of any module; stages that are frozen stay in eval mode."""
        super().train(mode)
        for name in self._still:
            self.net.get_submodule(name).eval()
        return self


def with_grid(backbone: Backbone, grid: int) -> Backbone:
    """Return a copy of one of our nets that averages its last feature map on a grid of this many
    cells a side, beside the mean; see `SmallNet`.

    One that has this grid, and other nets where it is 1, are returned as they are. Raises
    ValueError for other nets and grids.
    """
    form = backbone.architecture
    if form is None or not isinstance(backbone.net, SmallNet):
        if grid != 1:
            raise ValueError(f"`grid={grid}` is for the encoders {', '.join(OWN_NETS)}")
        return backbone
    if backbone.net.grid == grid:
        return backbone
    form = Architecture(form.name, {**form.arguments, "grid": grid}, form.small_stem)
    net: SmallNet = cast(SmallNet, form.create()).to(next(backbone.net.parameters()).device)
    net.load_state_dict(backbone.net.state_dict())
    return Backbone(net.train(backbone.net.training), form, net.num_features)


def layer_scales(net: nn.Module, decay: float) -> dict[int, float]:
    """Return the factor on the learning rate of every parameter that trains, by its id: decay **
    depth.

    The depth is counted in timm's layers (blocks) from the projector, which has 0: the last block
    has 1, the stem most. Nets without timm's `group_matcher` count a layer for every twelve
    parameters. Source: ULMFiT (Howard & Ruder 2018), Section 3.2; per block as in BEiT (Bao et al.
    2022) and timm.
    """
    if decay == 1:
        return {}
    groups = param_groups_layer_decay(net, layer_decay=decay)
    return {
        id(weights): decay * group["lr_scale"] for group in groups for weights in group["params"]
    }


def qualified_name(module: nn.Module) -> str:
    """The name of a module's class, with where it was defined."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def build_backbone(
    encoder: str | nn.Module, *, image_size: int, channels: int, init: str | Path | None = None
) -> Backbone:
    """Build a backbone by name, or from a module.

    encoder: "tiny", "small", "medium", any timm backbone, perhaps with arguments of its constructor
    behind, as in "vit_tiny_patch16_224(patch_size=4, drop_path_rate=0.1)", or a module that takes
    normalised float images [batch, channels, size, size] and returns features [batch, dim]: it is
    copied with the weights that it has, and otherwise left alone. image_size: pixels; below 64 px a
    named ResNet-like net gets a 3x3 stem with stride 1 and no max-pool (SimCLR, Appendix B.9), as
    one called "NAME-small-stem" does at any size, and a named vision transformer is built for the
    size.
    The choice is logged. channels: of the images. init: starting weights, see `find_weights`: a net
    that they name is built as theirs was. Nothing touches the network unless it is named so. Raises
    ValueError for an unknown name, an image size that the backbone cannot take, or a module that
    does not return such features, FileNotFoundError for a missing file; all that `find_weights`
    raises.

    >>> build_backbone("resnet18", image_size=32, channels=1).num_features
    512
    """
    if image_size < 1 or channels < 1:
        raise ValueError(
            f"image size and channels must be 1 or more, got {image_size} px and "
            f"{channels} channels"
        )
    name, arguments = name_and_arguments(encoder) if isinstance(encoder, str) else (None, {})
    start = None if init is None else find_weights(str(init), name, whole=name == JOINED)
    check_encoder(encoder)
    if isinstance(encoder, nn.Module):
        backbone = own_backbone(encoder, image_size, channels)
        choice = f"your own module, for images of {image_size} px"
    else:
        assert name is not None
        small_stem = image_size < SMALL_STEM_BELOW or name.endswith(SMALL)
        name = name.removesuffix(SMALL)
        _check_name(name)
        net, arguments = _fitted(name, image_size, channels, start, arguments)
        small_stem = small_stem and stem_of(net) is not None
        small_stem = small_stem if start is None or start.small_stem is None else start.small_stem
        if small_stem:
            shrink_stem(net)
        backbone = _finished(net, Architecture(name, arguments, small_stem), image_size, channels)
        choice = _choice(backbone.net, arguments, small_stem, image_size)
    log.info("%s: %d features, %s", backbone.name, backbone.num_features, choice)
    if start is not None:
        tensors = start.read(
            {} if backbone.architecture is None else backbone.architecture.arguments
        )
        log.info(load_tensors(backbone.net, tensors, start.in_timm or start.source))
    return backbone


def name_and_arguments(encoder: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a net, and the arguments that are written behind it, as in
    "vit_tiny_patch16_224(patch_size=4)".

    Raises ValueError for anything but plain values by name, and for arguments that the images
    decide.
    """
    name, bracket, _ = encoder.partition("(")
    if not bracket:
        return encoder, {}
    example = "such as vit_tiny_patch16_224(patch_size=4)"
    with raise_as_value_error(f"encoder {encoder!r} is no name with arguments, {example}"):
        call = ast.parse(f"net{encoder[len(name) :]}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError("arguments are written name=value")
        arguments = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    if decided := sorted(arguments.keys() & OF_IMAGES):
        raise ValueError(
            f"encoder {name!r}: {decided[0]} is that of the images: use `image_size`, `crop_size` "
            f"or `channels`"
        )
    return name, arguments


def check_encoder(encoder: Any) -> None:
    """Raise ValueError for anything but a name or a module, and for a module with its
    classifier.
    """
    if isinstance(encoder, type) or (callable(encoder) and not isinstance(encoder, nn.Module)):
        name = getattr(encoder, "__name__", type(encoder).__name__)
        raise ValueError(
            f"encoder must be a name or a torch module, not the "
            f"{'class' if isinstance(encoder, type) else 'function'} "
            f"{name}: give the module that {name}() makes"
        )
    if not isinstance(encoder, (str, nn.Module)):
        raise ValueError(f"encoder must be a name or a torch module, not {encoder!r}")
    made_by = type(encoder).__module__.partition(".")[0]
    classes = int(getattr(encoder, "num_classes", 0) or 0)
    if made_by == "timm" and classes > 0:
        raise ValueError(
            f"encoder {qualified_name(cast(nn.Module, encoder))!r} ends in a classifier of "
            f"{classes} "
            "classes: make it with num_classes=0, so that it gives its features"
        )
    for name in CLASSIFIERS if made_by == "torchvision" else ():
        head = getattr(encoder, name, None)
        if isinstance(head, nn.Module) and any(isinstance(m, nn.Linear) for m in head.modules()):
            raise ValueError(
                f"encoder {qualified_name(cast(nn.Module, encoder))!r} ends in a "
                f"classifier: set net.{name} = "
                "torch.nn.Identity(), so that it gives its features"
            )


def _must_be_features(net: nn.Module, channels: int, image_size: int) -> None:
    """Raise ValueError for a user's net that returns something else when it trains, such as a tuple
    with more heads.
    """
    trial = copy.deepcopy(net).train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            out = trial(torch.rand(4, channels, image_size, image_size))
        except Exception:  # of a batch as small, or whatever comes in training
            return
    if not isinstance(out, Tensor) or out.ndim != 2:
        given = f"{list(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise ValueError(
            f"encoder {qualified_name(net)!r} must return features [batch, dim] in "
            f"training mode too; "
            f"there it gives {given}"
        )


def own_backbone(module: nn.Module, image_size: int, channels: int) -> Backbone:
    """A copy of a user's module as a backbone, on the CPU; ValueError for one that does not serve
    as such.
    """
    with raise_as_value_error(f"encoder {qualified_name(module)!r} cannot be copied"):
        net = copy.deepcopy(module).cpu()
    if not all(isinstance(value, Tensor) for value in net.state_dict().values()):
        raise ValueError(
            f"encoder {qualified_name(module)!r} has a state beside tensors, which cannot be saved"
        )
    backbone = _finished(net, None, image_size, channels)
    _must_be_features(net, channels, image_size)
    return backbone


def _check_name(name: str) -> None:
    if name in (*ENTRIES, SMALL_STEM):
        raise ValueError(
            f"{name} is the name in timm: use {ENTRIES.get(name, 'resnet18-small-stem')}"
        )
    if name not in ENTRIES.values() and not timm.is_model(name):
        otherwise = "use small, medium or a timm backbone such as resnet18"
        hint = did_you_mean(name, encoder_names(), otherwise, most=3, cutoff=0.6)
        raise ValueError(f"there is no encoder {name!r}: {hint}")


def encoder_names() -> list[str]:
    """Return the names of all backbones: ours, then timm's.

    >>> encoder_names()[:3]
    ['tiny', 'small', 'medium']
    """
    return [*OWN_NETS, *(name for name in timm.list_models() if name not in (*ENTRIES, SMALL_STEM))]


def size_step(encoder: str) -> int:
    """Return the number that image sizes of a named net must be multiples of: the patch size of a
    transformer.
    """
    name, arguments = name_and_arguments(encoder)
    if not timm.is_model(name):
        return 1
    with raise_as_value_error(f"encoder {encoder!r} cannot be built"), torch.device("meta"):
        net = _create(name, arguments)
    patch = getattr(getattr(net, "patch_embed", None), "patch_size", 1)
    return max(patch) if isinstance(patch, tuple) else int(patch)


LEAST_PATCHES, LOOKED = 4, 8  # patches of a side; pixels between sizes that are tried


def fitting_size(encoder: str, wanted: int, most: int, built_for: int | None = None) -> int:
    """Return the size of a view nearest to the wanted one that a named net can take, at most
    `most`.

    Multiples of a transformer's patch, four of them or more where `most` has as many; `most` where
    nothing else works. built_for: the size that the net is built for; None: it is built for the
    size in question.
    """
    name, _ = name_and_arguments(encoder)
    if name in OWN_NETS or not timm.is_model(name.removesuffix(SMALL)):
        return min(wanted, most)
    step = size_step(encoder.replace(SMALL, ""))
    least = min(LEAST_PATCHES * step if step > 1 else 1, max(step, most // step * step))
    sizes = {max(least, wanted // step * step)}
    sizes |= set(range(-(-least // LOOKED) * LOOKED, most + 1, LOOKED)) if step == 1 else set()
    sizes |= set(range(least, most + 1, step)) if step > 1 else set()
    for size in sorted(sizes, key=lambda size: (abs(size - wanted), size)):
        if size <= most and _takes(encoder, size if built_for is None else built_for, size):
            return size
    return most


@functools.lru_cache(maxsize=256)
def _takes(encoder: str, built_for: int, size: int) -> bool:
    """Return whether a named net takes images of a size; its shapes alone are computed."""
    log_level, log.disabled = log.disabled, True
    try:
        with torch.device("meta"), torch.no_grad():
            name, arguments = name_and_arguments(encoder)
            small_stem = built_for < SMALL_STEM_BELOW or name.endswith(SMALL)
            net, _ = _fitted(name.removesuffix(SMALL), built_for, 3, None, arguments)
            if small_stem and stem_of(net) is not None:
                shrink_stem(net)
            return net.eval()(torch.zeros(2, 3, size, size)).ndim == 2
    except NotImplementedError:  # an operation without shapes: the run will tell
        return True
    except Exception:  # nets refuse sizes with any error
        return False
    finally:
        log.disabled = log_level


def _fitted(
    name: str,
    image_size: int,
    channels: int,
    start: StartingWeights | None,
    own: Mapping[str, Any],
) -> tuple[nn.Module, dict[str, Any]]:
    """Create a net with those arguments for the image size that its constructor knows, or with
    those of a run; own: the arguments that a user gives.
    """
    given = {**({} if start is None else start.arguments), **own}
    if start is not None and given and (start.in_timm is None or name in OWN_NETS):
        arguments = {**given, "in_chans": channels}
        return _create(name, arguments), arguments
    sized: dict[str, Any] = {"img_size": image_size}
    choices = [
        {**sized, "dynamic_img_size": True},
        sized,
        {},
    ]  # dynamic: for crops of other sizes too
    for sizes in [{"image_size": image_size}] if name in OWN_NETS else choices:
        arguments = {**given, "in_chans": channels, **sizes}
        try:
            return _create(name, arguments), arguments
        except TypeError as error:
            refused = error
    raise ValueError(f"encoder {name!r} cannot be built for {channels} channels: {refused}")


def _create(name: str, arguments: dict[str, Any]) -> nn.Module:
    _check_name(name)
    if unknown := sorted(set(map(str, arguments)) - ARGUMENTS):
        raise ValueError(f"encoder {name!r} is not built with the argument {unknown[0]!r}")
    kinds = (AssertionError, ValueError, RuntimeError, AttributeError, ArithmeticError, MemoryError)
    with raise_as_value_error(f"encoder {name!r} cannot be built with {arguments!s:.200}", *kinds):
        entry = f"nearfar_{name}" if name in ENTRIES.values() else name
        return timm.create_model(entry, pretrained=False, num_classes=0, **arguments)


def _finished(
    net: nn.Module, architecture: Architecture | None, image_size: int, channels: int
) -> Backbone:
    """Try the net on two blank images to see how many features it gives."""
    name = qualified_name(net) if architecture is None else architecture.name
    net.eval()
    problem = f"encoder {name!r} cannot take images of {image_size} px and {channels} channels"
    with raise_as_value_error(problem), torch.no_grad():
        out = net(torch.zeros(2, channels, image_size, image_size))
    if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != 2 or not out.is_floating_point():
        given = (
            f"{out.dtype} {list(out.shape)}"
            if isinstance(out, Tensor)
            else f"a {type(out).__name__}"
        )
        raise ValueError(
            f"encoder {name!r} must return features [batch, dim] as floats; for 2 images "
            f"it gives {given}"
        )
    return Backbone(net.train(), architecture, out.shape[1])


def _choice(net: nn.Module, arguments: dict[str, Any], small_stem: bool, image_size: int) -> str:
    if small_stem:
        return f"3x3 stem with stride 1 and no max-pool, for images of {image_size} px"
    if isinstance(net, SmallNet):
        side = net.conv.kernel_size[0]
        return f"a {side}x{side} stem with stride {net.conv.stride[0]}, for {image_size} px"
    if "img_size" in arguments:
        return f"built for images of {image_size} px"
    return f"its own stem, for images of {image_size} px"
