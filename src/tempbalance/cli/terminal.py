"""Output of all commands, how they stop, and their exit codes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from tempbalance.report.text import short, shown


class Terminal(Console):
    """Console that shows control characters and marks of direction in names and paths as escapes."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render with escapes; rich keeps its own control codes apart from the text."""
        for segment in super().render(renderable, options):
            is_plain = segment.control or segment.text.isprintable()
            yield segment if is_plain else Segment(_visible(segment.text), segment.style)


def _visible(text: str) -> str:
    return "\n".join(map(shown, text.split("\n")))


messages = Terminal(stderr=True)


def say(text: object) -> None:
    """Print a line for a person, on standard error."""
    messages.print(str(text), markup=False, highlight=False, soft_wrap=True)


def tell(text: object, *, end: str = "\n") -> None:
    """Print text of the result, on standard output."""
    typer.echo(_visible(str(text)) + end, nl=False)


def wide_output(width: int = 240) -> Console:
    """Return a console for tables on standard output; outside a terminal, lines are as long as they need to be."""
    console = Terminal()
    return console if console.is_terminal else Terminal(width=width)


def out_folder(given: str | None, default: Path) -> Path:
    """Return the folder of ``--out``."""
    if given is not None and not given.strip():
        raise ValueError(f"out must be a folder, got {given!r}")
    folder = default if given is None else Path(given)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out must be a folder, {folder} is a file")
    return folder


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP stop a command as Ctrl-C does, unless they are ignored, as under nohup."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def on_ctrl_c(handler: Any) -> Iterator[None]:
    """Handle Ctrl-C otherwise.

    ``SIG_DFL`` ends imports, which may swallow a KeyboardInterrupt, and native code, which lets no handler run.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone may set handlers
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def answered(extra: str = "report") -> Iterator[None]:
    """Turn an error into one line and an exit code, and print warnings as lines; ``extra`` has missing packages."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: say(f"warning: {message}")
            yield
    except KeyboardInterrupt:
        say("stopped" if extra == "report" else "stopped: finished work is kept, the same command resumes")
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except ModuleNotFoundError as err:
        hint = f": this needs more packages, from a clone: pip install -c constraints.txt '.[{extra}]'"
        _say_error(f"{err}{'' if err.name == 'ultralytics' else hint}")  # ultralytics is in none of our extras
        sys.exit(1)
    except (MemoryError, RecursionError) as err:
        _say_error("not enough memory" if isinstance(err, MemoryError) else "the input is nested too deeply")
        sys.exit(1)
    except Exception as err:
        is_ours = type(err).__module__.startswith("tempbalance")
        is_bad_usage = isinstance(err, ValueError | TypeError) and not is_ours
        if not is_ours and not is_bad_usage and not isinstance(err, OSError) and not _is_out_of_memory(err):
            raise
        _say_error(short(err, 1000))
        if type(err).__name__ == "InterruptedRunError":
            sys.exit(130)
        sys.exit(2 if is_bad_usage else 1)


def _say_error(text: str) -> None:
    messages.print(f"error: {text}", style="red", markup=False, soft_wrap=True, highlight=False)


def _is_out_of_memory(err: Exception) -> bool:
    """Whether torch could not allocate memory, which raises a plain RuntimeError on the CPU."""
    return isinstance(err, RuntimeError) and ("allocate memory" in str(err) or "out of memory" in str(err))
