import math
import os
import subprocess
import sys
import textwrap
import threading
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import pytest
import torch
from scipy.linalg import cython_lapack
from threadpoolctl import threadpool_info
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tempbalance.errors import WeightError
from tempbalance.model.layers import find_layers
from tempbalance.ranking.scoring import Scoring, score_layers
from tempbalance.spectral import eigenvalues, lapack, workers
from tempbalance.spectral.eigenvalues import Spectrum
from tempbalance.spectral.lapack import load_lapack
from tempbalance.spectral.matrices import Part, cut_by_shape, cut_convolution, cut_matrix, cut_stack
from tempbalance.spectral.workers import spectra, spectrum
from tests.cases import raises
from tests.spectral.reference import hill_alpha, svd_spectrum
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


# LAPACK through scipy


@pytest.fixture
def own_frames(monkeypatch):
    """The functions of ours on the stack at each reduction to tridiagonal form."""
    functions, found = load_lapack(), []
    reduce = functions.sytrd[torch.float32]

    def noted_reduce(*arguments):
        found.append(own_functions())
        reduce(*arguments)

    monkeypatch.setitem(functions.sytrd, torch.float32, noted_reduce)
    return found


def own_functions() -> list[str]:
    """Names of the functions on the stack that are in the package, the outermost first."""
    return [each.name for each in traceback.extract_stack() if f"{os.sep}tempbalance{os.sep}" in each.filename]


def test_a_worker_reaches_lapack_in_two_calls(own_frames):
    spectra(cut_matrix(gauss(140, 150).float()))
    assert own_frames == [["solve", "solve_on_cpu"]]


def test_scoring_reaches_the_pool_in_three_calls(monkeypatch):
    found, submit = [], ThreadPoolExecutor.submit

    def noted_submit(self, *arguments):
        found.append(own_functions())
        return submit(self, *arguments)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", noted_submit)
    score_layers(find_layers(nn.Linear(60, 70)), Scoring(score_first=True, score_last=True))
    assert found == [["score_layers", "solve", "spectra", "side_by_side"]]


def blas_threads() -> set[int]:
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


def test_blas_has_one_thread_while_lapack_works_and_its_own_number_afterwards(monkeypatch):
    found, solve = [], eigenvalues.solve_on_cpu
    monkeypatch.setattr(
        eigenvalues, "solve_on_cpu", lambda *args, **options: found.append(blas_threads()) or solve(*args, **options)
    )
    with load_lapack().pools.limit(limits=2):
        for double in (False, True):
            spectra(cut_matrix(gauss(140, 150).float()), double=double)
        assert blas_threads() == {2}
    assert found == [{1}, {1}]


@pytest.mark.parametrize("double", [False, True])
def test_the_bits_do_not_depend_on_the_number_of_blas_threads(double):
    expected = expected_bits(double=double)
    with load_lapack().pools.limit(limits=2):
        assert bits(double=double) == expected


def test_a_solve_beside_others_changes_no_setting_of_the_process(monkeypatch):
    def refuse(*_):
        raise AssertionError("a setting of the process is changed")

    alone, results = threading.Event(), []
    (expected,) = spectra(cut_matrix(gauss(140, 150).float()), double=True)

    def work():
        torch.get_num_threads()
        torch.set_num_threads(1)  # its own, as the background thread does
        monkeypatch.setattr(torch, "set_num_threads", refuse)
        monkeypatch.setattr(workers, "load_lapack", refuse)
        monkeypatch.setattr(workers, "_one_thread_each", refuse)
        results.extend(spectra(cut_matrix(gauss(140, 150).float()), beside=True))
        alone.set()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert alone.is_set()
    assert results[0].precise
    assert results[0].values.numpy() == pytest.approx(expected.values.numpy(), rel=1e-9)


def test_without_scipys_functions_torch_solves_in_float64(monkeypatch):
    monkeypatch.setattr(workers, "load_lapack", lambda: None)
    (result,) = spectra(cut_matrix(gauss(140, 150).float()))
    assert result.precise
    assert_spectrum_equals_svd(gauss(140, 150).float())


