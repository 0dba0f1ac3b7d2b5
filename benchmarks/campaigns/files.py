"""Read odd, damaged and crafted checkpoints with the command line: each is diagnosed, or refused in one line.

    python -m benchmarks.campaigns.files [--count 10000] [--seed 0] [--seconds 36000] [--workers 2] [--only NUMBER]

benchmarks/campaigns/odd.py makes the files. This process imports the libraries once, makes each file, and forks a child
that runs ``tempbalance diagnose`` or ``allocate`` on it; every hundredth command is a process of its own, with start-up
and exit. A command may take 10 seconds of processor time (or 300 of wall clock, if the machine is busy) and 1 GB: its
whole resident memory, libraries included, as the kernel reports its peak. Every 23rd gets Ctrl-C at a random instant
and must end within a second. What it prints and writes is checked as well: no control characters, JSON that parses, no
formulas in CSV, no markup from names in pages, no file of the checkpoint changed, no payload run.

Prints counts by format and outcome. A failure is printed with its number, which ``--only`` repeats, and its folder,
which is kept. Ends with code 1 if there was one.
"""

import os

# before torch and scipy start threads, which would not survive a fork
os.environ |= {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}

import argparse
import csv
import ctypes
import gc
import io
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import scipy.linalg  # noqa: F401
import threadpoolctl  # noqa: F401
import torch
import typer
from benchmarks.campaigns.odd import OddFile, make_file
from tests.checkpoint import hostile

import tempbalance.cli.allocate
import tempbalance.cli.diagnose
import tempbalance.report  # noqa: F401
from tempbalance.cli import app

MOST_SECONDS, MOST_WAIT, MOST_BYTES, MOST_OUTPUT = 10, 300, 2**30, 20 << 20
EVERY_PROCESS, EVERY_INTERRUPT = 100, 23
FINE = ("read", "refused", "stopped")
FAULTS = ("traceback", "hang", "memory", "wrong")
TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Verdict:
    """What came of a command, one of `FINE` or `FAULTS`, and what was wrong."""

    outcome: str
    said: str = ""


