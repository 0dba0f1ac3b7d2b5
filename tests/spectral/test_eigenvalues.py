import math

import numpy as np
import pytest
import torch

from tempbalance.errors import WeightError
from tempbalance.spectral.eigenvalues import Spectrum, check_weight, gram_matrices
from tempbalance.spectral.matrices import Part, cut_by_shape, cut_convolution, cut_matrix
from tempbalance.spectral.tail import fit_goodness_of_fit, fit_peak, fit_tail
from tempbalance.spectral.workers import spectra, spectrum
from tests.cases import raises
from tests.spectral.reference import hill_alpha, search, search_peak, svd_spectrum

SHAPES = [(40, 25), (25, 40), (30, 30), (1, 20), (20, 1), (1, 1), (12, 8, 3), (8, 12, 3, 3), (6, 5, 2, 3, 2)]
LOW_PRECISIONS = [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


def gauss(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def solved(weight: torch.Tensor, *, double: bool = False) -> Spectrum:
    (result,) = spectra(cut_by_shape(weight), double=double)
    assert isinstance(result, Spectrum)
    return result


def assert_spectrum_equals_svd(weight: torch.Tensor, *, rel: float = 1e-12, groups: int = 1) -> None:
    """Each eigenvalue to ``rel`` of the largest, which is what a symmetric solve promises."""
    values, expected = spectrum(weight, groups=groups), svd_spectrum(weight.detach(), groups)
    assert values.dtype == torch.float64
    assert values.device.type == "cpu"
    assert not values.requires_grad
    assert np.abs(values.numpy() - expected).max() <= rel * expected[-1]


@pytest.fixture
def _small_in_float32(monkeypatch):
    """Solve small matrices as large ones are."""
    monkeypatch.setattr("tempbalance.spectral.eigenvalues._SMALL_SIDE", 0)


# what comes out


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_spectrum_is_the_squared_singular_values(shape):
    for dtype in (torch.float64, torch.float32):
        assert_spectrum_equals_svd(gauss(*shape).to(dtype))


@pytest.mark.parametrize(("shape", "groups"), [((12, 4, 3, 3), 3), ((16, 1, 3, 3), 16), ((8, 6, 5), 2)])
def test_a_grouped_convolutions_spectrum_is_that_of_its_slices(shape, groups):
    assert_spectrum_equals_svd(gauss(*shape), groups=groups)


def test_a_convolutions_spectrum_sums_to_half_its_squared_entries():
    weight = gauss(8, 6, 3, 3)
    assert float(spectrum(weight).sum()) == pytest.approx(0.5 * float(weight.square().sum()), rel=1e-12)


def test_a_convolution_of_many_jobs_is_pooled_in_one_unit():
    weight = gauss(330, 330, 3)  # each slice is a job of its own
    weight[..., 1] *= 1e-3
    weight[..., 2] *= 1e3
    values = solved(weight, double=True)
    assert_spectrum_equals_svd(weight)
    assert torch.equal(values.eigenvalues, spectrum(weight))


@pytest.mark.usefixtures("_small_in_float32")
@pytest.mark.parametrize("dtype", LOW_PRECISIONS, ids=str)
def test_low_precision_is_raised_before_anything_is_computed(dtype):
    for shape in ((40, 25), (8, 12, 3, 3)):
        weight = gauss(*shape).to(dtype)
        assert_spectrum_equals_svd(weight)
        assert_within_noise(solved(weight), svd_spectrum(weight))


def assert_within_noise(result: Spectrum, expected: np.ndarray) -> None:
    assert not result.precise
    assert np.abs(result.eigenvalues.numpy() - expected).max() <= result.in_units(result.noise)


@pytest.mark.usefixtures("_small_in_float32")
@pytest.mark.parametrize("shape", SHAPES + [(300, 200), (200, 200), (64, 32, 3, 3)], ids=str)
def test_a_solve_in_float32_is_off_by_less_than_its_noise(shape):
    weight = gauss(*shape).float()
    assert_within_noise(solved(weight), svd_spectrum(weight))


def test_float64_is_solved_in_float64_without_being_asked():
    result = solved(gauss(30, 20))
    assert result.precise
    assert result.noise == np.finfo(np.float64).eps * 30 * result.largest


@pytest.mark.parametrize(("side", "precise"), [(128, True), (129, False)])
def test_a_small_matrix_is_solved_in_float64_without_being_asked(side, precise):
    assert solved(gauss(side, 200).float()).precise == precise


@pytest.mark.parametrize("shape", [(2, 512, 530), (1, 600, 90), (1, 700, 610), (3, 20, 30)], ids=str)
def test_a_gram_matrix_is_whole_up_to_its_diagonal(shape):
    slices = gauss(*shape).float()
    wide = (slices if shape[1] <= shape[2] else slices.mT).double()
    for double, tolerance in ((False, 1e-6), (True, 1e-14)):
        gram, exponent = gram_matrices(slices, double=double)
        expected = (wide @ wide.mT).tril() / 2.0**exponent
        assert gram.shape == expected.shape
        assert torch.allclose(gram.double().tril(), expected, rtol=0, atol=tolerance * expected.max())


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("side", [140, 520])
def test_the_slices_of_a_kernel_have_the_gram_matrices_of_their_copies(side, double):
    slices = cut_convolution(gauss(side, side, 2, 1).float())[0].slices
    assert not slices.is_contiguous()
    gram, exponent = gram_matrices(slices, double=double)
    expected, expected_exponent = gram_matrices(slices.clone(memory_format=torch.contiguous_format), double=double)
    assert exponent == expected_exponent
    assert torch.equal(gram, expected)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("side", [130, 513])
def test_what_lies_above_the_diagonal_of_a_gram_matrix_is_not_looked_at(side, double, monkeypatch):
    part = cut_matrix(gauss(side, side + 10).float())[0]
    (expected,) = spectra([part], double=double)

    def spoiled(slices, **options):
        gram, exponent = gram_matrices(slices, **options)
        return gram.tril() + torch.full_like(gram, 1e3).triu(1), exponent

    monkeypatch.setattr("tempbalance.spectral.eigenvalues.gram_matrices", spoiled)
    (found,) = spectra([part], double=double)
    assert torch.equal(found.values, expected.values)


def test_a_matrix_multiplied_in_blocks_has_the_spectrum_of_the_svd():
    assert_spectrum_equals_svd(gauss(520, 540).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_does_not_matter_how_a_weight_lies_in_memory(dtype):
    weight = gauss(40, 30).to(dtype)
    assert_spectrum_equals_svd(weight.t())
    assert_spectrum_equals_svd(weight[::2, 5:])
    assert_spectrum_equals_svd(gauss(3, 3, 12, 8).to(dtype).permute(3, 2, 0, 1))
    assert_spectrum_equals_svd(gauss(8, 12, 3, 3).to(dtype).to(memory_format=torch.channels_last))
    assert_spectrum_equals_svd(gauss(30).to(dtype).expand(20, 30))


def test_a_weight_that_requires_grad_is_left_as_it_was():
    weight = gauss(20, 30).requires_grad_()
    before = weight.detach().clone()
    assert_spectrum_equals_svd(weight)
    assert torch.equal(solved(weight).values, solved(before).values)
    assert not solved(weight).values.requires_grad
    assert weight.grad is None
    assert torch.equal(weight, before)


# nothing, and next to nothing


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (0, 3, 3, 3), (3, 0, 3, 3), (3, 3, 0, 3)], ids=str)
def test_an_empty_weight_has_an_empty_spectrum(shape):
    values = spectrum(torch.zeros(shape))
    assert values.shape == (0,)
    assert values.dtype == torch.float64


def test_an_empty_part_has_an_empty_spectrum():
    (result,) = spectra([Part("", torch.zeros(0, 4, 5))])
    assert isinstance(result, Spectrum)
    assert result.largest == 0.0
    assert len(result.values) == len(result.significant()) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *LOW_PRECISIONS], ids=str)
