"""Reading weights from files: formats, names, order, ties, and how much memory it takes."""

import io
import json
import math
import os
import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn

from tempbalance.checkpoint import Checkpoint, read_checkpoint
from tempbalance.errors import CheckpointError, WeightError
from tests.cases import assert_carries, raises
from tests.checkpoint import hostile

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64)


def weights(num_layers: int = 3) -> OrderedDict[str, torch.Tensor]:
    torch.manual_seed(0)
    return OrderedDict((f"layers.{index}.weight", torch.randn(4, 3 + index)) for index in range(num_layers))


def assert_holds(checkpoint: Checkpoint, expected: dict[str, torch.Tensor]) -> None:
    """The same names in the same order, with the same values; bytes are compared, as float8 has no equality."""
    assert [tensor.name for tensor in checkpoint.tensors] == list(expected)
    for tensor in checkpoint.tensors:
        value, known = tensor.load(), expected[tensor.name]
        assert (tensor.shape, tensor.dtype) == (tuple(known.shape), known.dtype)
        assert (value.shape, value.dtype) == (known.shape, known.dtype)
        assert tensor.num_bytes == known.numel() * known.element_size()
        assert torch.equal(value.contiguous().view(torch.uint8), known.contiguous().view(torch.uint8))


def save_legacy(value: object, path: Path) -> None:
    torch.save(value, path, _use_new_zipfile_serialization=False)


SAVERS = {"zip": torch.save, "legacy": save_legacy, "safetensors": lambda value, path: save_file(dict(value), path)}


@pytest.mark.parametrize(
    ("form", "suffix"),
    [
        *(("zip", suffix) for suffix in (".safetensors", ".bin", ".pt", ".pth", ".ckpt", "")),
        *((form, suffix) for form in ("legacy", "safetensors") for suffix in (".safetensors", ".pt")),
    ],
)
def test_a_format_is_told_by_content_whatever_the_file_is_called(tmp_path, form, suffix):
    path = tmp_path / f"weights{suffix}"
    SAVERS[form](weights(), path)
    checkpoint = read_checkpoint(path)
    assert_holds(checkpoint, weights())
    assert (checkpoint.name, checkpoint.key, checkpoint.notes) == (path.name, "", ())


@pytest.mark.parametrize("save", SAVERS.values(), ids=SAVERS)
def test_every_dtype_comes_back_bit_by_bit(tmp_path, save):
    values = {}
    for dtype in FLOATS + WHOLE:
        values[f"{dtype} weight"] = (torch.arange(24).reshape(2, 3, 4) - 7).to(dtype)
        values[f"{dtype} scalar"] = torch.tensor(1).to(dtype)
        values[f"{dtype} none"] = torch.empty(3, 0, dtype=dtype)
    path = tmp_path / "weights"
    save(values, path)
    found = {tensor.name: tensor for tensor in read_checkpoint(path).tensors}
    for name, value in values.items():
        assert (found[name].load().shape, found[name].load().dtype) == (value.shape, value.dtype)
        assert torch.equal(found[name].load().to(torch.float64), value.to(torch.float64))


@pytest.mark.parametrize("save", [torch.save, save_legacy])
def test_views_transposes_parameters_and_subclassed_dictionaries_are_read_as_torch_reads_them(tmp_path, save):
    base = torch.arange(60.0).reshape(6, 10)
    values = OrderedDict(
        transposed=base.T, rows=base[2:4], columns=base[:, 3:5], steps=base[::2, ::3], expanded=base[:1].expand(3, 10),
        parameter=nn.Parameter(base + 1), frozen=nn.Parameter(base + 2, requires_grad=False),
    )  # fmt: skip
    save(values, tmp_path / "a.pt")
    assert_holds(read_checkpoint(tmp_path / "a.pt"), torch.load(tmp_path / "a.pt", weights_only=True))


