"""Pickles, read by Python's own Unpickler with an inert stand-in for every name.

Nothing that a file names is imported or called. Before the Unpickler, a pass over the instructions bounds how many
there are, what they may refer to, and how much hashing they ask for; it refuses a key that a mapping has twice. A class
or function becomes a subclass of `Inert`, which keeps the arguments, state and items that it is given; the functions
that rebuild tensors give a `StoredTensor`.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from tempbalance.checkpoint.tensors import Storage, StoredTensor, num_elements, read_tensor, unreadable, view
from tempbalance.errors import CheckpointError, quoted

# a tensor takes 30 of them: enough for 33,000 tensors, and read in a few seconds
_MOST_INSTRUCTIONS = 1_000_000
_FEW_INSTRUCTIONS = 1000  # of the pickles around the one that describes tensors
_MOST_NAMES, _MOST_EMBEDDED = 10_000, 10_000
# Work counts every value that an instruction consumes, a tuple with all that it holds: what hashing it would cost.
# A key whose hash a file could choose (a tuple, an integer beyond 64 bits) counts a thousand: at most 20,000 collide.
_MOST_WORK, _CHOSEN_HASH = 20_000_000, 1000
_REFUSED = {"EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER"}
_KEYED = {"SETITEM", "SETITEMS", "ADDITEMS", "FROZENSET", "DICT"}
_MAPPINGS = {"SETITEM", "SETITEMS", "DICT"}
_MOST_KEPT = 200  # characters of a key
_TUPLES = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
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

StorageOf = Callable[[str, torch.dtype, int], Storage]


def read_pickle(
    file: io.BufferedIOBase,
    storage_of: StorageOf | None = None,
    *,
    most: int = _MOST_INSTRUCTIONS,
    is_embedded: bool = False,
) -> Any:
    """Read the pickle at a file's position and leave the position behind it.

    Args:
        file: The file.
        storage_of: Return the storage for a key, a dtype and a number of bytes.
        most: Largest number of instructions.
        is_embedded: Whether it is inside another pickle; it must not contain a further one.

    Raises:
        CheckpointError: If the pickle is broken, too long, or made to take memory or time.
    """
    start = file.tell()
    try:
        _bound(file, most)
        end = file.tell()
        file.seek(start)
        content = io.BytesIO(file.read(end - start))
        return _Unpickler(content, storage_of or _no_storage, is_embedded).load()
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, MemoryError, RecursionError) as err:
        raise CheckpointError(f"its pickle is broken or cut off ({type(err).__name__})") from err
    except (pickle.UnpicklingError, EOFError) as err:
        raise CheckpointError("its pickle is broken or cut off") from err


def _no_storage(*_: object) -> NoReturn:
    raise CheckpointError("its pickle refers to a storage where none belongs")


class _Weight(int):
    """How much hashing a value costs; the value, if it is text or a number; the keys of a mapping."""

    value: object = None
    keys: set[object] | None = None


def _bound(file: Any, most: int) -> None:
    """Bound the instructions and the cost of hashing the values, tracked on a stack."""
    stack: list[_Weight] = []
    marks: list[int] = []
    memo: dict[int, _Weight] = {}
    work = 0
    for count, (code, argument, _) in enumerate(pickletools.genops(file)):
        name = code.name
        if count > most:
            raise CheckpointError(f"its pickle has more than {most:,} instructions")
        if name in _REFUSED:
            raise CheckpointError(f"its pickle has the instruction {name}, which torch.save never writes")
        if name == "MARK":
            marks.append(len(stack))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            index = len(memo) if argument is None else argument
            if not 0 <= index <= _MOST_INSTRUCTIONS:
                raise CheckpointError(f"its pickle remembers a value under the number {quoted(index)}")
            memo[index] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[argument or 0])
        elif name == "DUP":
            stack.append(stack[-1])
        elif name == "POP" and marks and marks[-1] == len(stack):  # which takes the mark away
            marks.pop()
        elif not code.stack_before:
            stack += [_weight(argument) for _ in code.stack_after]
        else:
            if pickletools.markobject in code.stack_before:
                below = marks.pop()
                taken = stack[below:]
                stack[below:] = []
                under = code.stack_before.index(pickletools.markobject)
            else:
                below, taken, under = 0, [], len(code.stack_before)
            if under:
                taken = stack[-under:] + taken
                if len(stack) < under or (marks and len(stack) - under < marks[-1]):
                    raise CheckpointError("its pickle takes more from its stack than is there")
                del stack[-under:]
            total = sum(taken)
            work += total + (_chosen(name, taken, under) if name in _KEYED else 0)
            if work > _MOST_WORK:
                raise CheckpointError("its pickle nests or repeats its values beyond reason")
            made = _Weight(1 + total if name in _TUPLES else 1)
            if name in _MAPPINGS:
                made = made if name == "DICT" else taken[0]
                _add_keys(made, taken[1 if name == "SETITEM" else under :: 2])
            stack += [taken[0] if name == "BUILD" else made] * len(code.stack_after)


def _weight(argument: object) -> _Weight:
    num_bits = argument.bit_length() if isinstance(argument, int) else 0
    weight = _Weight(_CHOSEN_HASH + num_bits // 64 if num_bits > 64 else 1)
    if isinstance(argument, str | int):
        is_long = num_bits > 64 or (isinstance(argument, str) and len(argument) > _MOST_KEPT)
        weight.value = (hash(argument),) if is_long else argument
    return weight


def _chosen(name: str, taken: list[_Weight], under: int) -> int:
    """Work of keys whose hash the file could have chosen."""
    step = 1 if name in ("ADDITEMS", "FROZENSET") else 2
    first = 1 if name == "SETITEM" else under
    return _CHOSEN_HASH * sum(weight > 1 for weight in taken[first::step])


def _add_keys(mapping: _Weight, keys: list[_Weight]) -> None:
    """Note the keys of a mapping; the second of two equal ones would replace the first silently."""
    mapping.keys = mapping.keys or set()
    for key in keys:
        if key.value is not None and key.value in mapping.keys:
            shown = "of many characters" if isinstance(key.value, tuple) else quoted(key.value)
            raise CheckpointError(f"its pickle has the key {shown} twice in one mapping")
        mapping.keys.add(key.value)


class InertType(type):
    """The type of stand-ins, whose attributes no pickle can set."""

    def __setattr__(cls, name: str, value: object) -> None:
        raise CheckpointError("its pickle sets attributes of a class")


class Inert(metaclass=InertType):
    """Stand-in for an object of a pickle, which only keeps its arguments, state and items.

    Attributes:
        name: The full name of its class or function.
        dtype: The dtype that the name stands for, if it is one or a storage's.
        args: Arguments of its construction.
        state: State set by the pickle.
        items: Its items with their keys; those of a list or set with numbers.
    """

    __slots__ = ("args", "items", "state")
    name = ""
    dtype: torch.dtype | None = None
    build: Callable[..., object] | None = None
    args: tuple[object, ...]
    state: object
    items: list[tuple[object, object]]

    def __new__(cls, /, *args: object, **keywords: object) -> Any:
        """Keep the arguments, or build the description that the name stands for."""
        if cls.build is None:
            return cls.keep(args)
        if (built := cls.build(*args)) is None:
            raise CheckpointError(f"its pickle calls {cls.name} in a way that torch.save never does")
        return built

    @classmethod
    def keep(cls, args: tuple[object, ...]) -> Inert:
        """Make an object that has these arguments."""
        made = object.__new__(cls)
        made.args, made.state, made.items = args, None, []
        return made

    def __call__(self, /, *args: object, **keywords: object) -> Inert:
        """Keep the arguments of a call."""
        return Inert.keep(args)

    def __setstate__(self, state: object) -> None:
        self.state = state

    def __setitem__(self, key: object, value: object) -> None:
        self.items.append((key, value))

    def append(self, item: object) -> None:
        """Keep an item."""
        self.items.append((len(self.items), item))

    add = append

    def extend(self, items: list[object]) -> None:
        """Keep items."""
        for item in items:
            self.append(item)


class _Unpickler(pickle.Unpickler):
    """Python's Unpickler with a stand-in for every name."""

    def __init__(self, file: io.BytesIO, storage_of: StorageOf, is_embedded: bool) -> None:
        super().__init__(file, encoding="utf-8", errors="backslashreplace")
        self.storage_of = storage_of
        self.num_embedded = _MOST_EMBEDDED if is_embedded else 0
        self.names: dict[str, InertType] = {}

    def find_class(self, module: str, name: str) -> Any:
        full = f"{_RENAMED.get(module, module)}.{name}"
        if full not in self.names:
            if len(self.names) == _MOST_NAMES:
                raise CheckpointError(f"its pickle has more than {_MOST_NAMES:,} names of classes and functions")
            build = self._load_from_bytes if full == "torch.storage._load_from_bytes" else _BUILDERS.get(full)
            attributes = {
                "name": full,
                "__slots__": (),
                "dtype": _DTYPES.get(full),
                "build": build and staticmethod(build),
            }
            self.names[full] = InertType("Inert", (Inert,), attributes)
        return self.names[full]

    def persistent_load(self, saved_id: object) -> Any:
        match saved_id:
            case ("storage", kind, str() as key, str(), int() as count, *views) if views in ([], [None]):
                dtype = dtype_of(kind)
                if dtype is None or not 0 <= count < 2**60:
                    raise CheckpointError("its pickle describes a storage of no known type or length")
                return self.storage_of(key, dtype, count * dtype.itemsize)
            case ("module", type() as kind, *_):  # a class with its source, before torch 1.6
                return kind
        return Inert.keep((saved_id,))

    def _load_from_bytes(self, content: object) -> object:
        """Return the storage that ``pickle.dump`` of a tensor embeds as another file."""
        self.num_embedded += 1
        if not isinstance(content, bytes) or self.num_embedded > _MOST_EMBEDDED:
            raise CheckpointError("its pickle embeds another file where none belongs")
        return read_stream(io.BytesIO(content), most=_FEW_INSTRUCTIONS, is_embedded=True)


