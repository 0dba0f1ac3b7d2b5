"""Hints at construction: what a user should know about shapes and fused projections."""

import pytest
import torch
from torch import nn

from tempbalance import find_layers
from tempbalance.ranking.scoring import Scoring, hints, score_layers
from tests.cases import assert_carries, nested
from tests.model.test_layers import Conv1D


def hints_of(model: nn.Module, **options) -> list[str]:
    layers, scoring = find_layers(model), Scoring(**nested(options))
    return hints(score_layers(layers, scoring), layers, scoring)


def bert(width: int = 64, num_layers: int = 3) -> nn.ModuleList:
    """Linear layers in the shapes of BERT: four square ones, and two of 1 to 4."""
    torch.manual_seed(0)
    shapes = {**dict.fromkeys(("query", "key", "value", "output"), (1, 1)), "up": (1, 4), "down": (4, 1)}
    return nn.ModuleList(
        nn.ModuleDict({name: nn.Linear(n * width, m * width) for name, (n, m) in shapes.items()})
        for _ in range(num_layers)
    )


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj = Conv1D(3 * width, width), Conv1D(width, width)


def gpt2(width: int = 64, num_blocks: int = 3) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(
        nn.ModuleDict({"attn": Attention(width), "c_fc": Conv1D(4 * width, width), "c_proj": Conv1D(width, 4 * width)})
        for _ in range(num_blocks)
    )


def with_tails(model: nn.Module) -> nn.Module:
    """Give each weight a spectrum of its own, so that shapes explain little."""
    for index, layer in enumerate(find_layers(model)):
        weight = layer.parameters[0].data
        falloff = torch.arange(1, weight.shape[1] + 1) ** -(0.2 + 0.9 * (index * 7 % 5))
        weight *= falloff
    return model


def test_shapes_that_explain_alpha_are_named_with_the_option_that_corrects_for_them():
    (line,) = hints_of(bert())
    percentage = int(line.partition("%")[0].split()[-1])
    assert 60 <= percentage <= 100
    assert_carries(line, "Comparison(reference='random')")


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (bert, {"reference": "random"}),  # corrected already
        (bert, {"score": "spectral_norm"}),  # another score
        (bert, {"tail": "peak"}),  # a search would take long for each shape
        (lambda: with_tails(bert()), {}),  # the spectra explain more
        (lambda: bert(num_layers=1)[0], {"exclude": ["value", "output"]}),  # three layers are too few
        (lambda: nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))), {}),  # one shape
        (lambda: nn.Sequential(*(nn.Linear(n, n) for n in (64, 64, 96, 96, 64, 96))), {}),  # one aspect ratio
    ],
    ids=["reference", "score", "tail", "spectra", "few layers", "one shape", "square"],
)
def test_nothing_is_said_about_shapes_where_they_explain_little(model, options):
    assert hints_of(model(), **options) == []


def test_fused_projections_are_named_with_a_pattern_that_matches_them():
    lines = [line for line in hints_of(gpt2()) if "fused" in line]
    assert len(lines) == 1
    assert_carries(lines[0], "fused={'*c_attn': 3}")
    assert not any("fused" in line for line in hints_of(gpt2(), fused={"*c_attn": 3}))


def named_layers(**shapes: tuple[int, int]) -> nn.ModuleDict:
    torch.manual_seed(0)
    ends = {"first": nn.Linear(64, 64), "last": nn.Linear(64, 64)}
    return nn.ModuleDict(
        {"first": ends["first"], **{name: nn.Linear(*shape) for name, shape in shapes.items()}, "last": ends["last"]}
    )


def fused_hint(model: nn.Module, **options) -> str:
    return "".join(line for line in hints_of(model, **options) if "fused" in line)


def test_each_name_of_a_fused_projection_has_its_pattern():
    assert_carries(
        fused_hint(named_layers(qkv=(64, 192), Wqkv=(64, 192), in_proj=(64, 192))), "'*qkv': 3", "'*Wqkv'", "'*in_proj'"
    )


def test_a_name_that_also_fits_another_shape_is_given_in_full():
    model = nn.Sequential(named_layers(qkv=(64, 192)), named_layers(qkv=(64, 128)))
    assert_carries(fused_hint(model), "fused={'0.qkv': 3}")


@pytest.mark.parametrize(
    "model",
    [
        lambda: named_layers(fc=(64, 192)),  # 3 to 1, but not named so
        lambda: named_layers(qkv=(64, 128)),  # named so, but not 3 to 1
        lambda: named_layers(qkv=(192, 64)),  # 1 to 3
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 2, 64), 2, enable_nested_tensor=False),  # cut
    ],
)
def test_other_weights_are_not_taken_for_fused_projections(model):
    assert fused_hint(model(), score_first=True, score_last=True) == ""


def test_a_skipped_layer_gives_no_hint():
    assert fused_hint(named_layers(qkv=(64, 192)), exclude=["qkv"]) == ""
