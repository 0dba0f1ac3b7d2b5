import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

from tempbalance import Comparison, TempBalance, WeightError, find_layers, param_groups
from tempbalance.model.layers import owners
from tempbalance.ranking.scoring import Scoring, score_layers
from tempbalance.ranking.table import LayerTable
from tests.cases import assert_carries, mlp, raises, warns

# reasons of skipped layers, named once so that a better wording is one change
FIRST, LAST, FROZEN, EMBEDDING = "first layer", "last layer", "frozen", "embedding"


class Conv1D(nn.Module):
    """GPT-2's: a Linear whose weight is (in, out)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf) / nx**0.5)
        self.bias = nn.Parameter(torch.zeros(nf))


class Experts(nn.Module):
    """Feed-forward weights of four experts, stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(4, 8, 12))
        self.gate_up_proj_bias = nn.Parameter(torch.zeros(4, 12))
        self.down_proj = nn.Parameter(torch.randn(4, 6, 8))
        self.down_proj_bias = nn.Parameter(torch.zeros(4, 8))


class Bare(nn.Module):
    """One parameter, in a module of no known kind."""

    def __init__(self, key: str, *shape: int) -> None:
        super().__init__()
        self.register_parameter(key, nn.Parameter(torch.randn(*shape)))
        self.offset = nn.Parameter(torch.zeros(shape[0]))


class PeepholeCell(nn.LSTMCell):
    """One's own cell, with torch's weights."""


class CustomRMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


