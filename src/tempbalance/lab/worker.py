"""A process that trains one run after another for a sweep, as long as the process that started it lives.

It reads a line of JSON for each run, ``{"folder": ..., "settings": {...}}``, and answers with ``{"state": ...,
"message": ...}``. The folder's ``asked.json`` is the recipe. When its input ends, so does it, whatever it is doing: a
run that is killed loses no more than the epoch being trained.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from rich.console import Console

from tempbalance.lab.jobs import ASKED, FAILURE, Settings
from tempbalance.lab.options import read_options
from tempbalance.lab.recipe import make_recipe
from tempbalance.lab.runs import InterruptedRunError
from tempbalance.lab.train import train
from tempbalance.runlog import BusyRunError, write_whole


def main() -> None:
    """Train what standard input asks for, one after the other."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    tasks: SimpleQueue[dict[str, Any]] = SimpleQueue()
    Thread(target=_read, args=(tasks,), daemon=True).start()
    while True:
        task = tasks.get()
        state, message = work(Path(task["folder"]), task["settings"])
        print(json.dumps({"state": state, "message": message}), file=answers, flush=True)


def _read(tasks: SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        tasks.put(json.loads(line))
    os._exit(0)


def work(folder: Path, settings: Settings) -> tuple[str, str]:
    """Train the run that a folder's ``asked.json`` asks for.

    Args:
        folder: The run's. What the run says goes to ``output.txt`` there, the traceback of a failure to
            ``failure.txt``.
        settings: How: ``device``, ``precision``, ``threads``, ``cache``, ``log_every`` and ``tensorboard``.

    Returns:
        A state of `tempbalance.lab.jobs.Ended` and a message.
    """
    (folder / FAILURE).unlink(missing_ok=True)
    with (folder / "output.txt").open("a", encoding="utf-8") as output, warnings.catch_warnings():
        try:
            recipe = make_recipe(read_options(folder / ASKED))
            train(recipe, folder, console=Console(file=output, width=200), **settings)
        except BusyRunError as err:
            return "busy", str(err)
        except InterruptedRunError as err:  # a SIGTERM: the run is to go on somewhere
            return "died", str(err)
        except Exception as err:
            trace = traceback.format_exc()
            output.write(trace)
            write_whole(folder / FAILURE, trace.encode())
            return "failed", " ".join(str(err).split()) or type(err).__name__
    return "done", ""


if __name__ == "__main__":
    main()
