"""Checkpoints as people make them, each by its own library: they open, and their values are right to the bit."""

import argparse
import collections
import dataclasses
import datetime
import enum
import functools
import json
import pathlib
import pickle
import random
import types
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint
from safetensors.torch import save_file
from torch import nn

from tempbalance.checkpoint import read_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

State = dict[str, torch.Tensor]
KINDS: dict[str, Callable[[Path], tuple[Path, State]]] = {}
FEWEST = 50


class Net(nn.Module):
    """Layers of each sort, a buffer that is saved and one that is not."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU())
        self.head = nn.Linear(width, 4)
        self.register_buffer("mean", torch.randn(3))
        self.register_buffer("cache", torch.randn(3), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images - self.mean.view(1, 3, 1, 1)).mean((2, 3)))


class Mode(enum.Enum):
    TRAIN = "train"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Config:
    lr: float = 0.1
    folder: pathlib.Path = pathlib.Path("runs")


@dataclasses.dataclass(frozen=True)
class Slotted:
    __slots__ = ("lr",)
    lr: float


class Attributes(dict):
    """A dictionary with attributes, as configuration libraries have them."""

    __getattr__ = dict.__getitem__


Point = collections.namedtuple("Point", "x y")


def net(seed: int = 0, width: int = 8) -> Net:
    torch.manual_seed(seed)
    return Net(width)


def trained() -> tuple[Net, torch.optim.Optimizer]:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    return model, optimizer


def kind(build: Callable[[Path], tuple[Path, State]]) -> Callable[[Path], tuple[Path, State]]:
    KINDS[build.__name__.replace("_", " ")] = build
    return build


def beside(name: str, value: Callable[[], object]) -> None:
    """A state dict with another object beside it."""

    def build(folder: Path) -> tuple[Path, State]:
        torch.save({"state_dict": net().state_dict(), "other": value()}, folder / "a.pt")
        return folder / "a.pt", net().state_dict()

    KINDS[f"beside {name}"] = build


def under(key: str) -> None:
    def build(folder: Path) -> tuple[Path, State]:
        model, optimizer = trained()
        torch.save({"step": 3, key: model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "a.pt")
        return folder / "a.pt", model.state_dict()

    KINDS[f"under {key}"] = build


for name, value in {
    "argparse.Namespace": lambda: argparse.Namespace(lr=0.1, layers=[1, 2]),
    "a numpy scalar": lambda: np.float64(0.3),
    "a numpy array": lambda: np.arange(5),
    "the random state of numpy": np.random.get_state,
    "a generator of numpy": lambda: np.random.default_rng(0),
    "the random state of Python": random.getstate,
    "the random state of torch": lambda: {"torch": torch.get_rng_state(), "numpy": np.random.get_state()},
    "a Path": lambda: pathlib.Path("/data/images"),
    "a datetime": lambda: datetime.datetime(2024, 1, 2, 3, 4),
    "a timedelta": lambda: datetime.timedelta(seconds=3),
    "a defaultdict": lambda: collections.defaultdict(list, {"loss": [0.1]}),
    "a Counter and a deque": lambda: [collections.Counter("aab"), collections.deque([1], maxlen=3)],
    "an enum": lambda: {Mode.TRAIN: 1, "level": Level.HIGH},
    "a dataclass": Config,
    "a dataclass with slots": lambda: Slotted(0.1),
    "a dictionary with attributes": lambda: Attributes(model=Attributes(depth=3)),
    "a SimpleNamespace": lambda: types.SimpleNamespace(lr=0.1),
    "a named tuple": lambda: Point(1, 2),
    "a partial": lambda: functools.partial(print, "a"),
    "a function and a class": lambda: [net, Net, nn.functional.relu],
    "a set of tuples": lambda: {(1, 2), (3, 4)},
    "Decimal and UUID": lambda: [Decimal("0.1"), uuid.UUID(int=3)],
    "an exception": lambda: ValueError("diverged"),
    "a device, a dtype and a shape": lambda: [torch.device("cpu"), torch.bfloat16, torch.Size([3])],
    "a scheduler": lambda: torch.optim.lr_scheduler.StepLR(trained()[1], 3),
    "a dataset": lambda: torch.utils.data.TensorDataset(torch.arange(3)),
}.items():
    beside(name, value)
for key in (
    "model_state",
    "params_ema",
    "generator",
    "student",
    "netG",
    "state_dict",
    "ema",
    "model_state_dict",
    "weights",
):
    under(key)


@kind
def a_plain_state_dict(folder: Path) -> tuple[Path, State]:
    torch.save(net().state_dict(), folder / "a.pth")
    return folder / "a.pth", net().state_dict()


@kind
def a_state_dict_of_the_old_format(folder: Path) -> tuple[Path, State]:
    torch.save(net().state_dict(), folder / "a.pth", _use_new_zipfile_serialization=False)
    return folder / "a.pth", net().state_dict()


@kind
def a_state_dict_by_a_newer_protocol(folder: Path) -> tuple[Path, State]:
    torch.save({"model": net().state_dict(), "args": Config()}, folder / "a.pth", pickle_protocol=5)
    return folder / "a.pth", net().state_dict()


@kind
def a_whole_module(folder: Path) -> tuple[Path, State]:
    torch.save(net(), folder / "model.pt")
    return folder / "model.pt", net().state_dict()


@kind
def a_whole_module_of_the_old_format(folder: Path) -> tuple[Path, State]:
    torch.save(net(), folder / "model.pt", _use_new_zipfile_serialization=False)
    return folder / "model.pt", net().state_dict()


@kind
def a_whole_module_beside_its_optimizer(folder: Path) -> tuple[Path, State]:
    model, optimizer = trained()
    torch.save({"model": model.half(), "optimizer": optimizer, "epoch": 3, "ema": None}, folder / "last.pt")
    return folder / "last.pt", model.state_dict()


@kind
def data_parallel(folder: Path) -> tuple[Path, State]:
    torch.save(nn.DataParallel(net()).state_dict(), folder / "a.pt")
    return folder / "a.pt", net().state_dict()


@kind
def a_compiled_module(folder: Path) -> tuple[Path, State]:
    torch.save({"model": torch.compile(net()).state_dict()}, folder / "a.pt")
    return folder / "a.pt", net().state_dict()


@kind
def an_averaged_model(folder: Path) -> tuple[Path, State]:
    torch.save(torch.optim.swa_utils.AveragedModel(net()).module.state_dict(), folder / "a.pt")
    return folder / "a.pt", net().state_dict()


@kind
def weights_without_names(folder: Path) -> tuple[Path, State]:
    values = [parameter.data for parameter in net().parameters()]
    torch.save(values, folder / "a.pt")
    return folder / "a.pt", {str(number): value for number, value in enumerate(values)}


@kind
def one_tensor(folder: Path) -> tuple[Path, State]:
    torch.save(net().head.weight, folder / "a.pt")
    return folder / "a.pt", {"tensor": net().head.weight.detach()}


@kind
def two_adversarial_networks(folder: Path) -> tuple[Path, State]:
    torch.save({"netG": net(0, 16).state_dict(), "netD": net(1).state_dict(), "opt_G": trained()[1].state_dict()},
               folder / "a.pt")  # fmt: skip
    return folder / "a.pt", net(0, 16).state_dict()


@kind
def nested_names(folder: Path) -> tuple[Path, State]:
    tree = {"params": {"encoder": {"a": {"kernel": torch.randn(4, 3)}, "b": {"kernel": torch.ones(3)}},
                       "decoder": {"a": {"kernel": torch.randn(2, 2)}}}}  # fmt: skip
    torch.save(tree, folder / "a.pt")
    held = {("encoder", "a"), ("encoder", "b"), ("decoder", "a")}
    return folder / "a.pt", {f"{one}.{two}.kernel": tree["params"][one][two]["kernel"] for one, two in held}


@kind
def a_script(folder: Path) -> tuple[Path, State]:
    torch.jit.script(net().head).save(folder / "a.pt")
    return folder / "a.pt", net().head.state_dict()


@kind
def a_trace(folder: Path) -> tuple[Path, State]:
    traced = torch.jit.trace(net().eval(), torch.randn(1, 3, 8, 8))
    traced.save(folder / "a.pt")
    return folder / "a.pt", {**net().state_dict(), "cache": net().cache}


@kind
def an_exported_program(folder: Path) -> tuple[Path, State]:
    torch.export.save(torch.export.export(net().eval(), (torch.randn(1, 3, 8, 8),)), folder / "a.pt2")
    return folder / "a.pt2", net().state_dict()


@kind
def arrays_of_numpy(folder: Path) -> tuple[Path, State]:
    np.savez(folder / "a.npz", **{name: value.numpy() for name, value in net().state_dict().items()})
    return folder / "a.npz", net().state_dict()


@kind
def compressed_arrays_in_column_order(folder: Path) -> tuple[Path, State]:
    np.savez_compressed(folder / "a.npz", weight=np.asfortranarray(net().head.weight.detach().numpy()))
    return folder / "a.npz", {"weight": net().head.weight.detach()}


@kind
def a_pickle_of_arrays(folder: Path) -> tuple[Path, State]:
    arrays = {name: value.numpy() for name, value in net().state_dict().items() if value.ndim}
    (folder / "a.pkl").write_bytes(pickle.dumps({"model": arrays, "__author__": "me"}))
    return folder / "a.pkl", {name: torch.from_numpy(value) for name, value in arrays.items()}


@kind
def a_pickle_of_a_module(folder: Path) -> tuple[Path, State]:
    (folder / "a.pkl").write_bytes(pickle.dumps(net()))
    return folder / "a.pkl", net().state_dict()


@kind
def arrays_in_a_torch_file(folder: Path) -> tuple[Path, State]:
    torch.save({"w": net().head.weight.detach().numpy()}, folder / "a.pt")
    return folder / "a.pt", {"w": net().head.weight.detach()}


@kind
def safetensors(folder: Path) -> tuple[Path, State]:
    save_file(net().state_dict(), folder / "a.safetensors", {"format": "pt"})
    return folder / "a.safetensors", net().state_dict()


@kind
def quantised_by_torch(folder: Path) -> tuple[Path, State]:
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(net().head), dtype=torch.qint8)
    torch.save(model.state_dict(), folder / "a.pt")
    return folder / "a.pt", {
        "0.weight": model[0].weight().dequantize(), "0.bias": model[0].bias().detach(),
        "0.scale": torch.tensor(1.0), "0.zero_point": torch.tensor(0),
    }  # fmt: skip


def save_distributed(folder: Path, state: dict[str, object]) -> Path:
    torch.distributed.checkpoint.save(state, checkpoint_id=folder / "a", no_dist=True)
    return folder / "a"


@kind
def a_distributed_checkpoint(folder: Path) -> tuple[Path, State]:

    return save_distributed(folder, net().state_dict()), net().state_dict()


@kind
def a_distributed_checkpoint_with_an_optimizer(folder: Path) -> tuple[Path, State]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = trained()
    weights, moments = get_state_dict(model, optimizer)
    return save_distributed(folder, {"app": {"model": weights, "optim": moments}, "step": 3}), model.state_dict()


@kind
def lightning_with_a_path(folder: Path) -> tuple[Path, State]:
    module = lightning_module()(pathlib.Path("data"))
    trainer = lightning_trainer(folder)
    trainer.fit(module, torch.utils.data.DataLoader(torch.randn(4, 3, 8, 8)))
    trainer.save_checkpoint(folder / "a.ckpt")
    return folder / "a.ckpt", module.state_dict()


def lightning_trainer(folder: Path):
    import lightning

    return lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder, enable_checkpointing=False,
    )  # fmt: skip


@functools.cache
def lightning_module() -> type:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self, folder: pathlib.Path, config: object = None) -> None:
            super().__init__()
            self.save_hyperparameters({"folder": folder, "config": argparse.Namespace(lr=1)})
            self.net = net()

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            return self.net(batch).sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    return Module


@kind
def fabric(folder: Path) -> tuple[Path, State]:
    import lightning

    setup = lightning.Fabric(accelerator="cpu", devices=1)
    model, optimizer = setup.setup(net(), torch.optim.Adam(net().parameters()))
    setup.save(folder / "a.ckpt", {"model": model, "optimizer": optimizer, "config": Config()})
    return folder / "a.ckpt", net().state_dict()


def tiny_bert():
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return BertModel(BertConfig(vocab_size=40, **sizes))


@kind
def transformers(folder: Path) -> tuple[Path, State]:
    tiny_bert().save_pretrained(folder / "a")
    return folder / "a", tiny_bert().state_dict()


@kind
def transformers_in_shards(folder: Path) -> tuple[Path, State]:
    tiny_bert().save_pretrained(folder / "a", max_shard_size="5KB")
    assert (folder / "a" / "model.safetensors.index.json").exists()
    return folder / "a", tiny_bert().state_dict()


@kind
def transformers_before_safetensors(folder: Path) -> tuple[Path, State]:
    torch.save(tiny_bert().state_dict(), folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    torch.save(argparse.Namespace(lr=1), folder / "training_args.bin")
    return folder, tiny_bert().state_dict()


@kind
def accelerate(folder: Path) -> tuple[Path, State]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, _ = accelerator.prepare(*trained())
    accelerator.save_state(folder / "a")
    return folder / "a", model.state_dict()


@kind
def accelerate_before_safetensors(folder: Path) -> tuple[Path, State]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, _ = accelerator.prepare(*trained())
    accelerator.save_state(folder / "a", safe_serialization=False)
    return folder / "a", model.state_dict()


def adapted():
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    return get_peft_model(tiny_bert(), LoraConfig(r=4, target_modules=["query"], init_lora_weights=False))


@kind
def a_model_with_its_adapters(folder: Path) -> tuple[Path, State]:
    torch.save(adapted().state_dict(), folder / "a.pt")
    return folder / "a.pt", adapted().state_dict()


@kind
def ultralytics_like(folder: Path) -> tuple[Path, State]:
    model, _ = trained()
    held = {"epoch": -1, "best_fitness": np.float64(0.3), "model": model, "ema": None, "updates": None,
            "optimizer": None, "train_args": vars(argparse.Namespace(lr=1)), "date": "2024-01-02"}  # fmt: skip
    torch.save(held, folder / "best.pt")
    return folder / "best.pt", model.state_dict()


@kind
def deepspeed_like(folder: Path) -> tuple[Path, State]:
    (folder / "a").mkdir()
    held = {"module": net().state_dict(), "buffer_names": ["mean"], "ds_config": Attributes(zero=1), "mp_world_size": 1,
            "param_shapes": [collections.OrderedDict(a=torch.Size([3]))], "ds_version": "0.1"}  # fmt: skip
    torch.save(held, folder / "a" / "mp_rank_00_model_states.pt")
    torch.save({"optimizer_state_dict": trained()[1].state_dict()}, folder / "a" / "zero_pp_rank_0_optim_states.pt")
    return folder / "a", net().state_dict()


def same_bits(value: torch.Tensor, known: torch.Tensor) -> bool:
    known = known.detach().contiguous()
    is_alike = (value.shape, value.dtype) == (known.shape, known.dtype)
    return is_alike and value.contiguous().numpy().tobytes() == known.numpy().tobytes()


@pytest.mark.parametrize("name", KINDS)
def test_a_checkpoint_opens_with_the_right_values(name, tmp_path):
    path, expected = KINDS[name](tmp_path)
    found = {tensor.name: tensor.load() for tensor in read_checkpoint(path).tensors}
    assert set(found) == set(expected)
    assert [tensor for tensor, value in expected.items() if not same_bits(found[tensor], value)] == []


def test_an_adapter_of_peft_gives_the_products_that_it_adds(tmp_path):
    adapted().save_pretrained(tmp_path / "a")
    layers = {name: layer for name, layer in adapted().base_model.model.named_modules() if hasattr(layer, "lora_A")}
    found = {tensor.name: tensor.load() for tensor in read_checkpoint(tmp_path / "a").tensors}
    assert set(found) == set(layers)
    for name, layer in layers.items():
        known = torch.linalg.svdvals(layer.get_delta_weight("default"))[:4]
        torch.testing.assert_close(torch.linalg.svdvals(found[name]), known, rtol=1e-4, atol=1e-6)


def test_there_are_as_many_kinds_as_promised():
    assert len(KINDS) >= FEWEST
