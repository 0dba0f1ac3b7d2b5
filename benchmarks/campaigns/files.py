"""Odd, damaged and crafted checkpoints, each diagnosed by the command line in a child process.

    python -m benchmarks.campaigns.files [--count 10000] [--seed 0] [--seconds 36000] [--only NUMBER]

A file is made from the seed and its number alone: well-formed with odd names, shapes, dtypes, values, masks, norms,
adapters, experts and quantised layouts in every format that is read; one in four is then damaged (flipped bytes, cut
off, bytes doubled), and one in forty is a crafted case of tests/checkpoint/hostile.py. The command must print a
diagnosis, or refuse the file in one line, with less than 10 seconds of processor time and 1 GB of memory.

Prints counts by format; a failure with its number, which ``--only`` repeats. Ends with code 1 if there was one.
"""

import argparse
import ctypes
import io
import json
import multiprocessing
import os
import pickle
import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from tests.checkpoint import hostile
from torch import Tensor, nn
from typer.testing import CliRunner

from tempbalance.cli import app

MOST_SECONDS, MOST_WAIT, MOST_BYTES, MOST_OUTPUT = 10, 120, 2**30, 20 << 20
TICKS = os.sysconf("SC_CLK_TCK")
State = dict[str, Any]


# odd names, shapes and values

NAMES = [
    "", ".", "..", "weight", ".weight", "a..weight", "0", "1.weight", "fc.weight.weight", "bias.weight", "=1+1", "-x",
    "\x1b[31mred", "\x00", "\n", "\u202eevil", "\uffff", "\u2028", "[red]x[/red]", "<script>alert(1)</script>", "]]>",
    "é.ü.weight", "名前.weight", "😀", "../../x", "/etc/passwd", "module.module.x", "_orig_mod.x", "optimizer.x", "ema",
    "embed_tokens.weight", "lm_head.weight", "pos_embed", "attn.in_proj_weight", "attn.bias", "shortcut.weight",
    "downsample.0.weight", "layers.007.weight", "layers.10.weight", "experts.3.w1.weight", "x" * 300, "y." * 400,
    "%s%n", "{}", "'", '"', "\\", "a,b", "a\tb", " ", "param_groups", "exp_avg", "inv_freq", "mask", "running_mean",
]  # fmt: skip
UNPAIRED = ["\ud800", "z\udfff.weight"]  # which safetensors and NumPy cannot write
SHAPES = [
    (), (0,), (1,), (5,), (64,), (0, 5), (1, 1), (1, 64), (64, 1), (8, 8), (9, 64), (64, 48), (50, 200), (96, 96),
    (3, 3, 3), (16, 3, 3, 3), (16, 1, 3, 3), (16, 8, 1), (4, 32, 32), (12, 12, 2, 2, 2), (2, 2, 2, 2, 2, 2), (8, 0, 8),
]  # fmt: skip
DTYPES = [
    torch.float32, torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8,
    torch.int32, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16,
]  # fmt: skip


def odd_name(draw: random.Random) -> str:
    word = draw.choice(NAMES)
    if draw.random() < 0.01:
        word = draw.choice("ab\x1b") * draw.choice([10_000, 200_000])
    return draw.choice([word, f"layers.{draw.randrange(9)}.{word}", f"{word}.weight", f"{word}.{draw.choice(NAMES)}"])


def odd_tensor(draw: random.Random, shape: tuple[int, ...] | None = None, dtype: torch.dtype | None = None) -> Tensor:
    shape = draw.choice(SHAPES) if shape is None else shape
    value = torch.randn(shape, dtype=torch.float64) * 10.0 ** draw.choice([0, 0, 0, -3, -40, -300, 30, 300])
    kind = draw.random()
    if kind < 0.05:
        value = torch.zeros(shape)
    elif kind < 0.1:
        value = torch.ones(shape)
    elif kind < 0.15 and value.numel():
        value.view(-1)[draw.randrange(value.numel())] = draw.choice([float("nan"), float("inf"), -float("inf"), 1e308])
    elif kind < 0.2 and len(shape) == 2 and min(shape):
        value = torch.linalg.qr(value).Q
    return value.nan_to_num().clamp(-100, 100).to(dtype) if dtype and not dtype.is_floating_point else value.to(dtype)


