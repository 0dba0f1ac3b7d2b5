"""Kill commands at random instants, fill disks and damage folders: results must equal undisturbed ones to the byte.

python -m tests.lab.kills [--seed N] [--rounds N] [--parts train,compare,pool,ray,disk,damage]

Each round of a part kills, fills or damages once. After three starts, killed or not, the command runs to its end and
its runs are compared. Commands and the pool's workers are forks of this process, which has loaded the libraries: real
processes, that start sooner. Every second kill of ``train`` waits until a file is being written. Of a sweep, the driver
or one of the processes below it is killed. Prints counts and the seed. A full disk is a small tmpfs, which only root
can mount.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.lab.campaign import below, head, tasks, trainers

TINY = ["--dataset", "digits", "--model", "mlp", "--width", "0.25", "--limit", "300", "--device", "cpu"]
COMMANDS = {
    "train": ["train", *TINY, "--epochs", "10", "--method", "tb", "--threads", "1", "--out"],
    "compare": ["compare", *TINY, "--epochs", "6", "--seeds", "1", "--workers", "2", "--out"],
    "pool": ["study", "run", "start", "--preset", "smoke", "--device", "cpu", "--workers", "2", "--out"],
    "ray": ["study", "run", "start", "--preset", "smoke", "--device", "cpu", "--out"],  # and an address
}
PARTS = (*COMMANDS, "disk", "damage")
BETWEEN = 3  # starts between two comparisons
TRIES = 5  # to reach Ray
MOST_KILLS = 4  # of one start: a run that dies six times in one epoch has failed


class CampaignError(Exception):
    """A result that differs, a traceback or a hang, with the seed that shows it."""


def start(part: str, out: Path) -> int:
    """Start a command in a fork of this process, which has loaded the libraries; return its process."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        log = os.open(out.with_suffix(".log"), os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        from tempbalance.cli import app
        from tempbalance.lab.executors import local

        local.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": start_worker})
        app([*COMMANDS[part], str(out)])
    except SystemExit as err:
        code = err.code if isinstance(err.code, int) else 1
    finally:
        sys.stdout.flush()
        os._exit(code)


