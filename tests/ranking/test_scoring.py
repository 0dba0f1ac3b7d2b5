import math
from statistics import fmean
from threading import Thread, current_thread

import numpy as np
import pytest
import torch
from torch import nn

from tempbalance import ScoreError, TailFit, TempBalance, WeightError, find_layers, param_groups
from tempbalance.ranking.scoring import Scoring, score_layers
from tempbalance.ranking.table import LayerRow
from tests.cases import GOLDEN, assert_carries, golden_weight, nested, raises
from tests.model.test_layers import Bare, Conv1D
from tests.spectral.reference import hill_alpha, ks_distance, search, search_peak, svd_spectrum

TAILS = ("median", "goodness_of_fit", "peak")


def literal_fit(weight: torch.Tensor, tail: str = "median", groups: int = 1) -> TailFit:
    """A matrix's or a convolution's fit by singular values and the formulas as they are written."""
    values = svd_spectrum(weight.detach(), groups)
    if tail == "median":
        num_tail = len(values) // 2
        alpha, xmin = hill_alpha(values, num_tail), float(values[-num_tail - 1])
        return TailFit(alpha, xmin, ks_distance(values[-num_tail:], xmin, alpha), num_tail)
    return TailFit(*(search if tail == "goodness_of_fit" else search_peak)(values))


