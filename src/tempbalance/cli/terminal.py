"""What all commands have in common: where they speak, how they stop, and their exit codes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from tempbalance.report.text import short

messages = Console(stderr=True)


def out_folder(given: str | None, default: Path) -> Path:
    """The folder of ``--out``.

    Raises:
        ValueError: If it can be none.
    """
    if given is not None and not given.strip():
        raise ValueError(f"out must be a folder, got {given!r}")
    folder = default if given is None else Path(given)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out must be a folder, {folder} is a file")
    return folder


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP stop a command as Ctrl-C does; who has them ignored, as nohup has, keeps that."""

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
def answered(extra: str = "report") -> Iterator[None]:
    """Turn what went wrong into one line and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        kept = "" if extra == "report" else ": what was finished is kept, the same command goes on from there"
        messages.print(f"stopped{kept}")
        sys.exit(130)
    except BrokenPipeError:  # whoever reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except ModuleNotFoundError as err:
        hint = f": this needs more packages, from a clone: pip install -c constraints.txt '.[{extra}]'"
        told = "" if err.name == "ultralytics" else hint  # which is in none of our extras
        messages.print(f"error: {err}{told}", markup=False, soft_wrap=True)
        sys.exit(1)
    except Exception as err:
        is_ours = type(err).__module__.startswith("tempbalance")
        if not is_ours and not isinstance(err, ValueError | TypeError | OSError):
            raise
        messages.print(f"error: {short(err, 1000)}", style="red", markup=False, soft_wrap=True, highlight=False)
        if type(err).__name__ == "InterruptedRunError":
            sys.exit(130)
        sys.exit(2 if isinstance(err, ValueError | TypeError) and not is_ours else 1)
