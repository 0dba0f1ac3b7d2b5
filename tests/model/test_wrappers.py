import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from tempbalance import TempBalance, find_layers, param_groups, split_param_groups
from tempbalance.model.sharded import unwrap
from tests.cases import mlp, train_step

compiled = partial(torch.compile, backend="eager")  # which wraps as the default does, without loading its compiler


@pytest.fixture(scope="module")
def process_group(tmp_path_factory):
    """One process that is all of its group."""
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "file"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def compile_one(model: nn.Sequential) -> nn.Sequential:
    model[3] = compiled(model[3])
    return model


def checkpoint_one(model: nn.Sequential) -> nn.Sequential:
    model[3] = checkpoint_wrapper(model[3])
    return model


def compile_and_checkpoint_one(model: nn.Sequential) -> nn.Sequential:
    model[3] = compiled(checkpoint_wrapper(model[3]))
    return model


WRAPPERS = {
    "DataParallel": nn.DataParallel,
    "DistributedDataParallel": DistributedDataParallel,
    "torch.compile": compiled,
    "torch.compile of DataParallel": lambda model: compiled(nn.DataParallel(model)),
    "DistributedDataParallel of torch.compile": lambda model: DistributedDataParallel(compiled(model)),
    "torch.compile of DistributedDataParallel": lambda model: compiled(DistributedDataParallel(model)),
    "a compiled submodule": compile_one,
    "a checkpointed submodule": checkpoint_one,
    "a compiled checkpointed submodule": compile_and_checkpoint_one,
    "DataParallel of a compiled submodule": lambda model: nn.DataParallel(compile_one(model)),
    "DistributedDataParallel of a checkpointed submodule": lambda model: DistributedDataParallel(checkpoint_one(model)),
}

ONE_OF_EACH = (
    "DistributedDataParallel",
    "torch.compile of DataParallel",
    "a compiled checkpointed submodule",
    "DistributedDataParallel of a checkpointed submodule",
)

pytestmark = pytest.mark.usefixtures("process_group")


def model_of_blocks() -> nn.Sequential:
    """Layers at the top, and in a block that can be wrapped."""
    model = mlp((64, 96, 80, 80, 72, 60))
    model[3] = nn.Sequential(model[3], nn.LayerNorm(80), nn.Linear(80, 80))
    return model


