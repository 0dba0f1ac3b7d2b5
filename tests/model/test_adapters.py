import math

import pytest
import torch
from torch import nn

from tempbalance import TempBalance, WeightError, find_layers, param_groups
from tempbalance.ranking.scoring import Scoring, score_layers
from tests.cases import assert_carries, raises
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
    "peft, Conv2d": lambda: PeftLike(nn.Conv2d(56, 60, 3)),
    "peft, Conv2d of 1 x 1": lambda: PeftLike(nn.Conv2d(64, 64, 1)),
    "peft, Conv1D": lambda: PeftLike(Conv1D(192, 64)),
    "peft, square Conv1D": lambda: PeftLike(Conv1D(64, 64)),  # as GPT-2's c_proj is
    "loralib": lambda: LoralibLinear(64, 80),
    "loralib, kept transposed": lambda: LoralibLinear(64, 80, fan_in_fan_out=True),
    "loralib, square and kept transposed": lambda: LoralibLinear(64, 64, fan_in_fan_out=True),
    "loralib, Conv2d": lambda: LoralibConv(56, 60, 3),
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


def quantised(shape: tuple[int, ...], dtype: torch.dtype) -> nn.ModuleDict:
    model = adapted("peft")
    weight = torch.randint(0, 8, shape).to(dtype)
    model["lora"].base_layer.weight = nn.Parameter(weight, requires_grad=False)
    return model