def matrix(draw: random.Random) -> Tensor:
    return odd_tensor(draw, draw.choice([(64, 64), (32, 96), (48, 12), (16, 8, 3, 3)]), draw.choice(DTYPES[:6]))


def either(draw: random.Random, right: tuple[int, ...], *wrong: tuple[int, ...]) -> tuple[int, ...]:
    return right if draw.random() < 0.5 else draw.choice(wrong or SHAPES)


# tensors that belong together, often by the wrong shape or dtype


def masked(draw: random.Random, name: str) -> State:
    weight = matrix(draw)
    mask = odd_tensor(draw, either(draw, tuple(weight.shape), (300, 1, 1), (), (64, 1)), draw.choice(DTYPES))
    return {f"{name}.weight_orig": weight, f"{name}.weight_mask": mask}


def weight_normed(draw: random.Random, name: str) -> State:
    weight = matrix(draw)
    size = odd_tensor(draw, either(draw, (weight.shape[0], *[1] * (weight.dim() - 1)), (), (1, 64), (9, 1, 1, 1)))
    names = draw.choice(
        [("weight_v", "weight_g"), ("parametrizations.weight.original1", "parametrizations.weight.original0")]
    )
    return {f"{name}.{names[0]}": weight, f"{name}.{names[1]}": size.to(draw.choice(DTYPES))}


def spectral_normed(draw: random.Random, name: str) -> State:
    weight = matrix(draw)
    rest = weight.numel() // weight.shape[0]
    stems = draw.choice([("weight_orig", "weight_u", "weight_v"), tuple(
        f"parametrizations.weight.{each}" for each in ("original", "0._u", "0._v"))])  # fmt: skip
    sides = (weight.shape[0],), (rest,)
    held = [odd_tensor(draw, either(draw, side, (1,), (), (2, 2)), draw.choice(DTYPES)) for side in sides]
    return {f"{name}.{stem}": each for stem, each in zip(stems, (weight, *held), strict=True)}


def lora(draw: random.Random, name: str) -> State:
    rank, dtype = draw.choice([0, 1, 4, 16]), draw.choice(DTYPES)
    shapes = either(draw, (rank, 64), (rank,), (), (64, rank)), either(draw, (48, rank), (rank, 3), (48, rank, 1, 1))
    made = {
        f"{name}.lora_{part}.weight": odd_tensor(draw, shape, dtype) for part, shape in zip("AB", shapes, strict=True)
    }
    if draw.random() < 0.1:
        made.popitem()
    return made


def recurrent(draw: random.Random, name: str) -> State:
    shapes = {"weight_ih_l0": (256, 64), "weight_hh_l0": (256, 64), "weight_hr_l0": (16, 64)}
    kept = {key: shape for key, shape in shapes.items() if draw.random() < 0.8}
    return {f"{name}.{key}": odd_tensor(draw, either(draw, kept[key]), draw.choice(DTYPES[:6])) for key in kept}


def experts(draw: random.Random, name: str) -> State:
    shape = draw.choice([(4, 64, 64), (200, 8, 8), (0, 8, 8), (8, 0, 64), (1, 32, 32)])
    return {f"{name}.experts.{draw.choice(['w1', 'weight'])}": odd_tensor(draw, shape, draw.choice(DTYPES))}


