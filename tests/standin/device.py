"""A stand-in for a GPU, in pure Python: a device of its own name that computes on the CPU and is as
strict as a GPU.

Importing this module registers the device `standin` with torch, which finds it while it is
`available`. Its tensors hold a tensor on the CPU and refuse to be mixed with tensors on the CPU, as
a GPU's do; `synchronisations` collects where the CPU waits for a value of the device. Numbers are
the CPU's to the last bit but for random ones, of which the device has a generator of its own; so
what differs from a run on the CPU differs for a reason.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as tree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import nearfar
from tests.standin.graphs import Event, Stream, Tape, capturing, current_stream, in_stream

NAME = "standin"
SOURCE = str(Path(nearfar.__file__).parent)
CPU = torch.device("cpu")
MAY_MIX = {
    "aten::copy_",
    "aten::_to_copy",
    "aten::_copy_from",
    "aten::_copy_from_and_resize",
}  # from device to device
WAITS = {
    "aten::_local_scalar_dense",
    "aten::equal",
    "aten::nonzero",
    "aten::masked_select",
    "aten::unique_consecutive",
}
WAITS |= {
    "aten::_unique2",
    "aten::unique_dim",
    "aten::is_nonzero",
    "aten::bincount",
    "aten::repeat_interleave",
}
WAITS |= {
    "aten::_linalg_check_errors",
    "aten::_linalg_eigh",
    "aten::_linalg_svd",
    "aten::linalg_eig",
}
LAUNCH_NOTHING = {  # they change shapes or strides, or make memory that nothing is written to
    *("view", "_unsafe_view", "_reshape_alias", "expand", "transpose", "t", "permute", "slice"),
    *("select", "unsqueeze", "squeeze", "detach", "alias", "as_strided", "split", "unbind"),
    *("split_with_sizes", "diagonal", "unfold", "lift_fresh", "empty", "empty_like", "new_empty"),
    *("empty_strided", "new_empty_strided", "unsqueeze_", "squeeze_", "set_", "is_same_size"),
}
_watched: list[list[tuple[str, str]]] = []
_counted: list[Counter[str]] = []
_numbers = torch.Generator()  # of the device's own random numbers
_there = False
_refused: Collection[torch.dtype] = ()


class StandIn(Tensor):
    """A tensor of the device; `raw` is the tensor on the CPU that holds its values."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> StandIn:
        if raw.dtype in _refused:
            raise TypeError(f"{NAME} does not support {raw.dtype}")
        tensor = Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            layout=raw.layout,
            device=torch.device(NAME, 0),
        )
        tensor.raw = raw
        return tensor

    def __repr__(self) -> str:
        return f"StandIn({self.raw!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        given = self.raw, self.dtype, f"{NAME}:0", self.requires_grad
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, given

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __setitem__(self, index: Any, value: Any) -> None:
        """CUDA makes a number a tensor of the CPU and waits until it is sent, where a tensor says
        which are set.
        """
        if (
            _watched
            and not isinstance(value, Tensor)
            and any(isinstance(x, Tensor) for x in tree.tree_leaves(index))
        ):
            _note("__setitem__")
        super().__setitem__(index, value)

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, given: tuple = (), named: dict | None = None
    ) -> Any:
        return _on_cpu(function, given, named or {})