def balanced(model: nn.Module) -> tuple[torch.optim.Optimizer, TempBalance]:
    optimizer = torch.optim.SGD(param_groups(model), lr=0.1)
    return optimizer, TempBalance(optimizer, model, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_layers_have_the_names_of_the_bare_model(wrapper):
    bare = [(layer.name, layer.shape, len(layer.followers)) for layer in find_layers(model_of_blocks())]
    wrapped = WRAPPERS[wrapper](model_of_blocks())
    assert [(layer.name, layer.shape, len(layer.followers)) for layer in find_layers(wrapped)] == bare
    assert [name for name, *_ in bare] == ["0", "3.0", "3.2", "6", "9", "12"]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_groups_are_those_of_the_bare_model(wrapper):
    model = model_of_blocks()
    bare = [(group["layer"], group["params"]) for group in param_groups(model)]
    wrapped = [(group["layer"], group["params"]) for group in param_groups(WRAPPERS[wrapper](model))]
    assert [name for name, _ in wrapped] == [name for name, _ in bare]
    for (_, ours), (_, expected) in zip(wrapped, bare, strict=True):
        assert [id(each) for each in ours] == [id(each) for each in expected]


@pytest.mark.parametrize("wrapper", ONE_OF_EACH)
def test_scores_and_scales_are_those_of_the_bare_model(wrapper):
    model = model_of_blocks()
    _, bare = balanced(copy.deepcopy(model))
    optimizer, wrapped = balanced(WRAPPERS[wrapper](model))
    assert wrapped.last_scores == bare.last_scores
    assert wrapped.last_scales == bare.last_scales
    assert len(set(bare.last_scales.values())) == 4
    rates = {group["layer"]: group["lr"] for group in optimizer.param_groups}
    assert rates == {name: 0.1 * bare.last_scales.get(name, 1.0) for name in rates}


@pytest.mark.parametrize("wrapper", ONE_OF_EACH)
def test_groups_of_the_bare_model_serve_the_wrapped_one_and_the_other_way_round(wrapper):
    model = model_of_blocks()
    optimizer = torch.optim.SGD(param_groups(model), lr=0.1)
    wrapped = WRAPPERS[wrapper](model)
    scheduler = TempBalance(optimizer, wrapped)
    expected = scheduler.last_scales
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    split_param_groups(optimizer, wrapped)
    assert TempBalance(optimizer, unwrap(wrapped)).last_scales == expected


@pytest.mark.parametrize("wrapper", ONE_OF_EACH)
def test_a_state_of_the_bare_model_loads_for_the_wrapped_one(wrapper):
    model = model_of_blocks()
    bare_model = copy.deepcopy(model)
    bare_optimizer, bare = balanced(bare_model)
    train_step(bare_model, bare_optimizer, torch.randn(8, 64))
    bare.step()
    optimizer, wrapped = balanced(WRAPPERS[wrapper](model))
    wrapped.load_state_dict(bare.state_dict())
    assert wrapped.last_scales == bare.last_scales
    assert [group["lr"] for group in optimizer.param_groups] == [group["lr"] for group in bare_optimizer.param_groups]


@pytest.mark.parametrize("wrapper", ["DataParallel", "DistributedDataParallel", "a checkpointed submodule"])
def test_a_wrapped_model_trains_as_the_bare_one(wrapper):
    model = model_of_blocks()
    bare_model = copy.deepcopy(model)
    wrapped_model = WRAPPERS[wrapper](model)
    bare_optimizer, bare = balanced(bare_model)
    optimizer, wrapped = balanced(wrapped_model)
    for seed in range(2):
        batch = torch.randn(8, 64, generator=torch.Generator().manual_seed(seed))
        train_step(bare_model, bare_optimizer, batch)
        train_step(wrapped_model, optimizer, batch)
        bare.step()
        wrapped.step()
    assert wrapped.last_scores == pytest.approx(bare.last_scores, rel=1e-5)
    assert wrapped.get_last_lr() == pytest.approx(bare.get_last_lr(), rel=1e-4)


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`:UserWarning")  # torch's, of one process
def test_a_fully_sharded_model_of_one_process_is_looked_through():
    model = model_of_blocks()
    _, bare = balanced(copy.deepcopy(model))
    device = torch.device("cpu")
    model[3] = FullyShardedDataParallel(model[3], use_orig_params=True, device_id=device)
    _, wrapped = balanced(FullyShardedDataParallel(model, use_orig_params=True, device_id=device))
    assert wrapped.last_scales == bare.last_scales
    assert [row.name for row in wrapped.table()] == [row.name for row in bare.table()]


class Holder(nn.Module):
    """Of no wrapper's type, though its attribute is called as theirs."""

    def __init__(self, key: str, model: nn.Module) -> None:
        super().__init__()
        self.add_module(key, model)


@pytest.mark.parametrize("key", ["module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"])
def test_a_wrapper_is_told_by_its_type_and_not_by_its_attribute(key):
    model = Holder(key, mlp())
    assert unwrap(model) is model
    assert [layer.name for layer in find_layers(model)] == [f"{key}.{i}" for i in (0, 3, 6, 9)]
    assert [layer.name for layer in find_layers(nn.DataParallel(model))] == [f"{key}.{i}" for i in (0, 3, 6, 9)]


def test_compiling_in_place_wraps_nothing():
    model = mlp()
    model.compile(backend="eager")
    assert unwrap(model) is model
    assert [layer.name for layer in find_layers(model)] == ["0", "3", "6", "9"]


def test_all_wrappers_at_once_are_looked_through():
    model = mlp()
    assert unwrap(compiled(DistributedDataParallel(checkpoint_wrapper(compiled(model))))) is model