def random_weight(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Entries with heavy tails, as trained weights have."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (normal * torch.randn(shape, generator=generator, dtype=torch.float64).exp()).to(dtype)


def rows_of(model: nn.Module, **options) -> list[LayerRow]:
    """Rows of all layers, ends included."""
    options = {"score_first": True, "score_last": True, "min_eigenvalues": 3, **options}
    return score_layers(find_layers(model), Scoring(**nested(options)))


def row_of(module: nn.Module, weight: torch.Tensor, **options) -> LayerRow:
    """The row of a module that holds the weight."""
    module.weight = nn.Parameter(weight)
    (row,) = rows_of(module, **options)
    return row


def assert_mean_of_parts(row: LayerRow, weights: list[torch.Tensor], tail: str = "median", rel: float = 1e-9) -> None:
    """The layer's figures are put together from those of its parts, each fitted alone."""
    fits = [literal_fit(weight, tail) for weight in weights]
    errors = [(fit.alpha - 1) / math.sqrt(fit.num_tail) for fit in fits]
    for part, fit, error in zip(row.parts, fits, errors, strict=True):
        assert part.score == part.alpha == pytest.approx(fit.alpha, rel=rel)
        assert part.alpha_stderr == pytest.approx(error, rel=rel)
        assert part.xmin == pytest.approx(fit.xmin, rel=rel)
        assert part.ks == pytest.approx(fit.ks, rel=rel)
        assert (part.num_tail, part.reason) == (fit.num_tail, "")
    assert row.score == row.alpha == pytest.approx(sum(fit.alpha for fit in fits) / len(fits), rel=rel)
    assert row.alpha_stderr == pytest.approx(math.sqrt(sum(error**2 for error in errors)) / len(fits), rel=rel)
    assert row.ks == pytest.approx(max(fit.ks for fit in fits), rel=rel)
    assert row.num_tail == sum(fit.num_tail for fit in fits)
    assert row.num_eigenvalues == sum(min(weight.shape) for weight in weights)
    assert (row.xmin, row.reason) == (None, "")


# --- one weight, one fit

WHOLE = {
    "Linear": (lambda: nn.Linear(2, 2), (60, 90), 1),
    "Linear, tall": (lambda: nn.Linear(2, 2), (90, 60), 1),
    "Conv1D": (lambda: Conv1D(2, 2), (60, 90), 1),
    "Conv1d": (lambda: nn.Conv1d(2, 2, 3), (30, 20, 3), 1),
    "Conv2d": (lambda: nn.Conv2d(2, 2, 3), (12, 16, 3, 3), 1),
    "Conv2d, grouped": (lambda: nn.Conv2d(4, 4, 3, groups=4), (32, 10, 3, 3), 4),
    "ConvTranspose2d, grouped": (lambda: nn.ConvTranspose2d(4, 4, 3, groups=2), (20, 12, 3, 3), 2),
    "Conv3d": (lambda: nn.Conv3d(2, 2, 2), (9, 8, 2, 2, 2), 1),
}


@pytest.mark.parametrize(
    ("kind", "tail"),
    [*((kind, "median") for kind in WHOLE), *((kind, tail) for kind in ("Linear", "Conv2d") for tail in TAILS[1:])],
)
def test_a_row_has_the_figures_of_the_literal_fit(kind, tail):
    make, shape, groups = WHOLE[kind]
    weight = random_weight(*shape)
    row = row_of(make(), weight, tail=tail)
    fit = literal_fit(weight, tail, groups)
    assert row.score == row.alpha == pytest.approx(fit.alpha, rel=1e-9)
    assert row.alpha_stderr == pytest.approx((fit.alpha - 1) / math.sqrt(fit.num_tail), rel=1e-9)
    assert row.xmin == pytest.approx(fit.xmin, rel=1e-9)
    assert row.ks == pytest.approx(fit.ks, rel=1e-9)
    assert row.num_tail == fit.num_tail
    assert row.num_eigenvalues == len(svd_spectrum(weight, groups))
    assert (row.shape, row.scale, row.reason, row.parts) == (shape, 1.0, "", ())


@pytest.mark.parametrize("entry", GOLDEN["weights"], ids=lambda entry: entry["layer"])
def test_a_recorded_weight_gives_its_recorded_alpha(entry):
    weight = golden_weight(entry)
    module = nn.Linear(2, 2) if weight.dim() == 2 else nn.Conv2d(2, 2, 3)
    assert row_of(module, weight).alpha == pytest.approx(GOLDEN["expected"][entry["layer"]]["eq3_alpha"], rel=1e-9)


def test_rows_are_in_the_order_of_the_model_whatever_they_cost():
    sizes = (8, 64, 16, 128, 4, 32)
    model = nn.Sequential(*(nn.Linear(size, size) for size in sizes))
    assert [(row.name, row.num_eigenvalues) for row in rows_of(model)] == [(str(i), n) for i, n in enumerate(sizes)]


def test_the_fraction_of_the_tail_is_ones_choice():
    weight = random_weight(80, 100)
    row = row_of(nn.Linear(2, 2), weight, tail_fraction=0.3)
    assert row.num_tail == 24
    assert row.alpha == pytest.approx(hill_alpha(svd_spectrum(weight), 24), rel=1e-9)


def test_scoring_changes_nothing_in_the_model():
    model = nn.Sequential(nn.Linear(64, 64), nn.Conv2d(8, 8, 3), nn.LSTM(16, 16))
    model[0](torch.randn(2, 64)).sum().backward()
    before = {name: (each.clone(), each.grad, each.requires_grad) for name, each in model.named_parameters()}
    rows_of(model)
    for name, each in model.named_parameters():
        assert torch.equal(each, before[name][0]), name
        assert (each.grad is before[name][1], each.requires_grad) == (True, before[name][2])


# --- parts, each with its own fit


@pytest.mark.parametrize("tail", TAILS)
def test_a_fused_attention_weight_is_the_mean_of_query_key_and_value(tail):
    attention = nn.MultiheadAttention(60, 4).double()
    attention.in_proj_weight.data = random_weight(180, 60)
    row = rows_of(attention, tail=tail)[0]
    assert [part.name for part in row.parts] == ["q", "k", "v"]
    assert_mean_of_parts(row, list(attention.in_proj_weight.split(60)), tail)


@pytest.mark.parametrize(("make", "names"), [(nn.LSTM, "ifgo"), (nn.GRU, "rzn"), (nn.LSTMCell, "ifgo")])
def test_a_recurrent_weight_is_the_mean_of_its_gates(make, names):
    module = make(40, 50).double()
    for parameter, row in zip(module.parameters(), rows_of(module), strict=False):
        assert [part.name for part in row.parts] == list(names)
        assert_mean_of_parts(row, list(parameter.split(50)))
        assert row.shape == tuple(parameter.shape)


def test_stacked_experts_are_scored_one_by_one():
    stack = Bare("experts", 5, 40, 60).double()
    stack.experts.data = random_weight(5, 40, 60)
    (row,) = rows_of(stack)
    assert [part.name for part in row.parts] == [f"expert {i}" for i in range(5)]
    assert_mean_of_parts(row, list(stack.experts))


FUSED = {  # sizes, the sizes of the parts, of 150
    "equal parts": (3, [50, 50, 50]),
    "sizes": ([90, 30, 30], [90, 30, 30]),
    "a tuple of sizes": ((60, 60, 20, 10), [60, 60, 20, 10]),
    "one part": (1, [150]),
}


@pytest.mark.parametrize(
    ("make", "kind"), [*((nn.Linear, kind) for kind in FUSED), (Conv1D, "equal parts"), (Conv1D, "sizes")]
)
def test_a_fused_weight_is_the_mean_of_its_parts(make, kind):
    sizes, expected = FUSED[kind]
    model = nn.ModuleDict({"block": nn.ModuleDict({"qkv": make(4, 4), "proj": nn.Linear(50, 50)})})
    weight = random_weight(150, 70)
    model["block"]["qkv"].weight = nn.Parameter(weight if make is nn.Linear else weight.mT)
    row = rows_of(model, fused={"*.qkv": sizes})[0]
    if len(expected) == 1:
        assert row.alpha == pytest.approx(literal_fit(weight).alpha, rel=1e-9)
    else:
        assert [part.name for part in row.parts] == [str(i) for i in range(len(expected))]
        assert_mean_of_parts(row, list(weight.split(expected)))


def test_a_fused_weight_gets_the_scale_of_its_mean():
    torch.manual_seed(0)
    model = nn.ModuleDict({name: nn.Linear(64, 192) for name in ("first", "a", "qkv", "b", "last")})
    model["qkv"].weight.data = random_weight(192, 64, dtype=torch.float32)
    optimizer = torch.optim.SGD(param_groups(model), lr=1.0)
    scheduler = TempBalance(optimizer, model, fused={"qkv": 3})
    expected = fmean(literal_fit(part).alpha for part in model["qkv"].weight.split(64))
    assert scheduler.last_scores["qkv"] == pytest.approx(expected, rel=1e-6)
    assert scheduler.last_scores["a"] == pytest.approx(literal_fit(model["a"].weight).alpha, rel=1e-6)
    assert scheduler.last_scales["qkv"] == 0.5  # its tail is the heaviest, its alpha the smallest


@pytest.mark.parametrize("sizes", [0, -3, 4, [50, 50], [150, 0], [200, -50], []])
def test_parts_that_do_not_add_up_are_refused_by_name(sizes):
    model = nn.ModuleDict({"qkv": nn.Linear(70, 150)})
    carried = sizes if isinstance(sizes, int) else list(sizes)
    with raises(WeightError, "'qkv'", (150, 70), "fused", carried):
        rows_of(model, fused={"qkv": sizes})


def test_conv1d_is_cut_along_its_second_dimension():
    model = nn.ModuleDict({"qkv": Conv1D(150, 70)})
    with raises(WeightError, "'qkv'", 150, "dimension 1"):
        rows_of(model, fused={"qkv": [35, 35]})
    assert len(rows_of(model, fused={"qkv": 3})[0].parts) == 3


def test_a_number_of_parts_that_is_not_whole_is_refused_with_the_option_named():
    with raises(ValueError, "fused", "'qkv'", 3.0):
        rows_of(nn.ModuleDict({"qkv": nn.Linear(70, 150)}), fused={"qkv": 3.0})


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_convolution_that_is_called_fused_is_refused_by_name(kernel):
    model = nn.ModuleDict({"qkv": nn.Conv2d(70, 150, kernel)})
    with raises(WeightError, "'qkv'"):
        rows_of(model, fused={"qkv": 3})


def test_a_fused_pattern_that_matches_no_layer_is_refused():
    model = nn.ModuleDict({"qkv": nn.Linear(64, 192)})
    with raises(ValueError, "fused", "'*.qkv'", ["qkv"]):
        rows_of(model, fused={"qkv": 3, "*.qkv": 3})


def test_fused_must_be_a_mapping():
    with raises(TypeError, "fused", ["qkv"]):
        Scoring(fused=["qkv"])


def test_parts_with_too_few_eigenvalues_are_skipped_one_by_one():
    model = nn.ModuleDict({"qkv": nn.Linear(2, 2)})
    weight = random_weight(160, 80)
    model["qkv"].weight = nn.Parameter(weight)
    (row,) = rows_of(model, fused={"qkv": [60, 80, 20]}, min_eigenvalues=50)
    query, key, value = row.parts
    assert_carries(value.reason, 20, "min_eigenvalues", 50)
    assert (value.score, value.alpha, value.num_eigenvalues) == (None, None, 20)
    fits = [literal_fit(weight[:60]), literal_fit(weight[60:140])]
    assert [query.alpha, key.alpha] == pytest.approx([fit.alpha for fit in fits], rel=1e-9)
    assert row.alpha == pytest.approx((fits[0].alpha + fits[1].alpha) / 2, rel=1e-9)
    assert row.alpha_stderr == pytest.approx(math.hypot(*(fit.alpha_stderr for fit in fits)) / 2, rel=1e-9)
    assert row.num_tail == 30 + 40
    assert row.reason == ""


def test_a_layer_is_skipped_if_all_its_parts_are():
    (row,) = rows_of(nn.ModuleDict({"qkv": nn.Linear(80, 120)}), fused={"qkv": 3}, min_eigenvalues=50)
    assert_carries(row.reason, 40, "min_eigenvalues", 50)
    assert [part.reason for part in row.parts] == [row.reason] * 3
    assert (row.score, row.alpha, row.num_tail, row.scale) == (None, None, None, 1.0)


@pytest.mark.parametrize("tail", TAILS)
def test_an_expert_without_a_fit_is_skipped_and_the_others_are_not(tail):
    stack = Bare("experts", 4, 60, 80)
    stack.experts.data = random_weight(4, 60, 80, dtype=torch.float32)
    stack.experts.data[1] = 0
    stack.experts.data[3] = torch.outer(torch.ones(60), torch.ones(80))
    (row,) = rows_of(stack, tail=tail, min_eigenvalues=50)
    assert_carries(row.parts[1].reason, "zero")
    assert_carries(row.parts[3].reason, "rank")
    fits = [literal_fit(stack.experts[i], tail) for i in (0, 2)]
    assert row.score == pytest.approx((fits[0].alpha + fits[1].alpha) / 2, rel=1e-5)
    assert [part.num_eigenvalues for part in row.parts] == [60] * 4


@pytest.mark.parametrize("shape", [(0, 60, 60), (4, 0, 60), (4, 60, 0)])
def test_experts_that_are_not_there_are_skipped_with_a_reason(shape):
    (row,) = rows_of(Bare("experts", *shape))
    assert row.score is None
    assert row.reason


def test_a_bad_expert_is_an_error_that_names_its_layer():
    stack = Bare("experts", 4, 60, 80)
    stack.experts.data[2, 5, 7] = math.nan
    with raises(WeightError, "'experts'", (4, 60, 80), "NaN"):
        rows_of(stack)


# --- precision


def spiked(strength: float, num_spikes: int, shape: tuple[int, int], seed: int) -> torch.Tensor:
    """A Gaussian matrix plus outer products of unit vectors, ``strength`` times its spectral norm."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape, generator=generator, dtype=torch.float64)
    bulk = torch.linalg.matrix_norm(weight, 2)
    for _ in range(num_spikes):
        left, right = (torch.randn(size, generator=generator, dtype=torch.float64) for size in shape)
        weight = weight + strength * bulk * torch.outer(left / left.norm(), right / right.norm())
    return weight


STRENGTHS = [1, 2, 3, 5, 8, 10, 12, 14, 16, 17, 18, 20, 25, 32, 50, 100, 300, 1000]
SMALL = [(64, 64), (64, 256), (128, 192)]  # solved in float64 at once
LARGE = (140, 280)  # solved in float32 first


@pytest.mark.parametrize(
    ("strength", "shape"),
    [*((each, LARGE) for each in STRENGTHS), *((each, shape) for each in (1, 1000) for shape in SMALL)],
    ids=str,
)
def test_a_float32_layer_has_the_alpha_of_float64(strength, shape):
    for num_spikes in (1, 5):
        weight = spiked(strength, num_spikes, shape, seed=2).float()
        row = row_of(nn.Linear(2, 2), weight)
        assert row.alpha == pytest.approx(literal_fit(weight).alpha, rel=1e-6)


def kinds(shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Weights of many spectra: a bulk, heavy tails, few large values over many small ones, some near zero."""
    torch.manual_seed(0)
    normal, rank = torch.randn(shape), shape[-2] // 8
    return {
        "random": normal,
        "heavy": normal * torch.randn(shape).exp(),
        "low rank": 0.1 * normal + torch.randn(*shape[:-1], rank) @ torch.randn(*shape[:-2], rank, shape[-1]),
        "product": normal @ torch.randn(*shape[:-2], shape[-1], shape[-1]),
    }


@pytest.mark.parametrize(
    ("tail", "kind", "shape"),
    [
        *((tail, kind, LARGE) for tail in TAILS for kind in kinds((8, 8))),
        *((tail, "low rank", shape) for tail in TAILS for shape in [(150, 150), (3, 140, 140), (9, 64, 128)]),
        ("median", "random", (140, 1120)),
        ("peak", "heavy", (140, 1120)),
    ],
    ids=str,
)
def test_every_tail_of_a_float32_layer_has_the_alpha_of_float64(tail, kind, shape):
    weight = kinds(shape)[kind]
    weight = weight if weight.dim() == 2 else weight.permute(1, 2, 0)
    row = row_of(nn.Linear(2, 2) if weight.dim() == 2 else nn.Conv1d(2, 2, 3), weight, tail=tail)
    fit = literal_fit(weight, tail)
    assert row.num_tail == fit.num_tail
    assert row.alpha == pytest.approx(fit.alpha, rel=1e-6)


@pytest.mark.parametrize("shape", [(64, 640), (140, 1120)], ids=str)
def test_a_steep_tail_of_a_float32_layer_has_the_alpha_of_float64(shape):
    for seed in range(8):
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        row = row_of(nn.Linear(2, 2), weight)
        assert row.alpha > 3.5
        assert row.alpha == pytest.approx(literal_fit(weight).alpha, rel=1e-6)


@pytest.mark.parametrize("num_large", [5, 15, 40])
@pytest.mark.parametrize("share", [0.0104, 0.0125, 0.016, 0.021, 0.035])
def test_few_large_eigenvalues_over_a_narrow_bulk_leave_the_alpha_of_float64(num_large, share):
    state, side = np.random.RandomState(0), 200
    left, right = (np.linalg.qr(state.randn(side, side))[0] for _ in range(2))
    for _ in range(5):
        bulk = share * np.append(state.uniform(0.3, 1, side // 2), state.uniform(1, 1.3, side // 2 - num_large))
        values = np.concatenate([bulk, state.uniform(0.5, 1, num_large - 1), [1]])
        weight = torch.from_numpy((left * np.sqrt(values)) @ right).float()
        assert row_of(nn.Linear(2, 2), weight).alpha == pytest.approx(literal_fit(weight).alpha, rel=1e-6)


@pytest.mark.parametrize(
    ("shape", "seed"),
    [*(((200, 700), seed) for seed in range(8)), *(((256, 1024), seed) for seed in range(3))],
    ids=str,
)
def test_a_tail_that_float32_keeps_has_the_alpha_of_float64_with_room(shape, seed):
    weight = torch.from_numpy(np.random.RandomState(seed).standard_t(3, shape)).float()
    row = row_of(nn.Linear(2, 2), weight)
    assert row.alpha < 3.5
    assert row.alpha == pytest.approx(literal_fit(weight).alpha, rel=8e-7)


@pytest.mark.parametrize(
    ("strength", "shape"),
    [*((each, LARGE) for each in STRENGTHS if each <= 100), *((each, shape) for each in (1, 100) for shape in SMALL)],
    ids=str,
)
def test_a_bfloat16_layer_has_the_alpha_of_float64(strength, shape):
    weight = spiked(strength, 1, shape, seed=2).bfloat16()
    row = row_of(nn.Linear(2, 2), weight)
    assert row.alpha == pytest.approx(literal_fit(weight).alpha, rel=1e-6)


def test_a_bulk_that_bfloat16_has_not_kept_is_skipped():
    """A spike of 1000 times the bulk is stored with errors as large as the bulk."""
    row = row_of(nn.Linear(2, 2), spiked(1000, 1, (64, 64), seed=0).bfloat16())
    assert_carries(row.reason, "rank")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_a_low_precision_is_scored_as_the_numbers_that_it_stores(dtype):
    weight = random_weight(64, 96, dtype=torch.float32).clamp(-20, 20).to(dtype)
    assert row_of(nn.Linear(2, 2), weight).alpha == pytest.approx(literal_fit(weight).alpha, rel=1e-6)


def test_autocast_does_not_reach_the_spectra():
    weight = random_weight(64, 96, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        row = row_of(nn.Linear(2, 2), weight)
    assert row.alpha == row_of(nn.Linear(2, 2), weight).alpha


@pytest.mark.parametrize("tail", ["goodness_of_fit", "peak"])
def test_a_float32_layer_is_as_short_of_rank_as_a_float64_one(tail):
    """64 rows, each there twice, have 64 of 128 eigenvalues that are not zero: in both precisions, or in neither."""
    weight = random_weight(64, 150, dtype=torch.float32).repeat_interleave(2, 0)
    outcomes = {
        dtype: row_of(nn.Linear(2, 2), weight.to(dtype), tail=tail, min_eigenvalues=65)
        for dtype in (torch.float32, torch.float64)
    }
    for row in outcomes.values():
        assert_carries(row.reason, "rank", 64, 128)
    for dtype in outcomes:
        row = row_of(nn.Linear(2, 2), weight.to(dtype), tail=tail, min_eigenvalues=64)
        assert row.alpha == pytest.approx(row_of(nn.Linear(2, 2), weight[::2].double(), tail=tail).alpha, rel=1e-5)


# --- scores


def orthogonal(size: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.linalg.qr(torch.randn(size, size, dtype=torch.float64)).Q


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(
    ("score", "expected"), [("spectral_norm", 4.0), ("stable_rank", 64.0), ("frobenius_norm", 16.0), ("entropy", 1.0)]
)
def test_a_score_that_needs_no_tail_is_computed_for_an_orthogonal_matrix(score, expected, tail):
    for dtype in (torch.float32, torch.float64):
        row = row_of(nn.Linear(2, 2), 2 * orthogonal(64).to(dtype), score=score, tail=tail)
        assert row.score == pytest.approx(expected, rel=1e-5)
        assert (row.reason, row.alpha, row.alpha_stderr, row.xmin, row.ks, row.num_tail) == ("", *[None] * 5)


@pytest.mark.parametrize("score", ["alpha", "alpha_weighted", "log_alpha_norm", lambda spectrum, fit: fit.alpha])
def test_a_score_that_needs_a_tail_leaves_an_orthogonal_matrix_out(score):
    row = row_of(nn.Linear(2, 2), orthogonal(64), score=score)
    assert row.score is None
    assert_carries(row.reason, "flat")


@pytest.mark.parametrize("score", ["spectral_norm", "stable_rank", "frobenius_norm", "entropy"])
def test_a_zero_weight_has_no_score_of_any_kind(score):
    row = row_of(nn.Linear(2, 2), torch.zeros(64, 64), score=score)
    assert row.score is None
    assert_carries(row.reason, "zero")


@pytest.mark.parametrize("unit", [1.0, 1e-30, 1e30])
def test_a_score_of_ones_own_is_given_the_spectrum_in_the_units_of_the_weight(unit):
    weight = random_weight(60, 80) * unit
    seen = []
    row = row_of(nn.Linear(2, 2), weight, score=lambda spectrum, fit: seen.append((spectrum, fit)) or 7)
    assert row.score == 7
    spectrum, fit = seen[0]
    assert spectrum.tolist() == pytest.approx(svd_spectrum(weight).tolist(), rel=1e-9)
    assert (fit.alpha, fit.xmin) == (row.alpha, row.xmin)
    assert fit.xmin == pytest.approx(literal_fit(weight).xmin, rel=1e-9)


@pytest.mark.parametrize("unit", [1.0, 1e-30, 1e30])
def test_a_tail_of_ones_own_is_given_the_spectrum_in_the_units_of_the_weight(unit):
    weight = random_weight(60, 80) * unit
    seen = []

    def tail(spectrum):
        seen.append(spectrum)
        return TailFit(3.25, float(spectrum[30]), 0.5, 29)

    row = row_of(nn.Linear(2, 2), weight, tail=tail)
    assert seen[0].tolist() == pytest.approx(svd_spectrum(weight).tolist(), rel=1e-9)
    assert (row.alpha, row.score, row.ks, row.num_tail) == (3.25, 3.25, 0.5, 29)
    assert row.xmin == float(seen[0][30])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_an_error_that_names_the_layer(value):
    model = nn.ModuleDict({"fc": nn.Linear(60, 60)})
    with raises(ScoreError, "'fc'", (60, 60), value):
        rows_of(model, score=lambda spectrum, fit: value)


@pytest.mark.parametrize("score", ["spectral_norm", "stable_rank", "frobenius_norm", "entropy", "alpha_weighted"])
def test_the_score_of_parts_is_the_mean_of_theirs(score):
    attention = nn.MultiheadAttention(60, 4).double()
    row = rows_of(attention, score=score)[0]
    alone = [row_of(nn.Linear(2, 2), part.detach().clone(), score=score) for part in attention.in_proj_weight.split(60)]
    assert [part.score for part in row.parts] == pytest.approx([each.score for each in alone], rel=1e-12)
    assert row.score == pytest.approx(sum(each.score for each in alone) / 3, rel=1e-12)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("tail", "mean"),
        ("tail_fraction", 0.0),
        ("tail_fraction", 1.0),
        ("score", "beta"),
        ("min_eigenvalues", 2),
        ("min_eigenvalues", 50.0),
    ],
)
def test_options_out_of_range_are_refused(option, value):
    with raises(ValueError, option, repr(value)):
        Scoring(**nested({option: value}))


def test_scoring_from_several_threads_leaves_the_settings_and_the_numbers_alone():
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(5)))
    layers, found = find_layers(model), []
    before = (torch.get_num_threads(), torch.backends.mkldnn.matmul.fp32_precision)
    threads = [Thread(target=lambda: found.extend(score_layers(layers, Scoring()) for _ in range(5))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (torch.get_num_threads(), torch.backends.mkldnn.matmul.fp32_precision) == before
    assert len(found) == 20
    assert all(rows == found[0] for rows in found)


@pytest.mark.parametrize("tail", TAILS)
def test_rows_have_the_same_bits_for_any_number_of_threads(tail):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(60 + 10 * i, 150) for i in range(12)), nn.Conv2d(64, 64, 3), nn.Linear(2, 2))
    before = torch.get_num_threads()
    try:
        found = []
        for num_threads in (1, 3):
            torch.set_num_threads(num_threads)
            found.append(rows_of(model, tail=tail))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]