def test_a_zero_weight_has_zero_eigenvalues(dtype):
    for shape in ((5, 4), (4, 5, 3, 3)):
        weight = torch.zeros(shape).to(dtype)
        assert spectrum(weight).tolist() == [0.0] * (4 * math.prod(shape[2:]))
        assert solved(weight).largest == 0.0
        assert len(solved(weight).significant()) == 0


def test_eigenvalues_are_never_negative():
    weight = gauss(50, 2) @ gauss(2, 60, seed=1)  # rank 2: 48 eigenvalues are rounding
    for each in (weight, weight.float()):
        assert float(solved(each).values[0]) >= 0
        assert solved(each).values.tolist() == sorted(solved(each).values.tolist())


SCALED = [
    (torch.float32, 1e30),
    (torch.float32, 1e-30),
    (torch.float32, 1e-41),  # denormal
    (torch.bfloat16, 1e30),
    (torch.bfloat16, 1e-30),
    (torch.float64, 1e200),
    (torch.float64, 1e-200),
    (torch.float64, 1e307),
    (torch.float64, 1e-312),  # denormal
]


@pytest.mark.parametrize(("dtype", "factor"), SCALED)
@pytest.mark.parametrize(("shape", "double"), [((60, 40), False), ((12, 10, 3, 3), True)], ids=str)
def test_scale_neither_overflows_nor_vanishes(shape, double, dtype, factor):
    weight = (gauss(*shape) * factor).to(dtype)
    unit = float(weight.double().abs().max())
    expected = svd_spectrum(weight.double() / unit)  # what is stored, made of ordinary size
    result = solved(weight, double=double)
    assert np.abs(result.values.numpy() / result.largest - expected / expected[-1]).max() <= 1e-5
    size = math.log2(result.largest) + result.exponent
    assert size == pytest.approx(math.log2(expected[-1]) + 2 * math.log2(unit), abs=1e-5)


