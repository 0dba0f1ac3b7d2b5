"""Pickles, read by Python's own Unpickler without its calls.

The instructions that import, call, set attributes or hash are replaced: a name, and every call of one, becomes an
`Inert`, which keeps the arguments, state and items that it is given; the functions that rebuild tensors give a
`StoredTensor`. Keys of mappings are text or small integers, and objects by identity: a tuple or a large integer could
be made to take for ever to hash. The instructions and bytes of a file are counted, over all its pickles.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tempbalance.checkpoint.tensors import (
    MOST_PICKLE_BYTES,
    File,
    Storage,
    StoredTensor,
    num_elements,
    unreadable,
    view,
)
from tempbalance.errors import CheckpointError, quoted

# a tensor takes 30 of them: enough for 33,000 tensors, and read in a few seconds
_MOST_INSTRUCTIONS = 1_000_000
_EMBEDDED_COST = 100  # instructions that another file inside a pickle counts for, beside its own
_MOST_NAME, _MOST_ARGS = 1000, 16
_RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_DTYPES: dict[str, torch.dtype] = {
    **{str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)},
    **{f"torch.{place}{kind}": dtype for kind, dtype in torch.storage._storage_type_to_dtype_map().items()
       for place in ("", "cuda.")},
    "torch.storage.UntypedStorage": torch.uint8,
}  # fmt: skip
_BROKEN = (pickle.UnpicklingError, EOFError, struct.error, ValueError, LookupError, TypeError, AttributeError,
           OverflowError, MemoryError, RecursionError)  # fmt: skip

StorageOf = Callable[[str, torch.dtype, int], Storage]


class Items(dict[object, object]):
    """A mapping of a pickle, whose keys must be new: the second of two equal keys would replace the first silently."""

    def __setitem__(self, key: object, value: object) -> None:
        is_plain = type(key) is str or (type(key) is int and key.bit_length() < 64) or isinstance(key, Inert)
        key = key if is_plain else Inert("key", (key,))
        if key in self:
            raise CheckpointError(f"its pickle has the key {quoted(key)} twice in one mapping")
        super().__setitem__(key, value)


@dataclass(eq=False, slots=True)
class Inert:
    """A class or function that a pickle names by its full name, or an object made by calling it with arguments."""

    name: str
    args: tuple[object, ...] = ()
    state: object = None
    items: Items = field(default_factory=Items)  # those of a list or set by number

    def append(self, item: object) -> None:
        self.items[len(self.items)] = item

    def __setitem__(self, key: object, value: object) -> None:
        self.items[key] = value


class _Budget(dict[int, Callable[[Any], None]]):
    """The instructions of the Unpickler, and how many of them and how many bytes a file may still use."""

    num_instructions, num_bytes = _MOST_INSTRUCTIONS, 2 * MOST_PICKLE_BYTES  # read, and copied by calls

    def __getitem__(self, code: int) -> Callable[[Any], None]:
        self.spend(num_instructions=1)
        if code in self:
            return super().__getitem__(code)
        names = [each.name for each in pickletools.opcodes if each.code == chr(code)]
        if not names:
            raise CheckpointError(f"its pickle is broken or cut off: {code} is no instruction")
        raise CheckpointError(f"its pickle has the instruction {names[0]}, which torch.save never writes")

    def spend(self, *, num_instructions: int = 0, num_bytes: int = 0) -> None:
        self.num_instructions -= num_instructions
        self.num_bytes -= num_bytes
        if self.num_instructions < 0 or self.num_bytes < 0:
            raise CheckpointError("its pickle has more instructions or bytes than tensors could need")


class _Unpickler(pickle._Unpickler):  # the form in Python, whose instructions can be replaced
    stack: list[Any]
    memo: dict[int, Any]
    readline: Callable[[], bytes]
    append: Callable[[object], None]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, stream: _Stream) -> None:
        super().__init__(stream, encoding="utf-8", errors="backslashreplace")
        self.stream = stream
        self.dispatch = stream.budget  # type: ignore[misc]

    def find_class(self, module: str, name: str) -> Any:
        if len(module) + len(name) > _MOST_NAME:
            raise CheckpointError(f"its pickle has the name of a class with more than {_MOST_NAME} characters")
        return Inert(f"{_RENAMED.get(module, module)}.{name}")

    def persistent_load(self, pid: object) -> Any:
        if isinstance(pid, tuple | list) and len(pid) > _MOST_ARGS:
            raise CheckpointError(f"its pickle describes a storage by {len(pid):,} values")
        match pid:
            case ("storage", Inert() as kind, str() as key, str(), int() as count, *views) if views in ([], [None]):
                dtype = dtype_of(kind)
                if dtype is None or not 0 <= count < 2**60:
                    raise CheckpointError("its pickle describes a storage of no known type or length")
                return self.stream.storage_of(key, dtype, count * dtype.itemsize)
            case ("module", Inert() as kind, *_):  # a class with its source, before torch 1.6
                return kind
        return Inert("persistent", (pid,))

    def call(self, function: Any, args: Any) -> object:
        """Return what stands for the result of a call."""
        if not isinstance(function, Inert) or not isinstance(args, tuple):
            raise CheckpointError(f"its pickle calls a {type(function).__name__}")
        if function.name == "torch._tensor._rebuild_from_type_v2":
            return self.call(args[0], args[2])
        if function.name == "torch.storage._load_from_bytes":  # pickle.dump of a tensor embeds another file
            if self.stream.is_embedded or not isinstance(args[0], bytes):
                raise CheckpointError("its pickle embeds another file where none belongs")
            self.stream.budget.spend(num_instructions=_EMBEDDED_COST, num_bytes=len(args[0]))
            return _Stream(args[0], self.stream.budget, is_embedded=True).content()
        if function.name == "_codecs.encode" and isinstance(args[0], str):  # as protocol 2 writes bytes
            self.stream.budget.spend(num_bytes=len(args[0]))
            return args[0].encode("latin-1")
        build = _BUILDERS.get(function.name)
        if build is None:
            return Inert(function.name, args)
        if len(args) > _MOST_ARGS or (built := build(*args)) is None:
            raise CheckpointError(f"its pickle calls {quoted(function.name)} in a way that torch.save never does")
        return built

    def load_put(self) -> None:
        index = int(self.readline())
        if not 0 <= index < _MOST_INSTRUCTIONS:  # indices of one hash would make the memo slow
            raise CheckpointError(f"its pickle numbers a value {quoted(index)}")
        self.memo[index] = self.stack[-1]

    def _instantiate(self, klass: object, args: list[object]) -> None:
        self.append(self.call(klass, tuple(args)))

    def load_reduce(self) -> None:
        args, function = self.stack.pop(), self.stack.pop()
        self.append(self.call(function, args))

    def load_newobj_ex(self) -> None:
        self.stack.pop()  # keyword arguments
        self.load_reduce()

    def load_build(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if not isinstance(made, Inert):
            raise CheckpointError(f"its pickle sets the state of a {type(made).__name__}, which torch.save never does")
        made.state = state

    def load_empty_dictionary(self) -> None:
        self.append(Items())

    def load_dict(self) -> None:
        pairs = self.pop_mark()
        self.append(Items())
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            self.stack[-1][key] = value


_REPLACED = {
    pickle.PUT: "load_put", pickle.REDUCE: "load_reduce", pickle.NEWOBJ: "load_reduce",
    pickle.NEWOBJ_EX: "load_newobj_ex", pickle.BUILD: "load_build", pickle.EMPTY_DICT: "load_empty_dictionary",
    pickle.DICT: "load_dict", pickle.EMPTY_SET: "load_empty_list", pickle.ADDITEMS: "load_appends",
    pickle.FROZENSET: "load_list", pickle.BYTEARRAY8: "load_binbytes8",
}  # fmt: skip
_REFUSED = [code[0] for code in (pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER)]
_INSTRUCTIONS: dict[int, Callable[[Any], None]] = {
    **{code: each for code, each in pickle._Unpickler.dispatch.items() if code not in _REFUSED},
    **{code[0]: getattr(_Unpickler, name) for code, name in _REPLACED.items()},
}


class _Stream:
    """A file of one pickle, or of several and storages behind them, as ``torch.save`` wrote before torch 1.6."""

    def __init__(
        self,
        source: File | bytes,
        budget: _Budget,
        *,
        storage_of: StorageOf | None = None,
        is_embedded: bool = False,
    ) -> None:
        self.file: Any = io.BufferedReader(source, 1 << 16) if isinstance(source, File) else io.BytesIO(source)
        self.read_bytes = source.tensor if isinstance(source, File) else Storage.of(source).read
        self.budget, self.storage_of, self.is_embedded = budget, storage_of or self._declare, is_embedded
        self.starts: dict[str, int] = {}
        self.storages: dict[str, Storage] = {}

    def read(self, count: int) -> bytes:
        data: bytes = self.file.read(min(count, self.budget.num_bytes))
        self.budget.spend(num_bytes=len(data))
        return data

    def readline(self) -> bytes:
        line: bytes = self.file.readline(self.budget.num_bytes)
        self.budget.spend(num_bytes=len(line))
        return line

    def pickled(self) -> Any:
        """Read the pickle at the file's position and leave the position behind it."""
        try:
            return _Unpickler(self).load()
        except _BROKEN as err:
            raise CheckpointError(f"its pickle is broken or cut off ({type(err).__name__})") from err

    def _declare(self, key: str, dtype: torch.dtype, num_bytes: int) -> Storage:
        made = Storage(num_bytes, lambda start, count: self.read_bytes(self.starts[key] + start, count), dtype)
        known = self.storages.setdefault(key, made)
        if (known.dtype, known.num_bytes) != (dtype, num_bytes):
            raise CheckpointError(f"its pickle describes storage {quoted(key)} in two ways")
        return known

    def content(self) -> Any:
        """Read a magic number, a version, sizes, the content, the keys of storages and the storages; or one pickle."""
        top = self.pickled()
        if top != _MAGIC:
            return top
        version, _, top, keys = (self.pickled() for _ in range(4))
        if version != _PROTOCOL:
            raise CheckpointError("it is a file of torch.save, of a version that is not known")
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise CheckpointError("its storages are not those that its pickle describes")
        position = self.file.tell()
        for key in keys:
            self.file.seek(position)
            held, count = self.storages.get(key), int.from_bytes(self.file.read(8), "little")
            if held is None or count * held.dtype.itemsize != held.num_bytes or key in self.starts:
                raise CheckpointError("its storages are not those that its pickle describes")
            self.starts[key] = position + 8
            position += 8 + held.num_bytes
        size = self.file.seek(0, io.SEEK_END)
        if self.starts.keys() != self.storages.keys() or position > size:
            raise CheckpointError(f"its storages are cut off: they take {position:,} bytes, the file has {size:,}")
        return top


