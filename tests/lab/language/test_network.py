from itertools import product

import pytest
import torch
from torch import Tensor

import tempbalance
from tempbalance.lab.language.network import (
    BlockTermAttention,
    PublishedAttention,
    PublishedTransformer,
    Size,
    block_terms,
    build_language_model,
    visible_pairs,
)
from tests.cases import assert_carries, raises

SMALL = Size(layers=2, width=16, head=5, inner=24, sequence=6, dropout=0.5)


def network(name: str, *, causal: bool = True) -> torch.nn.Module:
    torch.manual_seed(0)
    return build_language_model(name, num_tokens=11, size=SMALL, causal=causal).double().eval()


def literal_attention(attention: BlockTermAttention, x: Tensor, *, causal: bool) -> Tensor:
    """The output of one sequence, pair by pair."""
    query, key, value = attention.query(x), attention.key(x), attention.value(x)
    length, side = len(x), SMALL.sequence
    weight = attention.output.weight.view(-1, side, side)
    rows = []
    for i in range(length):
        seen = range(i + 1) if causal else range(length)
        num_pairs = (i + 1) ** 2 if causal else side**2
        mapped = attention.output.bias
        for j, m in product(seen, seen):
            term = sum(attention.core[r] * query[i, r] * key[j, r] * value[m, r] for r in range(SMALL.head))
            mapped = mapped + weight[:, j, m] * term * side / (SMALL.head * num_pairs) ** 0.5
        rows.append(mapped)
    return torch.stack(rows)


@pytest.mark.parametrize("length", [1, 4, 6])
@pytest.mark.parametrize("causal", [True, False])
def test_block_term_attention_is_the_sum_over_pairs_one_by_one(causal: bool, length: int) -> None:
    torch.manual_seed(1)
    attention = BlockTermAttention(SMALL, causal=causal).double()
    torch.nn.init.normal_(attention.core)
    x = torch.randn(2, length, SMALL.width, dtype=torch.float64)
    expected = torch.stack([literal_attention(attention, each, causal=causal) for each in x])
    torch.testing.assert_close(attention(x), expected, rtol=1e-6, atol=1e-7)


def test_published_attention_is_the_sum_over_pairs_with_relative_positions() -> None:
    torch.manual_seed(1)
    attention = PublishedAttention(SMALL).double()
    x, positions, biases = (torch.randn(*shape, SMALL.width, dtype=torch.float64) for shape in ((2, 4), (4,), (2,)))
    biases = biases[:, : SMALL.head]
    found = attention(x, positions, biases)
    weight = attention.output.weight.view(-1, SMALL.sequence, SMALL.sequence)
    for batch, i in product(range(2), range(4)):
        q, k, v = (x[batch] @ part.T for part in attention.qkv.weight.split(SMALL.head))
        p = positions @ attention.position.weight.T
        total = torch.zeros(SMALL.width, dtype=torch.float64)
        for j, m in product(range(4), range(4)):
            pair = (q[i] + biases[0]) * k[j] * v[m] + (q[i] + biases[1]) * p[j] * v[m]
            total = total + weight[:, j, m] * (attention.core * pair).sum()
        torch.testing.assert_close(found[batch, i], total, rtol=1e-6, atol=1e-9)


def test_the_published_transformer_scores_its_fused_projections_and_not_its_positions_or_head() -> None:
    torch.manual_seed(0)
    model = PublishedTransformer(10_000, Size())
    assert model.blocks[0].attention.qkv.weight.shape == (120, 256)
    optimizer = torch.optim.Adam(tempbalance.param_groups(model))
    table = tempbalance.TempBalance(optimizer, model, score_first=True).table()
    ends = [row.name.removeprefix("blocks.0.") for row in table if row.score is not None and "blocks.0." in row.name]
    assert sorted(ends) == ["attention.output", "attention.qkv", "feed_forward.inner", "feed_forward.outer"]
    (fused,) = [row for row in table if row.name == "blocks.0.attention.qkv"]
    assert fused.num_eigenvalues == 120
    assert all(row.score is None for row in table if row.name.endswith(("position", "head", "tokens")))
    label = {p: g.get("layer") for g in optimizer.param_groups for p in g["params"]}
    assert label[model.blocks[1].attention_norm.weight] == "blocks.1.attention.output"
    assert label[model.relative_bias] is None


def test_the_published_transformer_starts_as_published() -> None:
    torch.manual_seed(0)
    model = PublishedTransformer(500, Size())
    assert model.tokens.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.blocks[0].attention.qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.blocks[0].attention.core.sum().item() == pytest.approx(1)
    assert model.blocks[0].attention_norm.weight.std().item() == pytest.approx(0.02, rel=0.3)
    assert not model.head.bias.any()
    assert model.eval()(torch.randint(500, (2, 32))).shape == (2, 32, 500)


def test_block_terms_of_rank_one_are_products() -> None:
    query, key, value = (torch.tensor(each)[None, :, None] for each in ([1.0, 2.0], [3.0, 5.0], [7.0, 11.0]))
    found = block_terms(torch.tensor([13.0]), query, key, value)
    assert found[0, 1, 0, 1].item() == 13 * 2 * 3 * 11
    assert found[0, 0, 1, 0].item() == 13 * 1 * 5 * 7


