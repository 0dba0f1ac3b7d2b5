"""Odd, damaged and crafted checkpoints, each made from a seed and its number alone.

Well-formed with odd names, shapes, dtypes, values, masks, norms, adapters, experts and quantised layouts in every
format that is read; one in four is then damaged (flipped bytes, cut off, bytes doubled), and one in fifty is a crafted
case of tests/checkpoint/hostile.py.
"""

import json
import pickle
import random
import re
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from tests.checkpoint import hostile
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

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


def crowd(draw: random.Random, name: str) -> State:
    if draw.random() < 0.9:
        return layer(draw, name)
    value = torch.randn(draw.choice([(8, 8), (8,), (2, 2, 2)]))
    return {f"{name}.{place}.{draw.choice(['weight', 'bias'])}": value for place in range(draw.choice([100, 400]))}


PARTS = (plain, plain, layer, layer, masked, weight_normed, spectral_normed, lora, recurrent, experts, quantized, views,
         crowd)  # fmt: skip


def odd_state(draw: random.Random) -> State:
    """Return odd tensors, four times in five beside a layer that is scored."""
    state: State = {"body.weight": torch.randn(64, 48)} if draw.random() < 0.8 else {}
    for place in range(draw.choice([0, 1, 3, 6, 12])):
        state |= draw.choice(PARTS)(draw, draw.choice([f"layers.{place}", odd_name(draw)]))
    return state


# the formats


def contiguous(state: State) -> State:
    return {name or "empty": value.clone().contiguous() for name, value in state.items() if value.numel() < 100_000}


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


def saved(draw: random.Random, folder: Path, content: Any, *, use_zip: bool = True) -> Path:
    path = folder / f"a{draw.choice(['.pt', '.pth', '.bin', '.ckpt'])}"
    torch.save(content, path, _use_new_zipfile_serialization=use_zip)
    return path


def as_zip(draw: random.Random, folder: Path) -> Path:
    return saved(draw, folder, nested(draw))


def as_legacy(draw: random.Random, folder: Path) -> Path:
    return saved(draw, folder, nested(draw), use_zip=False)


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
    if draw.random() < 0.5:
        dcp.save(draw.choice([state, {"model": state, "optim": {"state": {}}}]), checkpoint_id=folder, no_dist=True)
        return folder
    pieces = {name: [value] if value.dim() == 0 else list(value.split(draw.choice([1000, 16, 7]))) for name, value in
              state.items()}  # fmt: skip
    if pieces and draw.random() < 0.2:
        odd = pieces[draw.choice(sorted(pieces))]
        odd[draw.randrange(len(odd))] = odd_tensor(draw)
    return in_pieces(folder, state, pieces, draw.choice([1, 2, 5]))


def in_pieces(folder: Path, state: State, pieces: dict[str, list[Tensor]], num_files: int) -> Path:
    """Write tensors whose rows are in several files, as several processes save them."""
    described, places, contents = {}, {}, [b""] * num_files
    for name, whole in state.items():
        chunks, row = [], 0
        for count, piece in enumerate(pieces[name]):
            offsets, content = [row, *[0] * (whole.dim() - 1)][: whole.dim()], hostile.saved(piece.clone())
            file = count % num_files
            places[MetadataIndex(name, offsets)] = _StorageInfo(f"__{file}_0.distcp", len(contents[file]), len(content))
            chunks.append(ChunkStorageMetadata(torch.Size(offsets), piece.shape))
            contents[file] += content
            row += len(piece) if piece.dim() else 1
        described[name] = TensorStorageMetadata(TensorProperties(dtype=whole.dtype), whole.shape, chunks)
    for file, content in enumerate(contents):
        (folder / f"__{file}_0.distcp").write_bytes(content)
    (folder / ".metadata").write_bytes(pickle.dumps(Metadata(described, storage_data=places)))
    return folder


def as_shards(draw: random.Random, folder: Path) -> Path:
    is_safe, num_shards = draw.random() < 0.6, draw.choice([1, 2, 5])
    stem, suffix, save = ("model", "safetensors", save_file) if is_safe else ("pytorch_model", "bin", torch.save)
    state = contiguous(odd_state(draw)) if is_safe else odd_state(draw)
    place = {name: f"{stem}-{draw.randrange(num_shards)}.{suffix}" for name in state}
    for shard in set(place.values()):
        save({name: value for name, value in state.items() if place[name] == shard}, folder / shard)
    if draw.random() < 0.15:
        place[odd_name(draw)] = draw.choice([*place.values(), "../x", odd_name(draw)])
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"weight_map": place}))
    return folder


def as_accelerate(draw: random.Random, folder: Path) -> Path:
    """Write what accelerate's save_state leaves in a folder."""
    if draw.random() < 0.5:
        save_file(contiguous(odd_state(draw)), folder / "model.safetensors")
    else:
        torch.save(nested(draw), folder / "pytorch_model.bin")
    for name in (
        "optimizer.bin",
        "scheduler.bin",
        "random_states_0.pkl",
        odd_name(draw).replace("/", "_")[:50] + ".bin",
    ):
        if draw.random() < 0.5 and "\0" not in name:
            (folder / name).write_bytes(hostile.saved(wrapped(draw, {"state": torch.ones(9, 9)})))
    return folder