@dataclass
class Command:
    """A command under way, and what it has used."""

    number: int
    folder: Path
    file: OddFile
    as_process: bool
    interrupt_at: float  # in seconds after its start; infinite for never
    pid: int = 0
    begin: float = field(default_factory=time.monotonic)
    interrupted: tuple[float, float] | None = None  # when, and the processor time until then
    seconds: float = 0.0
    num_bytes: int = 0

    def start(self) -> None:
        """Run the command in a fork of this process, or as a process of its own."""
        self.before = fingerprint(self.file.path)
        self.pid = os.fork()
        if self.pid == 0:
            self._run()

    def _run(self) -> NoReturn:
        code = 70
        try:
            for number, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(self.folder / name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
            if self.as_process:
                environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
                command = [sys.executable, "-m", "tempbalance.cli", *self.file.command]
                os.execve(sys.executable, command, environment)
            COMMAND(self.file.command, prog_name="tempbalance")
        except KeyboardInterrupt:  # before the command's own code, where `tempbalance.cli.main` catches it
            code = 130
        except SystemExit as err:
            code = err.code if isinstance(err.code, int) else 0 if err.code is None else 1
        except BaseException:
            traceback.print_exc()
        finally:
            if hostile.VARIABLE in os.environ:
                print("Traceback: a payload ran", file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self) -> Verdict | None:
        """Return what came of the command once it has ended; end it if it takes too long or too much."""
        found, status, usage = os.wait4(self.pid, os.WNOHANG)
        now = time.monotonic()
        if found:
            self.seconds, self.num_bytes = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
        else:
            self.seconds, self.num_bytes = used(self.pid)
        if self.num_bytes > MOST_BYTES:
            return self._end(found, Verdict("memory", f"{self.num_bytes:,} bytes"))
        if self.seconds > MOST_SECONDS or now - self.begin > MOST_WAIT:
            return self._end(found, Verdict("hang", f"{self.seconds:.1f} s of processor time"))
        if self.interrupted is not None:
            taken, wall = self.seconds - self.interrupted[1], now - self.interrupted[0]
            if taken > 1:  # second; a busy machine stretches the wall clock
                return self._end(found, Verdict("hang", f"{taken:.1f} s of processor time, {wall:.1f} s after Ctrl-C"))
        elif not found and now - self.begin > self.interrupt_at and (self.folder / "err").exists():
            self.interrupted = now, self.seconds
            os.kill(self.pid, signal.SIGINT)
        if not found:
            return None
        try:
            return judge(self, os.waitstatus_to_exitcode(status))
        except Exception:
            return Verdict("wrong", traceback.format_exc())

    def _end(self, found: int, verdict: Verdict) -> Verdict:
        if not found:
            os.kill(self.pid, signal.SIGKILL)
            os.wait4(self.pid, 0)
        return verdict


def used(pid: int) -> tuple[float, int]:
    """Return the processor time and resident bytes of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS, int(fields[21]) * PAGE


def fingerprint(path: Path) -> dict[str, tuple[int, int, int]]:
    """Return size, time and inode of each file of a checkpoint."""
    files = [path, *path.rglob("*")] if path.is_dir() else [path]
    found = {str(each): os.lstat(each) for each in files if os.path.lexists(each)}
    return {name: (each.st_size, each.st_mtime_ns, each.st_ino) for name, each in found.items()}


def judge(command: Command, code: int) -> Verdict:
    """Check what a command that has ended has printed and written."""
    out, err = ((command.folder / name).read_text(errors="surrogateescape") for name in ("out", "err"))
    # a process that is stopped while Python still imports ends with a traceback
    is_late = command.interrupted is not None and (command.as_process or "Traceback" not in err)
    if is_late and (code in (130, -signal.SIGINT) or (code == 1 and "error: " not in err)):
        return Verdict("stopped")
    if "Traceback" in err or code in (70, -signal.SIGSEGV, -signal.SIGABRT):
        return Verdict("traceback", f"ends with {code}: {err[-3000:]}")
    strange = [char for char in out + err if not char.isprintable() and char != "\n"]
    if strange or len(out) + len(err) > MOST_OUTPUT:
        return Verdict("wrong", f"prints {len(out) + len(err):,} characters, among them {strange[:5]}")
    if fingerprint(command.file.path) != command.before or list(command.folder.rglob(hostile.MARKER)):
        return Verdict("wrong", "a file of the checkpoint was changed, or a payload ran")
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    if code in (1, 2) and len(lines) == 1 and len(lines[0]) < 1100:
        return Verdict("refused")
    if code != 0 or lines:
        return Verdict("wrong", f"ends with {code}: {err[-1000:]}")
    return wrong_output(command, out) or Verdict("read")


def wrong_output(command: Command, out: str) -> Verdict | None:
    """Return what is wrong with the output of a command that has succeeded."""
    options = command.file.command
    if "json" in options:
        json.loads(out)
    if "csv" in options:
        for cell in (cell for line in csv.reader(io.StringIO(out)) for cell in line):
            if cell[:1] in ("=", "+", "@") or (cell[:1] == "-" and not is_number(cell)):
                return Verdict("wrong", f"a spreadsheet computes {cell[:50]!r}")
    if "--out" in options:
        json.loads((command.folder / "out.json").read_text())
    if "--html" in options:
        page = (command.folder / "page.html").read_text()
        if "<script>alert(1)" in page or "\x1b" in page or "\u202e" in page:
            return Verdict("wrong", "the page has raw markup or control characters of a name")
    if "--figures" in options and not list((command.folder / "figures").glob("*.svg")):
        return Verdict("wrong", "no figure was written")
    return None


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


@dataclass
class Campaign:
    """Commands one after the other, some side by side; counts what comes of them."""

    seed: int
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    num_processes: int = 0
    num_interrupts: int = 0
    longest: float = 0.0  # seconds of processor time
    longest_wall: float = 0.0
    largest: int = 0  # bytes

    def begin(self, number: int) -> Command | None:
        """Make the file of a number and start its command."""
        folder = Path(tempfile.mkdtemp(prefix=f"campaign-{self.seed}-{number}-"))
        draw = random.Random(f"{self.seed} {number} interrupt")
        try:
            file = make_file(self.seed, number, folder)
        except Exception:
            self.end(number, "made", folder, Verdict("wrong", traceback.format_exc()))
            return None
        as_process, is_interrupted = number % EVERY_PROCESS == 99, number % EVERY_INTERRUPT == 7
        instant = draw.uniform(0, 5 if as_process else 0.3) if is_interrupted else float("inf")
        command = Command(number, folder, file, as_process, instant)
        command.start()
        self.num_processes += as_process
        return command

    def step(self, command: Command) -> bool:
        """Return whether a command has ended, and note what came of it."""
        verdict = command.poll()
        if verdict is None:
            return False
        self.num_interrupts += command.interrupted is not None
        self.longest, self.largest = max(self.longest, command.seconds), max(self.largest, command.num_bytes)
        self.longest_wall = max(self.longest_wall, time.monotonic() - command.begin)
        self.end(command.number, command.file.form, command.folder, verdict, command.file.command)
        return True

    def end(self, number: int, form: str, folder: Path, verdict: Verdict, command: list[str] | None = None) -> None:
        """Count a verdict; print a failure and keep its folder."""
        self.counts[form, verdict.outcome] += 1
        if verdict.outcome in FINE:
            shutil.rmtree(folder, ignore_errors=True)
            return
        print(f"FAILED: seed {self.seed}, number {number} ({form}), kept in {folder}: {verdict.outcome}")
        print(f"  {command}\n  {verdict.said}", flush=True)

    def run(self, numbers: range, workers: int, seconds: float) -> int:
        """Run commands until the numbers or the time is over; return how many have failed."""
        end, waiting = time.monotonic() + seconds, iter(numbers)
        running: list[Command] = []
        number: int | None = next(waiting, None)
        while running or (number is not None and time.monotonic() < end):
            while number is not None and len(running) < workers and time.monotonic() < end:
                command = self.begin(number)
                running += [command] if command is not None else []
                number = next(waiting, None)
                TRIM(0)
            running = [command for command in running if not self.step(command)]
            time.sleep(0.01)
        return sum(count for (_, outcome), count in self.counts.items() if outcome not in FINE)

    def print_counts(self) -> None:
        """Print the outcomes by format, their sums and the largest cost of one command."""
        forms = sorted({form for form, _ in self.counts})
        for form in forms:
            named = [f"{self.counts[form, each]:5} {each}" for each in (*FINE, *FAULTS) if self.counts[form, each]]
            print(f"{form:24}" + ",".join(named))
        sums = {each: sum(self.counts[form, each] for form in forms) for each in (*FINE, *FAULTS)}
        print(f"{sum(sums.values())} files of seed {self.seed}: " + ", ".join(f"{sums[each]} {each}" for each in sums))
        print(f"{self.num_processes} as processes of their own, {self.num_interrupts} with Ctrl-C")
        print(f"longest {self.longest:.1f} s of processor time, {self.longest_wall:.1f} s of wall clock")
        own = used(os.getpid())[1]
        print(f"largest {self.largest / 2**20:.0f} MB, of which {own / 2**20:.0f} MB are the libraries")


TRIM = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)
COMMAND = typer.main.get_command(app)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=36_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", type=int, help="make and read this file alone, and show what the command prints")
    options = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background commands with it ignored
    gc.collect()
    gc.freeze()
    campaign = Campaign(options.seed)
    if options.only is not None:
        command = campaign.begin(options.only)
        while command is not None and not campaign.step(command):
            time.sleep(0.002)
    else:
        campaign.run(range(options.first, options.first + options.count), options.workers, options.seconds)
    campaign.print_counts()
    sys.exit(any(outcome not in FINE for _, outcome in campaign.counts))


if __name__ == "__main__":
    main()
