"""Tensors as the pickles of ``torch.save`` describe them: the names in them, and what each stands for here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tempbalance.errors import CheckpointError
from tempbalance.stored.files import Record, num_elements, strided
from tempbalance.stored.opcodes import Builder, Opaque, PickledDict

# an expanded tensor claims more elements than the file has; small ones do no harm
_MOST_EXPANDED, _SMALL_BYTES = 16, 1 << 20
_STORAGES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool, "ComplexDouble": torch.complex128, "ComplexFloat": torch.complex64,
    "QInt8": torch.qint8, "QUInt8": torch.quint8, "QInt32": torch.qint32,
}  # fmt: skip


@dataclass(frozen=True)
class Storage:
    """The elements behind one or more tensors."""

    key: str
    dtype: torch.dtype
    num_bytes: int


@dataclass(frozen=True)
class PickledTensor:
    """A tensor as a pickle describes it; ``problem`` says why one that is not dense cannot be read."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...] = ()
    offset: int = 0
    storage: Storage | None = None
    problem: str = ""


def _view(storage: object, offset: object, shape: object, stride: object, dtype: torch.dtype) -> PickledTensor:
    """A dense tensor, checked against the storage that it is a view of."""
    count = num_elements("a tensor", shape)
    if not (isinstance(storage, Storage) and isinstance(shape, tuple) and isinstance(stride, tuple)):
        raise CheckpointError("its pickle describes a tensor without a storage")
    if len(stride) != len(shape) or not all(type(step) is int and 0 <= step < 2**62 for step in stride):
        raise CheckpointError("its pickle describes a tensor whose strides do not fit its shape")
    span = 1 + sum((side - 1) * step for side, step in zip(shape, stride, strict=True)) if count else 0
    if type(offset) is not int or offset < 0 or (offset + span) * dtype.itemsize > storage.num_bytes:
        raise CheckpointError(f"a tensor of shape {shown_shape(shape)} reaches beyond its storage")
    claimed = count * dtype.itemsize
    if claimed > _SMALL_BYTES and claimed > _MOST_EXPANDED * storage.num_bytes:
        raise CheckpointError(f"a tensor claims {claimed:,} bytes, its storage has {storage.num_bytes:,}")
    return PickledTensor(dtype, shape, stride, offset, storage)


def shown_shape(shape: tuple[int, ...]) -> str:
    """A checked shape, cut to a few sides."""
    return " x ".join(str(side) for side in shape[:8]) + (" x ..." if len(shape) > 8 else "")


def _rebuild_tensor(arguments: tuple[object, ...]) -> object:
    match arguments:
        case (Storage() as storage, offset, shape, stride, *rest):
            return _lazy(_view(storage, offset, shape, stride, storage.dtype), rest[2:])
    raise _bad_arguments("a tensor")


def _rebuild_tensor_v3(arguments: tuple[object, ...]) -> object:
    match arguments:
        case (Storage() as storage, offset, shape, stride, _, _, torch.dtype() as dtype, *rest):
            return _lazy(_view(storage, offset, shape, stride, dtype), rest)
    raise _bad_arguments("a tensor")


def _lazy(tensor: PickledTensor, metadata: list[object]) -> PickledTensor:
    """The tensor, unless its values still have to be conjugated or negated."""
    if any(metadata):
        return PickledTensor(tensor.dtype, tensor.shape, problem="a conjugated or negated view")
    return tensor


def _rebuild_parameter(arguments: tuple[object, ...]) -> object:
    match arguments:
        case (PickledTensor() as data, *_):
            return data
    raise _bad_arguments("a parameter")


def _rebuild_from_type(arguments: tuple[object, ...]) -> object:
    match arguments:
        case (Builder() as builder, _, tuple() as inner, *_):
            return builder.build(inner)
    raise _bad_arguments("a tensor with attributes")


def _rebuild_quantized(arguments: tuple[object, ...]) -> object:
    match arguments:
        case (Storage() as storage, offset, shape, stride, *_):
            view = _view(storage, offset, shape, stride, storage.dtype)
            return PickledTensor(view.dtype, view.shape, problem="quantized")
    raise _bad_arguments("a quantized tensor")