def test_a_parameter_with_attributes_and_a_tensor_with_attributes_are_read(tmp_path):
    parameter, tensor = nn.Parameter(torch.randn(2, 3)), torch.randn(3)
    parameter.tag, tensor.tag = "a", [1, 2]
    torch.save({"parameter": parameter, "tensor": tensor}, tmp_path / "a.pt")
    assert_holds(read_checkpoint(tmp_path / "a.pt"), {"parameter": parameter.detach(), "tensor": tensor})


def test_a_file_may_be_called_in_any_script(tmp_path):
    torch.save(weights(), tmp_path / "модель 模型.pt")
    assert_holds(read_checkpoint(tmp_path / "модель 模型.pt"), weights())


def test_a_mapping_is_read_without_a_copy():
    state = weights()
    checkpoint = read_checkpoint(state)
    assert_holds(checkpoint, state)
    assert checkpoint.tensors[0].load().data_ptr() == state["layers.0.weight"].data_ptr()


def test_values_beside_the_weights_are_left_out_with_a_note(tmp_path):
    torch.save({"weight": torch.eye(3), "a._extra_state": {"b": 1}, "version": 3}, tmp_path / "a.pt")
    checkpoint = read_checkpoint(tmp_path / "a.pt")
    assert [tensor.name for tensor in checkpoint.tensors] == ["weight"]
    (note,) = checkpoint.notes
    assert_carries(note, 2)


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model", "net", "module", "ema", "model.state_dict",
                                 "ema.model.module", "state_dict.model", "model_state", "params_ema",
                                 "generator", "student", "netG", "anything at all"])  # fmt: skip
def test_weights_are_key_the_usual_keys_nested_too(tmp_path, key):
    value: dict[str, object] = weights()
    for part in reversed(key.split(".")):
        value = {"epoch": 3, "loss": torch.tensor(0.5), part: value, "optimizer": {"state": {0: {"m": torch.ones(2)}}}}
    torch.save(value, tmp_path / "a.pt")
    for source in (tmp_path / "a.pt", value):
        checkpoint = read_checkpoint(source)
        assert_holds(checkpoint, weights())
        assert checkpoint.key == key
        assert any(other.is_optimizer for other in checkpoint.others)


@pytest.mark.parametrize(("other", "taken"), [(3, "model"), (2, "model"), (4, "ema")])
def test_the_largest_weights_are_taken_and_the_others_noted(tmp_path, other, taken):
    torch.save({"ema": weights(other), "model": weights(3)}, tmp_path / "a.pt")
    checkpoint = read_checkpoint(tmp_path / "a.pt")
    assert checkpoint.key == taken
    assert_holds(checkpoint, weights(max(other, 3)))
    (left,) = {"ema", "model"} - {taken}
    assert_carries(checkpoint.notes[0], repr(taken))
    assert_carries(checkpoint.notes[1], repr(left), "--key")
    assert [each.key for each in checkpoint.others] == [left]


@pytest.mark.parametrize(("key", "num_layers"), [("netG", 4), ("netD", 2), ("nets.netE", 3), ("nets", 3)])
def test_a_key_chooses_among_the_mappings(tmp_path, key, num_layers):
    held = {"netG": weights(4), "netD": weights(2), "nets": {"netE": weights(3)}, "step": 3}
    torch.save(held, tmp_path / "a.pt")
    for source in (tmp_path / "a.pt", held):
        tensors = read_checkpoint(source, key=key).tensors
        prefix = "netE." if key == "nets" else ""
        assert [tensor.name for tensor in tensors] == [prefix + name for name in weights(num_layers)]


def test_a_key_that_is_not_there_names_those_that_are(tmp_path):
    torch.save({"netG": weights(4), "netD": weights(2)}, tmp_path / "a.pt")
    with raises(CheckpointError, "'net'", "'netG'", "'netD'"):
        read_checkpoint(tmp_path / "a.pt", key="net")


