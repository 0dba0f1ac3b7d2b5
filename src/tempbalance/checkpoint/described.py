"""What stands in a pickle, without the objects themselves: inert stand-ins, and tensors as descriptions.

A class or function becomes a subclass of `Inert`, which keeps the arguments, state and items that it is given. The
functions that rebuild tensors become `Described`: storage, offset, shape and stride.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from tempbalance.checkpoint.files import Record, num_elements, shown
from tempbalance.checkpoint.tensors import StoredTensor
from tempbalance.errors import CheckpointError, WeightError

# an expanded tensor claims more elements than the file has; small ones do no harm
_MOST_EXPANDED, _SMALL_BYTES = 16, 1 << 20


class InertType(type):
    """The type of stand-ins, whose attributes no pickle can set."""

    def __setattr__(cls, name: str, value: object) -> None:
        raise CheckpointError("its pickle sets attributes of a class")


class Inert(metaclass=InertType):
    """An object that a pickle describes: nothing but what it was given.

    Attributes:
        name: The full name of its class or function.
        dtype: The dtype that the name stands for, if it is one or a storage's.
        args: Arguments of its construction.
        state: What it was given by the instruction that sets a state.
        pairs: Its items as a mapping.
        elements: Its items as a list or set.
    """

    __slots__ = ("args", "elements", "pairs", "state")
    name = ""
    dtype: torch.dtype | None = None
    build: Callable[..., object] | None = None
    args: tuple[object, ...]
    state: object
    pairs: list[tuple[object, object]] | None
    elements: list[object] | None

    def __new__(cls, /, *args: object, **keywords: object) -> Any:
        """Keep the arguments, or build the description that the name stands for."""
        return cls.keep(args) if cls.build is None else cls.build(*args)

    @classmethod
    def keep(cls, args: tuple[object, ...]) -> Inert:
        """Make an object that has these arguments."""
        made = object.__new__(cls)
        made.args, made.state, made.pairs, made.elements = args, None, None, None
        return made

    def __call__(self, /, *args: object, **keywords: object) -> Inert:
        """Keep the arguments of a call."""
        return Inert.keep(args)

    def __setstate__(self, state: object) -> None:
        self.state = state

    def __setitem__(self, key: object, value: object) -> None:
        self.pairs = self.pairs or []
        self.pairs.append((key, value))

    def append(self, item: object) -> None:
        """Keep an item."""
        self.elements = self.elements or []
        self.elements.append(item)

    add = append

    def extend(self, items: list[object]) -> None:
        """Keep items."""
        for item in items:
            self.append(item)


class _Fixed:
    """A description of ours, of which a pickle can set nothing."""

    def __setstate__(self, _: object) -> NoReturn:
        raise CheckpointError(f"its pickle sets the state of a {type(self).__name__}, which torch.save never does")


@dataclass(frozen=True, eq=False)
class Storage(_Fixed):
    """The elements behind one or more tensors; ``record`` has them where they stand in the pickle itself."""

    key: str
    dtype: torch.dtype
    num_bytes: int
    record: Record | None = None


@dataclass(frozen=True, eq=False)
class Described(_Fixed):
    """A tensor; ``problem`` says why one that is not dense cannot be read, ``quantizer`` how to dequantise it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...] = ()
    offset: int = 0
    storage: Storage | None = None
    problem: str = ""
    quantizer: tuple[object, ...] = ()

    @property
    def span(self) -> int:
        """The number of elements of the storage between the first and the last, with both."""
        sides = zip(self.shape, self.stride, strict=True)
        return 0 if 0 in self.shape else 1 + sum((side - 1) * step for side, step in sides)


def dtype_of(kind: object) -> torch.dtype | None:
    """Return the dtype that a stand-in is for, or the storages of which it is for; ``None`` for other names."""
    return kind.dtype if isinstance(kind, type) and issubclass(kind, Inert) else None


def view_of(storage: object, offset: object, shape: object, stride: object, dtype: torch.dtype) -> Described:
    """Describe a dense tensor, checked against the storage that it is a view of.

    Raises:
        CheckpointError: If it does not lie within the storage, or claims many times its size.
    """
    count = num_elements("a tensor", shape)
    if not (isinstance(storage, Storage) and isinstance(shape, tuple | list) and isinstance(stride, tuple | list)):
        raise CheckpointError("its pickle describes a tensor without a storage")
    if len(stride) != len(shape) or not all(type(step) is int and 0 <= step < 2**62 for step in stride):
        raise CheckpointError("its pickle describes a tensor whose strides do not fit its shape")
    if type(offset) is not int or offset < 0:
        raise CheckpointError(f"a tensor begins at {shown(offset)} of its storage")
    made = Described(dtype, tuple(shape), tuple(stride), offset, storage)
    if (offset + made.span) * dtype.itemsize > storage.num_bytes:
        sides = " x ".join(str(side) for side in shape[:8])
        raise CheckpointError(f"a tensor of shape {sides} reaches beyond its storage")
    claimed = count * dtype.itemsize
    if claimed > _SMALL_BYTES and claimed > _MOST_EXPANDED * storage.num_bytes:
        raise CheckpointError(f"a tensor claims {claimed:,} bytes, its storage has {storage.num_bytes:,}")
    return made


