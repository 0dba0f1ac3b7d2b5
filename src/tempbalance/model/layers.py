"""A model's layers: the weights that are scored, and the parameters that follow them.

Layers have the names of the bare model and come in the order in which its modules are registered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn.parameter import Parameter, is_lazy
from torch.nn.utils import parametrize, prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from tempbalance.errors import WeightError, quoted
from tempbalance.model import adapters
from tempbalance.model.sharded import Sharded, find_sharded, replaced, unwrap
from tempbalance.spectral.matrices import Cut, cut_convolution, cut_fused, cut_matrix, cut_stack

_BIAS = re.compile(r"(^|_)bias")
_EMBEDDING = re.compile(r"(^|_)(pos|position|positional|cls|class|tokens?|embed|embeds|embeddings?)(_|$)")
_EMBEDDED = "embedding"  # the reason of an embedding that is not tied to another layer
_GATES = ((nn.LSTM | nn.LSTMCell, "ifgo"), (nn.GRU | nn.GRUCell, "rzn"))


@dataclass(eq=False)
class Layer:
    """A named weight with the parameters that train at its learning rate.

    Attributes:
        name: The module's name in the bare model, or the parameter's where a module has several weights.
        shape: Shape of the weight; empty while it is lazy.
        load: Returns the present weight as it is applied: with adapters, pruning and parametrizations.
        parameters: The parameters that the weight is computed from.
        followers: Biases, and the normalisation that the layer feeds.
        cut: Cuts the weight into parts.
        out_dim: The output dimension of the weight, along which a fused weight is cut.
        widths: The numbers of outputs by which a following normalisation is recognised.
        skipped: Why the weight is not scored (embedding, tied, quantised); empty if it can be.
        bare: Whether it is a parameter of a module of no known kind.
        sharded: Parameters of which this process holds only a part.
    """

    name: str
    shape: tuple[int, ...]
    load: Callable[[], Tensor] = field(repr=False)
    parameters: list[Parameter] = field(repr=False)
    cut: Cut = field(repr=False)
    out_dim: int = 0
    widths: tuple[int, ...] = ()
    followers: list[Parameter] = field(default_factory=list, repr=False)
    skipped: str = ""
    bare: bool = False
    sharded: list[Sharded] = field(default_factory=list, repr=False)

    @property
    def is_embedding(self) -> bool:
        """Whether the layer looks up tokens or positions."""
        return self.skipped.startswith(_EMBEDDED)

    @property
    def is_own_embedding(self) -> bool:
        """Whether the layer is the weight of an embedding module and tied to no other layer."""
        return self.skipped == _EMBEDDED and not self.bare

    @property
    def is_frozen(self) -> bool:
        """Whether none of the weight's parameters is trained."""
        return not any(parameter.requires_grad for parameter in self.parameters)

    def weight(self) -> Tensor:
        """Return the present weight, detached.

        Raises:
            WeightError: If the weight is lazy and not initialised, or sharded over processes.
        """
        if self.sharded:
            raise WeightError("is sharded over processes: it has to be gathered")
        if any(is_lazy(parameter) for parameter in self.parameters):
            raise WeightError("is not initialised yet: run the model once on a batch first")
        return self.load().detach()

    def gather(self) -> Tensor:
        """Return the present weight. If it is sharded, all processes that hold a part must call this together."""
        with replaced(self.sharded, Sharded.gather):
            return self.load().detach()


@dataclass(eq=False)
class _Norm:
    name: str
    parameters: list[Parameter]
    widths: set[int]
    follows: str | None  # the layer that the module names; None for the base rate, empty where it names none