def read_stream(file: File) -> Any:
    """Read the content of a pickle, or of the format of ``torch.save`` before torch 1.6."""
    return _Stream(file, _Budget(_INSTRUCTIONS)).content()


def read_pickle(content: bytes, storage_of: StorageOf) -> Any:
    """Read a pickle whose storages are elsewhere."""
    return _Stream(content, _Budget(_INSTRUCTIONS), storage_of=storage_of).pickled()


# tensors as a pickle describes them


def dtype_of(kind: object) -> torch.dtype | None:
    """Return the dtype that a name stands for, or that of the storages it stands for; ``None`` for other names."""
    return _DTYPES.get(kind.name) if isinstance(kind, Inert) else None


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *rest: Any) -> StoredTensor:
    """Describe a dense tensor; of the other arguments only the third matters, a dtype or flags, and flags behind it."""
    dtype = dtype_of(rest[2]) if len(rest) > 2 else None
    tensor = view(storage, offset, shape, stride, dtype)
    if any(rest[2:] if dtype is None else rest[3:]):
        return unreadable(tensor.shape, "a conjugated or negated view, or of an unknown dtype", tensor.dtype)
    return tensor


def _quantized(storage: Any, offset: Any, shape: Any, stride: Any, quantizer: object, *_: object) -> StoredTensor:
    """Describe (integer - zero point) x scale, of the whole tensor or channel by channel."""
    held = view(storage, offset, shape, stride)
    parts: list[Callable[[], Tensor]] = []
    match quantizer if held.dtype != storage.dtype else None:
        case (_, float() as scale, int() as zero) if abs(zero) < 2**31:
            parts = [lambda: torch.tensor(float(zero)), lambda: torch.tensor(scale)]
        case (_, StoredTensor() as scales, StoredTensor() as zeros, int() as axis) if 0 <= axis < len(held.shape):
            if scales.shape == zeros.shape == (held.shape[axis],) and not (scales.problem or zeros.problem):
                along = [-1 if dim == axis else 1 for dim in range(len(held.shape))]
                parts = [lambda: zeros.load().float().view(along), lambda: scales.load().float().view(along)]
    if not parts:
        return unreadable(held.shape, "quantized in a way that is not read")
    return replace(held, dtype=torch.float32, load=lambda: (held.load().float() - parts[0]()) * parts[1]())