def stored(name: str, tensor: Described) -> StoredTensor:
    """Return a described tensor with the way to read it; one that is quantised is dequantised."""
    tie = (tensor.storage, tensor.offset, tensor.shape, tensor.stride)
    if tensor.storage is None or tensor.problem:
        load = partial(_unreadable, name, tensor.problem)
        return StoredTensor(name, tensor.shape, tensor.dtype, load, problem=tensor.problem)
    if tensor.quantizer:
        return StoredTensor(name, tensor.shape, torch.float32, partial(_dequantized, name, tensor), tie)
    return StoredTensor(name, tensor.shape, tensor.dtype, partial(load_values, tensor), tie)


def _unreadable(name: str, problem: str) -> NoReturn:
    raise WeightError(f"{shown(name)} is {problem}")


def load_values(tensor: Described) -> Tensor:
    """Read the part of a storage that a tensor views; the integers of a quantised one."""
    assert tensor.storage is not None
    assert tensor.storage.record is not None
    dtype = _INTEGERS.get(tensor.dtype, tensor.dtype)
    if 0 in tensor.shape:
        return torch.empty(tensor.shape, dtype=dtype)
    data = tensor.storage.record.read(tensor.offset * dtype.itemsize, tensor.span * dtype.itemsize)
    return data.view(dtype).as_strided(tensor.shape, tensor.stride)


def _dequantized(name: str, tensor: Described) -> Tensor:
    """Compute (integer - zero point) x scale, of the whole tensor or channel by channel."""
    match tensor.quantizer:
        case (_, float() as scale, int() as zero) if tensor.dtype in _INTEGERS and abs(zero) < 2**31:
            return (load_values(tensor).float() - zero) * scale
        case (_, Described() as scales, Described() as zeros, int() as axis) if tensor.dtype in _INTEGERS:
            side = tensor.shape[axis] if 0 <= axis < len(tensor.shape) else -1
            if scales.shape == zeros.shape == (side,) and not (scales.problem or zeros.problem):
                along = [-1 if dim == axis else 1 for dim in range(len(tensor.shape))]
                shift, factor = load_values(zeros).float().view(along), load_values(scales).float().view(along)
                return (load_values(tensor).float() - shift) * factor
    raise WeightError(f"{shown(name)} is quantized in a way that is not read")


def in_memory(content: bytes) -> Record:
    """Return bytes that are in memory as a record."""

    def read(start: int, count: int) -> Tensor:
        return torch.frombuffer(bytearray(content[start : start + count]), dtype=torch.uint8)

    return Record(len(content), read)


def array_of(data: Record, kind: str, shape: object, *, is_fortran: bool) -> Described:
    """Describe an array of NumPy; one of a kind that torch has not is described with that problem."""
    count = num_elements("an array", shape)
    assert isinstance(shape, tuple)
    dtype = _ARRAYS.get(kind.lstrip("<|="))
    if dtype is None:
        return Described(torch.uint8, shape, problem=f"an array of type {shown(kind)}")
    sides = list(shape) if is_fortran else list(shape)[::-1]
    steps = [math.prod(max(side, 1) for side in sides[:index]) for index in range(len(sides))]
    storage = Storage("", dtype, data.num_bytes, data)
    if count * dtype.itemsize != data.num_bytes:
        raise CheckpointError(f"an array should have {count * dtype.itemsize:,} bytes, it has {data.num_bytes:,}")
    return view_of(storage, 0, shape, tuple(steps if is_fortran else steps[::-1]), dtype)


def numpy_array(value: Inert) -> Described | None:
    """Describe an array of NumPy that stands in a pickle; ``None`` for any other object."""
    module, _, function = value.name.rpartition(".")
    found: Any = None
    if module.startswith("numpy") and function == "_reconstruct" and isinstance(value.state, tuple):
        found = value.state[1:]
    elif module.startswith("numpy") and function == "_frombuffer" and len(value.args) == 4:
        content, kind, shape, order = value.args
        found = (shape, kind, order == "F", bytes(content) if isinstance(content, bytearray) else content)
    match found:
        case (tuple() as shape, Inert(args=(str() as code, *_), state=order), bool() as is_fortran, bytes() as content):
            is_swapped = isinstance(order, tuple) and len(order) > 1 and order[1] == ">"
            return array_of(in_memory(content), f"{'>' if is_swapped else ''}{code}", shape, is_fortran=is_fortran)
    return None


def _rebuild_tensor(*args: object) -> object:
    match args:
        case (Storage() as storage, offset, shape, stride, *rest):
            return _lazy(view_of(storage, offset, shape, stride, storage.dtype), rest[2:])
    raise _bad_arguments("a tensor")