def integers(draw: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randint(0, 100, shape).to(dtype)


def quantized(draw: random.Random, name: str) -> State:
    kind = draw.choice(["int8", "nf4", "packed", "scaled"])
    some = lambda shape, *wrong: odd_tensor(draw, either(draw, shape, *wrong), draw.choice(DTYPES))  # noqa: E731
    if kind == "int8":
        return {f"{name}.weight": integers(draw, (64, 64), torch.int8), f"{name}.SCB": some((64,)),
                f"{name}.weight_format": torch.tensor(draw.choice([0, 0, 3]))}  # fmt: skip
    if kind == "nf4":
        state = {"shape": draw.choice([[64, 64], [64], [-1, 5], [2**40, 2**40]]), "blocksize": draw.choice([64, 0, 3]),
                 "nested_blocksize": draw.choice([256, -1]), "nested_offset": 0.5}  # fmt: skip
        text = torch.frombuffer(
            bytearray(json.dumps(state).encode()[: draw.choice([9, 500])]), dtype=torch.uint8
        ).clone()
        held = {f"{name}.weight": integers(draw, (2048, 1), torch.uint8), f"{name}.weight.quant_map": some((16,)),
                f"{name}.weight.absmax": some((64,)), f"{name}.weight.quant_state.bitsandbytes__nf4": text}  # fmt: skip
        if draw.random() < 0.5:
            held |= {f"{name}.weight.nested_absmax": some((1,)), f"{name}.weight.nested_quant_map": some((256,)),
                     f"{name}.weight.absmax": integers(draw, (64,), torch.uint8)}  # fmt: skip
        return held
    if kind == "packed":
        return {f"{name}.qweight": integers(draw, (8, 64), torch.int32), f"{name}.qzeros": some((1, 8)).to(torch.int32),
                f"{name}.scales": some((1, 64)), f"{name}.g_idx": integers(draw, (64,), torch.int32)}  # fmt: skip
    weight, scale = (
        odd_tensor(draw, (64, 64), draw.choice([torch.int8, torch.float8_e4m3fn])),
        draw.choice(["", "_inv"]),
    )
    return {f"{name}.weight": weight, f"{name}.weight_scale{scale}": some((64, 1), (), (1,), (2, 2), (7,), (0, 3))}


def plain(draw: random.Random, name: str) -> State:
    return {odd_name(draw): odd_tensor(draw, dtype=draw.choice(DTYPES))}


def layer(draw: random.Random, name: str) -> State:
    weight = matrix(draw)
    return {f"{name}.weight": weight, f"{name}.bias": odd_tensor(draw, either(draw, (weight.shape[0],)))}


def views(draw: random.Random, name: str) -> State:
    base = torch.randn(4096)
    return {f"{name}.{place}.weight": draw.choice([
        base.view(64, 64), base.view(64, 64).T, base[:64].expand(64, 64), base[:1].expand(600, 600),
        base[::2].view(32, 64), base[place : place + 3600].view(60, 60),
    ]) for place in range(draw.choice([2, 12]))}  # fmt: skip


PARTS = (plain, plain, layer, layer, masked, weight_normed, spectral_normed, lora, recurrent, experts, quantized, views)


def odd_state(draw: random.Random) -> State:
    """Return odd tensors, four times in five beside a layer that is scored."""
    state: State = {"body.weight": torch.randn(64, 48)} if draw.random() < 0.8 else {}
    for place in range(draw.choice([0, 1, 3, 6, 12])):
        state |= draw.choice(PARTS)(draw, draw.choice([f"layers.{place}", odd_name(draw)]))
    return state


# the formats


def contiguous(state: State) -> State:
    return {name or "empty": value.clone().contiguous() for name, value in state.items()
            if value.numel() < 100_000 and (name.isprintable() or name.isascii())}  # fmt: skip


def as_safetensors(draw: random.Random, folder: Path) -> Path:
    save_file(contiguous(odd_state(draw)), folder / "model.safetensors")
    if draw.random() < 0.3:
        config = {"quant_method": draw.choice(["gptq", "awq", None, []]), "bits": draw.choice([4, 8, 3, "4", 10**30]),
                  "weight_block_size": draw.choice([[64, 64], [0, 1], "x", [1]])}  # fmt: skip
        (folder / "config.json").write_text(json.dumps({"quantization_config": draw.choice([config, config, 3])}))
    return folder / draw.choice(["model.safetensors", "."])


class Odd:
    """An object of the file's own."""

    def __init__(self, value: object) -> None:
        self.value = value


def wrapped(draw: random.Random, state: Any) -> Any:
    """Put a state into something that people or nobody would put it into."""
    other = draw.choice([3, "x", None, [1, 2], {1: torch.ones(2)}, np.float64(3), Path("a"), Odd(torch.ones(3, 3))])
    optimizer = {"state": {0: {"exp_avg": torch.ones(9, 9)}}}
    return draw.choice([
        {draw.choice(["state_dict", "model", "ema", "netG", "optimizer", "\x1b"]): state, "epoch": other},
        {"model": state, "model_ema": state, "optimizer": optimizer}, [state, other], (state, state), Odd(state),
        {7: state, (1, 2): other},
    ])  # fmt: skip


def nested(draw: random.Random) -> Any:
    state: Any = odd_state(draw)
    if draw.random() < 0.2:
        state |= {name: torch.randn(64, 64) for name in UNPAIRED}
    for _ in range(draw.choice([0, 0, 1, 2, 5])):
        state = wrapped(draw, state)
    if isinstance(state, dict) and draw.random() < 0.1:
        state["itself"] = state
    return state


def as_zip(draw: random.Random, folder: Path) -> Path:
    torch.save(nested(draw), folder / "a.pt")
    return folder / "a.pt"


def as_legacy(draw: random.Random, folder: Path) -> Path:
    torch.save(nested(draw), folder / "a.pth", _use_new_zipfile_serialization=False)
    return folder / "a.pth"


def as_pickle(draw: random.Random, folder: Path) -> Path:
    content = nested(draw)
    if draw.random() < 0.5 and isinstance(content, dict):
        content = {name: each.float().numpy() if isinstance(each, Tensor) and not each.is_complex() else each
                   for name, each in content.items()}  # fmt: skip
    (folder / "a.pkl").write_bytes(pickle.dumps(content, draw.randrange(6)))
    return folder / "a.pkl"


def as_arrays(draw: random.Random, folder: Path) -> Path:
    state = {f"{place}{name}".replace("/", "_").replace("\0", "_")[:90]: value for place, (name, value) in enumerate(
        contiguous(odd_state(draw)).items())}  # fmt: skip
    arrays = {name: value.numpy() for name, value in state.items() if value.dtype not in (torch.bfloat16, *DTYPES[-3:])}
    arrays |= {"text": np.array(["a"]), "date": np.array("2020", "M8[Y]"), "swapped": np.ones((64, 64), ">f4")}
    draw.choice([np.savez, np.savez_compressed])(folder / "a.npz", **arrays)
    return folder / "a.npz"


def as_distributed(draw: random.Random, folder: Path) -> Path:
    state = {name[:50].replace("/", "_"): value for name, value in odd_state(draw).items() if value.numel() < 100_000}
    dcp.save(draw.choice([state, {"model": state, "optim": {"state": {}}}]), checkpoint_id=folder, no_dist=True)
    return folder


def as_shards(draw: random.Random, folder: Path) -> Path:
    state, num_shards = contiguous(odd_state(draw)), draw.choice([1, 2, 5])
    place = {name: f"model-{draw.randrange(num_shards)}.safetensors" for name in state}
    for shard in set(place.values()):
        save_file({name: value for name, value in state.items() if place[name] == shard}, folder / shard)
    if draw.random() < 0.15:
        place[odd_name(draw)] = draw.choice([*place.values(), "../x", odd_name(draw)])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))
    return folder


