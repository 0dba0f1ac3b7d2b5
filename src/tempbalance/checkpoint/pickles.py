"""Pickles, read by Python's own Unpickler with an inert stand-in for every name.

Nothing that a file names is imported or called. Before the Unpickler, a pass over the instructions bounds how many
there are, what they may refer to, and how much hashing they ask for.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from torch import Tensor

from tempbalance.checkpoint.contents import find_weights
from tempbalance.checkpoint.described import BUILDERS, DTYPES, Described, Inert, InertType, Storage, dtype_of, stored
from tempbalance.checkpoint.files import MOST_PICKLE_BYTES, Bounded, Opener, Record, plain_record, shown
from tempbalance.checkpoint.tensors import Weights
from tempbalance.errors import CheckpointError

# a tensor takes 30 of them: enough for 33,000 tensors, and read in a few seconds
_MOST_INSTRUCTIONS = 1_000_000
_FEW_INSTRUCTIONS = 1000  # of the pickles around the one that describes tensors
_MOST_NAMES = 10_000
_MOST_EMBEDDED = 10_000
# Work counts every value that an instruction consumes, a tuple with all that it holds: what hashing it would cost.
# A key whose hash a file could choose (a tuple, an integer beyond 64 bits) counts a thousand: at most 20,000 collide.
_MOST_WORK, _CHOSEN_HASH = 20_000_000, 1000
_REFUSED = {"EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER"}
_KEYED = {"SETITEM", "SETITEMS", "ADDITEMS", "FROZENSET", "DICT"}
_TUPLES = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
_RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


def read_pickle(
    file: io.BufferedIOBase,
    storage_of: Callable[[Storage], Storage] | None = None,
    *,
    most: int = _MOST_INSTRUCTIONS,
    is_embedded: bool = False,
) -> Any:
    """Read the pickle at a file's position and leave the position behind it.

    Args:
        file: The bytes; no more are asked of it than it has.
        storage_of: Checks a storage that the pickle refers to, and returns it.
        most: The number of instructions at which it is enough.
        is_embedded: Whether it stands in another pickle, and may hold no further one.

    Raises:
        CheckpointError: If the pickle is broken, too long, or made to take memory or time.
    """
    start = file.tell()
    try:
        _bound(file, most)
        end = file.tell()
        file.seek(start)
        content = io.BytesIO(file.read(end - start))
        value = _Unpickler(content, storage_of or _no_storage, is_embedded).load()
        file.seek(end)
        return value
    except CheckpointError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, MemoryError, RecursionError) as err:
        raise CheckpointError(f"its pickle is broken or cut off ({type(err).__name__})") from err
    except (pickle.UnpicklingError, EOFError) as err:
        raise CheckpointError("its pickle is broken or cut off") from err


def _no_storage(_: Storage) -> NoReturn:
    raise CheckpointError("its pickle refers to a storage where none belongs")


def _bound(file: Any, most: int) -> None:
    """Pass over the instructions with a stack of weights: how much hashing each value would cost."""
    stack: list[int] = []
    marks: list[int] = []
    memo: dict[int, int] = {}
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
                raise CheckpointError(f"its pickle remembers a value under the number {shown(index)}")
            memo[index] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[argument or 0])
        elif name == "DUP":
            stack.append(stack[-1])
        elif name == "POP" and marks and marks[-1] == len(stack):  # which takes the mark away
            marks.pop()
        elif not code.stack_before:
            stack += [_weight(argument)] * len(code.stack_after)
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
            stack += [1 + total if name in _TUPLES else 1] * len(code.stack_after)


def _weight(argument: object) -> int:
    is_long = isinstance(argument, int) and argument.bit_length() > 64
    return _CHOSEN_HASH + argument.bit_length() // 64 if is_long and isinstance(argument, int) else 1


def _chosen(name: str, taken: list[int], under: int) -> int:
    """Work of keys whose hash the file could have chosen."""
    step = 1 if name in ("ADDITEMS", "FROZENSET") else 2
    first = 1 if name == "SETITEM" else under
    return _CHOSEN_HASH * sum(weight > 1 for weight in taken[first::step])


class _Unpickler(pickle.Unpickler):
    """Python's, with a stand-in for every name."""

    def __init__(self, file: io.BytesIO, storage_of: Callable[[Storage], Storage], is_embedded: bool) -> None:
        super().__init__(file, encoding="utf-8", errors="backslashreplace")
        self.storage_of = storage_of
        self.num_embedded = _MOST_EMBEDDED if is_embedded else 0
        self.names: dict[str, InertType] = {}

    def find_class(self, module: str, name: str) -> Any:
        full = f"{_RENAMED.get(module, module)}.{name}"
        if full not in self.names:
            if len(self.names) == _MOST_NAMES:
                raise CheckpointError(f"its pickle has more than {_MOST_NAMES:,} names of classes and functions")
            build: Any = BUILDERS.get(full)
            if full == "torch.storage._load_from_bytes":
                build = staticmethod(self._load_from_bytes)
            attributes = {"name": full, "__slots__": (), "dtype": DTYPES.get(full), "build": build}
            self.names[full] = InertType("Inert", (Inert,), attributes)
        return self.names[full]

    def persistent_load(self, saved_id: object) -> Any:
        match saved_id:
            case ("storage", kind, str() as key, str(), int() as count, *views) if views in ([], [None]):
                dtype = dtype_of(kind)
                if dtype is None or not 0 <= count < 2**60:
                    raise CheckpointError("its pickle describes a storage of no known type or length")
                return self.storage_of(Storage(key, dtype, count * dtype.itemsize))
            case ("module", type() as kind, *_):  # a class with its source, before torch 1.6
                return kind
        return Inert.keep((saved_id,))

    def _load_from_bytes(self, *args: object) -> object:
        """Return the storage that ``pickle.dump`` of a tensor embeds as a file of its own."""
        self.num_embedded += 1
        if len(args) != 1 or not isinstance(args[0], bytes) or self.num_embedded > _MOST_EMBEDDED:
            raise CheckpointError("its pickle embeds another file where none belongs")
        content = args[0]
        return _read_stream(lambda: io.BytesIO(content), most=_FEW_INSTRUCTIONS, is_embedded=True)


