"""Stands in for `tempbalance.lab.executors.local` in tests of those who start it: trains nothing and starts at once.

Run as a script, it answers each task as the folder's name asks: where ``dies`` is in the name, it kills itself.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

RESULT = '{"test_accuracy": 50.0, "best_accuracy": 50.0, "best_epoch": 1, "seconds": 1.0}'
LINES = '{"epoch": 1}\n{"epoch": 2}\n'


def main() -> None:
    for line in sys.stdin:
        answer(Path(json.loads(line)["folder"]))


def answer(folder: Path) -> None:
    if "dies" in folder.name:
        os.kill(os.getpid(), signal.SIGKILL)
    if "speaks" in folder.name:
        sys.exit("first line\nlast words")
    if "cut" in folder.name:
        os.write(1, b'{"state": "do')
        sys.exit(0)
    if "waits" in folder.name:
        time.sleep(1000)
    if "fails" in folder.name:
        print(json.dumps({"state": "failed", "message": "too bad"}), flush=True)
        return
    if "notes" in folder.name:
        time.sleep(0.2)
        (folder / "device").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    for name, content in {"recipe.json": "{}", "metrics.jsonl": LINES, "result.json": RESULT}.items():
        (folder / name).write_text(content)
    if "long" in folder.name:
        time.sleep(0.3)
    print(json.dumps({"state": "done", "message": ""}), flush=True)


def install(monkeypatch, folder: Path) -> None:
    """Have pools start this script in place of the worker."""
    from types import SimpleNamespace

    from tempbalance.lab.executors import local

    script = folder / "stub"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{__file__}"\n')
    script.chmod(0o755)
    monkeypatch.setattr(local, "sys", SimpleNamespace(executable=str(script)))


if __name__ == "__main__":
    main()