def test_the_state_of_an_optimizer_is_never_taken_for_weights(tmp_path):
    model = nn.Linear(3, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    for number, value in enumerate([optimizer.state_dict(), {"optimizer": optimizer.state_dict(), "step": 3}]):
        torch.save(value, tmp_path / f"{number}.pt")
        with raises(CheckpointError, f"{number}.pt"):
            read_checkpoint(tmp_path / f"{number}.pt")


@pytest.mark.slow
def test_a_checkpoint_of_lightning_is_read(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self, width: int = 4) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Linear(3, width)

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            return self.net(batch).sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path, enable_checkpointing=False,
    )  # fmt: skip
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(torch.ones(4, 3)))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    checkpoint = read_checkpoint(tmp_path / "a.ckpt")
    assert checkpoint.key == "state_dict"
    assert_holds(checkpoint, module.state_dict())


@pytest.mark.parametrize(
    ("stored", "bare"),
    [
        (["module.a.weight", "module.b.weight"], ["a.weight", "b.weight"]),
        (["module.module.a.weight"], ["a.weight"]),
        (["module.a.weight", "b.weight"], ["module.a.weight", "b.weight"]),
        (["_orig_mod.a.weight", "b._orig_mod.c.weight"], ["a.weight", "b.c.weight"]),
        (["_orig_mod.module.a.weight"], ["a.weight"]),
        (["_fsdp_wrapped_module.a._checkpoint_wrapped_module.b.weight"], ["a.b.weight"]),
        (["a._orig_mod_.weight"], ["a._orig_mod_.weight"]),
        (["_orig_mod.a", "a"], ["_orig_mod.a", "a"]),
    ],
)
def test_what_wrappers_put_into_names_is_removed(stored, bare):
    checkpoint = read_checkpoint({name: torch.eye(2) for name in stored})
    assert [tensor.name for tensor in checkpoint.tensors] == bare


def test_safetensors_are_in_natural_order_and_pickles_in_their_own(tmp_path):
    names = [f"layers.{index}.{part}" for index in (10, 9, 1, 100, 2) for part in ("b", "a")]
    state = {name: torch.zeros(2) for name in names}
    save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "a.pt")
    natural = [f"layers.{index}.{part}" for index in (1, 2, 9, 10, 100) for part in ("a", "b")]
    assert [tensor.name for tensor in read_checkpoint(tmp_path / "a.safetensors").tensors] == natural
    assert [tensor.name for tensor in read_checkpoint(tmp_path / "a.pt").tensors] == names


