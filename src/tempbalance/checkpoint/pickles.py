"""Pickles, read by Python's own Unpickler without its calls.

The instructions that import, call, set attributes or hash are replaced: a name, and every call of one, becomes an
`Inert`, which keeps the arguments, state and items that it is given; the functions that rebuild tensors give a
`StoredTensor`. Keys of mappings are text or small integers, and objects by identity: a tuple or a large integer could
be made to take for ever to hash. The number of instructions and bytes is bounded.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tempbalance.checkpoint.tensors import (
    MOST_PICKLE_BYTES,
    Section,
    Storage,
    StoredTensor,
    num_elements,
    unreadable,
    view,
)
from tempbalance.errors import CheckpointError, quoted

# a tensor takes 30 of them: enough for 33,000 tensors, and read in a few seconds
_MOST_INSTRUCTIONS = 1_000_000
_FEW_INSTRUCTIONS = 1000  # of the pickles around the one that describes tensors
_MOST_EMBEDDED, _MOST_DIGITS, _MOST_NAME, _MOST_ARGS = 10_000, 1000, 1000, 16
_RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_STORAGES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool, "ComplexDouble": torch.complex128, "ComplexFloat": torch.complex64,
    "QInt8": torch.qint8, "QUInt8": torch.quint8, "QInt32": torch.qint32,
}  # fmt: skip
_ARRAYS = {
    "f2": torch.float16, "f4": torch.float32, "f8": torch.float64, "c8": torch.complex64, "c16": torch.complex128,
    "i1": torch.int8, "i2": torch.int16, "i4": torch.int32, "i8": torch.int64, "b1": torch.bool,
    "u1": torch.uint8, "u2": torch.uint16, "u4": torch.uint32, "u8": torch.uint64,
}  # fmt: skip
_DTYPES: dict[str, torch.dtype] = {
    **{str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)},
    **{f"torch.{place}{kind}Storage": dtype for kind, dtype in _STORAGES.items() for place in ("", "cuda.")},
    "torch.storage.UntypedStorage": torch.uint8,
}

_BROKEN = (pickle.UnpicklingError, EOFError, struct.error, ValueError, LookupError, TypeError, AttributeError,
           OverflowError, MemoryError, RecursionError)  # fmt: skip

StorageOf = Callable[[str, torch.dtype, int], Storage]


@dataclass(eq=False, slots=True)
class Inert:
    """A class or function that a pickle names, or an object made by calling it.

    Attributes:
        name: The full name.
        args: Arguments of the call.
        state: State set by the pickle.
        items: Its items with their keys; those of a list or set with numbers.
    """

    name: str
    args: tuple[object, ...] = ()
    state: object = None
    items: dict[object, object] = field(default_factory=dict)

    def append(self, item: object) -> None:
        """Keep an item of a list or set."""
        _set_item(self.items, len(self.items), item)


def _set_item(items: dict[object, object], key: object, value: object) -> None:
    """Set an item whose key must be new; the second of two equal keys would replace the first silently."""
    is_plain = type(key) is str or (type(key) is int and key.bit_length() < 64) or isinstance(key, Inert)
    key = key if is_plain else Inert("key", (key,))
    if key in items:
        raise CheckpointError(f"its pickle has the key {quoted(key)} twice in one mapping")
    items[key] = value


class _Instructions(dict[int, Callable[[Any], None]]):
    """What the Unpickler does at each instruction, up to a number of instructions."""

    def __init__(self, known: dict[int, Callable[[Any], None]], most: int) -> None:
        super().__init__(known)
        self.left = most

    def __getitem__(self, code: int) -> Callable[[Any], None]:
        self.left -= 1
        if self.left < 0:
            raise CheckpointError("its pickle has more instructions than tensors could need")
        if code in self:
            return super().__getitem__(code)
        for each in pickletools.opcodes:
            if each.code == chr(code):
                raise CheckpointError(f"its pickle has the instruction {each.name}, which torch.save never writes")
        raise ValueError(f"no instruction {code}")


class _Unpickler(pickle._Unpickler):  # the form in Python, whose instructions can be replaced
    stack: list[Any]
    memo: dict[int, Any]
    readline: Callable[[], bytes]
    append: Callable[[object], None]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, file: Any, storage_of: StorageOf | None, most: int, outer: _Unpickler | None) -> None:
        super().__init__(file, encoding="utf-8", errors="backslashreplace")
        self.storage_of = storage_of
        self.num_embedded, self.num_bytes = (_MOST_EMBEDDED if outer else 0), 0
        self.instructions = self.dispatch = _Instructions(_INSTRUCTIONS, most)  # type: ignore[misc]

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
                if self.storage_of is None:
                    raise CheckpointError("its pickle refers to a storage where none belongs")
                return self.storage_of(key, dtype, count * dtype.itemsize)
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
            self.num_embedded += 1
            if self.num_embedded > _MOST_EMBEDDED or not isinstance(args[0], bytes):
                raise CheckpointError("its pickle embeds another file where none belongs")
            self.count_bytes(args[0])
            return read_stream(io.BytesIO(args[0]), most=_FEW_INSTRUCTIONS, outer=self)
        if function.name == "_codecs.encode" and isinstance(args[0], str):  # as protocol 2 writes bytes
            self.count_bytes(args[0])
            return args[0].encode("latin-1")
        build = _BUILDERS.get(function.name)
        if build is None:
            return Inert(function.name, args)
        if len(args) > _MOST_ARGS or (built := build(*args)) is None:
            raise CheckpointError(f"its pickle calls {quoted(function.name)} in a way that torch.save never does")
        return built

    def count_bytes(self, content: bytes | str) -> None:
        """Count what a call copies: one value can be the argument of many calls."""
        self.num_bytes += len(content)
        if self.num_bytes > MOST_PICKLE_BYTES:
            raise CheckpointError("its pickle repeats its values beyond reason")

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

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_items([key, value])

    def load_setitems(self) -> None:
        self._set_items(self.pop_mark())

    def load_dict(self) -> None:
        pairs = self.pop_mark()
        self.append({})
        self._set_items(pairs)

    def _set_items(self, pairs: list[object]) -> None:
        target = self.stack[-1]
        items = target.items if isinstance(target, Inert) else target
        if type(items) is not dict:
            raise CheckpointError(f"its pickle sets items of a {type(items).__name__}")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            _set_item(items, key, value)


_INSTRUCTIONS: dict[int, Callable[[Any], None]] = {
    **pickle._Unpickler.dispatch,
    **{code[0]: getattr(_Unpickler, name) for code, name in {
        pickle.PUT: "load_put", pickle.REDUCE: "load_reduce", pickle.NEWOBJ: "load_reduce",
        pickle.NEWOBJ_EX: "load_newobj_ex", pickle.BUILD: "load_build",
        pickle.SETITEM: "load_setitem", pickle.SETITEMS: "load_setitems",
        pickle.DICT: "load_dict", pickle.EMPTY_SET: "load_empty_list", pickle.ADDITEMS: "load_appends",
        pickle.FROZENSET: "load_list", pickle.BYTEARRAY8: "load_binbytes8",
    }.items()},
}  # fmt: skip
for _code in (pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER):
    del _INSTRUCTIONS[_code[0]]  # which torch.save never writes


class _Window:
    """The next bytes of a file, as many as a pickle may have."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self.file, self.left = file, MOST_PICKLE_BYTES

    def read(self, count: int) -> bytes:
        data = self.file.read(min(count, self.left))
        self.left -= len(data)
        return data

    def readline(self) -> bytes:
        line = self.file.readline(self.left)
        self.left -= len(line)
        if len(line) > _MOST_DIGITS and line.strip(b"-L\n").isdigit():
            raise CheckpointError("its pickle has a number of more than a thousand digits")
        return line