@pytest.mark.parametrize(("dtype", "factor"), SCALED)
def test_fits_work_at_any_scale(dtype, factor):
    weight = (gauss(80, 60) * factor).to(dtype)
    expected = svd_spectrum(weight.double() / weight.double().abs().max())
    values = solved(weight, double=True).values
    assert fit_tail(values).alpha == pytest.approx(hill_alpha(expected, 30), rel=1e-9)
    assert fit_goodness_of_fit(values).alpha == pytest.approx(search(expected)[0], rel=1e-9)
    assert fit_peak(values).alpha == pytest.approx(search_peak(expected)[0], rel=1e-9)


@pytest.mark.parametrize("factor", [1e-30, 1e-200])
def test_slices_that_are_zero_do_not_make_the_others_vanish(factor):
    weight = gauss(330, 330, 2) * factor  # each slice is a job of its own
    weight[..., 0] = 0.0
    values = solved(weight, double=True).values
    expected = svd_spectrum(weight[..., 1] / factor)
    assert values[330:].numpy() / float(values[-1]) == pytest.approx(expected / expected[-1], abs=1e-12)


def test_eigenvalues_are_infinite_or_zero_where_float64_ends():
    assert spectrum(gauss(5, 4) * 1e200).tolist() == [math.inf] * 4
    assert spectrum(gauss(5, 4) * 1e-200).tolist() == [0.0] * 4


def test_units_can_be_changed_there_and_back():
    result = solved(gauss(20, 10) * 1e-20)
    assert result.in_units(result.largest) == float(result.eigenvalues[-1])
    assert result.from_units(result.in_units(0.75)) == 0.75
    assert result.in_units(1.0) == 2.0**result.exponent


# what is known about the errors