def _rebuild_sparse(arguments: tuple[object, ...]) -> object:
    match arguments:
        case (_, (*parts, shape, bool())) | (_, (*parts, shape)):
            values = next((part for part in reversed(parts) if isinstance(part, PickledTensor)), None)
            if values is not None and isinstance(shape, tuple):
                num_elements("a sparse tensor", shape)
                return PickledTensor(values.dtype, shape, problem="sparse")
    raise _bad_arguments("a sparse tensor")


def _rebuild_meta(arguments: tuple[object, ...]) -> object:
    match arguments:
        case (torch.dtype() as dtype, tuple() as shape, *_):
            num_elements("a meta tensor", shape)
            return PickledTensor(dtype, shape, problem="on the meta device, without values")
    raise _bad_arguments("a meta tensor")


def _rebuild_size(arguments: tuple[object, ...]) -> object:
    match arguments:
        case (tuple() | list() as sides,):
            return tuple(sides)
    raise _bad_arguments("a size")


def _ordered_dict(arguments: tuple[object, ...]) -> object:
    """A dictionary that starts empty, or (Python 2 wrote it so) from a list of pairs."""
    made = PickledDict()
    match arguments:
        case ():
            return made
        case (list() as pairs,):
            for pair in pairs:
                if not isinstance(pair, list | tuple) or len(pair) != 2:
                    raise _bad_arguments("an OrderedDict")
                made.put(*pair)
            return made
    raise _bad_arguments("an OrderedDict")


def _opaque(_: tuple[object, ...]) -> object:
    return Opaque()


def _bad_arguments(what: str) -> CheckpointError:
    return CheckpointError(f"its pickle describes {what} in a way that torch.save never does")


def _vocabulary() -> dict[str, object]:
    """The names that ``torch.save`` writes for a state dict, with what they stand for."""
    dtypes = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    storages = {f"torch.{kind}Storage": dtype for kind, dtype in _STORAGES.items()}
    builders: dict[str, Callable[[tuple[object, ...]], object]] = {
        "torch._utils._rebuild_tensor": _rebuild_tensor,
        "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
        "torch._utils._rebuild_tensor_v3": _rebuild_tensor_v3,
        "torch._utils._rebuild_parameter": _rebuild_parameter,
        "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
        "torch._utils._rebuild_device_tensor_from_cpu_tensor": _rebuild_parameter,
        "torch._utils._rebuild_qtensor": _rebuild_quantized,
        "torch._utils._rebuild_sparse_tensor": _rebuild_sparse,
        "torch._utils._rebuild_meta_tensor_no_storage": _rebuild_meta,
        "torch._tensor._rebuild_from_type_v2": _rebuild_from_type,
        "torch.Size": _rebuild_size,
        "collections.OrderedDict": _ordered_dict,
    }
    harmless = ("torch.device", "torch.serialization._get_layout", "collections.Counter", "_codecs.encode")
    plain = ("builtins.set", "builtins.frozenset", "builtins.bytearray", "builtins.complex", "builtins.bytes")
    constants = ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.per_tensor_affine", "torch.per_channel_affine")
    schemes = ("torch.per_tensor_symmetric", "torch.per_channel_symmetric", "torch.per_channel_affine_float_qparams")
    return {
        **dtypes,
        **storages,
        "torch.storage.UntypedStorage": torch.uint8,
        **{name: Builder(build) for name, build in builders.items()},
        **{name: Builder(_opaque) for name in harmless + plain},
        **{name: Opaque() for name in constants + schemes},
    }


VOCABULARY = _vocabulary()


def storage_of(saved_id: object) -> Storage:
    """The storage that a persistent id of ``torch.save`` stands for."""
    match saved_id:
        case ("storage", torch.dtype() as dtype, str() as key, str(), int() as count, *views) if views in ([], [None]):
            if 0 <= count < 2**60:
                return Storage(key, dtype, count * dtype.itemsize)
    raise CheckpointError("its pickle has a persistent id that is not a storage")


def load(tensor: PickledTensor, record: Record) -> Tensor:
    """Read the part of a storage that a tensor views."""
    size = tensor.dtype.itemsize
    span = 1 + sum((side - 1) * step for side, step in zip(tensor.shape, tensor.stride, strict=True))
    if 0 in tensor.shape:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    return strided(record.read(tensor.offset * size, span * size), tensor.dtype, tensor.shape, tensor.stride)