def read_stream(file: io.BufferedIOBase, *, most: int = _MOST_INSTRUCTIONS, is_embedded: bool = False) -> Any:
    """Read the content of a pickle, or of the format of ``torch.save`` before torch 1.6.

    The old format has consecutive pickles: a magic number, a version, sizes, the content and the keys of the storages,
    followed by the storages.

    Raises:
        CheckpointError: If it is broken, or its storages are not those that it describes.
    """
    declared: dict[str, Storage] = {}
    starts: dict[str, int] = {}

    def read_storage(key: str, start: int, count: int) -> Tensor:
        return read_tensor(file, starts[key] + start, count)

    def storage_of(key: str, dtype: torch.dtype, num_bytes: int) -> Storage:
        known = declared.setdefault(key, Storage(num_bytes, partial(read_storage, key), dtype))
        if (known.dtype, known.num_bytes) != (dtype, num_bytes):
            raise CheckpointError(f"its pickle describes storage {quoted(key)} in two ways")
        return known

    read = partial(read_pickle, file, storage_of, is_embedded=is_embedded)
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
    """Return the dtype that a stand-in is for, or the storages of which it is for; ``None`` for other names."""
    return kind.dtype if isinstance(kind, type) and issubclass(kind, Inert) else None


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *rest: Any) -> StoredTensor:
    """Describe a dense tensor; of the other arguments only the third matters, a dtype or flags, and flags behind it."""
    dtype = dtype_of(rest[2]) if len(rest) > 2 else None
    tensor = view(storage, offset, shape, stride, dtype)
    if any(rest[2:] if dtype is None else rest[3:]):
        return unreadable(tensor.shape, "a conjugated or negated view, or of an unknown dtype", tensor.dtype)
    return tensor