@pytest.mark.parametrize("causal", [True, False])
def test_fresh_attention_adds_the_same_variance_at_every_position(causal: bool) -> None:
    torch.manual_seed(3)
    attention = BlockTermAttention(Size(), causal=causal)
    found = attention(torch.randn(64, 32, 256)).var((0, 2))
    assert found.max() < 2 * found.min()


def test_a_position_sees_the_pairs_up_to_it_or_all() -> None:
    seen = visible_pairs(3, causal=True)
    assert [int(each.sum()) for each in seen] == [1, 4, 9]
    assert seen[1].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert visible_pairs(3, causal=False).sum() == 27


@pytest.mark.parametrize("name", ["tensorized", "gpt"])
@pytest.mark.parametrize("place", [1, 3, SMALL.sequence - 1])
def test_future_tokens_move_no_earlier_logit(name: str, place: int) -> None:
    model = network(name)
    tokens = torch.randint(11, (3, SMALL.sequence), generator=torch.Generator().manual_seed(2))
    changed = tokens.clone()
    changed[:, place:] = (changed[:, place:] + 1 + torch.arange(SMALL.sequence - place)) % 11
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :place], after[:, :place])
    assert not torch.isclose(before[:, place], after[:, place]).all(1).any()


@pytest.mark.parametrize("name", ["tensorized", "gpt"])
def test_the_published_form_looks_ahead(name: str) -> None:
    model = network(name, causal=False)
    tokens = torch.randint(11, (3, SMALL.sequence), generator=torch.Generator().manual_seed(2))
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 11
    difference = (model(tokens) - model(changed)).abs().amax(2)
    assert (difference > 1e-6).all()


@pytest.mark.parametrize("name", ["tensorized", "gpt"])
def test_a_shorter_sequence_gives_the_logits_of_the_beginning_of_a_longer_one(name: str) -> None:
    model = network(name)
    tokens = torch.arange(SMALL.sequence)[None]
    torch.testing.assert_close(model(tokens[:, :4]), model(tokens)[:, :4])
    with raises(ValueError, 6, 7):
        model(torch.arange(7)[None])


def test_the_paper_size_has_the_papers_shapes() -> None:
    layers = {layer.name: layer.shape for layer in tempbalance.find_layers(_of_paper_size("tensorized"))}
    assert layers["blocks.2.attention.query"] == (40, 256)
    assert layers["blocks.2.attention.output"] == (256, 32 * 32)
    assert layers["blocks.2.feed_forward.inner"] == (2100, 256)
    assert "blocks.3.attention.query" not in layers


def test_each_normalisation_follows_the_linear_layer_that_feeds_it() -> None:
    assert _followers("tensorized") == {
        "blocks.0.attention_norm": "blocks.0.attention.output",
        "blocks.0.feed_forward_norm": "blocks.0.feed_forward.outer",
        "blocks.1.attention_norm": "blocks.1.attention.output",
        "blocks.1.feed_forward_norm": "blocks.1.feed_forward.outer",
    }
    assert _followers("gpt") == {
        "blocks.0.feed_forward_norm": "blocks.0.attention.output",
        "blocks.1.attention_norm": "blocks.0.feed_forward.outer",
        "blocks.1.feed_forward_norm": "blocks.1.attention.output",
        "norm": "blocks.1.feed_forward.outer",
    }


@pytest.mark.parametrize(("name", "alone"), [("tensorized", "attention.core"), ("gpt", "blocks.0.attention_norm")])
def test_what_is_of_no_layer_is_the_core_or_the_first_normalisation(name: str, alone: str) -> None:
    model = network(name)
    layers = tempbalance.find_layers(model)
    owned = {each for layer in layers for each in [*layer.parameters, *layer.followers]}
    rest = [key for key, parameter in model.named_parameters() if parameter not in owned]
    assert rest
    assert all(alone in key for key in rest)


def test_the_head_is_the_embedding() -> None:
    model = network("gpt")
    assert model.head.weight is model.tokens.weight
    found = {layer.name: layer.skipped for layer in tempbalance.find_layers(model)}
    assert_carries(found["tokens"], "'head'")


@pytest.mark.parametrize("name", ["tensorized", "gpt"])
def test_what_is_said_first_is_about_as_good_as_a_guess(name: str) -> None:
    torch.manual_seed(0)
    model = build_language_model(name, num_tokens=1000, size=Size(width=64, inner=128)).eval()
    tokens = torch.randint(1000, (8, 33))
    logits = model(tokens[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(torch.tensor(1000.0).log().item(), abs=1.0)


def test_an_unknown_network_is_refused() -> None:
    with raises(ValueError, "model", "'tensorised'", "'tensorized'"):
        build_language_model("tensorised", num_tokens=2, size=SMALL)


def _of_paper_size(name: str) -> torch.nn.Module:
    with torch.device("meta"):
        return build_language_model(name, num_tokens=100, size=Size())


def _followers(name: str) -> dict[str, str]:
    model = network(name)
    names = {parameter: key for key, parameter in model.named_parameters()}
    return {
        names[each].removesuffix(".weight"): layer.name
        for layer in tempbalance.find_layers(model)
        for each in layer.followers
        if "norm.weight" in names[each]
    }