def start_worker(command: list[str], *, env: dict[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a worker of the pool as a fork of its driver: the function before the program starts is all it runs."""
    from tempbalance.lab.executors import local

    def work() -> None:
        os.closerange(3, 4096)
        os.environ.update(env)
        sys.stdin = os.fdopen(0)
        local.main()

    return subprocess.Popen(command, preexec_fn=work, **options)


def wait(pid: int, seconds: float) -> int | None:
    """Return the exit code of a process, or None if it still runs after this time."""
    end = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(0.005)


def finish(part: str, out: Path) -> int:
    """Run a command to its end and return its exit code."""
    for _ in range(TRIES):
        pid = start(part, out)
        code = wait(pid, 900)
        if code is None:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            raise CampaignError(f"{part} hangs: {said(out)}")
        if not has_not_joined(out, code):
            break
    return code


def has_not_joined(out: Path, code: int | None) -> bool:
    """Whether a command has ended because Ray did not answer, as on a busy machine."""
    return code == 1 and "cannot join the Ray cluster" in said(out)[-1000:]


def said(out: Path) -> str:
    return out.with_suffix(".log").read_text(errors="replace")[-2000:]


def content(out: Path) -> dict[str, bytes]:
    """Return the logs of all runs in a folder."""
    paths = [path for name in ("metrics.jsonl", "layers.jsonl") for path in out.rglob(name)]
    return {str(path.relative_to(out)): path.read_bytes() for path in paths}


def check_equal(part: str, out: Path, whole: Path) -> None:
    """Run a command to its end and compare its runs with undisturbed ones."""
    if code := finish(part, out):
        raise CampaignError(f"{part} ends with {code}: {said(out)}")
    if content(out) != content(whole) or not content(whole):
        raise CampaignError(f"{part}: the runs in {out} differ from those in {whole}")


def kill(part: str, rounds: int, rng: random.Random, root: Path, counts: Counter[str]) -> None:
    """Kill a command, or a process below it, at random instants of its whole time."""
    whole, out, what = root / "whole", root / "killed", f"kills of {part}"
    with ExitStack() as stack:
        cluster = None
        if part == "ray":
            address, cluster = stack.enter_context(head())
            COMMANDS["ray"] = [*COMMANDS["ray"][:-1], "--ray-address", address, "--out"]
        check_equal(part, whole, whole)
        begun = time.monotonic()  # the first one loads libraries
        check_equal(part, root / "again", whole)
        seconds = time.monotonic() - begun
        while counts[what] < rounds:
            for _ in range(BETWEEN):
                code = disturb(part, out, seconds, rng, cluster, counts)
                if code and not has_not_joined(out, code):
                    raise CampaignError(f"{part} ends with {code}: {said(out)}")
            check_equal(part, out, whole)
            counts[f"equal after {what}"] += 1
            print(f"{part}: {dict(counts)}", file=sys.stderr, flush=True)
            shutil.rmtree(out)


def disturb(
    part: str, out: Path, seconds: float, rng: random.Random, cluster: int | None, counts: Counter[str]
) -> int | None:
    """Start a command and kill it or processes below it; return its exit code, None once it was killed itself."""
    stale = half_written(out)
    pid = start(part, out)
    for _ in range(MOST_KILLS):
        code = wait(pid, rng.uniform(0, seconds if part == "train" else seconds / 2))
        others = [] if part == "train" else tasks(cluster) + trainers(cluster) if cluster else list(below(pid))
        victim = rng.choice(others) if others and rng.random() < 0.7 else pid
        if part == "train" and code is None and counts["kills of train"] % 2:
            code = wait_for_write(pid, out, stale)
        if code is not None:
            return code
        kill_process(victim)
        counts[f"kills of {part}"] += 1
        counts["during a write"] += bool(half_written(out) - stale)
        if victim == pid:
            os.waitpid(pid, 0)
            return None
        counts["of workers"] += 1
    return wait(pid, 900)


def kill_process(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, 9)


def half_written(out: Path) -> set[Path]:
    return set(out.rglob(".*.new"))


def wait_for_write(pid: int, out: Path, stale: set[Path]) -> int | None:
    """Wait until a file is being written; return the exit code of a process that ends before."""
    while not half_written(out) - stale:
        if (code := wait(pid, 0)) is not None:
            return code
    return None


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a file system of 8 MB; yield whether that is permitted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    mounted = shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(part: str, rounds: int, rng: random.Random, root: Path, counts: Counter[str]) -> None:
    """Fill the disk under a run at random moments; once there is room again, the same command completes."""
    whole = root / "whole"
    check_equal("train", whole, whole)
    with small_disk(root / "small") as mounted:
        if not mounted:
            counts[f"{part}: not run, mount is not permitted"] += 1
            return
        for number in range(rounds):
            out, filler = root / "small" / f"run{number}", root / "small" / "filler"
            pid = start("train", out)
            code = wait(pid, rng.uniform(0, 2))
            with filler.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"\0" * 4096)
                except OSError:  # it is full
                    counts["full disks"] += 1
            code = wait(pid, 120) if code is None else code
            log = said(out) if out.with_suffix(".log").exists() else ""
            if code is None or "Traceback" in log:
                raise CampaignError(f"a full disk ends with {code}: {log}")
            counts["refused in a line" if code else "complete before"] += 1
            filler.unlink()
            check_equal("train", out, whole)
            counts["equal after a full disk"] += 1
            shutil.rmtree(out)
            out.with_suffix(".log").unlink(missing_ok=True)


def damage(part: str, rounds: int, rng: random.Random, root: Path, counts: Counter[str]) -> None:
    """Damage a file of a run, complete or not; the command refuses it in a line, or ends with the same results."""
    whole = root / "whole"
    check_equal("train", whole, whole)
    for number in range(rounds):
        out = root / f"damaged{number}"
        shutil.copytree(whole, out)
        if rng.random() < 0.7:
            (out / "result.json").unlink()
        path = rng.choice(sorted(each for each in out.rglob("*") if each.is_file() and each.stat().st_size))
        before = path.read_bytes()
        place = rng.randrange(len(before))
        flipped = bytes([before[place] ^ (1 << rng.randrange(8))])
        path.write_bytes(rng.choice([before[:place], before[:place] + flipped + before[place + 1 :], b""]))
        code = finish("train", out)
        if "Traceback" in said(out):
            raise CampaignError(f"damaged {path.name}: {said(out)}")
        same = content(out) == content(whole)
        outcome = "refused in a line" if code else "equal" if same else f"not noticed in {path.name}"
        counts[f"damaged files, {outcome}"] += 1
        shutil.rmtree(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--parts", default=",".join(PARTS))
    options = parser.parse_args()
    import tempbalance.cli
    import tempbalance.lab.images.training
    import tempbalance.lab.train  # noqa: F401

    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["OMP_NUM_THREADS"] = "1"
    print(f"seed {options.seed}", flush=True)
    for part in options.parts.split(","):
        counts: Counter[str] = Counter()
        run = {"disk": fill, "damage": damage}.get(part, kill)
        with tempfile.TemporaryDirectory(prefix="tb", ignore_cleanup_errors=True) as root:
            run(part, options.rounds, random.Random(f"{options.seed} {part}"), Path(root), counts)
        for what, number in counts.items():
            print(f"{part}: {number} {what}", flush=True)


if __name__ == "__main__":
    main()