@pytest.mark.slow
def test_scipy_is_not_imported_before_the_first_solve():
    code = (
        "import sys, tempbalance.cli, tempbalance.spectral.workers; print({'scipy', 'threadpoolctl'} & {*sys.modules})"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.parametrize("missing", [{}, {"ssyrk": None}])
def test_functions_that_scipy_does_not_export_are_not_used(missing, monkeypatch):
    monkeypatch.setattr("scipy.linalg.cython_blas.__pyx_capi__", missing)
    assert load_lapack.__wrapped__() is None


def test_a_function_with_other_arguments_is_refused():
    with raises(ImportError, "dsterf"):
        lapack._function(cython_lapack, "dsterf", 5)


def test_a_reduction_that_fails_is_a_weight_error(monkeypatch):

    def fail(n, diagonal, beside, info):
        info._obj.value = 7

    monkeypatch.setattr(load_lapack(), "sterf", fail)
    with raises(WeightError, 7):
        spectrum(gauss(140, 150))


# devices: no accelerator is here, so CPU tensors stand in for tensors on one


class Counting(TorchDispatchMode):
    """Counts what makes the host wait for a device."""

    def __init__(self):
        super().__init__()
        self.counts = {"solves": 0, "reads": 0, "copies": 0}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        self.counts["solves"] += name == "_linalg_eigh"
        self.counts["reads"] += name in ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal")
        return function(*args, **(kwargs or {}))


@pytest.fixture
def counted(monkeypatch):
    """A device that solves, and counts."""
    counting, copy = Counting(), eigenvalues.to_host

    def noted_copy(tensor):
        counting.counts["copies"] += 1
        return copy(tensor)

    monkeypatch.setattr(workers, "solves_on", lambda device: True)
    monkeypatch.setattr(eigenvalues, "to_host", noted_copy)
    return counting


def many_parts(dtype: torch.dtype = torch.float32) -> list[Part]:
    """Sides 20, 150 and 12, each from several layers."""
    weights = [gauss(20, 30), gauss(150, 200), gauss(200, 20), gauss(150, 150), gauss(12, 14, 3, 3), gauss(20, 20)]
    return [part for weight in weights for part in cut_by_shape(weight.to(dtype))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_device_solves_once_a_side_and_is_read_once_a_side(counted, dtype):
    with counted:
        results = spectra(many_parts(dtype))
    assert counted.counts == {"solves": 3, "reads": 0, "copies": 3}
    for part, result in zip(many_parts(dtype), results, strict=True):
        assert not result.precise
        expected = svd_spectrum(part.slices.double().permute(1, 2, 0).squeeze(-1))
        assert result.eigenvalues.numpy() == pytest.approx(expected, abs=5e-6 * expected[-1])


def test_a_batch_on_a_device_does_not_exceed_the_memory(counted):
    parts = [cut_matrix(gauss(20, 30, seed=seed).float())[0] for seed in range(7)]
    with counted:
        results = spectra(parts, memory=3 * 4 * 20 * 20)
    assert counted.counts == {"solves": 3, "reads": 0, "copies": 3}
    assert len({result.largest for result in results}) == 7


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_part_that_is_not_finite_does_not_spoil_its_batch(counted, value):
    bad = gauss(20, 30).float()
    bad[3, 4] = value
    first, second, third = spectra([cut_matrix(each)[0] for each in (gauss(20, 40).float(), bad, torch.zeros(20, 20))])
    assert first.eigenvalues.numpy() == pytest.approx(svd_spectrum(gauss(20, 40).float()), rel=1e-4)
    assert isinstance(second, WeightError)
    assert "NaN" in str(second)
    assert third.eigenvalues.tolist() == [0.0] * 20


@pytest.mark.parametrize("factor", [1e30, 1e-30, 1e-41])
def test_scale_neither_overflows_nor_vanishes_on_a_device(counted, factor):
    weight = (gauss(60, 40) * factor).float()
    expected = svd_spectrum(weight.double() / float(weight.abs().max()))
    (result,) = spectra(cut_matrix(weight))
    assert result.values.numpy() / result.largest == pytest.approx(expected / expected[-1], abs=1e-5)
    size = math.log2(result.largest) + result.exponent
    assert size == pytest.approx(math.log2(expected[-1]) + 2 * math.log2(float(weight.abs().max())), abs=1e-5)


def test_a_solver_that_fails_on_a_device_is_a_weight_error(counted, monkeypatch):
    def fail(gram):
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(torch.linalg, "eigvalsh", fail)
    results = spectra(many_parts())
    assert all(isinstance(each, WeightError) and "did not converge" in str(each) for each in results)


@pytest.mark.parametrize("options", [{"double": True}, {"device": "cpu"}, {"beside": True}, {}])
def test_float64_and_what_is_asked_of_the_cpu_is_solved_by_the_cpu(counted, options, monkeypatch):
    if "device" in options:
        monkeypatch.setattr(workers, "solves_on", lambda device: device.index == 1)
    dtype = torch.float32 if options else torch.float64
    with counted:
        results = spectra(many_parts(dtype), **options)
    on_device = options == {"beside": True}  # changes no setting there either
    assert counted.counts["copies"] == (3 if on_device else 0)
    assert len(results) == 6


@pytest.mark.parametrize(("device", "solves"), [("cuda", True), ("cpu", False), ("mps", False), ("xpu", False)])
def test_only_devices_with_a_solver_solve(device, solves):
    assert workers.solves_on(torch.device(device)) == solves


def test_each_spectrum_from_a_device_is_handed_on(counted):
    seen = []
    results = spectra(many_parts(), then=lambda number, each: seen.append((number, each)))
    assert sorted(number for number, _ in seen) == list(range(6))
    assert all(each is results[number] for number, each in seen)


def test_a_layer_that_needs_float64_leaves_the_device(counted):
    far = gauss(150, 150)
    far[:3] *= 100  # the threshold is a ten thousandth of the largest
    model = nn.Sequential(*(nn.Linear(150, 150, bias=False) for _ in range(2)))
    for layer, weight in zip(model, (gauss(150, 150, seed=1), far), strict=True):
        layer.weight.data = weight.float()
    rows = score_layers(find_layers(model), Scoring(score_first=True, score_last=True))
    assert counted.counts["copies"] == 1  # of both layers in one batch, then one of them again on the CPU
    for row, weight, rel in zip(rows, (gauss(150, 150, seed=1), far), (5e-6, 1e-9), strict=True):
        assert row.alpha == pytest.approx(hill_alpha(svd_spectrum(weight.float()), 75), rel=rel)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of threads, where a child is forked
def test_a_child_forked_during_a_solve_solves_with_the_settings_from_before():
    code = """
        import os, signal, threading, torch
        from tempbalance import spectrum
        from tempbalance.spectral import workers
        from tempbalance.spectral.matrices import cut_matrix
        torch.set_num_threads(2)
        is_under_way, may_end = threading.Event(), threading.Event()
        def parts():
            is_under_way.set()
            may_end.wait(60)
            yield from cut_matrix(torch.eye(4))
        thread = threading.Thread(target=lambda: workers.spectra(parts()))
        thread.start()
        is_under_way.wait(60)
        assert workers._lock.locked() and torch.backends.mkldnn.matmul.fp32_precision == "ieee"
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # ends a child that waits for ever
            found = spectrum(torch.diag(torch.tensor([1.0, 2.0]))).tolist()
            is_as_before = torch.get_num_threads() == 2 and torch.backends.mkldnn.matmul.fp32_precision == "none"
            os._exit(0 if found == [1.0, 4.0] and is_as_before else 1)
        print(os.waitpid(child, 0)[1])
        may_end.set()
        thread.join()
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert (result.stdout, result.returncode) == ("0\n", 0), result.stderr