def _on_cpu(function: Any, given: tuple, named: dict) -> Any:
    """Compute a function of tensors of the device with their values on the CPU."""
    name = function._schema.name
    leaves = tree.tree_leaves((given, named))
    held = {id(leaf.raw): leaf for leaf in leaves if isinstance(leaf, StandIn)}
    if held and name not in MAY_MIX:
        for leaf in leaves:
            if isinstance(leaf, Tensor) and not isinstance(leaf, StandIn) and leaf.dim() > 0:
                raise RuntimeError(
                    f"{name}: Expected all tensors to be on the same device, found {NAME}:0 and cpu"
                )
    to = named.get("device")
    to_cpu = (name == "aten::_to_copy" and to is not None and torch.device(to).type == "cpu") or (
        name == "aten::copy_" and not isinstance(given[0], StandIn)
    )
    if (_watched or Tape.open) and (
        to_cpu or name in WAITS or _by_mask(name, given) or _is_sent(name, given, named)
    ):
        _note(name)
    if Tape.open and name in ("aten::copy_", "aten::_to_copy"):
        Tape.open.must_be_there(given[-1 if name == "aten::_to_copy" else 1])
    if Tape.open:  # a number on the CPU is passed at its value
        given, named = tree.tree_map_only(
            Tensor, lambda leaf: leaf if isinstance(leaf, StandIn) else leaf.clone(), (given, named)
        )
    for counter in _counted:
        if (short := name.removeprefix("aten::")) not in LAUNCH_NOTHING:
            counter[short] += _launches_of(short, given)
    raw = {key: _raw(value) for key, value in named.items() if key != "pin_memory"}
    if to is not None:
        raw["device"] = CPU
    call = partial(_call, function)
    result = Tape.run(call, _raw(given), raw) if Tape.open else call(*_raw(given), **raw)
    assert all(leaf.shape == leaf.raw.shape for leaf in held.values()), (
        f"{name} changes the shape of what it is given"
    )
    if to_cpu:
        return given[0] if name == "aten::copy_" else result
    return tree.tree_map_only(
        Tensor, lambda tensor: held[id(tensor)] if id(tensor) in held else StandIn(tensor), result
    )


def _launches_of(name: str, given: tuple) -> int:
    """The launches of an operation: one; of one on lists, that of every tensor where partners
    differ in strides or dtype, as CUDA has it.
    """
    lists = [
        part for part in given if isinstance(part, list) and part and isinstance(part[0], Tensor)
    ]
    if not name.startswith("_foreach") or not lists:
        return 1
    alike = all(
        len({(tensor.stride(), tensor.dtype) for tensor in partners}) == 1
        for partners in zip(*lists, strict=True)
    )
    return 1 if alike else len(lists[0])


@contextmanager
def launches() -> Iterator[Counter[str]]:
    """Count the launches on the device, by the name of the operation."""
    counter: Counter[str] = Counter()
    _counted.append(counter)
    try:
        yield counter
    finally:
        _counted.remove(counter)


def _call(function: Any, *given: Any, **named: Any) -> Any:
    with _own_numbers(function):
        return function(*given, **named)


@contextmanager
def _own_numbers(function: Any) -> Iterator[None]:
    """Let a function of torch draw random numbers from the device's generator in place of the
    CPU's.
    """
    if torch.Tag.nondeterministic_seeded not in function.tags:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(_numbers.get_state())
        yield
        _numbers.set_state(torch.get_rng_state())


def _is_sent(name: str, given: tuple, named: dict) -> bool:
    """True if values of the CPU are copied to the device, and the CPU waits until they are
    there.
    """
    if name == "aten::copy_":
        from_cpu = not isinstance(given[1], StandIn)
        return (
            from_cpu
            and given[1].dim() > 0
            and not (given[2] if len(given) > 2 else named.get("non_blocking", False))
        )
    from_cpu = name == "aten::_to_copy" and not isinstance(given[0], StandIn)
    return from_cpu and not named.get("non_blocking", False)


def _raw(values: Any) -> Any:
    return tree.tree_map_only(StandIn, lambda tensor: tensor.raw, values)


def _by_mask(name: str, given: tuple) -> bool:
    """True if an indexing asks the device how many values a mask holds."""
    if name not in ("aten::index", "aten::index_put_", "aten::_index_put_impl_"):
        return False
    return any(
        isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in given[1]
    )


def _note(name: str) -> None:
    """Note a synchronisation with the innermost line of the project that asked for it."""
    if Tape.open:
        raise RuntimeError(f"{name}: operation not permitted when stream is capturing")
    lines = [
        frame.line or "" for frame in traceback.extract_stack() if frame.filename.startswith(SOURCE)
    ]
    for notes in _watched:
        notes.append((name, lines[-1] if lines else "a test"))