def as_script(draw: random.Random, folder: Path) -> Path:
    sides = draw.choice([(64, 64), (9, 50), (1, 1)])
    module = nn.Sequential(nn.Linear(*sides), nn.Conv2d(3, 16, 3), nn.Embedding(50, 64), nn.LSTM(16, 64))
    torch.jit.save(torch.jit.script(module[: draw.choice([1, 2])].to(draw.choice(DTYPES[:4]))), folder / "a.pt")
    return folder / "a.pt"


def as_module(draw: random.Random, folder: Path) -> Path:
    module = nn.Sequential(
        nn.Linear(64, 64), nn.utils.spectral_norm(nn.Linear(64, 64)), nn.GRU(16, 64), nn.BatchNorm2d(8)
    )
    module.odd = Odd(draw.choice(NAMES))
    torch.save(draw.choice([module, {"model": module, "ema": module}]), folder / "a.pt")
    return folder / "a.pt"


def as_adapter(draw: random.Random, folder: Path) -> Path:
    state: State = {}
    if draw.random() < 0.8:
        state |= {f"base_model.model.body.lora_{part}.weight": torch.randn(shape, dtype=torch.float32)
                  for part, shape in (("A", (16, 64)), ("B", (48, 16)))}  # fmt: skip
    for place in range(draw.choice([1, 4])):
        state |= draw.choice([lora, lora, lora, layer, masked])(draw, f"base_model.model.layers.{place}")
    config = {"lora_alpha": draw.choice([16, 0.5, 0, -3]), "use_rslora": draw.choice([True, False, "x"]),
              "alpha_pattern": draw.choice([{}, {"layers.0": 3}, {"^layers.0": 3}])}  # fmt: skip
    if draw.random() < 0.2:
        config |= draw.choice([
            {"peft_type": "IA3"}, {"lora_alpha": None}, {"lora_alpha": 10**40}, {"use_dora": True},
            {"alpha_pattern": {"(a+)+$": 3}}, {"alpha_pattern": []}, {"alpha_pattern": {"a": "b"}},
        ])  # fmt: skip
    return hostile.adapter(folder, contiguous(state), **config)