def read_pickle(
    file: io.BufferedIOBase,
    storage_of: StorageOf | None = None,
    *,
    most: int = _MOST_INSTRUCTIONS,
    outer: _Unpickler | None = None,
) -> Any:
    """Read the pickle at a file's position and leave the position behind it.

    Args:
        file: The file.
        storage_of: Return the storage for a key, a dtype and a number of bytes.
        most: Largest number of instructions.
        outer: What reads the pickle around it, whose instructions it uses up; it must not contain a further one.
    """
    reader = _Unpickler(_Window(file), storage_of, most, outer)
    try:
        return reader.load()
    except _BROKEN as err:
        raise CheckpointError(f"its pickle is broken or cut off ({type(err).__name__})") from err
    finally:
        if outer is not None:
            outer.instructions.left -= most - reader.instructions.left


def read_stream(file: Section | io.BytesIO, *, most: int = _MOST_INSTRUCTIONS, outer: _Unpickler | None = None) -> Any:
    """Read the content of a pickle, or of the format of ``torch.save`` before torch 1.6.

    The old format has consecutive pickles: a magic number, a version, sizes, the content and the keys of the storages,
    followed by the storages.
    """
    declared: dict[str, Storage] = {}
    starts: dict[str, int] = {}
    read_bytes = file.tensor if isinstance(file, Section) else Storage.of(file.getvalue()).read

    def storage_of(key: str, dtype: torch.dtype, num_bytes: int) -> Storage:
        made = Storage(num_bytes, lambda start, count: read_bytes(starts[key] + start, count), dtype)
        known = declared.setdefault(key, made)
        if (known.dtype, known.num_bytes) != (dtype, num_bytes):
            raise CheckpointError(f"its pickle describes storage {quoted(key)} in two ways")
        return known

    read = partial(read_pickle, file, storage_of, outer=outer)
    first = read(most=most)
    if first != _MAGIC:
        return first
    if read(most=_FEW_INSTRUCTIONS) != _PROTOCOL:
        raise CheckpointError("it is a file of torch.save, of a version that is not known")
    read(most=_FEW_INSTRUCTIONS)  # sizes of C types, of no use
    top, keys = read(most=most), read(most=_FEW_INSTRUCTIONS + 3 * len(declared))
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or set(keys) != set(declared):
        raise CheckpointError("its storages are not those that its pickle describes")
    position = file.tell()
    size = file.seek(0, io.SEEK_END)
    for key in keys:
        file.seek(position)
        count, num_bytes = int.from_bytes(file.read(8), "little"), declared[key].num_bytes
        if count * declared[key].dtype.itemsize != num_bytes or key in starts:
            raise CheckpointError("its storages are not those that its pickle describes")
        starts[key] = position + 8
        position += 8 + num_bytes
    if position > size:
        raise CheckpointError(f"its storages are cut off: they take {position:,} bytes, the file has {size:,}")
    return top


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
    load: Callable[[], Tensor] | None = None
    match quantizer if held.dtype != storage.dtype else None:
        case (_, float() as scale, int() as zero) if abs(zero) < 2**31:
            load = lambda: (held.load().float() - zero) * scale  # noqa: E731
        case (_, StoredTensor() as scales, StoredTensor() as zeros, int() as axis) if 0 <= axis < len(held.shape):
            along = [-1 if dim == axis else 1 for dim in range(len(held.shape))]
            if scales.shape == zeros.shape == (held.shape[axis],) and not (scales.problem or zeros.problem):

                def load() -> Tensor:
                    zero, scale = (part.load().float().view(along) for part in (zeros, scales))
                    return (held.load().float() - zero) * scale

    if load is None:
        return unreadable(held.shape, "quantized in a way that is not read")
    return replace(held, dtype=torch.float32, load=load)


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