@pytest.mark.parametrize("save", [torch.save, save_legacy, None])
def test_tied_tensors_have_equal_ties_and_others_have_not(tmp_path, save):
    shared = torch.randn(4, 3)
    state = {"embedding": shared, "head": shared, "part": shared[:2], "copy": shared.clone()}
    if save is not None:
        save(state, tmp_path / "a.pt")
    tensors = {tensor.name: tensor for tensor in read_checkpoint(tmp_path / "a.pt" if save else state).tensors}
    assert tensors["embedding"].tie == tensors["head"].tie is not None
    assert hash(tensors["embedding"].tie) == hash(tensors["head"].tie)
    assert len({tensor.tie for tensor in tensors.values()}) == 3


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_shards_with_an_index_are_one_checkpoint(tmp_path, suffix):
    state, save = weights(12), save_file if suffix == "safetensors" else torch.save
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    shards = {f"{stem}-0000{shard}-of-00003.{suffix}": list(state)[4 * shard - 4 : 4 * shard] for shard in (1, 2, 3)}
    for shard, names in shards.items():
        save({name: state[name] for name in names}, tmp_path / shard)
    index = {"metadata": {}, "weight_map": {name: shard for shard, names in shards.items() for name in sorted(names)}}
    (tmp_path / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
    checkpoint = read_checkpoint(tmp_path)
    assert_holds(checkpoint, state)
    assert checkpoint.name == tmp_path.name


def test_tensors_of_shards_that_the_index_does_not_name_are_left_out_with_a_note(tmp_path):
    save_file(weights(), tmp_path / "a.safetensors")
    index = {"weight_map": {"layers.1.weight": "a.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = read_checkpoint(tmp_path)
    assert [tensor.name for tensor in checkpoint.tensors] == ["layers.1.weight"]
    (note,) = checkpoint.notes
    assert_carries(note, 2)


@pytest.mark.parametrize("files", [["model.safetensors", "pytorch_model.bin", "training_args.bin", "optimizer.pt"],
                                   ["pytorch_model.bin", "config.json"], ["diffusion_pytorch_model.safetensors"],
                                   ["last.ckpt", "scheduler.pt"]])  # fmt: skip
def test_the_file_of_weights_in_a_folder_is_found(tmp_path, files):
    (save_file if files[0].endswith(".safetensors") else torch.save)(dict(weights()), tmp_path / files[0])
    for name in files[1:]:
        (tmp_path / name).write_bytes(b"not weights")
    assert_holds(read_checkpoint(tmp_path), weights())


def test_a_folder_with_two_files_of_weights_asks_which(tmp_path):
    for name in ("a.pt", "b.pt"):
        torch.save(weights(), tmp_path / name)
    with raises(CheckpointError, tmp_path.name, "'a.pt'"):
        read_checkpoint(tmp_path)


def hugging_face_cache(folder: Path, blobs: Path) -> Path:
    """A snapshot of links to blobs, as the hub's client lays it out."""
    snapshot = folder / "models--me--tiny" / "snapshots" / "abc"
    for part in (snapshot, blobs):
        part.mkdir(parents=True)
    save_file(weights(), blobs / "0123")
    (snapshot / "model.safetensors").symlink_to(os.path.relpath(blobs / "0123", snapshot))
    return snapshot


def test_links_of_a_hugging_face_cache_are_followed_within_the_cache_of_the_same_model(tmp_path):
    inside = hugging_face_cache(tmp_path / "a", tmp_path / "a" / "models--me--tiny" / "blobs")
    assert_holds(read_checkpoint(inside), weights())
    outside = hugging_face_cache(tmp_path / "b", tmp_path / "b" / "models--me--other" / "blobs")
    with raises(CheckpointError, "model.safetensors"):
        read_checkpoint(outside)


def test_a_link_that_a_person_hands_over_is_followed(tmp_path):
    save_file(weights(), tmp_path / "a.safetensors")
    (tmp_path / "b").symlink_to(tmp_path / "a.safetensors")
    assert_holds(read_checkpoint(tmp_path / "b"), weights())


# adapters


def save_adapter(folder: Path, tensors: dict[str, torch.Tensor], suffix: str = "safetensors", **config: object) -> None:
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, **config}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    names = {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}
    (save_file if suffix == "safetensors" else torch.save)(names, folder / f"adapter_model.{suffix}")


def factors(rank: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(rank, 20), torch.randn(30, rank)


def singular_values(matrix: torch.Tensor, count: int) -> torch.Tensor:
    return torch.linalg.svdvals(matrix.double())[:count].float()


@pytest.mark.parametrize(
    ("suffix", "config", "scale"),
    [
        ("bin", {}, 8 / 4),
        ("safetensors", {}, 8 / 4),
        ("safetensors", {"use_rslora": True}, 8 / math.sqrt(4)),
        ("safetensors", {"alpha_pattern": {"q_proj": 3}}, 3 / 4),
        ("safetensors", {"alpha_pattern": {"0.q_proj": 3}, "use_rslora": True}, 3 / 2),
        ("safetensors", {"alpha_pattern": {"^layers.0.q_proj": 3}}, 3 / 4),
        ("safetensors", {"alpha_pattern": {"^0.q_proj": 3, "proj": 5}}, 8 / 4),
        ("safetensors", {"r": 16, "rank_pattern": {"q_proj": 4}}, 8 / 4),
    ],
)
def test_a_pair_of_lora_factors_is_their_scaled_product(tmp_path, suffix, config, scale):
    down, up = factors()
    tensors = {"layers.0.q_proj.lora_A.weight": down, "layers.0.q_proj.lora_B.weight": up}
    save_adapter(tmp_path, tensors, suffix, **config)
    (product,) = read_checkpoint(tmp_path).tensors
    assert (product.name, product.shape, product.rank) == ("layers.0.q_proj", (30, 20), 4)
    core = product.load()
    assert core.shape == (4, 4)
    assert torch.allclose(singular_values(core, 4), singular_values(scale * up @ down, 4), rtol=1e-5)


def test_factors_of_convolutions_and_embeddings_are_flattened_and_half_precision_is_raised(tmp_path):
    down, up = torch.randn(4, 5, 3, 3).half(), torch.randn(6, 4, 1, 1).half()
    embedding = {"tok.lora_embedding_A": torch.randn(4, 50), "tok.lora_embedding_B": torch.randn(12, 4)}
    save_adapter(tmp_path, {"conv.lora_A.weight": down, "conv.lora_B.weight": up, **embedding})
    conv, tok = sorted(read_checkpoint(tmp_path).tensors, key=lambda tensor: tensor.name)
    assert (conv.shape, conv.rank, tok.shape) == ((6, 45), 4, (12, 50))
    known = 2 * up.float().flatten(1) @ down.float().flatten(1)
    assert torch.allclose(singular_values(conv.load(), 4), singular_values(known, 4), rtol=1e-4)


def test_other_tensors_of_an_adapter_stay_what_they_are(tmp_path):
    down, up = factors()
    tensors = {"a.lora_A.weight": down, "a.lora_B.weight": up, "classifier.weight": torch.eye(3)}
    save_adapter(tmp_path, tensors, use_dora=True)
    checkpoint = read_checkpoint(tmp_path)
    assert [(tensor.name, tensor.rank) for tensor in checkpoint.tensors] == [("a", 4), ("classifier.weight", None)]
    (note,) = checkpoint.notes
    assert_carries(note, "DoRA")


# torch.distributed.checkpoint


def save_distributed(state: dict[str, object], folder: Path) -> None:
    dcp.save(state, checkpoint_id=folder, no_dist=True)


@pytest.mark.filterwarnings("ignore")
def test_a_distributed_checkpoint_gives_the_model_and_not_the_optimizer(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5, dtype=torch.float64))
    optimizer = torch.optim.Adam(model[0].parameters())
    model[0](torch.ones(1, 3)).sum().backward()
    optimizer.step()
    save_distributed({"model": model.state_dict(), "optim": optimizer.state_dict(), "step": 3}, tmp_path / "a")
    checkpoint = read_checkpoint(tmp_path / "a")
    assert checkpoint.key == "model"
    assert_holds(checkpoint, model.state_dict())


@pytest.mark.filterwarnings("ignore")
def test_a_distributed_checkpoint_of_a_plain_state_dict_is_read(tmp_path):
    save_distributed(dict(weights()), tmp_path / "a")
    assert_holds(read_checkpoint(tmp_path / "a"), weights())


def test_a_tensor_in_pieces_is_put_together(tmp_path):
    weight = torch.arange(70.0).reshape(7, 10)
    folder = hostile.distributed_pieces(tmp_path, weight, {"__0_0.distcp": slice(0, 4), "__1_0.distcp": slice(4, 7)})
    assert_holds(read_checkpoint(folder), {"weight": weight})


SHARDED = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
weight = torch.arange(70.0).reshape(7, 10)
rows, columns = distribute_tensor(weight, mesh, [Shard(0)]), distribute_tensor(weight, mesh, [Shard(1)])
dcp.save({"model": {"rows": rows, "columns": columns}}, checkpoint_id=f"{folder}/a")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_tensors_in_pieces_of_two_processes_are_put_together(tmp_path):
    commands = [[sys.executable, "-W", "ignore", "-c", SHARDED, str(rank), str(tmp_path)] for rank in range(2)]
    running = [subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) for command in commands]
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    weight = torch.arange(70.0).reshape(7, 10)
    found = {tensor.name: tensor.load() for tensor in read_checkpoint(tmp_path / "a").tensors}
    assert torch.equal(found["rows"], weight)
    assert torch.equal(found["columns"], weight)


# what cannot be read is listed


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_tensors_that_are_not_dense_are_listed_and_name_themselves_when_read(tmp_path):
    state = {
        "sparse": torch.eye(3).to_sparse(), "rows": torch.eye(4).to_sparse_csr(),
        "meta": torch.empty(6, device="meta"), "lazy": torch.ones(2, dtype=torch.complex64).conj(),
        "plain": torch.eye(2),
    }  # fmt: skip
    torch.save(state, tmp_path / "a.pt")
    checkpoint = read_checkpoint(tmp_path / "a.pt")
    assert [(tensor.name, tensor.shape) for tensor in checkpoint.tensors] == [
        (name, tuple(value.shape)) for name, value in state.items()
    ]
    for tensor in checkpoint.tensors[:-1]:
        with raises(WeightError, tensor.name):
            tensor.load()
    assert torch.equal(checkpoint.tensors[-1].load(), torch.eye(2))


def test_complex_tensors_are_read(tmp_path):
    state = {"weight": torch.randn(3, 2, dtype=torch.complex64)}
    save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "a.pt")
    for name in ("a.safetensors", "a.pt"):
        assert torch.equal(read_checkpoint(tmp_path / name).tensors[0].load(), state["weight"])


