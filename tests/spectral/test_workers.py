import math
from concurrent.futures import Future
from functools import cache

import pytest
import torch

from tempbalance.errors import WeightError
from tempbalance.spectral.eigenvalues import Spectrum
from tempbalance.spectral.matrices import cut_by_shape, cut_convolution, cut_matrix, cut_stack
from tempbalance.spectral.workers import spectra, spectrum
from tests.cases import raises
from tests.spectral.reference import svd_spectrum
from tests.spectral.test_eigenvalues import assert_spectrum_equals_svd, gauss

BACKENDS = [torch.backends.mkldnn.matmul, torch.backends.cuda.matmul]


@pytest.fixture(autouse=True)
def _settings_are_put_back():
    """Let a test change torch's settings without others seeing it."""
    num_threads, precisions = torch.get_num_threads(), [backend.fp32_precision for backend in BACKENDS]
    yield
    torch.set_num_threads(num_threads)
    torch.set_float32_matmul_precision("highest")
    for backend, precision in zip(BACKENDS, precisions, strict=True):
        backend.fp32_precision = precision


@pytest.fixture
def watched(monkeypatch):
    """The number of threads and the matmul precisions at each solve."""
    solve, seen = torch.linalg.eigvalsh, []

    def watch(gram, **options):
        seen.append((torch.get_num_threads(), [backend.fp32_precision for backend in BACKENDS]))
        return solve(gram, **options)

    monkeypatch.setattr(torch.linalg, "eigvalsh", watch)
    return seen


# order


def test_parts_come_back_in_their_order():
    parts = [cut_matrix(gauss(size, 12, seed=size))[0] for size in range(1, 41)]
    results = spectra(iter(parts), double=True)
    for part, result in zip(parts, results, strict=True):
        expected = svd_spectrum(part.slices[0])
        assert isinstance(result, Spectrum)
        assert result.eigenvalues.numpy() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("beside", [False, True])
def test_each_spectrum_is_handed_on_once_with_the_number_of_its_part(beside):
    bad = torch.full((5, 4), math.nan)
    weights = [gauss(330, 330, 3), gauss(30, 20), bad, torch.zeros(0, 5), gauss(12, 8, 3, 3)]  # three jobs, one, ...
    seen: list[tuple[int, Spectrum]] = []
    results = spectra(
        [part for weight in weights for part in cut_by_shape(weight)],
        beside=beside,
        then=lambda number, each: seen.append((number, each)),
    )
    assert isinstance(results[2], WeightError)
    assert sorted(number for number, _ in seen) == [0, 1, 3, 4]
    assert all(each is results[number] for number, each in seen)


def test_an_error_in_what_a_spectrum_is_handed_to_is_raised():
    def fail(number, each):
        raise ArithmeticError("no fit")

    with raises(ArithmeticError, "no fit"):
        spectra(cut_matrix(gauss(5, 4)), then=fail)


def test_one_bad_part_does_not_spoil_the_others():
    bad = gauss(5, 4)
    bad[2, 2] = math.nan
    first, second, third = spectra([cut_matrix(each)[0] for each in (gauss(5, 4), bad, gauss(4, 6))])
    assert isinstance(first, Spectrum)
    assert isinstance(second, WeightError)
    assert isinstance(third, Spectrum)
    assert third.eigenvalues.numpy() == pytest.approx(svd_spectrum(gauss(4, 6)), rel=1e-10)


# torch's settings


def a_bad_weight() -> None:
    with pytest.raises(WeightError):
        spectrum(torch.full((5, 4), math.nan))


def parts_that_raise() -> None:
    def parts():
        yield cut_matrix(gauss(5, 4))[0]
        raise RuntimeError("no more")

    with raises(RuntimeError, "no more"):
        spectra(parts())


@pytest.mark.parametrize("use", [lambda: spectrum(gauss(20, 30).float()), a_bad_weight, parts_that_raise])
@pytest.mark.parametrize(("num_threads", "precision"), [(1, "medium"), (3, "high")])
def test_threads_and_matmul_precision_are_put_back(num_threads, precision, use):
    torch.set_num_threads(num_threads)
    torch.set_float32_matmul_precision(precision)
    use()
    assert torch.get_num_threads() == num_threads
    assert torch.get_float32_matmul_precision() == precision


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_newer_switches_of_precision_are_put_back(backend):
    backend.fp32_precision = "tf32"
    spectrum(gauss(20, 30).float())
    assert backend.fp32_precision == "tf32"


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_each_solve_has_one_thread_and_full_precision(precision, watched):
    torch.set_num_threads(2)
    torch.set_float32_matmul_precision(precision)
    spectra(cut_stack(gauss(6, 30, 20).float()))
    assert watched == [(1, ["ieee", "ieee"])] * 6


def bits(*, double: bool) -> list[bytes]:
    """The spectra of parts of many sizes, one of them with many jobs."""
    parts = [cut_matrix(gauss(size, 200, seed=size).float())[0] for size in (1, 7, 64, 200, 300)]
    parts += cut_convolution(gauss(32, 16, 3, 3).float()) + cut_convolution(gauss(330, 330, 3).float())
    results = spectra(parts, double=double)
    assert all(isinstance(each, Spectrum) and each.largest > 0 for each in results)
    return [each.eigenvalues.numpy().tobytes() for each in results]


@cache
def expected_bits(*, double: bool) -> list[bytes]:
    """What `bits` gives with one thread and torch's own settings, which each test starts with."""
    torch.set_num_threads(1)
    return bits(double=double)


@pytest.mark.parametrize("double", [False, True])
def test_the_bits_do_not_depend_on_the_number_of_threads(double):
    alone = expected_bits(double=double)
    torch.set_num_threads(2)
    assert bits(double=double) == alone


@pytest.mark.parametrize("double", [False, True])
def test_the_bits_do_not_depend_on_the_matmul_precision(double):
    expected = expected_bits(double=double)
    torch.set_float32_matmul_precision("medium")
    assert bits(double=double) == expected


class InCallingThread:
    """A pool that solves where it is called, as a GPU's work is."""

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *args):
        return False

    def submit(self, function, *args):
        done = Future()
        done.set_result(function(*args))
        return done


@pytest.mark.parametrize("calling_thread", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_autocast_changes_nothing(double, calling_thread, monkeypatch):
    expected = expected_bits(double=double)
    if calling_thread:
        monkeypatch.setattr("tempbalance.spectral.workers.ThreadPoolExecutor", InCallingThread)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (gauss(4, 4).float() @ gauss(4, 4).float()).dtype == torch.bfloat16
        assert bits(double=double) == expected
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_spectrum_equals_svd(gauss(20, 30).float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_the_default_dtype_changes_nothing(dtype):
    expected = expected_bits(double=False)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        assert bits(double=False) == expected
    finally:
        torch.set_default_dtype(before)


def test_inference_mode_changes_nothing():
    expected = spectrum(gauss(20, 30))
    with torch.inference_mode():
        assert torch.equal(spectrum(gauss(20, 30)), expected)
