"""One balancing by this code against the code of another commit, in turns.

    git worktree add ../before 4fc1909
    python benchmarks/against_commit.py ../before/src [--networks resnet18,gpt2] [--rounds 5]

Each commit has a process of its own; in every round both are timed once with each tail, one after the other. A ratio is
taken within a round: the other commit's seconds over ours. Seconds of the processor are less disturbed by whatever else
runs on the machine than seconds of the clock.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

TAILS = ("median", "goodness_of_fit", "peak")
SERVE = """
import sys, time
from tempbalance.bench.contestants import library_turns, make_subject
turns = {turn.name: turn for turn in library_turns(make_subject(sys.argv[1]))}
for line in sys.stdin:
    start = time.process_time()
    (seconds,) = turns[line.strip()].run().values()
    print(seconds, time.process_time() - start, flush=True)
"""


def start(source: Path, network: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SERVE, network]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def take_turn(process: subprocess.Popen[str], tail: str) -> tuple[float, float]:
    """Return the seconds of the clock and of the processor."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{tail}\n")
    process.stdin.flush()
    clock, processor = map(float, process.stdout.readline().split())
    return clock, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the src folder of the other commit")
    parser.add_argument("--networks", default="resnet18,gpt2")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    ours = Path(__file__).resolve().parents[1] / "src"
    for network in options.networks.split(","):
        pair = [start(source.resolve(), network) for source in (options.source, ours)]
        rounds = [[[take_turn(each, tail) for each in pair] for tail in TAILS] for _ in range(options.rounds + 1)][1:]
        for each in pair:
            each.communicate()
        for number, tail in enumerate(TAILS):
            for what, index in (("clock", 0), ("processor", 1)):
                seconds = [[turn[index] for turn in each[number]] for each in rounds]
                against_median = median(each[number][1][index] / each[0][1][index] for each in rounds)
                print(
                    f"{network:12} {tail:16} {what:10} {median(before / now for before, now in seconds):5.2f} times as"
                    f" fast; now {median(now for _, now in seconds):.3f} s, {against_median:.2f} times median's"
                )


if __name__ == "__main__":
    main()