# arrays of NumPy


def array(data: Storage, kind: str, shape: tuple[int, ...], *, is_fortran: bool) -> StoredTensor:
    """Describe a NumPy array; if torch lacks its dtype, that is the problem of the tensor."""
    count = num_elements("an array", shape)
    dtype = _ARRAYS.get(kind.lstrip("<|="))
    if dtype is None:
        return unreadable(shape, f"an array of type {quoted(kind)}")
    if count * dtype.itemsize != data.num_bytes:
        raise CheckpointError(f"an array should have {count * dtype.itemsize:,} bytes, it has {data.num_bytes:,}")
    sides = shape if is_fortran else shape[::-1]
    steps = [math.prod(max(side, 1) for side in sides[:index]) for index in range(len(sides))]
    return view(data, 0, shape, steps if is_fortran else steps[::-1], dtype)


def numpy_array(value: Inert) -> StoredTensor | None:
    """Describe a NumPy array in a pickle; ``None`` for any other object."""
    module, _, function = value.name.rpartition(".")
    found: object = None
    if module.startswith("numpy") and function == "_reconstruct" and isinstance(value.state, tuple):
        found = value.state[1:] if len(value.state) == 5 else None
    elif module.startswith("numpy") and function == "_frombuffer" and len(value.args) == 4:
        content, kind, shape, order = value.args
        found = (shape, kind, order == "F", content)
    match found:
        case (tuple() as shape, Inert(args=(str() as code, *_), state=order), bool() as is_fortran, bytes() as content):
            is_swapped = isinstance(order, tuple) and len(order) > 1 and order[1] == ">"
            found = array(Storage.of(content), f"{'>' if is_swapped else ''}{code}", shape, is_fortran=is_fortran)
            return replace(found, tie=("array", id(value)))  # one array under several names
    return None