def test_a_file_that_shrinks_after_it_was_opened_says_so(tmp_path):
    for save, name in ((save_file, "a.safetensors"), (torch.save, "a.pt")):
        save({"weight": torch.ones(1000)}, tmp_path / name)
        (tensor,) = read_checkpoint(tmp_path / name).tensors
        os.truncate(tmp_path / name, 300)
        with raises(CheckpointError, name):
            tensor.load()


def test_an_archive_that_was_compressed_is_read(tmp_path):
    buffer = io.BytesIO()
    state = {"weight": torch.arange(1000.0), "part": torch.arange(1000.0)[100:200]}
    torch.save(state, buffer)
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as packed, zipfile.ZipFile(buffer) as plain:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    assert_holds(read_checkpoint(tmp_path / "a.pt"), state)


# memory


# the peak in getrusage would be that of the parent process, from which this one was forked
MEASURED = """
import sys
import torch
from tempbalance.checkpoint import read_checkpoint
torch.ones(64, 64) @ torch.ones(64, 64)
peak = lambda: int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
before = peak()
for tensor in read_checkpoint(sys.argv[1]).tensors:
    tensor.load().sum()
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("save", SAVERS.values(), ids=SAVERS)
def test_one_tensor_is_in_memory_at_a_time(tmp_path, save):
    one = 8 << 20
    save({f"layers.{index}": torch.ones(one // 4) for index in range(16)}, tmp_path / "a")
    grown = subprocess.run([sys.executable, "-c", MEASURED, str(tmp_path / "a")], capture_output=True, check=True)
    most = 3 * one + ((20 << 20) if save is save_legacy else 0)  # the old format's front is read at once
    assert int(grown.stdout) * 1024 < most


def test_reading_a_checkpoint_reads_no_tensor(tmp_path, monkeypatch):
    save_file(weights(), tmp_path / "a.safetensors")
    monkeypatch.setattr("tempbalance.checkpoint.formats._load", lambda *_: pytest.fail("read a tensor"))
    assert len(read_checkpoint(tmp_path / "a.safetensors").tensors) == 3


# values that changed since they were written


def flipped(path: Path, tensor: torch.Tensor) -> None:
    """Flip a bit in the middle of a tensor's bytes."""
    content, held = bytearray(path.read_bytes()), tensor.numpy().tobytes()
    content[content.index(held) + len(held) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("suffix", ["pt", "npz"])
def test_a_flipped_bit_in_an_archive_is_refused_by_its_checksum(tmp_path, suffix):
    path, state = tmp_path / f"a.{suffix}", {name: torch.randn(60, 60) for name in ("one", "two")}
    torch.save(state, path) if suffix == "pt" else np.savez(
        path, **{name: each.numpy() for name, each in state.items()}
    )
    flipped(path, state["two"])
    one, two = read_checkpoint(path).tensors
    assert torch.equal(one.load(), state["one"])
    with raises(CheckpointError, path.name, "'two'", "CRC-32"):
        two.load()


def test_an_archive_without_checksums_is_read(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(weights(), tmp_path / "a.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert_holds(read_checkpoint(tmp_path / "a.pt"), weights())


@pytest.mark.parametrize("form", SAVERS)
def test_a_file_that_is_replaced_while_it_is_read_is_refused(tmp_path, form):
    SAVERS[form](weights(), tmp_path / "a")
    SAVERS[form]({name: value + 1 for name, value in weights().items()}, tmp_path / "b")
    first, second, _ = read_checkpoint(tmp_path / "a").tensors
    first.load()
    os.replace(tmp_path / "b", tmp_path / "a")
    with raises(CheckpointError, "'a'", "replaced"):
        second.load()


@pytest.mark.parametrize("key", ["optimized_model", "opt"])
def test_weights_under_a_key_that_sounds_like_an_optimizer_are_found(key, tmp_path):
    weight = torch.randn(4, 4)
    torch.save({key: {"fc.weight": weight}}, tmp_path / "model.pt")
    (tensor,) = read_checkpoint(tmp_path / "model.pt").tensors
    assert torch.equal(tensor.load(), weight)


def test_nested_weights_and_their_average_are_two_mappings(tmp_path):
    tree = {"a": {"kernel": torch.randn(4, 4)}, "b": {"kernel": torch.randn(4, 4)}}
    average = {name: {"kernel": each["kernel"] + 1} for name, each in tree.items()}
    torch.save({"params": tree, "ema_params": average}, tmp_path / "model.pt")
    for key, wanted in ((None, tree), ("params", tree), ("ema_params", average)):
        found = {tensor.name: tensor.load() for tensor in read_checkpoint(tmp_path / "model.pt", key=key).tensors}
        assert set(found) == {"a.kernel", "b.kernel"}
        assert torch.equal(found["b.kernel"], wanted["b"]["kernel"])


@pytest.mark.filterwarnings("ignore")
def test_weights_that_torch_quantised_are_one_mapping(tmp_path):
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 4)), dtype=torch.qint8)
    torch.save(model.state_dict(), tmp_path / "a.pt")
    checkpoint = read_checkpoint(tmp_path / "a.pt")
    assert {"0.weight", "0.bias"} <= {tensor.name for tensor in checkpoint.tensors}
    assert checkpoint.others == ()


def test_an_archive_of_zeros_that_unfolds_a_thousandfold_to_a_few_megabytes_is_read(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", weight=np.zeros((1000, 1000), np.float32))
    assert (tmp_path / "a.npz").stat().st_size < 40_000
    (tensor,) = read_checkpoint(tmp_path / "a.npz").tensors
    assert torch.equal(tensor.load(), torch.zeros(1000, 1000))


class WithKeywords:
    """Pickles with keyword arguments from protocol 2 on."""

    def __new__(cls, *, rate: float = 0.1):
        return super().__new__(cls)

    def __getnewargs_ex__(self):
        return (), {"rate": 0.2}


@pytest.mark.parametrize("protocol", range(6))
def test_sets_bytes_and_objects_with_keywords_beside_weights_are_read_past(protocol, tmp_path):
    others = [{(1, 2), 3}, frozenset({"a", (4, 5)}), bytearray(b"abc"), b"abc", WithKeywords(), {1: {"a": 2}, None: 3}]
    others = others if protocol > 1 else [each for each in others if not isinstance(each, WithKeywords)]
    state = {name: value.numpy() for name, value in weights().items()}
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"others": others, "state": state}, protocol))
    assert_holds(read_checkpoint(tmp_path / "a.pkl"), weights())