def _parameter(*args: object) -> object:
    """Return the tensor of a parameter; never a tuple, whose weight in the pass above would be lost."""
    return args[0] if args and isinstance(args[0], StoredTensor | Inert) else Inert.keep(args)


def _from_type(function: Any, _: object, args: Any, *__: object) -> object:
    return function(*args) if dtype_of(function) is None and issubclass(function, Inert) else None


def _quantized(storage: Any, offset: Any, shape: Any, stride: Any, quantizer: object, *_: object) -> StoredTensor:
    """Describe (integer - zero point) x scale, of the whole tensor or channel by channel."""
    held = view(storage, offset, shape, stride)
    load = _dequantizer(held, quantizer) if held.dtype != storage.dtype else None
    if load is None:
        return unreadable(held.shape, "quantized in a way that is not read")
    return replace(held, dtype=torch.float32, load=load)


def _dequantizer(held: StoredTensor, quantizer: object) -> Callable[[], Tensor] | None:
    match quantizer:
        case (_, float() as scale, int() as zero) if abs(zero) < 2**31:
            return lambda: (held.load().float() - zero) * scale
        case (_, StoredTensor() as scales, StoredTensor() as zeros, int() as axis) if 0 <= axis < len(held.shape):
            if scales.shape == zeros.shape == (held.shape[axis],) and not (scales.problem or zeros.problem):
                along = [-1 if dim == axis else 1 for dim in range(len(held.shape))]
                return lambda: (
                    (held.load().float() - zeros.load().float().view(along)) * scales.load().float().view(along)
                )
    return None


