import math

import pytest
import torch
from torch import nn

from tempbalance import TempBalance, WeightError, find_layers, param_groups
from tempbalance.ranking.scoring import Scoring, score_layers
from tests.cases import raises
from tests.model.test_layers import EMBEDDING, FIRST, FROZEN, LAST, Conv1D, grouped, table_of

RANK = 8


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape) / math.sqrt(shape[-1])


class PeftLike(nn.Module):
    """What peft makes of a Linear, a Conv1D or a Conv2d: dictionaries of adapters beside the base layer."""

    def __init__(self, base: nn.Module, **scaling: float) -> None:
        super().__init__()
        self.base_layer = base
        self.fan_in_fan_out = isinstance(base, Conv1D)
        self.scaling = scaling or {"default": 2.0}
        self.active_adapters = list(self.scaling)
        self.lora_A, self.lora_B = nn.ModuleDict(), nn.ModuleDict()
        self.merged = self.disable_adapters = False
        for key in self.scaling:
            self.lora_A[key], self.lora_B[key] = self.pair()
        base.requires_grad_(False)

    def pair(self) -> tuple[nn.Module, nn.Module]:
        base = self.base_layer
        if isinstance(base, nn.Conv2d):
            inner = nn.Conv2d(base.in_channels, RANK, base.kernel_size, bias=False)
            return inner, nn.Conv2d(RANK, base.out_channels, 1, bias=False)
        outputs, inputs = base.weight.shape if isinstance(base, nn.Linear) else base.weight.shape[::-1]
        return nn.Linear(inputs, RANK, bias=False), nn.Linear(RANK, outputs, bias=False)

    def delta(self, key: str) -> torch.Tensor:
        """What peft adds to the base weight."""
        down, up = self.lora_A[key].weight.detach(), self.lora_B[key].weight.detach()
        if isinstance(self.base_layer, nn.Conv2d):
            product = torch.einsum("or,rikl->oikl", up[:, :, 0, 0], down)
        else:
            product = up @ down
        return self.scaling[key] * (product.mT if self.fan_in_fan_out else product)

    def expected(self) -> torch.Tensor:
        return self.base_layer.weight.detach() + sum(self.delta(key) for key in self.active_adapters)


class LoralibLinear(nn.Linear):
    """loralib's: a Linear with a pair of its own, its weight kept transposed if asked."""

    def __init__(self, inputs: int, outputs: int, fan_in_fan_out: bool = False) -> None:
        super().__init__(inputs, outputs)
        self.fan_in_fan_out = fan_in_fan_out
        self.r, self.lora_alpha = RANK, 24
        self.scaling, self.merged = self.lora_alpha / self.r, False
        self.lora_A = nn.Parameter(random(RANK, inputs))
        self.lora_B = nn.Parameter(random(outputs, RANK))
        self.weight.requires_grad_(False)
        if fan_in_fan_out:
            self.weight.data = self.weight.data.mT.contiguous()

    def expected(self) -> torch.Tensor:
        product = self.lora_B.detach() @ self.lora_A.detach()
        return self.weight.detach() + 3.0 * (product.mT if self.fan_in_fan_out else product)


class LoralibConv(nn.Module):
    """loralib's ConvLoRA: the pair's product is looked at as the kernel."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel)
        self.r, self.lora_alpha = RANK, 16
        self.scaling, self.merged = 2.0, False
        self.lora_A = nn.Parameter(random(RANK * kernel, inputs * kernel))
        self.lora_B = nn.Parameter(random(outputs * kernel, RANK * kernel))
        self.conv.weight.requires_grad_(False)

    def expected(self) -> torch.Tensor:
        product = (self.lora_B @ self.lora_A).detach()
        return self.conv.weight.detach() + 2.0 * product.view(self.conv.weight.shape)


class HandWritten(nn.Module):
    """A Linear inside, x @ A @ B beside it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs).requires_grad_(False)
        self.alpha, self.rank = 12, RANK
        self.lora_A, self.lora_B = nn.Parameter(random(inputs, RANK)), nn.Parameter(random(RANK, outputs))

    def expected(self) -> torch.Tensor:
        return self.linear.weight.detach() + 1.5 * (self.lora_A.detach() @ self.lora_B.detach()).mT


