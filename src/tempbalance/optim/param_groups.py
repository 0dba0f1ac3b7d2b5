"""Split the parameters of an optimizer into one param group per layer, labelled with the layer's name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from tempbalance.errors import TempBalanceError, check_count
from tempbalance.model.layers import Layer, find_layers, owners
from tempbalance.model.sharded import find_sharded, unwrap

LABEL = "layer"

# The attributes in which torch's schedulers keep one value per group.
_PER_GROUP = ("base_lrs", "_last_lr", "lr_lambdas", "min_lrs", "max_lrs", "base_momentums", "max_momentums")
_OF_TORCH = ("torch.optim.lr_scheduler", "torch.optim.swa_utils")
Group = dict[str, Any]
P = ParamSpec("P")
R = TypeVar("R")


def _naming_options_of_scheduler(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function refuse options of `TempBalance` with an error that says where to pass them."""
    own = inspect.signature(function).parameters.keys()

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs.keys() - own:
            scheduler = import_module("tempbalance.optim.scheduler")  # by name, because it imports this module
            if name in inspect.signature(scheduler.TempBalance).parameters:
                raise TypeError(f"{function.__name__}() has no argument {name!r}: pass it to TempBalance")
        return function(*args, **kwargs)

    return checked


@_naming_options_of_scheduler
def param_groups(model: nn.Module, groups: Iterable[Any] | None = None, *, min_eigenvalues: int = 0) -> list[Group]:
    """Return one param group per layer, labelled with the key ``layer``, and one group for the other parameters.

    A layer's group also holds its followers: its bias and the normalisation that it feeds. An embedding has a group
    too, whose scale is 1 unless embeddings are scored.

    Args:
        model: The model. Wrappers such as DDP and torch.compile are looked through.
        groups: The parameters, named parameters or param groups that you would give to the optimizer; each group is
            split and keeps its options. The default is all trainable parameters of the model.
        min_eigenvalues: Layers whose matrices have a side below this number share the group of the other parameters,
            at scale 1. Give the same number as to `TempBalance`, which never scores these layers: updates stay the
            same, and ``optimizer.step()`` is faster with fewer groups. If all layers are that small, each keeps its
            group. The default is one group for every layer.

    Raises:
        TypeError: If ``model`` is not a module, ``groups`` is a single tensor, or an option of `TempBalance` is given.
        ValueError: If a group uses the key ``layer`` for something else, or ``min_eigenvalues`` is negative.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4), nn.Linear(4, 2))
        >>> [(group.get("layer"), len(group["params"])) for group in param_groups(model)]
        [('0', 4), ('2', 2)]
        >>> [(group.get("layer"), len(group["params"])) for group in param_groups(model, min_eigenvalues=3)]
        [('0', 4), (None, 2)]
    """
    if isinstance(groups, Tensor):
        raise TypeError("groups must be parameters or param groups, got one tensor")
    layers = find_layers(model)
    if groups is None:
        trainable = [each for each in unwrap(model).parameters() if each.requires_grad]
        groups = [{"params": trainable}] if trainable else []
    groups = list(groups)
    if groups and not any(isinstance(group, dict) for group in groups):
        groups = [{"params": groups}]
    return [part for parts in _split_all(groups, layers, min_eigenvalues) for part in parts]


@_naming_options_of_scheduler
def split_param_groups(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    *,
    schedulers: Sequence[lr_scheduler.LRScheduler] = (),
    min_eigenvalues: int = 0,
) -> None:
    """Split the param groups of an existing optimizer by layer, in place. This works during training too.

    Parameters keep their optimizer state. Everything is checked before anything is changed.

    Args:
        optimizer: Any optimizer with param groups.
        model: The model. Wrappers are looked through.
        schedulers: Schedulers that were already built on the optimizer. Their per-group lists are extended, also
            those of the schedulers inside them.
        min_eigenvalues: As in `param_groups`.

    Raises:
        TypeError: If a scheduler is not one of torch's, so that its per-group lists are unknown, if the optimizer
            allows one group only, or if an option of `TempBalance` is given.
        ValueError: If a scheduler belongs to another optimizer or to another number of groups, if a group uses the key
            ``layer`` for something else, if the optimizer was built before the model was sharded, or if
            ``min_eigenvalues`` is negative.
    """
    _check_optimizer(optimizer)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("LBFGS allows one param group only, so it cannot be split by layer")
    groups, every = optimizer.param_groups, flatten(schedulers)
    for scheduler in every:
        if type(scheduler).__module__ not in _OF_TORCH:
            raise TypeError(f"{type(scheduler).__name__} is not a torch scheduler: build it after the split")
        _check_lists(scheduler, optimizer, _PER_GROUP)
    layers = find_layers(model)
    _check_sharded_first(optimizer, model)
    split = _split_all(groups, layers, min_eigenvalues)
    origin = [index for index, parts in enumerate(split) for _ in parts]
    groups[:] = [part for parts in split for part in parts]
    for scheduler in every:
        for key in _PER_GROUP:
            if isinstance(values := scheduler.__dict__.get(key), list):
                setattr(scheduler, key, [copy_value(values[index]) for index in origin])