def sequential(*modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(*modules)


def named(**modules: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict(modules)


def grouped(model: nn.Module) -> dict[str | None, list[str]]:
    """Layer to the names of the parameters in its group, None to the rest's; every trainable one exactly once."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    found: dict[str | None, list[str]] = {}
    for group in param_groups(model):
        assert group.get("layer") not in found, "one group a layer"
        found[group.get("layer")] = [names[parameter] for parameter in group["params"]]
    everything = [name for each in found.values() for name in each]
    assert sorted(everything) == sorted(name for name, each in model.named_parameters() if each.requires_grad)
    return found


def followers(model: nn.Module, layer: str) -> set[str]:
    """What is in a layer's group besides its weight."""
    return {name for name in grouped(model)[layer] if not name.startswith(f"{layer}.weight") and name != layer}


def table_of(model: nn.Module, **options) -> LayerTable:
    optimizer = torch.optim.SGD(param_groups(model), lr=0.1)
    return TempBalance(optimizer, model, **options).table()


def gates(letters: str, *shape: int) -> dict[str, tuple[int, ...]]:
    return {letter: (1, *shape) for letter in letters}


# What is a layer, its name, and its parts with (slices, rows, columns): (module, {name: {part: shape}}).
KINDS = {
    "Linear": (lambda: nn.Linear(8, 4), {"0": {"": (1, 4, 8)}}),
    "Conv1d": (lambda: nn.Conv1d(8, 4, 3), {"0": {"": (3, 4, 8)}}),
    "Conv2d": (lambda: nn.Conv2d(8, 4, (3, 2)), {"0": {"": (6, 4, 8)}}),
    "Conv3d": (lambda: nn.Conv3d(8, 4, 2), {"0": {"": (8, 4, 8)}}),
    "Conv2d grouped": (lambda: nn.Conv2d(8, 4, 3, groups=2), {"0": {"": (18, 2, 4)}}),
    "Conv2d depthwise": (lambda: nn.Conv2d(8, 16, 3, groups=8), {"0": {"": (72, 2, 1)}}),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(8, 4, 3), {"0": {"": (3, 8, 4)}}),
    "ConvTranspose2d grouped": (lambda: nn.ConvTranspose2d(8, 4, 3, groups=2), {"0": {"": (18, 4, 2)}}),
    "ConvTranspose3d depthwise": (lambda: nn.ConvTranspose3d(8, 8, 2, groups=8), {"0": {"": (64, 1, 1)}}),
    "LSTM": (
        lambda: nn.LSTM(8, 6),
        {"0.weight_ih_l0": gates("ifgo", 6, 8), "0.weight_hh_l0": gates("ifgo", 6, 6)},
    ),
    "LSTM of two layers, projected": (
        lambda: nn.LSTM(8, 6, num_layers=2, proj_size=3),
        {
            "0.weight_ih_l0": gates("ifgo", 6, 8),
            "0.weight_hh_l0": gates("ifgo", 6, 3),
            "0.weight_hr_l0": {"": (1, 3, 6)},
            "0.weight_ih_l1": gates("ifgo", 6, 3),
            "0.weight_hh_l1": gates("ifgo", 6, 3),
            "0.weight_hr_l1": {"": (1, 3, 6)},
        },
    ),
    "GRU of two layers, both ways": (
        lambda: nn.GRU(8, 6, num_layers=2, bidirectional=True),
        {
            f"0.weight_{kind}_l{layer}{way}": gates("rzn", 6, width)
            for layer, inputs in ((0, 8), (1, 12))
            for way in ("", "_reverse")
            for kind, width in (("ih", inputs), ("hh", 6))
        },
    ),
    "RNN": (lambda: nn.RNN(8, 6), {"0.weight_ih_l0": {"": (1, 6, 8)}, "0.weight_hh_l0": {"": (1, 6, 6)}}),
    "LSTMCell": (
        lambda: nn.LSTMCell(8, 6),
        {"0.weight_ih": gates("ifgo", 6, 8), "0.weight_hh": gates("ifgo", 6, 6)},
    ),
    "GRUCell": (lambda: nn.GRUCell(8, 6), {"0.weight_ih": gates("rzn", 6, 8), "0.weight_hh": gates("rzn", 6, 6)}),
    "RNNCell": (lambda: nn.RNNCell(8, 6), {"0.weight_ih": {"": (1, 6, 8)}, "0.weight_hh": {"": (1, 6, 6)}}),
    "a subclass of LSTMCell": (
        lambda: PeepholeCell(8, 6),
        {"0.weight_ih": gates("ifgo", 6, 8), "0.weight_hh": gates("ifgo", 6, 6)},
    ),
    "MultiheadAttention": (
        lambda: nn.MultiheadAttention(8, 2),
        {"0.in_proj_weight": gates("qkv", 8, 8), "0.out_proj": {"": (1, 8, 8)}},
    ),
    "MultiheadAttention, other keys and values": (
        lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=4),
        {
            "0.q_proj_weight": {"": (1, 8, 8)},
            "0.k_proj_weight": {"": (1, 8, 6)},
            "0.v_proj_weight": {"": (1, 8, 4)},
            "0.out_proj": {"": (1, 8, 8)},
        },
    ),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16),
        {
            "0.self_attn.in_proj_weight": gates("qkv", 8, 8),
            "0.self_attn.out_proj": {"": (1, 8, 8)},
            "0.linear1": {"": (1, 16, 8)},
            "0.linear2": {"": (1, 8, 16)},
        },
    ),
    "Conv1D of GPT-2": (lambda: Conv1D(4, 8), {"0": {"": (1, 8, 4)}}),
    "stacked experts": (
        Experts,
        {
            "0.gate_up_proj": {f"expert {i}": (1, 8, 12) for i in range(4)},
            "0.down_proj": {f"expert {i}": (1, 6, 8) for i in range(4)},
        },
    ),
    "bare weight": (lambda: Bare("weight", 4, 8), {"0": {"": (1, 4, 8)}}),
    "bare parameter": (lambda: Bare("mixing", 4, 8), {"0.mixing": {"": (1, 4, 8)}}),
    "bare kernel": (lambda: Bare("kernel", 4, 8, 3, 3), {"0.kernel": {"": (9, 4, 8)}}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_weight_is_a_layer_with_its_name_and_parts(kind):
    make, expected = KINDS[kind]
    layers = find_layers(sequential(make()))
    found = [
        (layer.name, [(part.name, tuple(part.slices.shape)) for part in layer.cut(layer.weight())]) for layer in layers
    ]
    assert found == [(name, list(parts.items())) for name, parts in expected.items()]
    assert [layer.skipped for layer in layers] == [""] * len(layers)


def test_bilinear_is_a_matrix_per_output():
    (layer,) = find_layers(sequential(nn.Bilinear(5, 6, 7)))
    assert layer.name == "0"
    assert [tuple(part.slices.shape) for part in layer.cut(layer.weight())] == [(1, 5, 6)] * 7


def test_a_model_that_is_one_module_names_its_weights_by_parameter():
    assert [layer.name for layer in find_layers(nn.Linear(4, 4))] == ["weight"]
    assert [layer.name for layer in find_layers(nn.LSTM(4, 4))] == ["weight_ih_l0", "weight_hh_l0"]
    assert list(grouped(nn.Linear(4, 4))) == ["weight"]


def test_a_whole_transformer_is_named_in_the_order_of_its_modules():
    model = nn.Transformer(8, 2, 2, 1, 16, batch_first=True)
    attention = ["self_attn.in_proj_weight", "self_attn.out_proj"]
    across = ["multihead_attn.in_proj_weight", "multihead_attn.out_proj"]
    linear = ["linear1", "linear2"]
    assert [layer.name for layer in find_layers(model)] == [
        *(f"encoder.layers.{i}.{name}" for i in range(2) for name in attention + linear),
        *(f"decoder.layers.0.{name}" for name in attention + across + linear),
    ]


def test_a_module_that_is_registered_twice_is_one_layer():
    shared = nn.Linear(8, 8)
    assert [layer.name for layer in find_layers(sequential(shared, nn.ReLU(), shared))] == ["0"]


class Tokens(nn.Module):
    """What stands beside the layers of a vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 8))
        self.pos_embed = nn.Parameter(torch.zeros(1, 17, 8))
        self.register_tokens = nn.Parameter(torch.zeros(1, 4, 8))
        self.positional_embedding = nn.Parameter(torch.zeros(17, 8))
        self.class_embedding = nn.Parameter(torch.zeros(8))
        self.patch = nn.Conv2d(3, 8, 4)
        self.head = nn.Linear(8, 4)


def test_embeddings_and_position_parameters_are_skipped_as_embeddings():
    model = named(word=nn.Embedding(20, 8), bag=nn.EmbeddingBag(20, 8), tokens=Tokens())
    skipped = {layer.name: layer.skipped for layer in find_layers(model)}
    tokens = ["tokens.cls_token", "tokens.pos_embed", "tokens.register_tokens", "tokens.positional_embedding"]
    assert skipped == {
        **dict.fromkeys(["word", "bag", *tokens], "embedding"),
        "tokens.patch": "",
        "tokens.head": "",
    }
    groups = grouped(model)
    assert (groups["word"], groups["bag"]) == (["word.weight"], ["bag.weight"])  # of their own, so they can be scored
    assert set(groups[None]) == {*tokens, "tokens.class_embedding"}


BIASES = {  # module, layer, what follows it
    "Linear": (lambda: nn.Linear(4, 8), "0", {"0.bias"}),
    "Conv2d": (lambda: nn.Conv2d(4, 8, 3), "0", {"0.bias"}),
    "LSTM": (lambda: nn.LSTM(4, 8, 2), "0.weight_hh_l1", {"0.bias_hh_l1"}),
    "LSTM, both ways": (
        lambda: nn.LSTM(4, 8, bidirectional=True),
        "0.weight_ih_l0_reverse",
        {"0.bias_ih_l0_reverse"},
    ),
    "GRUCell": (lambda: nn.GRUCell(4, 8), "0.weight_ih", {"0.bias_ih"}),
    "attention's input": (
        lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True),
        "0.in_proj_weight",
        {"0.in_proj_bias", "0.bias_k", "0.bias_v"},
    ),
    "attention's separate inputs": (
        lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=4),
        "0.q_proj_weight",
        {"0.in_proj_bias"},
    ),
    "attention's output": (lambda: nn.MultiheadAttention(8, 2), "0.out_proj", {"0.out_proj.bias"}),
    "Conv1D": (lambda: Conv1D(4, 8), "0", {"0.bias"}),
    "experts": (Experts, "0.gate_up_proj", {"0.gate_up_proj_bias"}),
    "experts' second": (Experts, "0.down_proj", {"0.down_proj_bias"}),
    "Bilinear": (lambda: nn.Bilinear(5, 6, 7), "0", {"0.bias"}),
    "bare": (lambda: Bare("kernel", 4, 8), "0.kernel", {"0.offset"}),
}


@pytest.mark.parametrize("kind", BIASES)
def test_a_bias_follows_its_weight(kind):
    make, layer, expected = BIASES[kind]
    assert followers(sequential(make()), layer) == expected


NORMS = {
    "BatchNorm1d": nn.BatchNorm1d,
    "BatchNorm2d": nn.BatchNorm2d,
    "BatchNorm3d": nn.BatchNorm3d,
    "SyncBatchNorm": nn.SyncBatchNorm,
    "LayerNorm": nn.LayerNorm,
    "GroupNorm": lambda width: nn.GroupNorm(4, width),
    "RMSNorm": nn.RMSNorm,
    "InstanceNorm1d": lambda width: nn.InstanceNorm1d(width, affine=True),
    "InstanceNorm2d": lambda width: nn.InstanceNorm2d(width, affine=True),
    "a custom RMSNorm": CustomRMSNorm,
}


@pytest.mark.parametrize("norm", NORMS)
def test_a_normalisation_follows_the_layer_that_feeds_it(norm):
    model = sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3), NORMS[norm](16), nn.ReLU(), nn.Conv2d(16, 8, 3))
    expected = {"1.bias", *(f"2.{name}" for name, _ in model[2].named_parameters())}
    assert len(expected) > 1
    assert followers(model, "1") == expected


@pytest.mark.parametrize("norm", ["BatchNorm1d", "LayerNorm", "a custom RMSNorm"])
def test_a_normalisation_follows_the_latest_layer_of_its_width(norm):
    model = sequential(nn.Linear(4, 16), nn.Linear(16, 16), nn.Linear(16, 24), NORMS[norm](16), nn.Linear(24, 16))
    assert {name for name in followers(model, "1") if name.startswith("3.")} == {
        f"3.{name}" for name, _ in model[3].named_parameters()
    }
    assert followers(model, "2") == {"2.bias"}


def test_a_normalisation_can_name_the_layer_that_it_follows():
    model = sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.Linear(16, 8), nn.LayerNorm(8))
    model[1].follows, model[3].follows = "2", None
    first, second = find_layers(model)
    assert {*second.followers} == {model[2].bias, *model[1].parameters()}
    assert first.followers == [model[0].bias]
    model[1].follows = "7"
    with raises(ValueError, "'1'", "'7'"):
        find_layers(model)


def test_a_normalisation_without_a_layer_of_its_width_trains_at_the_base_rate():
    model = sequential(nn.LayerNorm(4), nn.Linear(4, 16), nn.LayerNorm(5), nn.Linear(16, 4))
    assert set(grouped(model)[None]) == {"0.weight", "0.bias", "2.weight", "2.bias"}


WIDTHS = {  # module, width of its output, the layer that gives it
    "ConvTranspose2d, grouped": (lambda: nn.ConvTranspose2d(8, 16, 3, groups=2), 16, "0"),
    "Conv2d, depthwise": (lambda: nn.Conv2d(8, 24, 3, groups=8), 24, "0"),
    "LSTM": (lambda: nn.LSTM(8, 16), 16, "0.weight_hh_l0"),
    "LSTM, both ways": (lambda: nn.LSTM(8, 16, bidirectional=True), 32, "0.weight_hh_l0_reverse"),
    "LSTM, projected": (lambda: nn.LSTM(8, 16, proj_size=4), 4, "0.weight_hr_l0"),
    "GRUCell": (lambda: nn.GRUCell(8, 16), 16, "0.weight_hh"),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(16, 2), 16, "0.out_proj"),
    "Conv1D": (lambda: Conv1D(16, 8), 16, "0"),
    "Bilinear": (lambda: nn.Bilinear(8, 5, 16), 16, "0"),
    "bare weight": (lambda: Bare("weight", 16, 8), 16, "0"),
}


@pytest.mark.parametrize("kind", WIDTHS)
def test_the_width_that_counts_is_that_of_the_output(kind):
    make, width, layer = WIDTHS[kind]
    model = sequential(make(), nn.LayerNorm(width))
    assert {"1.weight", "1.bias"} <= followers(model, layer)


@pytest.mark.parametrize("kind", ["Conv1D", "Bilinear", "bare weight"])
def test_the_width_of_the_input_does_not_count(kind):
    model = sequential(WIDTHS[kind][0](), nn.LayerNorm(8))
    assert set(grouped(model)[None]) == {"1.weight", "1.bias"}


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, bias=False), nn.BatchNorm2d(outputs)
        if inputs != outputs:
            self.downsample = sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))


class PreActivationBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, outputs, 3, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(outputs), nn.Conv2d(outputs, outputs, 3, bias=False)


class PreNormBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, bias=False)
        self.ln_2, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32, bias=False), nn.Linear(32, 8, bias=False)


class ConvsBeforeNorms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = (nn.Conv2d(8, 8, 3, bias=False) for _ in range(3))
        self.bn1, self.bn2, self.bn3 = (nn.BatchNorm2d(8) for _ in range(3))


ORDERS = {  # model, {norm: the layer it follows, None for the base rate}
    "residual blocks": (
        lambda: named(
            conv1=nn.Conv2d(3, 8, 7, bias=False), bn1=nn.BatchNorm2d(8), a=ResidualBlock(8, 8), b=ResidualBlock(8, 16)
        ),
        {
            "bn1": "conv1",
            "a.bn1": "a.conv1",
            "a.bn2": "a.conv2",
            "b.bn1": "b.conv1",
            "b.bn2": "b.conv2",
            "b.downsample.1": "b.downsample.0",
        },
    ),
    "pre-activation blocks": (
        lambda: named(
            stem=nn.Conv2d(3, 8, 3, bias=False),
            a=PreActivationBlock(8, 8),
            b=PreActivationBlock(8, 16),
            norm=nn.BatchNorm2d(16),
            head=nn.Linear(16, 4),
        ),
        {"a.bn1": "stem", "a.bn2": "a.conv1", "b.bn1": "a.conv2", "b.bn2": "b.conv1", "norm": "b.conv2"},
    ),
    "TransformerEncoderLayer": (
        lambda: sequential(nn.Linear(4, 8), nn.TransformerEncoderLayer(8, 2, 16)),
        {"1.norm1": "1.self_attn.out_proj", "1.norm2": "1.linear2"},
    ),
    "TransformerDecoderLayer": (
        lambda: sequential(nn.TransformerDecoderLayer(8, 2, 16)),
        {"0.norm1": "0.self_attn.out_proj", "0.norm2": "0.multihead_attn.out_proj", "0.norm3": "0.linear2"},
    ),
    "pre-norm blocks": (
        lambda: named(embed=nn.Embedding(9, 8), a=PreNormBlock(), b=PreNormBlock(), norm=nn.LayerNorm(8)),
        {
            "a.ln_1": None,
            "a.ln_2": "a.attn.out_proj",
            "b.ln_1": "a.down",
            "b.ln_2": "b.attn.out_proj",
            "norm": "b.down",
        },
    ),
    "all convolutions before all norms": (
        lambda: named(a=ConvsBeforeNorms(), b=ConvsBeforeNorms()),
        {f"{block}.bn{i}": f"{block}.conv{i}" for block in "ab" for i in (1, 2, 3)},
    ),
}


@pytest.mark.parametrize("order", ORDERS)
def test_each_normalisation_of_a_block_follows_its_own_layer(order):
    make, expected = ORDERS[order]
    model = make()
    layers = owners(find_layers(model))
    found = {name: layers.get(model.get_submodule(name).weight) for name in expected}
    assert found == expected
    assert {name: layers.get(model.get_submodule(name).bias) for name in expected} == expected
    grouped(model)


def test_what_is_frozen_is_in_no_group():
    model = sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    model[0].requires_grad_(False)
    model[1].weight.requires_grad_(False)
    assert grouped(model) == {"0": ["1.bias"], "2": ["2.weight", "2.bias"]}


# --- what is skipped, and why


def test_first_and_last_layer_are_skipped_unless_asked_for():
    model = mlp()
    rows = table_of(model)
    assert {row.name: row.reason for row in rows} == {"0": FIRST, "3": "", "6": "", "9": LAST}
    assert rows["0"].scale == rows["9"].scale == 1.0
    assert_carries(str(rows), FIRST, LAST)
    assert [row.reason for row in table_of(model, score_first=True)] == ["", "", "", LAST]
    assert [row.reason for row in table_of(model, score_last=True)] == [FIRST, "", "", ""]


def test_an_input_embedding_counts_as_the_first_layer():
    model = sequential(nn.Embedding(99, 64), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 99))
    reasons = [row.reason for row in table_of(model)]
    assert reasons == [EMBEDDING, "", "", LAST]
    assert [row.reason for row in table_of(model, score_first=True)] == reasons


def embedded(**options) -> dict[str, str]:
    """Reasons of a small language model, its rows' scores checked against them."""
    model = named(
        tokens=nn.Embedding(99, 64),
        bag=nn.EmbeddingBag(99, 64),
        parts=Tokens(),
        a=nn.Linear(64, 64),
        b=nn.Linear(64, 9),
    )
    rows = score_layers(find_layers(model), Scoring(exclude=["parts.patch", "parts.head"], **options))
    assert all((row.score is None) == bool(row.reason) for row in rows)
    return {row.name: row.reason for row in rows if not row.reason.startswith("name")}


def test_embeddings_are_scored_on_request_but_not_bare_parameters():
    bare = {
        f"parts.{name}": EMBEDDING for name in ("cls_token", "pos_embed", "register_tokens", "positional_embedding")
    }
    assert embedded() == {"tokens": EMBEDDING, "bag": EMBEDDING, **bare, "a": "", "b": LAST}
    assert embedded(score_embeddings=True) == {"tokens": "", "bag": "", **bare, "a": "", "b": LAST}


def test_an_embedding_is_scored_as_the_matrix_that_it_is():
    embedding, linear = nn.Embedding(99, 64), nn.Linear(2, 2)
    linear.weight = nn.Parameter(embedding.weight.detach().clone())
    ends = {"score_first": True, "score_last": True}
    (row,) = score_layers(find_layers(sequential(embedding)), Scoring(score_embeddings=True))
    (expected,) = score_layers(find_layers(sequential(linear)), Scoring(**ends))
    assert row == expected


def test_a_frozen_or_excluded_embedding_is_not_scored():
    model = sequential(nn.Embedding(99, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    (row, *_) = score_layers(find_layers(model), Scoring(score_embeddings=True, exclude=["0"]))
    assert_carries(row.reason, "exclude", "'0'")
    model[0].requires_grad_(False)
    assert [row.reason for row in score_layers(find_layers(model), Scoring(score_embeddings=True))] == [
        FROZEN,
        "",
        LAST,
    ]


def test_the_head_decides_about_an_embedding_that_is_tied_to_it():
    model = named(embed=nn.Embedding(99, 64), a=nn.Linear(64, 64), head=nn.Linear(64, 99))
    model["head"].weight = model["embed"].weight
    embed, a, head = score_layers(find_layers(model), Scoring(score_embeddings=True))
    assert_carries(embed.reason, EMBEDDING, "'head'")
    assert (a.reason, head.reason) == ("", LAST)


def gan() -> nn.ModuleDict:
    """Two networks of four layers, and one layer beside them."""
    torch.manual_seed(0)
    networks = {name: sequential(*(nn.Linear(64, 64) for _ in range(4))) for name in ("gen", "gen2")}
    return named(**networks, other=nn.Linear(64, 64))


def test_first_and_last_layer_are_counted_within_each_root():
    rows = score_layers(find_layers(gan()), Scoring(roots=["gen", "gen2"]))
    for root in ("gen", "gen2"):
        within = [row for row in rows if row.root == root]
        assert [(row.name, row.reason) for row in within] == [
            (f"{root}.0", FIRST),
            (f"{root}.1", ""),
            (f"{root}.2", ""),
            (f"{root}.3", LAST),
        ]
    assert [(row.name, row.reason, row.score) for row in rows if not row.root] == [("other", "outside roots", None)]
    rows = score_layers(find_layers(gan()), Scoring(roots=["gen2"], score_last=True))
    assert [row.name for row in rows if not row.reason] == ["gen2.1", "gen2.2", "gen2.3"]


def test_a_layer_can_be_a_root_and_without_roots_there_is_none():
    rows = score_layers(find_layers(gan()), Scoring(roots=["other"], score_first=True, score_last=True))
    assert [row.name for row in rows if not row.reason] == ["other"]
    assert {row.root for row in score_layers(find_layers(gan()), Scoring())} == {""}


@pytest.mark.parametrize(
    ("roots", "named_root"),
    [(["gen", "nothing"], "nothing"), (["ge"], "ge"), ([""], ""), (["gen", "gen.1"], "gen.1"), (["gen", "gen"], "gen")],
    ids=str,
)
def test_a_root_without_layers_or_inside_another_is_refused(roots, named_root):
    with raises(ValueError, "root", repr(named_root)):
        score_layers(find_layers(gan()), Scoring(roots=roots))


def test_one_root_that_is_not_in_a_list_is_refused():
    with raises(TypeError, "roots", "'gen'"):
        Scoring(roots="gen")


def test_a_class_token_does_not_count_as_the_first_layer():
    model = named(tokens=Tokens(), a=nn.Linear(64, 64), b=nn.Linear(64, 64))
    rows = table_of(model)
    assert rows["tokens.patch"].reason == FIRST
    assert rows["b"].reason == LAST


ENDS = {  # modules of torch that hold a weight under a name of its own: the layers that are first and last
    "Bilinear": (lambda: nn.Bilinear(64, 64, 64), "end", "end"),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(64, 2), "end.in_proj_weight", "end.out_proj"),
    "MultiheadAttention, other keys": (
        lambda: nn.MultiheadAttention(64, 2, kdim=60),
        "end.q_proj_weight",
        "end.out_proj",
    ),
    "LSTM": (lambda: nn.LSTM(64, 64), "end.weight_ih_l0", "end.weight_hh_l0"),
    "Conv1D": (lambda: Conv1D(64, 64), "end", "end"),
}


@pytest.mark.parametrize("kind", ENDS)
def test_any_module_of_a_known_kind_can_be_the_first_or_the_last(kind):
    make, first, last = ENDS[kind]
    rows = table_of(named(end=make(), a=nn.Linear(64, 64), b=nn.Linear(64, 64)))
    assert [row.name for row in rows if row.reason == FIRST] == [first]
    rows = table_of(named(a=nn.Linear(64, 64), b=nn.Linear(64, 64), end=make()))
    assert [row.name for row in rows if row.reason == LAST] == [last]


def test_a_head_tied_to_the_embedding_counts_as_the_last_layer():
    model = named(embed=nn.Embedding(99, 64), a=nn.Linear(64, 64), b=nn.Linear(64, 64), head=nn.Linear(64, 99))
    model["head"].weight = model["embed"].weight
    rows = table_of(model)
    assert [row.reason for row in rows][1:] == ["", "", LAST]
    assert_carries(rows["embed"].reason, EMBEDDING, "'head'")
    rows = table_of(model, score_last=True)
    assert rows["head"].reason == ""
    assert rows["head"].score > 1
    assert_carries(rows["embed"].reason, EMBEDDING, "'head'")
    assert rows["embed"].score is None
    assert grouped(model)["head"] == ["embed.weight", "head.bias"]


def test_two_linears_with_one_weight_are_scored_once():
    model = sequential(*(nn.Linear(64, 64) for _ in range(5)))
    model[3].weight = model[1].weight
    rows = table_of(model)
    assert [row.reason for row in rows if row.name != "3"] == [FIRST, "", "", LAST]
    assert_carries(rows["3"].reason, "'1'")
    assert rows["3"].score is None
    assert rows["1"].score > 1
    assert grouped(model)["1"] == ["1.weight", "1.bias", "3.bias"]


def test_the_bias_of_a_tied_layer_trains_at_the_rate_of_its_weight():
    model = sequential(*(nn.Linear(64, 64) for _ in range(5)))
    model[3].weight = model[1].weight
    optimizer = torch.optim.SGD(param_groups(model), lr=0.1)
    scheduler = TempBalance(optimizer, model)
    rates = {parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    assert rates[model[3].bias] == rates[model[1].weight] == 0.1 * scheduler.last_scales["1"] != 0.1


def test_too_few_eigenvalues_are_skipped_with_both_numbers():
    model = mlp((64, 96, 49, 72, 60))
    with warns(UserWarning, FIRST, 49, LAST):  # no layer is scored
        rows = table_of(model)
    assert_carries(rows["3"].reason, 49, "min_eigenvalues", 50)
    assert_carries(str(rows), rows["3"].reason)
    assert table_of(model, min_eigenvalues=49)["3"].reason == ""


SMALL = {  # a kernel, the side of its matrices, how many there are
    "few channels": (lambda: nn.Conv2d(32, 16, 3), 16, 9),
    "depthwise": (lambda: nn.Conv2d(64, 64, 7, groups=64), 1, 3136),
    "grouped": (lambda: nn.Conv2d(64, 64, 3, groups=4), 16, 36),
    "transposed": (lambda: nn.ConvTranspose1d(64, 16, 5), 16, 5),
}


@pytest.mark.parametrize("kind", SMALL)
def test_a_kernel_counts_by_the_side_of_its_matrices_not_by_the_pooled_number(kind):
    make, side, num_matrices = SMALL[kind]
    (row,) = score_layers(find_layers(make()), Scoring(score_first=True, score_last=True))
    assert row.num_eigenvalues == side * num_matrices > 50
    assert row.score is None
    assert_carries(row.reason, side, num_matrices, "min_eigenvalues", 50)
    if side > 3:
        (row,) = score_layers(find_layers(make()), Scoring(score_first=True, score_last=True, min_eigenvalues=side))
        assert row.reason == ""


def test_a_kernel_whose_sides_are_long_enough_is_scored():
    (row,) = score_layers(find_layers(nn.Conv2d(64, 64, 3)), Scoring(score_first=True, score_last=True))
    assert (row.reason, row.num_eigenvalues) == ("", 9 * 64)


def test_windows_count_by_their_side():
    model, ends = nn.Linear(128, 96), {"score_first": True, "score_last": True}
    (row,) = score_layers(find_layers(model), Scoring(comparison=Comparison(windows=49), **ends))
    assert_carries(row.reason, 49, "min_eigenvalues", 50)
    (row,) = score_layers(find_layers(model), Scoring(comparison=Comparison(windows=50), **ends))
    assert row.reason == ""


def test_a_frozen_weight_is_skipped_and_a_frozen_bias_is_not_enough():
    model = mlp()
    model[3].weight.requires_grad_(False)
    model[6].bias.requires_grad_(False)
    rows = table_of(model)
    assert rows["3"].reason == FROZEN
    assert_carries(str(rows), FROZEN)
    assert rows["6"].reason == ""


def test_what_follows_a_layer_that_is_skipped_trains_at_the_base_rate():
    model = mlp((64, 96, 80, 72, 72, 60))
    model[3].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(param_groups(model), lr=0.1)
    TempBalance(optimizer, model)
    rates = {group["layer"]: group["lr"] for group in optimizer.param_groups}
    assert rates["0"] == rates["3"] == rates["12"] == 0.1
    assert sorted([rates["6"], rates["9"]]) == pytest.approx([0.05, 0.15])


@pytest.mark.parametrize("pattern", ["3", "[34]", "?"])
def test_a_layer_is_excluded_by_a_pattern_that_the_reason_names(pattern):
    with warns(UserWarning, "exclude", "'nothing.*'"):
        rows = table_of(mlp(), exclude=["nothing.*", pattern])
    assert_carries(rows["3"].reason, "exclude", repr(pattern))
    assert rows["3"].scale == 1.0


def test_an_excluded_layer_says_so_even_if_it_is_the_first():
    assert_carries(table_of(mlp(), exclude=["0"])["0"].reason, "exclude", "'0'")


def test_one_pattern_that_is_not_in_a_list_is_refused():
    with raises(TypeError, "exclude", "'*.head'"):
        Scoring(exclude="*.head")
    with raises(TypeError, "exclude", "'head.*'"):
        table_of(mlp(), exclude="head.*")  # its characters are not patterns: '*' would leave out everything


# --- weights that are computed from others


REPARAMETRISED = {  # how, the parameters that it leaves, how the applied weight is made from them
    "parametrizations.weight_norm": (
        parametrizations.weight_norm,
        {"1.parametrizations.weight.original0", "1.parametrizations.weight.original1"},
        lambda m: weight_normalised(
            m.parametrizations.weight.original0.detach(), m.parametrizations.weight.original1.detach()
        ),
    ),
    "parametrizations.spectral_norm": (
        parametrizations.spectral_norm,
        {"1.parametrizations.weight.original"},
        lambda m: (
            m.parametrizations.weight.original.detach()
            / (
                m.parametrizations.weight[0]._u
                @ m.parametrizations.weight.original.detach().flatten(1)
                @ m.parametrizations.weight[0]._v
            )
        ),
    ),
    "weight_norm": (weight_norm, {"1.weight_g", "1.weight_v"}, lambda m: weight_normalised(m.weight_g, m.weight_v)),
    "spectral_norm": (
        spectral_norm,
        {"1.weight_orig"},
        lambda m: m.weight_orig.detach() / (m.weight_u @ m.weight_orig.detach().flatten(1) @ m.weight_v),
    ),
    "prune": (
        lambda m: prune.l1_unstructured(m, "weight", 0.3),
        {"1.weight_orig"},
        lambda m: m.weight_orig.detach() * m.weight_mask,
    ),
    "prune twice": (
        lambda m: prune.random_unstructured(prune.ln_structured(m, "weight", 0.2, n=2, dim=1), "weight", 0.2),
        {"1.weight_orig"},
        lambda m: m.weight_orig.detach() * m.weight_mask,
    ),
}


def weight_normalised(size: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    norms = direction.detach().flatten(1).norm(dim=1).reshape(size.shape)
    return size.detach() * direction.detach() / norms


def reparametrised(kind: str, module: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    REPARAMETRISED[kind][0](module)
    return sequential(nn.Linear(8, 64), module, nn.Linear(64, 64), nn.Linear(64, 8))


MIDDLES = {"Linear": lambda: nn.Linear(64, 72), "Conv2d": lambda: nn.Conv2d(16, 24, 3)}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("middle", MIDDLES)
@pytest.mark.parametrize("kind", REPARAMETRISED)
def test_the_weight_that_is_scored_is_the_one_applied_now(kind, middle):
    model = reparametrised(kind, MIDDLES[middle]())
    _, made_of, applied = REPARAMETRISED[kind]
    layer = find_layers(model)[1]
    assert layer.name == "1"
    with torch.no_grad():  # what an optimizer does: the attribute `weight` of the older forms is now out of date
        for name in made_of:
            model.get_parameter(name).mul_(1 + torch.rand(model.get_parameter(name).shape))
    torch.testing.assert_close(layer.weight(), applied(model[1]))
    assert layer.shape == tuple(layer.weight().shape)
    assert not layer.weight().requires_grad


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", REPARAMETRISED)
def test_all_that_a_weight_is_made_of_is_in_its_group(kind):
    model = reparametrised(kind, nn.Conv2d(16, 24, 3))
    assert set(grouped(model)["1"]) == REPARAMETRISED[kind][1] | {"1.bias"}
    assert list(grouped(model)) == ["0", "1", "2", "3"]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", REPARAMETRISED)
def test_scoring_leaves_buffers_and_training_modes_as_they_were(kind):
    model = reparametrised(kind, nn.Linear(64, 72))
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    table_of(model)
    assert all(module.training for module in model.modules())
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name


def test_scoring_leaves_a_spectral_norm_in_evaluation_mode_there():
    model = reparametrised("parametrizations.spectral_norm", nn.Linear(64, 72))
    model[1].parametrizations.weight[0].eval()  # its estimate is held, while the rest trains
    before = {name: module.training for name, module in model.named_modules()}
    table_of(model)
    assert {name: module.training for name, module in model.named_modules()} == before


def test_the_moving_estimate_of_spectral_norm_would_show():
    """The check above is worth something: reading the weight in training mode does move the buffers."""
    model = reparametrised("parametrizations.spectral_norm", nn.Linear(64, 72))
    before = model[1].parametrizations.weight[0]._u.clone()
    assert model[1].weight is not None
    assert not torch.equal(model[1].parametrizations.weight[0]._u, before)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", REPARAMETRISED)
def test_a_score_is_that_of_the_applied_weight_as_a_plain_one(kind):
    model = reparametrised(kind, nn.Linear(64, 72))
    plain = nn.Linear(64, 72)
    plain.weight = nn.Parameter(REPARAMETRISED[kind][2](model[1]).clone())
    rows = table_of(model)
    expected = table_of(sequential(model[0], plain, model[2], model[3]))
    assert rows["1"].score == pytest.approx(expected["1"].score, rel=1e-5)
    assert rows["1"].scale == pytest.approx(expected["1"].scale)


class Symmetric(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).mT


def test_a_parametrization_of_ones_own_is_looked_through():
    model = sequential(nn.Linear(8, 8), nn.Linear(64, 64), nn.Linear(64, 8))
    parametrize.register_parametrization(model[1], "weight", Symmetric())
    layer = find_layers(model)[1]
    assert torch.equal(layer.weight(), layer.weight().mT)
    assert set(grouped(model)["1"]) == {"1.parametrizations.weight.original", "1.bias"}


def test_a_cell_with_a_parametrization_keeps_its_gates():
    model = sequential(nn.GRUCell(8, 6))
    parametrizations.weight_norm(model[0], "weight_hh")
    layer = next(layer for layer in find_layers(model) if layer.name == "0.weight_hh")
    assert [part.name for part in layer.cut(layer.weight())] == ["r", "z", "n"]


def test_a_pruned_bias_follows_its_weight():
    model = sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    prune.l1_unstructured(model[0], "bias", 0.5)
    assert followers(model, "0") == {"0.bias_orig"}


# --- lazy modules

LAZY = {
    "LazyLinear": (
        lambda: sequential(nn.Linear(8, 64), nn.LazyLinear(64), nn.LayerNorm(64), nn.Linear(64, 64), nn.Linear(64, 8)),
        torch.randn(2, 8),
    ),
    "LazyConv2d": (
        lambda: sequential(nn.Conv2d(3, 64, 3), nn.LazyConv2d(64, 3), nn.BatchNorm2d(64), nn.Conv2d(64, 8, 3)),
        torch.randn(2, 3, 9, 9),
    ),
}


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("kind", LAZY)
def test_a_lazy_layer_has_a_group_but_no_score_before_it_has_seen_a_batch(kind):
    make, batch = LAZY[kind]
    model = make()
    assert set(grouped(model)["1"]) == {"1.weight", "1.bias", "2.weight", "2.bias"}
    optimizer = torch.optim.SGD(param_groups(model), lr=0.1)
    with raises(WeightError, "'1'", "initialised"):
        TempBalance(optimizer, model)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1] * len(optimizer.param_groups)
    model(batch)
    row = TempBalance(optimizer, model).table()["1"]
    assert row.score > 1
    assert row.shape == tuple(model[1].weight.shape)


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_lazy_layer_that_is_skipped_anyway_does_not_stand_in_the_way():
    model = sequential(nn.LazyLinear(64), nn.Linear(64, 64), nn.Linear(64, 64), nn.LazyLinear(8))
    assert [row.reason for row in table_of(model)] == [FIRST, "", "", LAST]
    rows = score_layers(find_layers(model), Scoring(exclude=["0"], score_first=True))
    assert_carries(rows[0].reason, "exclude", "'0'")
