"""Every kind of weight ends in one of three ways, and no rate that is written is anything but finite and positive."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from tempbalance import TempBalance, WeightError, param_groups
from tests.cases import raises
from tests.ranking.test_scoring import TAILS, literal_fit, random_weight

SHAPES = {"Linear": (64, 192), "Conv2d": (56, 96, 3, 3)}

Make = Callable[[tuple[int, ...]], Tensor]


@dataclass
class Scored:
    """It has a spectrum like any other: the score is that of the numbers it stores, divided by ``unit``."""

    make: Make
    unit: float = 1.0
    rel: float = 1e-5


@dataclass
class Skipped:
    """It is legitimate to train, but there is no alpha to find: a reason, and scale 1."""

    make: Make
    words: tuple[str, ...]  # the reason has one of them
    scored: tuple[tuple[str, str], ...] = ()  # (module, tail) for which it can be scored after all


@dataclass
class Refused:
    """It cannot be trained, or not be looked at: an error that names the layer, and nothing has moved."""

    make: Make
    carried: object  # what the error names, besides the layer


@dataclass
class Special:
    """Installed by more than its weight."""

    outcome: type
    carried: str
    install: Callable[[nn.Sequential], None] = field(repr=False)


def good(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Eigenvalues that fall off as 1 / rank, so that every tail is far from flat and every value far from noise."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    falloff = torch.arange(1, shape[0] + 1, dtype=torch.float64) ** -0.5
    return (weight * falloff.reshape(-1, *[1] * (len(shape) - 1))).to(dtype)


def with_entry(shape: tuple[int, ...], value: float) -> Tensor:
    weight = good(shape)
    weight[3, 5] = value
    return weight


def of_rank(shape: tuple[int, ...], rank: int) -> Tensor:
    """Each slice is a sum of ``rank`` outer products."""
    left, right = random_weight(shape[0], rank, *shape[2:], seed=1), random_weight(rank, *shape[1:], seed=2)
    return torch.einsum("ir...,rj...->ij...", left, right).float()


def orthogonal(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Each slice has orthonormal rows, rounded to the precision it is stored in."""
    normal = torch.randn(*shape[2:], *shape[1::-1], dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    slices = torch.linalg.qr(normal).Q.mT
    return slices.permute(-2, -1, *range(slices.dim() - 2)).contiguous().to(dtype)


def orthogonal_by_float32(shape: tuple[int, ...]) -> Tensor:
    """Each slice has rows that are orthonormal as far as float32 arithmetic goes, not only float32 storage."""
    normal = torch.randn(*shape[2:], *shape[1::-1], generator=torch.Generator().manual_seed(3))
    slices = torch.linalg.qr(normal).Q.mT
    return slices.permute(-2, -1, *range(slices.dim() - 2)).contiguous()


def identity(shape: tuple[int, ...]) -> Tensor:
    eye = 3 * torch.eye(*shape[:2])
    return eye.reshape(*shape[:2], *[1] * (len(shape) - 2)).repeat(1, 1, *shape[2:])


def with_huge_row(shape: tuple[int, ...]) -> Tensor:
    weight = good(shape)
    weight[0] *= 1e30
    return weight


def freeze(model: nn.Sequential) -> None:
    model[2].weight.requires_grad_(False)


def freeze_nan(model: nn.Sequential) -> None:
    model[2].weight.data.fill_(math.nan)
    freeze(model)


def tie(model: nn.Sequential) -> None:
    model[2].weight = model[1].weight


def make_lazy(model: nn.Sequential) -> None:
    is_linear = isinstance(model[2], nn.Linear)
    model[2] = nn.LazyLinear(64, bias=False) if is_linear else nn.LazyConv2d(56, 3, bias=False)


ZERO = ("zero",)
RANK = ("rank",)
FLAT = ("equal", "different")
FEW = ("min_eigenvalues is 50",)
FROZEN = ("frozen",)
NOT_FINITE = "NaN"

KINDS: dict[str, Scored | Skipped | Refused | Special] = {
    # nothing to rank: no spectrum above rounding, or too little of it
    "zero": Skipped(torch.zeros, ZERO),
    "rank one": Skipped(lambda shape: of_rank(shape, 1), RANK),
    "rank three": Skipped(lambda shape: of_rank(shape, 3), RANK),
    "constant": Skipped(lambda shape: torch.full(shape, 0.3), RANK),
    "one entry": Skipped(lambda shape: with_entry(shape, 1.0) * (with_entry(shape, 1.0) == 1.0), RANK),
    "one huge row": Skipped(with_huge_row, RANK),  # what stands beside it is less than its rounding
    "expanded view": Skipped(lambda shape: good((shape[0], 1, *shape[2:])).expand(shape), RANK),  # equal columns
    # half the eigenvalues are zero, the median among them; the 252 others of the convolution can be searched, 32 can't
    "duplicate rows": Skipped(
        lambda shape: good((shape[0] // 2, *shape[1:])).repeat_interleave(2, 0),
        RANK,
        scored=(("Conv2d", "goodness_of_fit"), ("Conv2d", "peak")),
    ),
    "one row": Skipped(lambda shape: good((1, *shape[1:])), FEW),
    "one column": Skipped(lambda shape: good((shape[0], 1, *shape[2:])), FEW),
    "too few": Skipped(lambda shape: good((49 if len(shape) == 2 else 5, *shape[1:])), FEW),
    "no rows": Skipped(lambda shape: torch.empty(0, *shape[1:]), FEW),
    "no columns": Skipped(lambda shape: torch.empty(shape[0], 0, *shape[2:]), FEW),
    # all eigenvalues equal, but for what storing them has added: any alpha would be that of the rounding
    "identity": Skipped(identity, FLAT),
    "orthogonal float64": Skipped(lambda shape: orthogonal(shape, torch.float64), FLAT),
    "orthogonal float32": Skipped(lambda shape: orthogonal(shape, torch.float32), FLAT),
    "orthogonal by a float32 QR": Skipped(orthogonal_by_float32, FLAT),  # as torch.nn.init.orthogonal_ makes it
    "orthogonal bfloat16": Skipped(lambda shape: orthogonal(shape, torch.bfloat16), FLAT),
    "orthogonal float16": Skipped(lambda shape: orthogonal(shape, torch.float16), FLAT),
    # not trained: its numbers are nobody's business, whatever they are
    "frozen": Special(Skipped, "frozen", freeze),
    "frozen NaN": Special(Skipped, "frozen", freeze_nan),
    "integer": Skipped(lambda shape: torch.ones(shape, dtype=torch.int8), FROZEN),  # torch can't train it
    "tied": Special(Skipped, "'1'", tie),  # scored once, by its first name
    # training has gone wrong, or has not begun
    "NaN": Refused(lambda shape: torch.full(shape, math.nan), NOT_FINITE),
    "one NaN": Refused(lambda shape: with_entry(shape, math.nan), NOT_FINITE),
    "one NaN of many": Refused(
        lambda shape: with_entry((512, 512) if len(shape) == 2 else (96, 96, 3, 3), math.nan), NOT_FINITE
    ),
    "one NaN among zeros": Refused(lambda shape: with_entry(shape, math.nan) * 0, NOT_FINITE),
    "Inf": Refused(lambda shape: with_entry(shape, math.inf), NOT_FINITE),
    "-Inf": Refused(lambda shape: with_entry(shape, -math.inf), NOT_FINITE),
    "NaN in float8": Refused(lambda shape: with_entry(shape, math.nan).to(torch.float8_e4m3fn), NOT_FINITE),
    "meta": Refused(lambda shape: torch.empty(shape, device="meta"), "meta"),
    "lazy": Special(Refused, "initialised", make_lazy),
    "complex": Refused(lambda shape: torch.complex(good(shape), good(shape)), torch.complex64),
    "sparse": Refused(lambda shape: good(shape).to_sparse(), torch.sparse_coo),
    # a spectrum like any other, however it is stored
    "denormal": Scored(lambda shape: good(shape) * 1e-41, 1e-41, rel=1e-4),
    "times 1e30": Scored(lambda shape: good(shape) * 1e30, 1e30),
    "times 1e-30": Scored(lambda shape: good(shape) * 1e-30, 1e-30),
    "near the largest float32": Scored(lambda shape: good(shape) / good(shape).abs().max() * 3.4e38, 1e38),
    "float64 times 1e200": Scored(lambda shape: good(shape, torch.float64) * 1e200, 1e200),
    "float64 times 1e-200": Scored(lambda shape: good(shape, torch.float64) * 1e-200, 1e-200),
    "float64 denormal": Scored(lambda shape: good(shape, torch.float64) * 1e-312, 1e-312, rel=1e-4),
    "non-contiguous": Scored(lambda shape: good(shape).transpose(0, 1)),
    "strided view": Scored(lambda shape: good((2 * shape[0], 3 * shape[1], *shape[2:]))[::2, ::3]),
    "float16": Scored(lambda shape: good(shape, torch.float16)),
    "bfloat16": Scored(lambda shape: good(shape, torch.bfloat16)),
    "float8_e4m3fn": Scored(lambda shape: good(shape, torch.float8_e4m3fn)),
    "float8_e5m2": Scored(lambda shape: good(shape, torch.float8_e5m2)),
    "nearly orthogonal": Scored(lambda shape: orthogonal(shape, torch.float32) + 1e-2 * good(shape), rel=1e-4),
}


def five_layers(module: str) -> nn.Sequential:
    torch.manual_seed(0)
    make = (
        (lambda: nn.Linear(192, 64, bias=False)) if module == "Linear" else (lambda: nn.Conv2d(96, 56, 3, bias=False))
    )
    return nn.Sequential(*(make() for _ in range(5)))


def install(model: nn.Sequential, kind: str, module: str) -> None:
    """Make the third of the five layers bad."""
    case = KINDS[kind]
    if isinstance(case, Special):
        case.install(model)
        return
    weight = case.make(SHAPES[module])
    model[2].weight = nn.Parameter(weight, requires_grad=weight.is_floating_point() or weight.is_complex())


def is_refused(kind: str) -> bool:
    case = KINDS[kind]
    return Refused in (type(case), getattr(case, "outcome", None))


def check_outcome(scheduler: TempBalance, kind: str, module: str, tail: str, rate: float = 0.1) -> None:
    """Either scored or skipped, as the table says, and every rate follows."""
    case, row = KINDS[kind], scheduler.table()["2"]
    if isinstance(case, Scored) or (module, tail) in getattr(case, "scored", ()):
        assert row.reason == ""
        weight = scheduler.model[2].weight.detach().double() / getattr(case, "unit", 1.0)
        if kind == "duplicate rows":  # each nonzero eigenvalue is twice that of the rows once
            weight = weight[::2]
        assert row.score == pytest.approx(literal_fit(weight, tail).alpha, rel=getattr(case, "rel", 1e-5))
        assert scheduler.last_scales["2"] == row.scale
        assert 0.5 <= row.scale <= 1.5
    else:
        words = (case.carried,) if isinstance(case, Special) else case.words
        assert any(word in row.reason for word in words), row.reason
        assert row.score is None
        assert row.scale == 1.0
        assert "2" not in scheduler.last_scales
    groups = scheduler.optimizer.param_groups
    assert all(math.isfinite(group["lr"]) and group["lr"] > 0 for group in groups)
    scales = {row.name: row.scale for row in scheduler.table()}
    assert [group["lr"] for group in groups] == [pytest.approx(rate * scales[group["layer"]]) for group in groups]


def crossings(kind: str) -> list[tuple[str, str, str]]:
    """Every kind in a matrix and in a kernel; where an alpha is looked for in vain, in every tail too."""
    pairs = [("Linear", "median"), ("Conv2d", "goodness_of_fit")]
    if getattr(KINDS[kind], "words", ()) in (RANK, FLAT):
        pairs += [("Linear", tail) for tail in TAILS if tail != "median"]
    return [
        (kind, *pair) for pair in [*pairs, *(each for each in getattr(KINDS[kind], "scored", ()) if each not in pairs)]
    ]


@pytest.mark.parametrize(("kind", "module", "tail"), [each for kind in KINDS for each in crossings(kind)])
def test_a_bad_weight_at_the_start_ends_in_the_way_that_is_right_for_it(kind, module, tail):
    model = five_layers(module)
    install(model, kind, module)
    optimizer = torch.optim.SGD(param_groups(model), lr=0.1)
    if is_refused(kind):
        with raises(WeightError, "'2'", KINDS[kind].carried):
            TempBalance(optimizer, model, tail=tail)
        assert [group["lr"] for group in optimizer.param_groups] == [0.1] * len(optimizer.param_groups)
    else:
        check_outcome(TempBalance(optimizer, model, tail=tail), kind, module, tail)


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_that_becomes_bad_ends_in_the_way_that_is_right_for_it(kind):
    module, tail = "Linear", "median"
    model = five_layers(module)
    optimizer = torch.optim.SGD(param_groups(model), lr=0.1)
    scheduler = TempBalance(optimizer, model, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5), tail=tail)
    before = ([group["lr"] for group in optimizer.param_groups], scheduler.state_dict(), tuple(scheduler.table()))
    scores = scheduler.last_scores
    assert len(set(before[0])) == 4
    install(model, kind, module)
    next(group for group in optimizer.param_groups if group["layer"] == "2")["params"] = list(model[2].parameters())
    optimizer.step()
    if is_refused(kind):
        for act in (scheduler.step, scheduler.rescore):
            with raises(WeightError, "'2'", KINDS[kind].carried):
                act()
            after = (
                [group["lr"] for group in optimizer.param_groups],
                scheduler.state_dict(),
                tuple(scheduler.table()),
            )
            assert after == before
    else:
        scheduler.step()
        assert {name: scheduler.last_scores[name] for name in "13"} == {name: scores[name] for name in "13"}
        check_outcome(scheduler, kind, module, tail, rate=0.05)


def test_the_table_has_every_outcome_and_more_than_two_dozen_kinds():
    outcomes = [case.outcome if isinstance(case, Special) else type(case) for case in KINDS.values()]
    assert len(KINDS) >= 24
    assert {outcome: outcomes.count(outcome) >= 8 for outcome in (Scored, Skipped, Refused)} == {
        Scored: True,
        Skipped: True,
        Refused: True,
    }