def test_functions_of_ones_own_are_called_in_the_calling_thread():
    seen = []

    def tail(spectrum):
        seen.append(current_thread())
        return TailFit(3.0, float(spectrum[30]), 0.1, 29)

    def score(spectrum, fit):
        seen.append(current_thread())
        return 1.0

    model = nn.Sequential(*(nn.Linear(60, 60) for _ in range(5)))
    rows_of(model, tail=tail)
    rows_of(model, tail="goodness_of_fit", score=score)
    assert seen == [current_thread()] * 10


def test_a_stack_of_many_experts_is_loaded_once():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Parameter(torch.randn(40, 60, 60, generator=torch.Generator().manual_seed(0)))

    (layer,) = find_layers(Experts())
    calls, load = [], layer.load
    layer.load = lambda: calls.append(1) or load()
    (row,) = score_layers([layer], Scoring(score_first=True, score_last=True))
    assert len(row.parts) == 40
    assert len(calls) == 1


def test_a_score_function_is_given_eigenvalues_of_a_float64_solve():
    weight = torch.randn(300, 300, generator=torch.Generator().manual_seed(0))
    layer = nn.Linear(300, 300, bias=False)
    layer.weight.data = weight
    scoring = Scoring(score_first=True, score_last=True, score=lambda spectrum, fit: float(spectrum[-1] / spectrum[0]))
    (row,) = score_layers(find_layers(layer), scoring)
    exact = torch.linalg.svdvals(weight.double()).square()
    assert row.score == pytest.approx(float(exact[0] / exact[-1]), rel=1e-6)


@pytest.mark.parametrize("shape", [(64,), (4, 64, 64)])
def test_a_linear_whose_weight_is_no_matrix_is_stacked_or_no_layer(shape):
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    model[1].weight = nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    rows = {row.name: row for row in score_layers(find_layers(model), Scoring())}
    assert ("1" in rows) == (len(shape) == 3)
    if len(shape) == 3:
        assert len(rows["1"].parts) == 4


def test_a_search_that_ends_right_below_the_largest_value_is_not_called_flat():
    torch.manual_seed(0)
    model = nn.Conv2d(3999, 3999, 3, groups=1333)
    model.weight.data *= torch.eye(3).repeat(1333, 1)[:, :, None, None]  # eigenvalues of a spectrum with a sharp end
    (row,) = rows_of(model, tail="goodness_of_fit")
    assert row.reason == ""
    assert row.alpha > 1000