def find_layers(model: nn.Module) -> list[Layer]:
    """Return the layers of a model, in the order in which its modules are registered.

    Layers are Linear, convolutions (also transposed, grouped and depthwise), recurrent and attention weights, the
    ``Conv1D`` of GPT-2, stacked experts, and any other parameter of two or more dimensions. Embeddings, tied weights
    and quantised weights are listed with the reason why they are skipped.

    A normalisation follows the layer that feeds it. A module with an attribute ``follows`` says otherwise: it is the
    name of a layer, or None for the base rate.

    Args:
        model: Any module. Wrappers such as DataParallel, DDP and torch.compile are looked through. Sharded weights
            (FSDP, tensor parallel) are listed with their whole shapes; nothing is gathered.

    Raises:
        TypeError: If the model is not a module.
        ValueError: If it is FullyShardedDataParallel without ``use_orig_params=True``, or a normalisation is to follow
            a layer that the model does not have.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    sharded = find_sharded(model)
    with replaced(sharded, Sharded.stand_in) as stands_for:
        found = list(_visit("", model, set()))
        _attach_norms(found)
    layers = [each for each in found if isinstance(each, Layer)]
    for layer in layers if sharded else ():  # which hold the stand-ins
        layer.parameters = [stands_for.get(each, each) for each in layer.parameters]
        layer.followers = [stands_for.get(each, each) for each in layer.followers]
        made_of = set(layer.parameters)
        layer.sharded = [each for each in sharded if each.parameter in made_of]
    mark_tied(layers, [frozenset(layer.parameters) for layer in layers])
    return layers


def is_bias(key: str) -> bool:
    return bool(_BIAS.search(key))


def is_embedding_name(key: str) -> bool:
    return bool(_EMBEDDING.search(key))


def owners(layers: Iterable[Layer]) -> dict[Parameter, str]:
    """Map each parameter to the layer at whose rate it trains; others always train at the base rate."""
    found: dict[Parameter, str] = {}
    for layer in layers:
        if not layer.skipped or layer.is_own_embedding:
            for parameter in [*layer.parameters, *layer.followers]:
                found.setdefault(parameter, layer.name)
    for layer in layers:  # the bias of a tied layer goes with the weight it is tied to
        if layer.skipped and layer.parameters and layer.parameters[0] in found:
            for parameter in layer.followers:
                found.setdefault(parameter, found[layer.parameters[0]])
    return found


def _visit(name: str, module: nn.Module, seen: set[nn.Module]) -> Iterator[Layer | _Norm]:
    """Yield the layers and normalisations of a module and its submodules; a module registered twice counts once."""
    module = unwrap(module)
    if module in seen:
        return
    seen.add(module)
    if adapters.is_adapted(module) and (layer := _adapted(name, module)) is not None:
        seen.update(module.modules())
        yield layer
        return
    yield from _own(name, module)
    for child_name, child in module._modules.items():
        if child is not None and not (child_name == "parametrizations" and parametrize.is_parametrized(module)):
            yield from _visit(_join(name, child_name), child, seen)


def _join(*names: str) -> str:
    return ".".join(name for name in names if name)


def _own(name: str, module: nn.Module) -> Iterator[Layer | _Norm]:
    """Yield the layers of a module's own parameters, or the normalisation that it is."""
    tensors = _tensors(module)
    if _is_norm(module, tensors):
        parameters = [parameter for _, made_of in tensors.values() for parameter in made_of]
        widths = {each.shape[0] for each in parameters if not is_lazy(each) and each.dim()}
        yield _Norm(name, parameters, widths, getattr(module, "follows", ""))
        return
    layers = {}
    for key, (load, made_of) in tensors.items():
        if (layer := _layer(module, key, _shape(load, made_of), load, made_of)) is not None:
            layer.name = name if key == "weight" and name else _join(name, key)
            layers[key] = layer
    nearest = next(iter(layers), None)
    for key, (_, made_of) in tensors.items():
        if key in layers and not isinstance(module, nn.MultiheadAttention):
            nearest = key
        elif key not in layers and nearest is not None and (is_bias(key) or not module._modules):
            # a bias or other parameter goes with the weight of its name, or the one before it
            layers[next((each for each in layers if _stem(each) == _stem(key)), nearest)].followers.extend(made_of)
    yield from layers.values()


_Tensors = dict[str, tuple[Callable[[], Tensor], list[Parameter]]]


