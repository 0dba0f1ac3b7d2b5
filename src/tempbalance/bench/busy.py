"""A process that keeps a core busy, and ends with us however we end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tempbalance.bench.contestants import Turn

# it ends when its standard input does: when we close it, and also when we are killed
_CODE = """
import os, sys, threading
def end():
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=end, daemon=True).start()
print("busy", flush=True)
while True:
    pass
"""


@contextmanager
def busy_core() -> Iterator[subprocess.Popen[str]]:
    """Let another process keep a core busy meanwhile.

    Raises:
        ChildProcessError: If it does not start.
    """
    command = [sys.executable, "-c", _CODE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "busy\n":
                raise ChildProcessError("the process that keeps a core busy did not start")
            yield process
        finally:
            process.kill()


def beside_busy_core(turn: Turn) -> Turn:
    """The same while another process keeps a core busy."""

    def run() -> dict[str, float]:
        with busy_core():
            return turn.run()

    return Turn(turn.name, run)