def check_belonging(
    optimizer: torch.optim.Optimizer, model: nn.Module, schedule: lr_scheduler.LRScheduler | None
) -> None:
    """Refuse an optimizer, a model and a schedule that do not belong together, or groups without labels."""
    _check_optimizer(optimizer)
    owner = owners(find_layers(model))
    _check_sharded_first(optimizer, model)
    held = held_by(optimizer)
    if held.isdisjoint(model.parameters()):
        raise ValueError("the optimizer holds none of the model's parameters")
    if not any(LABEL in group for group in optimizer.param_groups) and not held.isdisjoint(owner):
        raise ValueError(
            "no param group is labelled with its layer: build the optimizer from tempbalance.param_groups(model), "
            "or call tempbalance.split_param_groups(optimizer, model) first"
        )
    for group in optimizer.param_groups:
        found = {owner.get(each) for each in group["params"]}
        if LABEL in group and found and found != {group[LABEL]}:
            raise ValueError(
                f"the param group labelled {group[LABEL]!r} holds parameters of layers {found} of this model: call "
                "param_groups with the model that is given to TempBalance"
            )
    if schedule is None:
        return
    if not isinstance(schedule, lr_scheduler.LRScheduler):
        raise TypeError(f"schedule must be a torch scheduler, got {type(schedule).__name__}")
    for each in flatten([schedule]):
        adapts = getattr(each, "default_min_lr", None) is not None  # ReduceLROnPlateau with one bound for all groups
        _check_lists(each, optimizer, ["base_lrs"] if adapts else ["base_lrs", "min_lrs"])


def check_same_parameters(layers: Sequence[Layer], optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that still trains the parameters of a module that was replaced in the model."""
    of_layers = {layer.name: {*layer.parameters, *layer.followers} for layer in layers}
    present, trained = set().union(*of_layers.values()), held_by(optimizer)
    for group in optimizer.param_groups:
        own = of_layers.get(group.get(LABEL, ""), set())
        if not present.issuperset(group["params"]) and not own <= trained:
            raise RuntimeError(
                f"layer {group[LABEL]!r}: its module was replaced after the optimizer was built, which does not train "
                "the new weights: replace modules before you call tempbalance.param_groups(model)"
            )


def held_by(optimizer: torch.optim.Optimizer) -> set[nn.Parameter]:
    return {each for group in optimizer.param_groups for each in group["params"]}


def _check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")


def _check_sharded_first(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Check that the optimizer was built after the model was sharded, so that it holds the sharded parameters."""
    sharded, held = {each.parameter for each in find_sharded(model)}, held_by(optimizer)
    if sharded and held.isdisjoint(sharded) and not held.issubset(model.parameters()):
        raise ValueError(
            "the optimizer holds none of the model's sharded parameters: shard the model first (fully_shard, "
            "parallelize_module), then build the optimizer from tempbalance.param_groups(model)"
        )


def copy_value(value: Any) -> Any:
    """Copy an option for another group: groups that share one Tensor learning rate could not be scaled one by one."""
    return value.clone() if isinstance(value, Tensor) else value


def _split_all(groups: Sequence[Group], layers: Sequence[Layer], min_eigenvalues: int) -> list[list[Group]]:
    check_count("min_eigenvalues", min_eigenvalues, least=0)
    owner = owners(layers)
    given = [each["params"] for each in groups]
    listed = [{**x, "params": [y] if isinstance(y, Tensor) else list(y)} for x, y in zip(groups, given, strict=True)]
    held = {owner.get(_tensor_of(param)) for group in listed for param in group["params"]} - {None}
    small = {layer.name for layer in layers if _longest_side(layer) < min_eigenvalues} if min_eigenvalues else set()
    # without any label, the optimizer would look to TempBalance as if it had not been split
    return [_split(group, owner, set() if held <= small else small) for group in listed]


def _longest_side(layer: Layer) -> float:
    """Return the number of eigenvalues of a layer's largest matrix; infinite where the shape does not say."""
    if not layer.shape:
        return math.inf
    try:
        parts = layer.cut(torch.empty(layer.shape, device="meta"))
    except TempBalanceError:  # TempBalance raises it with the layer's name
        return math.inf
    return max((min(part.slices.shape[1:]) for part in parts), default=0)


def _tensor_of(param: Any) -> Any:
    return param[1] if isinstance(param, tuple) else param


def _split(group: Group, owner: Mapping[nn.Parameter, str], small: Collection[str]) -> list[Group]:
    """Split one group: its layers in the order of its parameters, then the other parameters and small layers."""
    merged = () if LABEL in group else small
    members: dict[str | None, list[int]] = {}
    for index, param in enumerate(group["params"]):
        label = owner.get(_tensor_of(param))
        members.setdefault(None if label in merged else label, []).append(index)
    if None in members or not members:
        members[None] = members.pop(None, [])
    if LABEL in group and list(members) != [group[LABEL]]:
        found = f"got {group[LABEL]!r} for a group with parameters of layers {list(members)}"
        raise ValueError(f"the key {LABEL!r} of a param group must name its one layer, {found}")
    parts = []
    for label, indices in members.items():
        part = {key: copy_value(value) for key, value in group.items()}
        part |= {key: [group[key][i] for i in indices] for key in ("params", "param_names") if key in group}
        parts.append(part if label is None else part | {LABEL: label})
    return parts


def flatten(schedulers: Iterable[Any]) -> list[Any]:
    return [each for one in schedulers if one is not None for each in [one, *flatten(getattr(one, "_schedulers", ()))]]


def _check_lists(scheduler: Any, optimizer: torch.optim.Optimizer, keys: Sequence[str]) -> None:
    kind, num_groups = type(scheduler).__name__, len(optimizer.param_groups)
    if scheduler.optimizer is not optimizer:
        raise ValueError(f"schedule {kind} belongs to another optimizer")
    for key in keys:
        values = getattr(scheduler, key, None)
        if isinstance(values, list) and len(values) != num_groups:
            raise ValueError(
                f"{kind}.{key} has {len(values)} entries, the optimizer {num_groups} param groups: build the schedule "
                "after the split, or pass it to split_param_groups(optimizer, model, schedulers=[schedule])"
            )