@pytest.mark.parametrize("dtype", [torch.float32, *LOW_PRECISIONS], ids=str)
def test_rounding_is_the_size_of_what_storing_a_weight_adds_to_it(dtype):
    for shape in ((60, 60), (200, 50), (50, 200)):
        weight = gauss(*shape)
        added = float(torch.linalg.matrix_norm(weight.to(dtype).double() - weight, 2))
        result = solved(weight.to(dtype))
        rounding = result.rounding * 2.0 ** (result.exponent // 2)
        assert rounding / 2 <= added <= rounding


def test_rounding_of_a_convolution_is_that_of_its_scaled_slices():
    weight = gauss(60, 40, 3)
    result = solved(weight.bfloat16())
    rounding = result.rounding * 2.0 ** (result.exponent // 2)
    added = (weight.bfloat16().double() - weight).permute(2, 0, 1) * math.sqrt(0.5)
    norms = torch.linalg.matrix_norm(added, 2)
    assert rounding / 2 <= float(norms.min()) <= float(norms.max()) <= rounding


def test_a_values_uncertainty_is_what_noise_and_rounding_can_do_to_it():
    values = torch.tensor([0.25, 4.0]).double()
    result = Spectrum(values, 0, noise=0.5, rounding=0.1, errors=np.zeros(2), precise=True)
    assert result.uncertainty(4.0) == pytest.approx(0.5 + (2.1**2 - 2**2), rel=1e-12)
    assert result.uncertainty(0.0) == pytest.approx(0.5 + 0.1**2, rel=1e-12)


@pytest.mark.parametrize(("noise", "rounding"), [(0.5, 0.1), (0.0, 0.2), (0.3, 0.0)])
def test_significant_values_are_those_above_their_own_uncertainty(noise, rounding):
    values = torch.linspace(0, 2, 2000, dtype=torch.float64)
    result = Spectrum(values, 0, noise, rounding, errors=np.zeros(2000), precise=True)
    assert result.significant().tolist() == [each for each in values.tolist() if each > result.uncertainty(each)]
    assert 0 < len(result.significant()) < len(values)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_as_many_values_are_significant_as_the_weight_has_rank(dtype):
    for rank in (1, 7, 20):
        weight = (gauss(60, rank) @ gauss(rank, 80, seed=1)).to(dtype)
        assert len(solved(weight, double=True).significant()) == rank


# what is refused

REFUSED = {  # how the weight is made, what the error carries
    "meta": (lambda: torch.empty(4, 5, device="meta"), "meta"),
    "complex": (lambda: torch.ones(4, 5, dtype=torch.complex64), torch.complex64),
    "integer": (lambda: torch.ones(4, 5, dtype=torch.int64), torch.int64),
    "bool": (lambda: torch.ones(4, 5, dtype=torch.bool), torch.bool),
    "sparse coo": (lambda: torch.eye(4).to_sparse(), torch.sparse_coo),
    "sparse csr": (lambda: torch.eye(4).to_sparse_csr(), torch.sparse_csr),
    "mkldnn": (lambda: torch.eye(4).to_mkldnn(), torch._mkldnn),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("kind", REFUSED)
def test_a_weight_without_a_spectrum_is_refused(kind):
    make, carried = REFUSED[kind]
    for use in (spectrum, check_weight):
        with raises(WeightError, carried):
            use(make())


@pytest.mark.parametrize("weight", [np.ones((4, 5)), [[1.0, 2.0]], None])
def test_what_is_no_tensor_is_refused(weight):
    with raises(TypeError, type(weight).__name__):
        spectrum(weight)


NOT_FINITE = [
    *((dtype, value) for dtype in (torch.float64, torch.float32) for value in (math.nan, math.inf, -math.inf)),
    *((dtype, math.nan) for dtype in LOW_PRECISIONS),
    (torch.bfloat16, -math.inf),  # float8_e4m3fn has no infinity
]


@pytest.mark.parametrize(
    ("shape", "dtype", "value"),
    [
        *(((6, 5), *each) for each in NOT_FINITE),
        ((6, 5, 3, 3), torch.float32, math.nan),
        ((330, 330, 2), torch.float32, math.inf),
        ((330, 330, 2), torch.bfloat16, math.nan),
    ],
    ids=str,
)
def test_a_weight_that_is_not_finite_is_refused(shape, dtype, value):
    weight = gauss(*shape)
    weight.view(-1)[-1] = value
    with raises(WeightError, "NaN"):
        spectrum(weight.to(dtype))


@pytest.mark.parametrize(("shape", "groups"), [((), 1), ((6,), 1), ((6,), 2)])
def test_fewer_than_two_dimensions_are_refused(shape, groups):
    with raises(WeightError, len(shape)):
        spectrum(torch.ones(shape), groups=groups)


def test_a_solve_that_fails_is_a_weight_error(monkeypatch):
    def fail(gram, **options):
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(torch.linalg, "eigvalsh", fail)
    with raises(WeightError, "did not converge"):
        spectrum(gauss(5, 4))