def _tensors(module: nn.Module) -> _Tensors:
    """Map the names of a module's own weights and biases to a way to load them and the parameters they are made of."""
    found: _Tensors = {}
    inner: set[str] = set()
    suffixes: tuple[str, ...]
    for hook in module._forward_pre_hooks.values():  # older forms, which replace `weight` before each forward pass
        if isinstance(hook, WeightNorm):
            key, suffixes, load = hook.name, ("_g", "_v"), partial(hook.compute_weight, module)
        elif isinstance(hook, SpectralNorm):
            key, suffixes, load = hook.name, ("_orig",), partial(hook.compute_weight, module, do_power_iteration=False)
        elif isinstance(hook, prune.BasePruningMethod):
            key, suffixes, load = hook._tensor_name, ("_orig",), partial(hook.apply_mask, module)
        else:
            continue
        held = {key + suffix: module._parameters.get(key + suffix) for suffix in suffixes}
        found[key] = load, [parameter for parameter in held.values() if parameter is not None]
        inner.update(held)
    if parametrize.is_parametrized(module):
        for key, parametrization in module.parametrizations.items():  # type: ignore[union-attr, operator]
            found[key] = partial(_without_side_effects, parametrization), list(parametrization.parameters())
    for key, parameter in module._parameters.items():
        if parameter is not None and key not in inner:
            found[key] = partial(getattr, module, key), [parameter]
    return {key: (load, made_of) for key, (load, made_of) in found.items() if made_of}


def _without_side_effects(parametrization: nn.Module) -> Tensor:
    """Apply a parametrization in evaluation mode: in training mode spectral_norm updates its estimate."""
    were_training = [module for module in parametrization.modules() if module.training]
    device = next(parametrization.parameters()).device.type
    try:
        parametrization.eval()
        with torch.autocast("cpu" if device == "meta" else device, enabled=False):
            weight: Tensor = parametrization()
        return weight
    finally:
        for module in were_training:
            module.training = True


def _shape(load: Callable[[], Tensor], made_of: list[Parameter]) -> tuple[int, ...]:
    return () if any(is_lazy(parameter) for parameter in made_of) else tuple(load().shape)


def _layer(
    module: nn.Module, key: str, shape: tuple[int, ...], load: Callable[[], Tensor], made_of: list[Parameter]
) -> Layer | None:
    """Return a layer without a name if the tensor is a weight; an empty shape is that of a lazy parameter."""
    make = partial(Layer, "", shape, load, made_of)
    if isinstance(module, nn.Linear) and key == "weight" and len(shape) in (0, 2):
        return make(cut_matrix, widths=(module.out_features,))
    if isinstance(module, nn.modules.conv._ConvNd) and key == "weight" and len(shape) not in (1, 2):
        return make(partial(cut_convolution, groups=module.groups), widths=(module.out_channels,))
    if isinstance(module, nn.RNNBase | nn.RNNCellBase) and key.startswith("weight_"):
        gates = next((names for kind, names in _GATES if isinstance(module, kind)), "")
        gates = "" if key.startswith("weight_hr") else gates
        cut = partial(cut_fused, sizes=len(gates), names=list(gates)) if gates else cut_matrix
        width = int(getattr(module, "proj_size", 0) or module.hidden_size)
        return make(cut, widths=(2 * width if getattr(module, "bidirectional", False) else width,))
    if isinstance(module, nn.Bilinear) and key == "weight":
        return make(cut_stack, widths=(module.out_features,))
    if isinstance(module, nn.MultiheadAttention) and key == "in_proj_weight":
        return make(partial(cut_fused, sizes=3, names=["q", "k", "v"]))
    is_lookup = isinstance(module, nn.Embedding | nn.EmbeddingBag) or "Embedding" in type(module).__name__
    if is_lookup and key == "weight":
        return make(cut_matrix, skipped=_EMBEDDED)
    if is_bias(key) or len(shape) < 2:
        return None
    if is_embedding_name(key) or (len(shape) == 3 and shape[0] == 1):
        return make(cut_matrix, skipped=_EMBEDDED, bare=True)
    if adapters.is_conv1d(module) and key == "weight" and len(shape) == 2:
        return make(cut_matrix, out_dim=1, widths=(shape[1],))
    cut = cut_matrix if len(shape) == 2 else cut_stack if len(shape) == 3 else cut_convolution
    is_bare = not isinstance(module, nn.MultiheadAttention)
    return make(cut, widths=shape[:1] if len(shape) != 3 else shape[1:], bare=is_bare)


