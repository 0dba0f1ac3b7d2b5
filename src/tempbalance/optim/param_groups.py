"""Layers to optimizer param groups, each labelled with its layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

from tempbalance.model.layers import Layer, find_layers, owners
from tempbalance.model.sharded import find_sharded, unwrap

LABEL = "layer"

# How torch's schedulers keep what they know about each group.
_PER_GROUP = ("base_lrs", "_last_lr", "lr_lambdas", "min_lrs", "max_lrs", "base_momentums", "max_momentums")
_KNOWN = (
    lr_scheduler.LambdaLR,
    lr_scheduler.MultiplicativeLR,
    lr_scheduler.StepLR,
    lr_scheduler.MultiStepLR,
    lr_scheduler.ConstantLR,
    lr_scheduler.LinearLR,
    lr_scheduler.ExponentialLR,
    lr_scheduler.PolynomialLR,
    lr_scheduler.CosineAnnealingLR,
    lr_scheduler.CosineAnnealingWarmRestarts,
    lr_scheduler.CyclicLR,
    lr_scheduler.OneCycleLR,
    lr_scheduler.ReduceLROnPlateau,
    lr_scheduler.SequentialLR,
    lr_scheduler.ChainedScheduler,
    SWALR,
)

Group = dict[str, Any]


def param_groups(model: nn.Module, groups: Iterable[Any] | None = None) -> list[Group]:
    """Return one param group per layer, labelled ``layer``, and one for the remaining parameters.

    A layer's group also holds its followers: its bias and the normalisation that it feeds. An embedding has a group
    too, whose scale is 1 unless embeddings are scored.

    Args:
        model: The model; wrappers such as DDP and torch.compile are looked through.
        groups: The optimizer's first argument: parameters, named parameters, or param groups. Each group is split and
            keeps its options. By default all trainable parameters.

    Raises:
        TypeError: If the model is no module, or ``groups`` a single tensor.
        ValueError: If a group uses the key ``layer`` for something else.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4), nn.Linear(4, 2))
        >>> [(group.get("layer"), len(group["params"])) for group in param_groups(model)]
        [('0', 4), ('2', 2)]
    """
    owner = owners(find_layers(model))
    if isinstance(groups, Tensor):
        raise TypeError("groups must be parameters or param groups, got one tensor")
    if groups is None:
        trainable = [each for each in unwrap(model).parameters() if each.requires_grad]
        groups = [{"params": trainable}] if trainable else []
    groups = list(groups)
    if groups and not any(isinstance(group, dict) for group in groups):
        groups = [{"params": groups}]
    return [part for group in groups for part in _split(group, owner)]


def split_param_groups(
    optimizer: torch.optim.Optimizer, model: nn.Module, *, schedulers: Sequence[lr_scheduler.LRScheduler] = ()
) -> None:
    """Split the param groups of an existing optimizer by layer, in place, in the middle of training too.

    The optimizer's state stays with its parameters. All is checked before anything is changed.

    Args:
        optimizer: Any optimizer with param groups.
        model: The model; wrappers are looked through.
        schedulers: Those already built on the optimizer, whose per-group lists are extended, nested ones too.

    Raises:
        TypeError: If a scheduler's type is not one of torch's, so that its lists are not known, or the optimizer allows
            one group only.
        ValueError: If a scheduler belongs to another optimizer, has not as many entries as there are groups, or a group
            uses the key ``layer`` for something else, or the optimizer was built before the model was sharded.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("LBFGS trains all parameters at one rate: its group cannot be split")
    groups = optimizer.param_groups
    every = flatten(schedulers)
    for scheduler in every:
        _check_scheduler(scheduler, optimizer)
    owner = owners(find_layers(model))
    _check_sharded_first(optimizer, model)
    split = [_split(group, owner) for group in groups]
    origin = [index for index, parts in enumerate(split) for _ in parts]
    groups[:] = [part for parts in split for part in parts]
    for scheduler in every:
        for key in _PER_GROUP:
            if isinstance(values := scheduler.__dict__.get(key), list):
                setattr(scheduler, key, [copy_value(values[index]) for index in origin])


