"""Pickles read as descriptions: a stack of plain values, on which nothing is imported and nothing is called.

Python's unpickler imports what a file names and calls it. Here a name must stand in a vocabulary that the caller gives,
and stands for a value of ours or a function of ours that builds a description. Every other name, and every instruction
that ``torch.save`` does not write, ends the reading.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partialmethod
from typing import Any

from tempbalance.errors import CheckpointError
from tempbalance.stored.files import shown

# a tensor takes 30 of them: enough for 33,000 tensors, and read in a few seconds
_MOST_INSTRUCTIONS = 1_000_000
_MOST_NAMES_SHOWN = 20
_LITERALS = frozenset({
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BINSTRING", "SHORT_BINSTRING", "BYTEARRAY8",
})  # fmt: skip
_RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}


class PickledDict(dict[str, object]):
    """A dictionary: what has a string for its key, and beside it the pairs of all other keys, unhashed."""

    others: list[tuple[object, object]] | None = None  # made when needed: a pickle may have millions of dictionaries

    def put(self, key: object, value: object) -> None:
        """Set an item."""
        if isinstance(key, str):
            self[key] = value
        elif self.others is None:
            self.others = [(key, value)]
        else:
            self.others.append((key, value))


class Opaque:
    """A value that nobody looks into, such as a set or a device."""


_UNKNOWN = Opaque()


# what instructions without an argument put on the stack
_FRESH: dict[str, Callable[[], object]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
    "EMPTY_DICT": PickledDict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": Opaque,
}  # fmt: skip


@dataclass
class Made:
    """An object: the name of its class, and the state it was given."""

    name: str
    state: object = None


@dataclass(frozen=True)
class Builder:
    """A function of ours that stands for a name in a pickle; it takes the arguments as one tuple."""

    build: Callable[[tuple[object, ...]], object]


def read_pickle(
    file: io.BytesIO,
    known: Mapping[str, object],
    persistent: Callable[[object], object],
    *,
    most: int = _MOST_INSTRUCTIONS,
) -> object:
    """Read the pickle at a file's position and leave the position behind it.

    Args:
        file: The bytes.
        known: The vocabulary: what each name stands for.
        persistent: Says what a persistent id stands for.
        most: The number of instructions at which it is enough.

    Raises:
        CheckpointError: If the pickle is too long, broken, or wants more than plain values and known names.
    """
    reading = _Reading(known, persistent)
    value, problem = None, None
    try:
        value = reading.run(pickletools.genops(file), most)
    except CheckpointError as err:
        problem = err
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, MemoryError, RecursionError) as err:
        problem = CheckpointError(f"its pickle is broken or cut off ({type(err).__name__})")
    # an unknown name says more than what went wrong because of it
    if reading.unknown:
        raise _refusal(list(reading.unknown)) from problem
    if problem is not None:
        raise problem
    if reading.odd:
        raise CheckpointError(f"its pickle has instructions that torch.save never writes: {', '.join(reading.odd)}")
    return value


def _refusal(names: list[str]) -> CheckpointError:
    asked = ", ".join(shown(name)[1:-1] for name in names[:_MOST_NAMES_SHOWN])
    more = f" and {len(names) - _MOST_NAMES_SHOWN} more" if len(names) > _MOST_NAMES_SHOWN else ""
    return CheckpointError(
        f"its pickle asks for {asked}{more}: nothing in a file is run; "
        "save only the state_dict() where the file comes from, or convert it to safetensors"
    )


class _Reading:
    """The stack, the marks and the memo of one pickle."""

    def __init__(self, known: Mapping[str, object], persistent: Callable[[object], object]) -> None:
        self.known, self.persistent = known, persistent
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.unknown: dict[str, None] = {}  # names outside the vocabulary, in order
        self.odd: dict[str, None] = {}  # instructions outside ours

    def run(self, instructions: Iterator[tuple[pickletools.OpcodeInfo, Any, int | None]], most: int) -> object:
        methods = {code.name: f"do_{code.name.lower()}" for code in pickletools.opcodes}
        steps = {code: getattr(self, method) for code, method in methods.items() if hasattr(self, method)}
        for count, (instruction, argument, _) in enumerate(instructions):
            if count > most:
                raise CheckpointError(f"its pickle has more than {most:,} instructions")
            if instruction.name in _LITERALS:
                self.stack.append(argument)
            elif instruction.name in _FRESH:
                self.stack.append(_FRESH[instruction.name]())
            elif instruction.name == "STOP":
                return self.stack.pop()
            elif instruction.name in steps:
                steps[instruction.name](argument)
            else:
                self.pass_over(instruction, argument)
        raise CheckpointError("its pickle has no end")

    def pass_over(self, instruction: pickletools.OpcodeInfo, argument: Any) -> None:
        """Keep the stack in step with an instruction that is not done, so that every name after it is still found."""
        self.odd[instruction.name] = None
        if instruction.name == "INST":
            self.unknown[argument.replace(" ", ".")] = None
        if pickletools.markobject in instruction.stack_before:
            self.since_mark()
        elif instruction.stack_before:
            del self.stack[-len(instruction.stack_before) :]
        self.stack += [_UNKNOWN] * len(instruction.stack_after)

    def do_proto(self, _: int) -> None: ...

    def do_frame(self, _: int) -> None: ...

    def do_mark(self, _: None) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.marks.pop()
        return items

    def do_tuple(self, _: None) -> None:
        items = self.since_mark()
        self.stack.append(tuple(items))

    def make_tuple(self, length: int, _: None) -> None:
        items = tuple(self.stack.pop() for _ in range(length))
        self.stack.append(items[::-1])

    do_tuple1 = partialmethod(make_tuple, 1)
    do_tuple2 = partialmethod(make_tuple, 2)
    do_tuple3 = partialmethod(make_tuple, 3)

    def do_frozenset(self, _: None) -> None:
        self.since_mark()
        self.stack.append(Opaque())

    def do_binput(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    do_long_binput = do_binput

    def do_memoize(self, _: None) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def do_binget(self, index: int) -> None:
        self.stack.append(self.memo[index])

    do_long_binget = do_binget

    def do_append(self, _: None) -> None:
        item = self.stack.pop()
        self.target(list).append(item)

    def do_appends(self, _: None) -> None:
        items = self.since_mark()
        self.target(list).extend(items)

    def do_additems(self, _: None) -> None:
        self.since_mark()
        self.target(Opaque)

    def do_setitem(self, _: None) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.target(PickledDict).put(key, value)

    def do_setitems(self, _: None) -> None:
        items = self.since_mark()
        target = self.target(PickledDict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            target.put(key, value)

    def target(self, kind: type) -> Any:
        """What items are added to; a file that adds them to anything else is after the memory behind it."""
        if self.stack[-1] is _UNKNOWN:
            return kind()
        if type(self.stack[-1]) is not kind:
            raise CheckpointError(f"its pickle sets items of {shown(self.stack[-1])}, which torch.save never does")
        return self.stack[-1]

    def do_global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self.push_known(module, name)

    def do_stack_global(self, _: None) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.push_known(module, name)

    def push_known(self, module: object, name: object) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise CheckpointError(f"its pickle asks for the name {shown(name)} of {shown(module)}")
        full = f"{_RENAMED.get(module, module)}.{name}"
        if full not in self.known:
            self.unknown[full] = None
        self.stack.append(self.known.get(full, _UNKNOWN))

    def is_refused(self) -> bool:
        """Whether only the names that are still to come matter: nothing is built any more."""
        return bool(self.unknown or self.odd)

    def do_reduce(self, _: None) -> None:
        arguments, builder = self.stack.pop(), self.stack.pop()
        if self.is_refused():
            self.stack.append(_UNKNOWN)
        elif isinstance(builder, Builder) and isinstance(arguments, tuple):
            self.stack.append(builder.build(arguments))
        else:
            raise CheckpointError(f"its pickle calls {shown(builder)}, which is not a function")

    do_newobj = do_reduce

    def do_build(self, _: None) -> None:
        state = self.stack.pop()
        made = self.stack[-1]
        if isinstance(made, Made):
            made.state = state
        # an OrderedDict may have attributes, of which nothing is needed
        elif not self.is_refused() and type(made) is not PickledDict:
            raise CheckpointError(f"its pickle sets the state of {shown(made)}, which torch.save never does")

    def do_binpersid(self, _: None) -> None:
        saved_id = self.stack.pop()
        self.stack.append(_UNKNOWN if self.is_refused() else self.persistent(saved_id))