def as_crafted(draw: random.Random, folder: Path) -> Path:
    return hostile.build_case(draw.choice(sorted(hostile.CASES)), folder / "case")


FORMATS: dict[str, Callable[[random.Random, Path], Path]] = {
    "safetensors": as_safetensors, "zip": as_zip, "legacy": as_legacy, "pickle": as_pickle, "npz": as_arrays,
    "distributed": as_distributed, "shards": as_shards, "script": as_script, "module": as_module, "adapter": as_adapter,
    "crafted": as_crafted,
}  # fmt: skip
WEIGHTS = [6, 6, 5, 5, 4, 4, 4, 1, 1, 4, 1]


def damage(content: bytes, draw: random.Random) -> bytes:
    """Change a byte, end too early, or repeat some bytes."""
    if not content:
        return content
    place, kind = draw.randrange(len(content)), draw.random()
    if kind < 0.2:
        return content[:place]
    if kind < 0.3:
        return content[:place] + content[max(0, place - draw.randrange(100)) :]
    return content[:place] + bytes([content[place] ^ draw.randrange(1, 256)]) + content[place + 1 :]


def make_file(seed: int, number: int, folder: Path) -> tuple[str, Path, list[str]]:
    """Write the file of a number; return its format, its path and the options of the command."""
    draw = random.Random(f"{seed} {number}")
    torch.manual_seed(draw.randrange(2**32))
    form = draw.choices(list(FORMATS), WEIGHTS)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = FORMATS[form](draw, folder)
    if form != "crafted" and draw.random() < 0.25:
        files = sorted(each for each in folder.rglob("*") if each.is_file())
        chosen = draw.choice(files)
        for _ in range(draw.choice([1, 1, 3, 30])):
            chosen.write_bytes(damage(chosen.read_bytes(), draw))
        form = f"{form}, damaged"
    options = draw.choice([[], [], ["--list"], ["--format", "json"], ["--format", "csv"], ["--wide"], ["--no-shuffle"],
                           ["--list", "--format", "csv"], ["--against", str(path)], ["--sort", "alpha"]])  # fmt: skip
    if draw.random() < 0.01:
        options = ["--html", str(folder / "page.html")]
    return form, path, [*options, "--min-eigenvalues", draw.choice(["8", "8", "50"])]