def _rebuild_tensor_v3(*args: object) -> object:
    match args:
        case (Storage() as storage, offset, shape, stride, _, _, kind, *rest) if (dtype := dtype_of(kind)) is not None:
            return _lazy(view_of(storage, offset, shape, stride, dtype), rest)
    raise _bad_arguments("a tensor")


def _lazy(tensor: Described, metadata: list[object]) -> Described:
    """Return the tensor, unless its values still have to be conjugated or negated."""
    return Described(tensor.dtype, tensor.shape, problem="a conjugated or negated view") if any(metadata) else tensor


def _rebuild_parameter(*args: object) -> object:
    """Return the tensor of a parameter; never a tuple, whose weight in the pass above would be lost."""
    return args[0] if args and isinstance(args[0], Described | Inert) else Inert.keep(args)


def _rebuild_from_type(*args: object) -> object:
    match args:
        case (type() as function, _, tuple() as inner, *_) if issubclass(function, Inert):
            return function(*inner)
    raise _bad_arguments("a tensor with attributes")


def _rebuild_quantized(*args: object) -> object:
    match args:
        case (Storage() as storage, offset, shape, stride, tuple() as quantizer, *_):
            view = view_of(storage, offset, shape, stride, storage.dtype)
            return Described(view.dtype, view.shape, view.stride, view.offset, storage, quantizer=quantizer)
    raise _bad_arguments("a quantized tensor")


def _rebuild_sparse(*args: object) -> object:
    match args:
        case (_, (*parts, shape, bool())) | (_, (*parts, shape)):
            values = next((part for part in reversed(parts) if isinstance(part, Described)), None)
            if values is not None and isinstance(shape, tuple):
                num_elements("a sparse tensor", shape)
                return Described(values.dtype, shape, problem="sparse")
    raise _bad_arguments("a sparse tensor")


def _rebuild_meta(*args: object) -> object:
    match args:
        case (kind, tuple() as shape, *_) if (dtype := dtype_of(kind)) is not None:
            num_elements("a meta tensor", shape)
            return Described(dtype, shape, problem="on the meta device, without values")
    raise _bad_arguments("a meta tensor")


def _size(*args: object) -> object:
    match args:
        case (tuple() | list() as sides,) if len(sides) <= 64 and all(type(side) is int for side in sides):
            return tuple(sides)
    return Inert.keep(args)


def _encode(*args: object) -> object:
    """Return the bytes that protocol 2 writes as text."""
    match args:
        case (str() as text, "latin1" | "latin-1"):
            return text.encode("latin-1")
    return Inert.keep(args)


def _bytearray(*args: object) -> object:
    match args:
        case (bytes() as content,):
            return content
        case (str() as text, "latin-1"):
            return text.encode("latin-1")
    return Inert.keep(args)


def _bad_arguments(what: str) -> CheckpointError:
    return CheckpointError(f"its pickle describes {what} in a way that torch.save never does")


_STORAGES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool, "ComplexDouble": torch.complex128, "ComplexFloat": torch.complex64,
    "QInt8": torch.qint8, "QUInt8": torch.quint8, "QInt32": torch.qint32,
}  # fmt: skip
_INTEGERS = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}
_ARRAYS = {
    "f2": torch.float16, "f4": torch.float32, "f8": torch.float64, "c8": torch.complex64, "c16": torch.complex128,
    "i1": torch.int8, "i2": torch.int16, "i4": torch.int32, "i8": torch.int64, "b1": torch.bool,
    "u1": torch.uint8, "u2": torch.uint16, "u4": torch.uint32, "u8": torch.uint64,
}  # fmt: skip
DTYPES: dict[str, torch.dtype] = {
    **{str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)},
    **{f"torch.{kind}Storage": dtype for kind, dtype in _STORAGES.items()},
    **{f"torch.cuda.{kind}Storage": dtype for kind, dtype in _STORAGES.items()},
    "torch.storage.UntypedStorage": torch.uint8,
}
BUILDERS: dict[str, staticmethod[..., object]] = {
    name: staticmethod(function)
    for name, function in {
        "torch._utils._rebuild_tensor": _rebuild_tensor,
        "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
        "torch._utils._rebuild_tensor_v3": _rebuild_tensor_v3,
        "torch._utils._rebuild_parameter": _rebuild_parameter,
        "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
        "torch._utils._rebuild_device_tensor_from_cpu_tensor": _rebuild_parameter,
        "torch._utils._rebuild_device_tensor_from_numpy": _rebuild_parameter,
        "torch._utils._rebuild_qtensor": _rebuild_quantized,
        "torch._utils._rebuild_sparse_tensor": _rebuild_sparse,
        "torch._utils._rebuild_meta_tensor_no_storage": _rebuild_meta,
        "torch._tensor._rebuild_from_type_v2": _rebuild_from_type,
        "torch.Size": _size,
        "_codecs.encode": _encode,
        "builtins.bytearray": _bytearray,
    }.items()
}