def as_script(draw: random.Random, folder: Path) -> Path:
    """Write a TorchScript module with odd buffers under names that its language permits."""
    root = nn.Module()
    for name, value in odd_state(draw).items():
        *parents, leaf = (f"m{re.sub('[^a-zA-Z0-9_]', '_', part)[:40]}" for part in name.split(".")[:20])
        module = root
        for part in parents:
            if not isinstance(getattr(module, part, None), nn.Module):
                setattr(module, part, nn.Module())
            module = getattr(module, part)
        if not hasattr(module, leaf):
            module.register_buffer(leaf[1:] if leaf in ("mweight", "mbias") else leaf, value)
    root.body = nn.Sequential(nn.Linear(64, 48), nn.Conv2d(3, 16, 3), nn.Embedding(50, 64))
    torch.jit.save(torch.jit.script(root), folder / "a.pt")
    return folder / "a.pt"


EXPORT_DTYPES = {torch.uint8: 1, torch.int8: 2, torch.int32: 4, torch.int64: 5, torch.float16: 6, torch.float32: 7,
                 torch.float64: 8, torch.complex64: 10, torch.bool: 12, torch.bfloat16: 13}  # fmt: skip


def as_exported(draw: random.Random, folder: Path) -> Path:
    """Write weights as torch.export.save stores them, without a program."""
    config, is_odd = {}, draw.random() < 0.2
    with zipfile.ZipFile(folder / "a.pt2", "w") as archive:
        for place, (name, value) in enumerate(contiguous(odd_state(draw)).items()):
            sides = [[{"as_int": draw.choice([each] * 40 + [-1, 2**40, None] * is_odd)} for each in sides]
                     for sides in (value.shape, value.stride())]  # fmt: skip
            meta = {"dtype": EXPORT_DTYPES.get(value.dtype, 99), "sizes": sides[0], "strides": sides[1],
                    "storage_offset": {"as_int": draw.choice([0, 0, -1, 10**30]) if is_odd else 0}}  # fmt: skip
            if meta["dtype"] != 99 or draw.random() < 0.05:
                config[name] = {"path_name": f"weight_{place}", "use_pickle": False, "tensor_meta": meta}
                content = value.flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b""
                archive.writestr(f"a/data/weights/weight_{place}", content)
        archive.writestr("a/byteorder", draw.choice(["little"] * 20 + ["big"]))
        archive.writestr("a/data/weights/model_weights_config.json", json.dumps({"config": config}))
    return folder / "a.pt2"


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
    hostile.adapter(folder, contiguous(state), **config)
    if draw.random() < 0.3:
        (folder / "adapter_model.safetensors").unlink()
        torch.save(state, folder / "adapter_model.bin")
    return folder


def as_crafted(draw: random.Random, folder: Path) -> Path:
    return hostile.build_case(draw.choice(sorted(hostile.CASES)), folder / "case")


FORMATS: dict[Callable[[random.Random, Path], Path], int] = {  # and how often each is drawn
    as_safetensors: 6, as_zip: 6, as_legacy: 5, as_pickle: 5, as_arrays: 4, as_distributed: 4, as_shards: 4,
    as_accelerate: 2, as_script: 2, as_exported: 3, as_module: 1, as_adapter: 4, as_crafted: 1,
}  # fmt: skip


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


def odd_command(draw: random.Random, path: Path, folder: Path) -> list[str]:
    """Return a command that reads the checkpoint, with what it writes, if anything, in the folder."""
    scoring = ["--min-eigenvalues", draw.choice(["8", "8", "50"])]
    if draw.random() < 0.2:
        scoring += draw.choice([
            ["--key", draw.choice(["ema", "model", "", "\x1b"])], ["--include", "*layers*"], ["--exclude", "[!b]*"],
            ["--fused", "*=2"], ["--stacked", "*"], ["--tail", draw.choice(["median_published", "peak"])],
            ["--tail", "goodness_of_fit"], ["--tail-fraction", "0.2"],
        ])  # fmt: skip
    if draw.random() < 0.12:
        target = draw.choice(["sparsity=0.5", "bits=4", "lora-rank=8", "lora-rank=1"])
        by = ["--by", draw.choice(["alpha", "alpha_over_random"]), "--more-where", draw.choice(["larger", "smaller"])]
        written = draw.choice([[], [], ["--format", "json"], ["--out", str(folder / "out.json")],
                               ["--group-by", draw.choice(["layers.*", "*"])]])  # fmt: skip
        return ["allocate", str(path), "--target", target, *by, *written, *scoring]
    shown = draw.choice([[], [], ["--list"], ["--format", "json"], ["--format", "csv"], ["--wide"], ["--no-shuffle"],
                         ["--list", "--format", draw.choice(["csv", "json"])], ["--sort", "alpha", "--top", "2"],
                         ["--against", str(path), "--format", draw.choice(["table", "csv", "json"])]])  # fmt: skip
    if draw.random() < 0.015:
        shown = draw.choice([["--html", str(folder / "page.html")]] * 4 + [["--figures", str(folder / "figures")]])
    return ["diagnose", str(path), *shown, *scoring]


@dataclass(frozen=True)
class OddFile:
    """A checkpoint and the command that reads it."""

    form: str
    path: Path
    command: list[str]


def make_file(seed: int, number: int, folder: Path) -> OddFile:
    """Write the file of a number below ``folder / "file"``."""
    draw = random.Random(f"{seed} {number}")
    torch.manual_seed(draw.randrange(2**32))
    (make,) = draw.choices(list(FORMATS), list(FORMATS.values()))
    form = make.__name__.removeprefix("as_")
    (folder / "file").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = make(draw, folder / "file")
    if make is not as_crafted and draw.random() < 0.25:
        chosen = draw.choice(sorted(each for each in (folder / "file").rglob("*") if each.is_file()))
        for _ in range(draw.choice([1, 1, 3, 30])):
            chosen.write_bytes(damage(chosen.read_bytes(), draw))
        form = f"{form}, damaged"
    return OddFile(form, path, odd_command(draw, path, folder))