def _sparse(_: object, parts: Any) -> StoredTensor | None:
    match parts if isinstance(parts, tuple) and len(parts) <= _MOST_ARGS else None:
        case (*held, tuple() as shape, bool()) | (*held, tuple() as shape):
            num_elements("a sparse tensor", shape)
            dtypes = [part.dtype for part in held if isinstance(part, StoredTensor)]
            return unreadable(shape, "sparse", dtypes[-1]) if dtypes else None
    return None


def _meta(kind: object, shape: Any, *_: object) -> StoredTensor | None:
    num_elements("a meta tensor", shape)
    dtype = dtype_of(kind)
    return unreadable(shape, "on the meta device, without values", dtype) if dtype else None


def _size(*args: object) -> object:
    match args:
        case (tuple() | list() as sides,) if len(sides) <= 64:
            return tuple(sides)
    return Inert("torch.Size", args)


def _first(value: object = b"", *_: object) -> object:
    return value


_BUILDERS: dict[str, Callable[..., object]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _first,
    "torch._utils._rebuild_device_tensor_from_numpy": _first,
    "torch._utils._rebuild_qtensor": _quantized,
    "torch._utils._rebuild_sparse_tensor": _sparse,
    "torch._utils._rebuild_meta_tensor_no_storage": _meta,
    "torch.Size": _size,
    "builtins.bytearray": _first,
}