def check_belonging(
    optimizer: torch.optim.Optimizer, model: nn.Module, schedule: lr_scheduler.LRScheduler | None
) -> None:
    """Refuse an optimizer, a model and a schedule that do not belong together.

    Raises:
        TypeError: If one of them is something else.
        ValueError: If groups are not labelled with the model's layers, or the schedule is not for these groups.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    owner = owners(find_layers(model))
    _check_sharded_first(optimizer, model)
    held = {each for group in optimizer.param_groups for each in group["params"]}
    if held.isdisjoint(model.parameters()):
        raise ValueError("the optimizer holds none of the model's parameters")
    labels = {group[LABEL] for group in optimizer.param_groups if LABEL in group}
    if not labels and not held.isdisjoint(owner):
        raise ValueError(
            "no param group is labelled with its layer: build the optimizer from tempbalance.param_groups(model), "
            "or call tempbalance.split_param_groups(optimizer, model) first"
        )
    for group in optimizer.param_groups:
        found = {owner.get(each) for each in group["params"]}
        if LABEL in group and found and found != {group[LABEL]}:
            raise ValueError(
                f"the param group labelled {group[LABEL]!r} holds parameters that this model has under {found}: "
                "call param_groups or split_param_groups with the same model"
            )
    if schedule is None:
        return
    if not isinstance(schedule, lr_scheduler.LRScheduler):
        raise TypeError(f"schedule must be a scheduler of torch, got {type(schedule).__name__}")
    for each in flatten([schedule]):
        if each.optimizer is not optimizer:
            raise ValueError(f"schedule {type(each).__name__} belongs to another optimizer")
        adapts = getattr(each, "default_min_lr", None) is not None  # ReduceLROnPlateau with one bound for all groups
        lists = [getattr(each, name, None) for name in ("base_lrs", "min_lrs") if not (adapts and name == "min_lrs")]
        for values in lists:
            if values is not None and len(values) != len(optimizer.param_groups):
                raise ValueError(
                    f"schedule {type(each).__name__} was built for {len(values)} param groups, the optimizer has "
                    f"{len(optimizer.param_groups)}: build it after the split, or hand it to split_param_groups then"
                )


def check_same_parameters(layers: Sequence[Layer], optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that still trains the parameters of a module that was replaced in the model.

    Args:
        layers: The layers of the model now.
        optimizer: An optimizer with labelled groups.

    Raises:
        RuntimeError: If a labelled group holds parameters that no layer has any more, while its layer has parameters
            that no group holds; it names the layer.
    """
    present = {id(each) for layer in layers for each in [*layer.parameters, *layer.followers]}
    trained = {id(each) for group in optimizer.param_groups for each in group["params"]}
    by_name = {layer.name: layer for layer in layers}
    for group in optimizer.param_groups:
        layer = by_name.get(group.get(LABEL, ""))
        if layer is None or all(id(each) in present for each in group["params"]):
            continue
        if any(id(each) not in trained for each in [*layer.parameters, *layer.followers]):
            raise RuntimeError(
                f"layer {layer.name!r} has other parameters than the optimizer's group of that layer: its module was "
                "replaced after the optimizer was built, so its new weights are not trained. Replace modules first, "
                "then build the optimizer from tempbalance.param_groups(model), and TempBalance"
            )


def _check_sharded_first(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Refuse an optimizer with the parameters that the model had before it was sharded, which nobody trains."""
    sharded = {each.parameter for each in find_sharded(model)}
    held = {each for group in optimizer.param_groups for each in group["params"]}
    if sharded and held.isdisjoint(sharded) and not held.issubset(model.parameters()):
        raise ValueError(
            "the optimizer holds none of the model's sharded parameters: it was built before the model was sharded, or "
            "for another one: shard the model (fully_shard, parallelize_module), then build it from "
            "tempbalance.param_groups(model)"
        )


def copy_value(value: Any) -> Any:
    """A group's option for another group: torch shares one Tensor rate among all groups, which then move as one."""
    return value.clone() if isinstance(value, Tensor) else value


def _split(group: Group, owner: dict[nn.Parameter, str]) -> list[Group]:
    """The groups that one group becomes: its layers in the order of its parameters, then the rest."""
    params = group["params"]
    params = [params] if isinstance(params, Tensor) else list(params)
    names = group.get("param_names", [None] * len(params))
    members: dict[str | None, list[tuple[Any, Any]]] = {}
    for param, name in zip(params, names, strict=True):
        tensor = param[1] if isinstance(param, tuple) else param
        members.setdefault(owner.get(tensor), []).append((param, name))
    rest = members.pop(None, None)
    if rest is not None or not members:
        members[None] = rest or []
    if LABEL in group and list(members) != [group[LABEL]]:
        raise ValueError(
            f"param group with key {LABEL!r}: {group[LABEL]!r} holds parameters of layers {list(members)}: "
            f"{LABEL!r} must name the one layer that the group belongs to"
        )
    parts = []
    for label, pairs in members.items():
        part = {key: copy_value(value) for key, value in group.items()}
        part["params"] = [param for param, _ in pairs]
        if "param_names" in group:
            part["param_names"] = [name for _, name in pairs]
        if label is not None:
            part[LABEL] = label
        parts.append(part)
    return parts


def flatten(schedulers: Iterable[Any]) -> list[Any]:
    """Schedulers with those inside them."""
    return [each for one in schedulers if one is not None for each in [one, *flatten(getattr(one, "_schedulers", ()))]]


def _check_scheduler(scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
    if type(scheduler) not in _KNOWN:
        raise TypeError(
            f"{type(scheduler).__name__} is not a scheduler of torch, so what it keeps per group is not known: "
            "split the optimizer first, then build it"
        )
    if scheduler.optimizer is not optimizer:
        raise ValueError(f"{type(scheduler).__name__} belongs to another optimizer")
    num_groups = len(optimizer.param_groups)
    for key in _PER_GROUP:
        values = scheduler.__dict__.get(key)
        if isinstance(values, list) and len(values) != num_groups:
            raise ValueError(
                f"{type(scheduler).__name__}.{key} has {len(values)} entries, the optimizer {num_groups} groups"
            )