def read_stream(opener: Opener) -> list[Weights]:
    """Read the mappings of a pickle: the format of ``torch.save`` before torch 1.6, or any other pickle.

    Raises:
        CheckpointError: If it is broken, or its storages are not those that it describes.
    """
    return find_weights(_read_stream(opener), Described, stored)


def _read_stream(opener: Opener, *, most: int = _MOST_INSTRUCTIONS, is_embedded: bool = False) -> Any:
    """Read pickles one after the other: a magic number, a version, sizes, the content, keys; then the storages."""
    declared: dict[str, Storage] = {}
    records: dict[str, Record] = {}

    def storage_of(storage: Storage) -> Storage:
        known = declared.setdefault(storage.key, replace(storage, record=_later(records, storage)))
        if (known.dtype, known.num_bytes) != (storage.dtype, storage.num_bytes):
            raise CheckpointError(f"its pickle describes storage {shown(storage.key)} in two ways")
        return known

    with opener() as raw:
        file = Bounded(raw, MOST_PICKLE_BYTES)
        read = partial(read_pickle, file, storage_of, is_embedded=is_embedded)
        first = read(most=most)
        if first != _MAGIC:
            return first
        if read(most=_FEW_INSTRUCTIONS) != _PROTOCOL:
            raise CheckpointError("it is a file of torch.save, of a version that is not known")
        read(most=_FEW_INSTRUCTIONS)  # sizes of C types, of no use
        top, keys = read(most=most), read(most=_FEW_INSTRUCTIONS + 3 * len(declared))
        if not isinstance(keys, list) or not all(isinstance(key, str) and key in declared for key in keys):
            raise CheckpointError("its storages are not those that its pickle describes")
        records |= _records(opener, file, [declared[key] for key in keys])
    if missing := sorted(set(declared) - set(records)):
        raise CheckpointError(f"storage {shown(missing[0])} is missing")
    return top


def _later(records: dict[str, Record], storage: Storage) -> Record:
    """Return the bytes of a storage whose place is known once the pickle is read."""

    def read(start: int, count: int) -> Tensor:
        return records[storage.key].read(start, count)

    return Record(storage.num_bytes, read)


def _records(opener: Opener, file: Bounded, storages: list[Storage]) -> dict[str, Record]:
    """Return where in the file each storage stands; in front of each is its number of elements."""
    records: dict[str, Record] = {}
    start = file.tell()
    for storage in storages:
        file.seek(start)
        count = int.from_bytes(file.read(8), "little")
        if count * storage.dtype.itemsize != storage.num_bytes or storage.key in records:
            raise CheckpointError("its storages are not those that its pickle describes")
        if start + 8 + storage.num_bytes > file.num_bytes:
            raise CheckpointError(f"storage {shown(storage.key)} is cut off")
        records[storage.key] = plain_record(opener, start + 8, storage.num_bytes)
        start += 8 + storage.num_bytes
    return records