def _sparse(_: object, parts: Any) -> StoredTensor | None:
    match parts:
        case (*held, tuple() as shape, bool()) | (*held, tuple() as shape):
            num_elements("a sparse tensor", shape)
            dtypes = [part.dtype for part in held if isinstance(part, StoredTensor)]
            return unreadable(shape, "sparse", dtypes[-1]) if dtypes else None
    return None


def _meta(kind: object, shape: object, *_: object) -> StoredTensor | None:
    num_elements("a meta tensor", shape)
    dtype = dtype_of(kind)
    return unreadable(tuple(cast("Any", shape)), "on the meta device, without values", dtype) if dtype else None


def _size(*args: object) -> object:
    match args:
        case (tuple() | list() as sides,) if len(sides) <= 64 and all(type(side) is int for side in sides):
            return tuple(sides)
    return Inert.keep(args)


def _bytes(*args: object) -> object:
    """Return the bytes of a bytearray, or those that protocol 2 writes as text."""
    match args:
        case (bytes() as content,):
            return content
        case (str() as text, "latin1" | "latin-1"):
            return text.encode("latin-1")
    return Inert.keep(args)


_TORCH: dict[str, Callable[..., object]] = {
    "_utils._rebuild_tensor": _tensor,
    "_utils._rebuild_tensor_v2": _tensor,
    "_utils._rebuild_tensor_v3": _tensor,
    "_utils._rebuild_parameter": _parameter,
    "_utils._rebuild_parameter_with_state": _parameter,
    "_utils._rebuild_device_tensor_from_cpu_tensor": _parameter,
    "_utils._rebuild_device_tensor_from_numpy": _parameter,
    "_utils._rebuild_qtensor": _quantized,
    "_utils._rebuild_sparse_tensor": _sparse,
    "_utils._rebuild_meta_tensor_no_storage": _meta,
    "_tensor._rebuild_from_type_v2": _from_type,
    "Size": _size,
}
_BUILDERS: dict[str, Callable[..., object]] = {
    **{f"torch.{name}": function for name, function in _TORCH.items()},
    "_codecs.encode": _bytes,
    "builtins.bytearray": _bytes,
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
        found = value.state[1:]
    elif module.startswith("numpy") and function == "_frombuffer" and len(value.args) == 4:
        content, kind, shape, order = value.args
        found = (shape, kind, order == "F", bytes(content) if isinstance(content, bytearray) else content)
    match found:
        case (tuple() as shape, Inert(args=(str() as code, *_), state=order), bool() as is_fortran, bytes() as content):
            is_swapped = isinstance(order, tuple) and len(order) > 1 and order[1] == ">"
            data = Storage(len(content), partial(read_tensor, io.BytesIO(content)))
            return array(data, f"{'>' if is_swapped else ''}{code}", shape, is_fortran=is_fortran)
    return None