def judge(seed: int, number: int, folder: Path) -> tuple[str, str]:
    """Return a file's format, and ``read``, ``refused`` or what is wrong."""
    form, path, options = make_file(seed, number, folder)
    result = CliRunner().invoke(app, ["diagnose", str(path), *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return form, "".join(traceback.format_exception(result.exception))
    strange = [char for char in result.output if not char.isprintable() and char != "\n"]
    if strange or len(result.output) > MOST_OUTPUT:
        return form, f"{options}: prints {len(result.output):,} characters, among them {strange[:5]}"
    lines = [line for line in result.stderr.splitlines() if "error" in line]
    if result.exit_code == 0:
        return form, "read"
    is_one_line = len(lines) == 1 and lines[0].startswith("error: ") and len(lines[0]) < 1100
    return form, "refused" if result.exit_code in (1, 2) and is_one_line else f"{options}: {result.exit_code} {lines}"


# a child makes and reads the files; its parent watches time and memory


def work(seed: int, inbox: Any, outbox: Any) -> None:
    torch.set_num_threads(1)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)
    while (number := inbox.recv()) is not None:
        folder = Path(tempfile.mkdtemp(prefix="campaign"))
        outbox.send(("folder", str(folder)))
        try:
            outbox.send(judge(seed, number, folder))
        except BaseException:
            outbox.send(("making", traceback.format_exc()))
        shutil.rmtree(folder, ignore_errors=True)
        trim(0)


def used(pid: int) -> tuple[float, int]:
    """Return the processor time and resident bytes of a process."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS, int(fields[21]) * os.sysconf("SC_PAGE_SIZE")


class Child:
    """A process that reads files, started again after it had to be ended."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        theirs_in, self.inbox = context.Pipe(False)
        self.outbox, theirs_out = context.Pipe(False)
        self.process = context.Process(target=work, args=(self.seed, theirs_in, theirs_out), daemon=True)
        self.process.start()
        self.largest, self.longest = 0, 0.0

    def run(self, number: int) -> tuple[str, str]:
        """Return a file's format and outcome."""
        self.inbox.send(number)
        folder = None
        begin, (before, _) = time.monotonic(), used(self.process.pid or 0)
        while True:
            try:
                if self.outbox.poll(0.02):
                    form, outcome = self.outbox.recv()
                    if form != "folder":
                        return form, outcome
                    folder, begin, before = outcome, time.monotonic(), used(self.process.pid or 0)[0]
                seconds, num_bytes = used(self.process.pid or 0)
            except (EOFError, OSError):
                return self.end(folder, f"ended with {self.process.exitcode}")
            self.largest, self.longest = max(self.largest, num_bytes), max(self.longest, seconds - before)
            if num_bytes > MOST_BYTES:
                return self.end(folder, f"took {num_bytes:,} bytes of memory")
            if seconds - before > MOST_SECONDS or time.monotonic() - begin > MOST_WAIT:
                return self.end(folder, f"took {seconds - before:.0f} s of processor time")

    def end(self, folder: str | None, outcome: str) -> tuple[str, str]:
        largest, longest = self.largest, self.longest
        self.process.kill()
        self.process.join()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        self.start()
        self.largest, self.longest = largest, longest
        return "ended", outcome


def run(count: int, seed: int, seconds: float = float("inf"), *, out: io.TextIOBase | Any = sys.stdout) -> int:
    """Run a campaign, print its counts, and return the number of failures."""
    child, end = Child(seed), time.monotonic() + seconds
    counts: Counter[tuple[str, str]] = Counter()
    number = num_failures = 0
    while number < count and time.monotonic() < end:
        form, outcome = child.run(number)
        if outcome not in ("read", "refused"):
            num_failures += 1
            print(f"file {number} of seed {seed} ({form}): {outcome}", file=out, flush=True)
        counts[form, outcome if outcome in ("read", "refused") else "failed"] += 1
        number += 1
    child.process.kill()
    for form in sorted({form for form, _ in counts}):
        print(
            f"{form:24} " + ", ".join(f"{counts[form, each]:5} {each}" for each in ("read", "refused", "failed")),
            file=out,
        )
    print(
        f"{number} files of seed {seed}: {num_failures} failures; longest {child.longest:.1f} s of processor time, "
        f"largest {child.largest / 2**20:.0f} MB",
        file=out,
        flush=True,
    )
    return num_failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=36_000)
    parser.add_argument("--only", type=int, help="make and diagnose this file alone, in this process")
    options = parser.parse_args()
    if options.only is not None:
        print(*judge(options.seed, options.only, Path(tempfile.mkdtemp(prefix="campaign"))), sep="\n")
        return
    sys.exit(run(options.count, options.seed, options.seconds) > 0)


if __name__ == "__main__":
    main()