@contextmanager
def synchronisations() -> Iterator[list[tuple[str, str]]]:
    """Collect where the CPU waits for the device: the operation, and the line of the project that
    asked for it.
    """
    notes: list[tuple[str, str]] = []
    _watched.append(notes)
    try:
        yield notes
    finally:
        _watched.remove(notes)


class _Module:
    """The functions that torch asks of `torch.standin`."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return _there

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        pass

    def device_count(self) -> int:
        return 1

    def synchronize(self, device: Any = None) -> None:
        _note("synchronize")

    def empty_cache(self) -> None:
        pass

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """The bytes that are free, and all of them."""
        return 2**30, 2**30

    def _is_in_bad_fork(self) -> bool:
        return False

    Stream, stream, current_stream = Stream, staticmethod(in_stream), staticmethod(current_stream)
    CUDAGraph, Event, graph = Tape, Event, staticmethod(capturing)

    def manual_seed(self, seed: int) -> None:
        if Tape.open:
            raise RuntimeError("a generator of the device cannot be seeded during a capture")
        _numbers.manual_seed(seed + 1)  # a GPU makes other numbers of a seed than the CPU does

    def manual_seed_all(self, seed: int) -> None:
        self.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> Tensor:
        return _numbers.get_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        _numbers.set_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


class _Hook(torch._C._acc.PrivateUse1Hooks):
    """The functions that torch asks of an accelerator in C++."""

    def is_available(self) -> bool:
        return _there

    def has_primary_context(self, number: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


@contextmanager
def available(*, without: Collection[torch.dtype] = ()) -> Iterator[None]:
    """Let `torch.accelerator` find the device for a while, without some types of numbers."""
    global _there, _refused
    before, _there, _refused = (_there, _refused), True, without
    try:
        yield
    finally:
        _there, _refused = before


_setup_privateuseone_for_python_backend(NAME, _Module(), _Hook())
DEVICE = torch.device(NAME, 0)
_library = torch.library.Library("aten", "IMPL")


def _made(function: Any) -> Any:
    """A function that makes a tensor, for the device."""

    def made(
        *given: Any, device: Any = None, pin_memory: Any = None, layout: Any = None, **named: Any
    ) -> Tensor:
        named["device"] = CPU
        call = partial(_call, function)
        return StandIn(Tape.run(call, given, named) if Tape.open else call(*given, **named))

    return made


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy values that did not come by way of Python, such as those of `torch.tensor([...],
    device=...)`.
    """
    if not isinstance(source, StandIn) and not non_blocking:
        _note("_copy_from")
    if Tape.open:
        Tape.open.must_be_there(source)
        Tape.run(Tensor.copy_, (_raw(target), _raw(source)), {})
    else:
        _raw(target).copy_(_raw(source))
    return target


_library.impl("_copy_from", _copy_from, "PrivateUse1")
for _name in (
    "empty.memory_format",
    "empty_strided",
    "arange",
    "arange.start",
    "arange.start_step",
    "linspace",
    "eye",
    "eye.m",
):
    _library.impl(
        _name,
        _made(
            getattr(
                getattr(torch.ops.aten, _name.split(".")[0]), (_name + ".default").split(".")[1]
            )
        ),
        "PrivateUse1",
    )
for _name in ("randperm", "tril_indices", "triu_indices"):
    _library.impl(_name, _made(getattr(torch.ops.aten, _name).default), "PrivateUse1")


def _lower(name: str) -> None:
    """Let autocast on the device compute a function in the lower precision, as it does on a GPU."""
    function = getattr(torch.ops.aten, name).default

    def cast(*given: Any) -> Any:
        dtype = torch.get_autocast_dtype(NAME)
        with torch.autocast(NAME, enabled=False):
            return function(
                *(
                    v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v
                    for v in given
                )
            )

    _library.impl(name, cast, "AutocastPrivateUse1")


_others = torch.library.Library("_", "IMPL")
_others.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
for _name in ("conv2d", "linear", "mm", "addmm", "bmm", "matmul", "baddbmm"):
    _lower(_name)