def _adapted(name: str, module: nn.Module) -> Layer | None:
    """Return the one layer of an adapted module; the adapters' parameters are among those of the weight."""
    base = unwrap(adapters.base_of(module) or module)
    load, made_of = _tensors(base).get("weight", (None, []))
    features = [getattr(base, side, None) for side in ("out_features", "in_features")]
    shape = tuple(side for side in features if isinstance(side, int))  # of a packed weight
    if adapters.is_quantized(base):
        load = partial(adapters.dequantized, base)
        made_of = [each for each in base.parameters(recurse=False) if each.dim() > 1]
    elif load is None:
        return None
    else:
        shape = _shape(load, made_of)
    layer = _layer(base, "weight", shape or _shape(load, made_of), load, made_of)
    if layer is not None:
        others = [each for each in module.parameters() if not any(each is one for one in made_of)]
        layer.name, layer.bare = name or "weight", False
        layer.skipped = layer.skipped or adapters.why_not_merged(module)
        layer.load = lambda: adapters.merged_weight(module, load())
        layer.parameters = [*made_of, *(each for each in others if each.dim() > 1)]
        layer.followers = [each for each in others if each.dim() <= 1]
    return layer


def _is_norm(module: nn.Module, tensors: _Tensors) -> bool:
    """Whether a module is a normalisation: torch's, or one with Norm in its class name and only vectors."""
    if isinstance(module, nn.modules.batchnorm._NormBase | nn.LayerNorm | nn.GroupNorm):
        return True
    vectors = [is_lazy(each) or each.dim() <= 1 for _, made_of in tensors.values() for each in made_of]
    return "norm" in type(module).__name__.lower() and bool(vectors) and all(vectors)


def _stem(key: str) -> str:
    return re.sub(r"bias|weight", "", key).strip("_")


def _attach_norms(found: list[Layer | _Norm]) -> None:
    """Attach each normalisation to the layer that feeds it: the latest one before it with as many outputs.

    Of several in a row, the last follows the latest such layer, the one before it the next earlier layer without one.
    """
    for norm in [each for each in found if isinstance(each, _Norm) and each.follows != ""]:
        found.remove(norm)
        if norm.follows is not None:
            named = [each for each in found if isinstance(each, Layer) and each.name == norm.follows]
            if not named:
                raise ValueError(f"{norm.name!r} must follow a layer of the model, got {norm.follows!r}")
            named[0].followers.extend(norm.parameters)
    layers: list[Layer] = []
    num_fed = 0  # layers before this one have their normalisations
    for parent, run in groupby(found, lambda each: each.name.rpartition(".")[0] if isinstance(each, _Norm) else None):
        if parent is None:
            layers.extend(each for each in run if isinstance(each, Layer))
            continue
        end, fed = len(layers), num_fed
        for norm in reversed([each for each in run if isinstance(each, _Norm)]):
            feeding = [i for i, layer in enumerate(layers) if norm.widths.intersection(layer.widths)]
            free = [i for i in feeding if num_fed <= i < end]
            if feeding:
                index = (free or feeding)[-1]
                end = index if free else end
                layers[index].followers.extend(norm.parameters)
                fed = max(fed, index + 1)
        num_fed = fed


def mark_tied(layers: Sequence[Layer], keys: Sequence[Hashable]) -> None:
    """Skip all but the first layer of each key, or all but the head that ties an embedding; None equals nothing."""
    first: dict[Hashable, Layer] = {}
    for layer, key in sorted(zip(layers, keys, strict=True), key=lambda pair: pair[0].is_embedding):
        if key is None or key not in first:
            first[key] = layer
        else:
            tied = f"tied to {quoted(first[key].name)}"
            layer.skipped = f"{_EMBEDDED}, {tied}" if layer.is_embedding else tied