def array(data: Storage, kind: str, shape: tuple[int, ...], *, is_fortran: bool) -> StoredTensor:
    """Describe a NumPy array; if torch lacks its dtype, that is the problem of the tensor."""
    count = num_elements("an array", shape)
    try:
        dtype = torch.from_numpy(np.empty(0, np.dtype(kind[:4]))).dtype
    except (TypeError, ValueError):  # another byte order, text, objects
        return unreadable(shape, f"an array of type {quoted(kind)}")
    if count * dtype.itemsize != data.num_bytes:
        raise CheckpointError(f"an array should have {count * dtype.itemsize:,} bytes, it has {data.num_bytes:,}")
    sides = shape if is_fortran else shape[::-1]
    steps = [math.prod(max(side, 1) for side in sides[:index]) for index in range(len(sides))]
    return view(data, 0, shape, steps if is_fortran else steps[::-1], dtype)


def numpy_array(value: Inert) -> StoredTensor | None:
    """Describe a NumPy array in a pickle; ``None`` for any other object."""
    found: object = None
    if value.name.startswith("numpy") and value.name.endswith("._reconstruct") and isinstance(value.state, tuple):
        found = value.state[1:]
    elif value.name.startswith("numpy") and value.name.endswith("._frombuffer") and len(value.args) == 4:
        content, kind, shape, order = value.args
        found = (shape, kind, order == "F", content)
    match found:
        case (tuple() as shape, Inert(args=(str() as code, *_), state=order), bool() as is_fortran, bytes() as content):
            is_swapped = isinstance(order, tuple) and len(order) > 1 and order[1] == ">"
            found = array(Storage.of(content), f"{'>' if is_swapped else ''}{code}", shape, is_fortran=is_fortran)
            return replace(found, tie=("array", id(value)))  # one array under several names
    return None