@pytest.mark.parametrize(
    ("shape", "dtype"), [((80, 64), torch.int8), ((80 * 64 // 2, 1), torch.uint8)], ids=["8 bits", "4 bits, packed"]
)
def test_a_quantised_base_under_a_trained_pair_is_skipped_with_the_reason(shape, dtype):
    model = quantised(shape, dtype)
    row = table_of(model)["lora"]
    assert_carries(row.reason, "quantised", dtype)
    assert (row.shape, row.score, row.scale) == ((80, 64), None, 1.0)
    assert {"lora.lora_A.default.weight", "lora.lora_B.default.weight"} <= set(grouped(model)[None])


class BufferedLinear(nn.Module):
    """A Linear whose codes are a buffer, as GPTQ's."""

    def __init__(self) -> None:
        super().__init__()
        self.in_features, self.out_features = 64, 80
        self.register_buffer("qweight", torch.zeros(8, 80, dtype=torch.int32))
        self.bias = nn.Parameter(torch.zeros(80))


def test_a_quantised_base_without_parameters_is_skipped_with_the_reason():
    model = adapted("peft")
    model["lora"].base_layer = BufferedLinear()
    rows = table_of(model)
    assert [row.name for row in rows] == ["first", "a", "lora", "b", "last"]
    assert_carries(rows["lora"].reason, "quantised", torch.int32)
    assert rows["lora"].shape == (80, 64)
    assert "lora.lora_A.default.weight" in grouped(model)[None]


class PackedLinear(nn.Linear):
    """A Linear of packed integers that can dequantise itself."""

    def pack(self) -> None:
        self.exact = self.weight.detach().clone()
        self.weight = nn.Parameter(torch.zeros(self.exact.numel() // 2, 1, dtype=torch.uint8), requires_grad=False)

    def dequantize(self) -> torch.Tensor:
        return self.exact


class CodedLinear(nn.Module):
    """A Linear of codes under another name than ``weight``, as HQQ's."""

    def __init__(self) -> None:
        super().__init__()
        self.in_features, self.out_features = 64, 80
        self.exact = random(80, 64)
        self.W_q = nn.Parameter(torch.zeros(2560, 1, dtype=torch.uint8), requires_grad=False)

    def dequantize(self) -> torch.Tensor:
        return self.exact


class Coded(torch.Tensor):
    """A tensor subclass that dequantises itself, as torchao's."""

    def dequantize(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor) * 0.5


def dequantisable(kind: str) -> tuple[nn.ModuleDict, torch.Tensor]:
    """A model and the base weight that its adapted layer dequantises."""
    model = adapted("peft")
    lora, weight = model["lora"], random(80, 64)
    if kind == "packed Linear":
        lora.base_layer = PackedLinear(64, 80)
        lora.base_layer.pack()
        return model, lora.base_layer.exact
    if kind == "other module":
        lora.base_layer = CodedLinear()
        return model, lora.base_layer.exact
    if kind == "tensor subclass":
        lora.base_layer.weight = nn.Parameter(weight.as_subclass(Coded), requires_grad=False)
        return model, weight * 0.5
    coded = torch.quantize_per_tensor(weight, 0.01, 0, torch.qint8)
    lora.base_layer.weight = nn.Parameter(coded, requires_grad=False)
    return model, coded.dequantize()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("kind", ["packed Linear", "other module", "tensor subclass", "torch's quantised tensor"])
def test_a_quantised_base_that_can_be_dequantised_is_merged(kind):
    model, base = dequantisable(kind)
    layer = next(layer for layer in find_layers(model) if layer.name == "lora")
    assert layer.shape == (80, 64)
    torch.testing.assert_close(layer.weight(), base + model["lora"].delta("default"), rtol=1e-6, atol=1e-6)
    assert table_of(model)["lora"].reason == ""


def test_an_integer_weight_without_adapters_is_skipped():
    model = adapted("peft")
    model["a"].weight = nn.Parameter(torch.ones(64, 64, dtype=torch.int8), requires_grad=False)
    assert table_of(model)["a"].reason == FROZEN


@pytest.mark.parametrize("pair", ["lora_A", "lora_B"])
def test_a_pair_that_has_become_nan_is_an_error_that_names_the_layer(pair):
    model = adapted("peft")
    getattr(model["lora"], pair)["default"].weight.data[0, 0] = math.nan
    with raises(WeightError, "'lora'", "NaN"):
        table_of(model)


def test_an_adapted_embedding_is_skipped_as_an_embedding():
    model = nn.Sequential(nn.Embedding(99, 64), *(nn.Linear(64, 64) for _ in range(3)))
    model[0].lora_A, model[0].lora_B = nn.Parameter(random(RANK, 99)), nn.Parameter(random(64, RANK))
    assert [row.reason for row in table_of(model)] == [EMBEDDING, "", "", LAST]
    assert set(grouped(model)["0"]) == {"0.weight", "0.lora_A", "0.lora_B"}


def test_adapted_ends_are_first_and_last():
    torch.manual_seed(0)
    model = nn.Sequential(*(PeftLike(nn.Linear(64, 64)) for _ in range(4)))
    assert [row.reason for row in table_of(model)] == [FIRST, "", "", LAST]
    assert [row.reason for row in table_of(model, score_first=True, score_last=True)] == [""] * 4


# --- peft itself


class Net(nn.Module):
    """One layer of each kind that peft adapts."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.pytorch_utils import Conv1D

        self.embed = nn.Embedding(99, 64)
        self.fc, self.wide, self.across = nn.Linear(64, 80), Conv1D(96, 64), Conv1D(64, 64)
        self.conv, self.point, self.line = nn.Conv2d(56, 60, 3), nn.Conv2d(56, 60, 1), nn.Conv1d(56, 60, 3)


LINEAR_AND_CONV = ["fc", "conv", "point", "line"]
EVERY = ["embed", *LINEAR_AND_CONV, "wide", "across"]
TUNERS = {  # config of peft, its options, the modules that it adapts
    "LoRA": ("LoraConfig", {"init_lora_weights": False}, EVERY),
    "rsLoRA": ("LoraConfig", {"init_lora_weights": False, "use_rslora": True}, EVERY),
    "DoRA": ("LoraConfig", {"init_lora_weights": False, "use_dora": True}, EVERY),
    "AdaLoRA": ("AdaLoraConfig", {"init_r": 8, "total_step": 100}, ["fc"]),
    "LoHa": ("LoHaConfig", {"init_weights": False}, LINEAR_AND_CONV),
    "LoHa, effective": ("LoHaConfig", {"init_weights": False, "use_effective_conv2d": True}, LINEAR_AND_CONV),
    "LoKr": ("LoKrConfig", {"init_weights": False}, LINEAR_AND_CONV),
    "LoKr, effective": ("LoKrConfig", {"init_weights": False, "use_effective_conv2d": True}, LINEAR_AND_CONV),
    "LoKr, both": ("LoKrConfig", {"init_weights": False, "decompose_both": True}, LINEAR_AND_CONV),
}


def with_peft(kind: str) -> nn.Module:
    peft = pytest.importorskip("peft")
    pytest.importorskip("transformers")
    config, options, names = TUNERS[kind]
    torch.manual_seed(0)
    model = peft.get_peft_model(Net(), getattr(peft, config)(target_modules=names, **options))
    with torch.no_grad():  # as after training: no factor is zero, no magnitude is the norm
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
                if "magnitude" in name:
                    parameter *= torch.linspace(0.5, 2, parameter.numel()).reshape(parameter.shape)
    return model


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize("kind", TUNERS)
def test_the_weight_is_the_one_that_peft_merges(kind):
    model = with_peft(kind)
    before = {name: each.detach().clone() for name, each in model.state_dict().items()}
    weights = {layer.name.rpartition(".")[2]: layer.weight() for layer in find_layers(model)}
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    names = TUNERS[kind][2]
    bases = {name: before[f"base_model.model.{name}.base_layer.weight"] for name in names}
    merged = model.merge_and_unload()
    for name in names:
        expected = merged.get_submodule(name).weight
        assert not torch.allclose(expected, bases[name], rtol=0.01)
        torch.testing.assert_close(weights[name], expected.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize("kind", TUNERS)
def test_what_peft_trains_is_in_the_group_of_its_layer(kind):
    model = with_peft(kind)
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    for name in TUNERS[kind][2]:
        own = {each for each in trained if each.startswith(f"base_model.model.{name}.")}
        assert len(own) >= 2
        assert set(grouped(model)[f"base_model.model.{name}"]) == own


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
def test_two_adapters_of_dora_are_merged_as_peft_merges_them():
    peft = pytest.importorskip("peft")
    model = with_peft("DoRA")
    model.add_adapter("second", peft.LoraConfig(target_modules=["fc"], init_lora_weights=False, use_dora=True, r=4))
    model.base_model.set_adapter(["default", "second"])
    weight = next(layer for layer in find_layers(model) if layer.name.endswith("fc")).weight()
    merged = model.merge_and_unload().fc.weight.detach()
    torch.testing.assert_close(weight, merged, rtol=1e-6, atol=1e-6)


def test_torchtunes_dora_scales_the_rows_of_the_merged_weight():
    model = adapted("torchtune")
    model["lora"].magnitude = nn.Parameter(torch.linspace(1, 2, 80))
    merged = model["lora"].expected()
    expected = torch.linspace(1, 2, 80)[:, None] * merged / merged.norm(dim=1, keepdim=True)
    torch.testing.assert_close(find_layers(model)[2].weight(), expected, rtol=1e-6, atol=1e-6)
    assert "lora.magnitude" in grouped(model)["lora"]


@pytest.mark.parametrize(("config", "word"), [("OFTConfig", "oft"), ("IA3Config", "ia3"), ("HRAConfig", "hra")])
def test_an_adapter_of_an_unknown_form_is_skipped_by_its_name(config, word):
    peft = pytest.importorskip("peft")
    options = {"feedforward_modules": []} if word == "ia3" else {}
    model = nn.ModuleDict({name: nn.Linear(64, 64) for name in ("first", "fc", "a", "last")})
    peft.inject_adapter_in_model(getattr(peft, config)(target_modules=["fc"], **options), model)
    model["a"].requires_grad_(True)
    rows = table_of(model)
    assert [row.name for row in rows] == ["first", "fc", "a", "last"]
    assert_carries(rows["fc"].reason, "adapter", word)
    assert rows["a"].reason == ""


def test_lora_beside_a_grouped_convolution_is_skipped():
    peft = pytest.importorskip("peft")
    model = nn.ModuleDict({"a": nn.Linear(64, 64), "conv": nn.Conv2d(64, 64, 3, groups=4), "b": nn.Linear(64, 64)})
    with pytest.warns(UserWarning, match="groups"):
        peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["conv"]), model)
    (row,) = [row for row in score_layers(find_layers(model), Scoring()) if row.name == "conv"]
    assert_carries(row.reason, "grouped")