class WithLinears(nn.Module):
    """torchtune's: a weight of its own and two Linears."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(random(outputs, inputs), requires_grad=False)
        self.alpha, self.rank, self.merged, self.disabled = 4.0, RANK, False, False
        self.lora_a, self.lora_b = nn.Linear(inputs, RANK, bias=False), nn.Linear(RANK, outputs, bias=False)

    def expected(self) -> torch.Tensor:
        return self.weight.detach() + 0.5 * self.lora_b.weight.detach() @ self.lora_a.weight.detach()


LAYOUTS = {
    "peft": lambda: PeftLike(nn.Linear(64, 80)),
    "peft, square": lambda: PeftLike(nn.Linear(64, 64)),
    "peft, two adapters": lambda: PeftLike(nn.Linear(64, 80), one=0.5, two=3.0),
    "peft, Conv2d": lambda: PeftLike(nn.Conv2d(16, 24, 3)),
    "peft, Conv2d of 1 x 1": lambda: PeftLike(nn.Conv2d(64, 64, 1)),
    "peft, Conv1D": lambda: PeftLike(Conv1D(192, 64)),
    "peft, square Conv1D": lambda: PeftLike(Conv1D(64, 64)),  # as GPT-2's c_proj is
    "loralib": lambda: LoralibLinear(64, 80),
    "loralib, kept transposed": lambda: LoralibLinear(64, 80, fan_in_fan_out=True),
    "loralib, square and kept transposed": lambda: LoralibLinear(64, 64, fan_in_fan_out=True),
    "loralib, Conv2d": lambda: LoralibConv(16, 24, 3),
    "by hand": lambda: HandWritten(64, 80),
    "by hand, square": lambda: HandWritten(64, 64),
    "torchtune": lambda: WithLinears(64, 80),
}


ONE_OF_EACH_LIBRARY = ("peft, Conv2d", "peft, Conv1D", "loralib", "by hand", "torchtune")


def adapted(layout: str) -> nn.ModuleDict:
    """A model with the adapted layer among plain ones."""
    torch.manual_seed(0)
    names = ("first", "a", "lora", "b", "last")
    return nn.ModuleDict({name: LAYOUTS[layout]() if name == "lora" else nn.Linear(64, 64) for name in names})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_adapted_layer_is_one_layer_of_its_merged_weight(layout):
    model = adapted(layout)
    layers = {layer.name: layer for layer in find_layers(model)}
    assert list(layers) == ["first", "a", "lora", "b", "last"]
    expected = model["lora"].expected()
    assert layers["lora"].shape == tuple(expected.shape)
    torch.testing.assert_close(layers["lora"].weight(), expected, rtol=1e-6, atol=1e-6)
    assert not layers["lora"].weight().requires_grad


@pytest.mark.parametrize("layout", ONE_OF_EACH_LIBRARY)
def test_its_score_is_that_of_a_plain_layer_with_the_merged_weight(layout):
    model = adapted(layout)
    expected = model["lora"].expected()
    plain = nn.Linear(2, 2) if expected.dim() == 2 else nn.Conv2d(2, 2, 3)
    plain.weight = nn.Parameter(expected)
    options = Scoring(score_first=True, score_last=True)
    (reference,) = score_layers(find_layers(plain), options)
    row = table_of(model)["lora"]
    assert row.score == pytest.approx(reference.score, rel=1e-5)
    assert row.num_eigenvalues == reference.num_eigenvalues


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_pair_trains_at_the_rate_of_its_layer_though_the_base_is_frozen(layout):
    model = adapted(layout)
    optimizer = torch.optim.SGD(param_groups(model), lr=0.1)
    scheduler = TempBalance(optimizer, model)
    assert scheduler.table()["lora"].reason == ""
    pair = {name for name, _ in model.named_parameters() if "lora_" in name.removeprefix("lora.").lower()}
    assert len(pair) >= 2
    assert pair <= set(grouped(model)["lora"])
    scale = scheduler.last_scales["lora"]
    rates = {parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    assert {rates[model.get_parameter(name)] for name in pair} == {0.1 * scale}
    assert scale != 1.0


def test_the_base_is_in_the_group_where_it_is_trained_too():
    model = adapted("peft")
    model["lora"].requires_grad_(True)
    assert set(grouped(model)["lora"]) == {
        "lora.base_layer.weight",
        "lora.base_layer.bias",
        "lora.lora_A.default.weight",
        "lora.lora_B.default.weight",
    }


@pytest.mark.parametrize("layout", ONE_OF_EACH_LIBRARY)
def test_an_adapted_layer_is_frozen_when_base_and_pair_are(layout):
    model = adapted(layout)
    model["lora"].requires_grad_(False)
    assert table_of(model)["lora"].reason == FROZEN


@pytest.mark.parametrize("layout", ["peft", "loralib"])
def test_an_adapted_layer_of_which_only_the_bias_is_trained_is_frozen(layout):
    model = adapted(layout)
    model["lora"].requires_grad_(False)
    bias = model["lora"].base_layer.bias if layout == "peft" else model["lora"].bias
    bias.requires_grad_(True)
    assert table_of(model)["lora"].reason == FROZEN


def test_a_normalisation_behind_an_adapted_layer_follows_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), PeftLike(nn.Linear(64, 80)), nn.LayerNorm(80), nn.Linear(80, 8))
    assert set(grouped(model)["1"]) == {
        "1.lora_A.default.weight",
        "1.lora_B.default.weight",
        "2.weight",
        "2.bias",
    }


def test_adapters_that_are_merged_into_the_base_are_not_added_again():
    model = adapted("peft")
    lora = model["lora"]
    expected = lora.expected()
    lora.base_layer.weight.data += lora.delta("default")
    lora.merged = True
    layer = find_layers(model)[2]
    torch.testing.assert_close(layer.weight(), expected, rtol=1e-6, atol=1e-6)
    assert table_of(model)["lora"].reason == ""


def test_loralib_merges_and_unmerges():
    model = adapted("loralib")
    expected = model["lora"].expected()
    model["lora"].weight.data = expected.clone()
    model["lora"].merged = True
    assert torch.equal(find_layers(model)[2].weight(), expected)


def test_adapters_that_are_switched_off_are_not_added():
    model = adapted("peft")
    model["lora"].disable_adapters = True
    assert torch.equal(find_layers(model)[2].weight(), model["lora"].base_layer.weight)
    model["lora"].disable_adapters = False
    assert not torch.equal(find_layers(model)[2].weight(), model["lora"].base_layer.weight)


def test_torchtunes_adapters_that_are_switched_off_are_not_added():
    model = adapted("torchtune")
    model["lora"].disabled = True
    assert torch.equal(find_layers(model)[2].weight(), model["lora"].weight)


@pytest.mark.parametrize("active", [[], ["one"], ["two"], ["one", "two"]], ids=str)
def test_only_the_active_adapters_are_added_but_all_are_in_the_group(active):
    model = adapted("peft, two adapters")
    model["lora"].active_adapters = active
    layer = find_layers(model)[2]
    torch.testing.assert_close(layer.weight(), model["lora"].expected(), rtol=1e-6, atol=1e-6)
    assert len(grouped(model)["lora"]) == 4


def test_the_weight_is_the_merged_one_of_now():
    model = adapted("peft")
    layer = find_layers(model)[2]
    before = layer.weight()
    with torch.no_grad():
        model["lora"].lora_B["default"].weight *= 3
    assert not torch.allclose(layer.weight(), before)
    torch.testing.assert_close(layer.weight(), model["lora"].expected(), rtol=1e-6, atol=1e-6)


def test_a_pair_that_starts_at_zero_leaves_the_base():
    model = adapted("peft")
    model["lora"].lora_B["default"].weight.data.zero_()
    assert torch.equal(find_layers(model)[2].weight(), model["lora"].base_layer.weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_base_of_low_precision_is_raised_before_the_product_is_added(dtype):
    model = adapted("peft")
    lora = model["lora"]
    lora.base_layer.to(dtype)
    lora.scaling["default"] = 1e-4  # lost if the sum were rounded to the base's precision
    product = lora.lora_B["default"].weight @ lora.lora_A["default"].weight
    expected = lora.base_layer.weight.float() + 1e-4 * product.detach()
    merged = find_layers(model)[2].weight()
    assert merged.dtype == torch.float32
    torch.testing.assert_close(merged, expected, rtol=1e-6, atol=1e-8)


def test_autocast_does_not_reach_the_product():
    model = adapted("peft")
    with torch.autocast("cpu", torch.bfloat16):
        merged = find_layers(model)[2].weight()
    torch.testing.assert_close(merged, model["lora"].expected(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("make", [nn.Linear, Conv1D])
def test_an_adapted_fused_weight_is_cut_after_merging(make):
    torch.manual_seed(0)
    base = nn.Linear(64, 192) if make is nn.Linear else Conv1D(192, 64)
    model = nn.ModuleDict({"first": nn.Linear(8, 8), "qkv": PeftLike(base), "last": nn.Linear(8, 8)})
    row = table_of(model, fused={"qkv": 3})["qkv"]
    merged = model["qkv"].expected()
    for part, weight in zip(row.parts, merged.split(64, dim=0 if make is nn.Linear else 1), strict=True):
        plain = nn.Linear(2, 2)
        plain.weight = nn.Parameter(weight.clone())
        (reference,) = score_layers(find_layers(plain), Scoring(score_first=True, score_last=True))
        assert part.score == pytest.approx(reference.score, rel=1e-5)
    assert row.score == pytest.approx(sum(part.score for part in row.parts) / 3)


def test_a_pair_that_does_not_fit_is_an_error_that_names_the_layer():
    model = adapted("peft")
    model["lora"].lora_B["default"] = nn.Linear(RANK, 81, bias=False)
    with raises(WeightError, "'lora'", (80, 64), (8, 64), (81, 8)):
        table_of(model)


def test_an_integer_base_under_a_trained_pair_is_an_error_that_names_the_layer():
    model = adapted("peft")
    weight = torch.randint(-8, 8, (80, 64), dtype=torch.int8)
    model["lora"].base_layer.weight = nn.Parameter(weight, requires_grad=False)
    with raises(WeightError, "'lora'", torch.int8):
        table_of(model)


@pytest.mark.parametrize("pair", ["lora_A", "lora_B"])
def test_a_pair_that_has_become_nan_is_an_error_that_names_the_layer(pair):
    model = adapted("peft")
    getattr(model["lora"], pair)["default"].weight.data[0, 0] = math.nan
    with raises(WeightError, "'lora'", "NaN"):
        table_of(model)


def test_an_adapted_embedding_is_left_out_as_an_embedding():
    model = nn.Sequential(nn.Embedding(99, 64), *(nn.Linear(64, 64) for _ in range(3)))
    model[0].lora_A, model[0].lora_B = nn.Parameter(random(RANK, 99)), nn.Parameter(random(64, RANK))
    assert [row.reason for row in table_of(model)] == [EMBEDDING, "", "", LAST]
    assert set(grouped(model)[None]) == {"0.weight", "0.lora_A", "0.lora_B"}


def test_adapted_ends_are_first_and_last():
    torch.manual_seed(0)
    model = nn.Sequential(*(PeftLike(nn.Linear(64, 64)) for _ in range(4)))
    assert [row.reason for row in table_of(model)] == [FIRST, "", "", LAST]
    assert [row.reason for row in table_of(model, score_first=True, score_last=True)] == [""] * 4
