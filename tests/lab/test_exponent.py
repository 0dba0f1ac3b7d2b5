"""The study of exponents: alpha of exact power laws against theory."""

import math

import pytest
import torch

from tempbalance.lab.paper import paper_statements
from tempbalance.lab.points import PRESETS
from tempbalance.lab.studies.exponents import fit_exponents, power_law
from tempbalance.lab.study import find_study
from tempbalance.report.study_charts import ExponentFit, exponent_chart
from tempbalance.spectral.tail import fit_hill
from tests.cases import raises


def shrunk(num_tail: int) -> float:
    """How much of s is found: log(K + 1) - log(K!) / K, whatever s is; it nears 1."""
    return math.log(num_tail + 1) - math.lgamma(num_tail + 1) / num_tail


@pytest.mark.parametrize("s", [0.2, 1.0, 3.2])
def test_a_power_law_has_its_eigenvalues(s):
    values = power_law(16, s)
    assert values == sorted(values)
    assert values[-1] == 1
    assert values[0] == pytest.approx(16**-s)


def test_the_fits_are_those_of_theory_for_each_size_and_exponent():
    fits = fit_exponents()
    said = paper_statements()
    assert {(each.size, each.s) for each in fits} == {
        (size, s) for size in said["exponent_sizes"].value for s in said["exponents"].value
    }
    for each in fits:
        assert each.found == pytest.approx(each.s * shrunk(each.size // 2), rel=1e-9)
        assert each.alpha == pytest.approx(1 + 1 / each.found, rel=1e-12)


def test_a_matrix_of_these_eigenvalues_has_the_same_alpha():
    torch.manual_seed(0)
    values = torch.tensor(power_law(64, 1.3), dtype=torch.float64)
    left, right = (torch.linalg.qr(torch.randn(64, 64, dtype=torch.float64))[0] for _ in range(2))
    eigenvalues = torch.linalg.svdvals(left @ values.sqrt().diag() @ right).square().flip(0)
    (fit,) = [each for each in fit_exponents() if (each.size, each.s) == (64, 1.3)]
    assert fit_hill(eigenvalues, num_tail=32).alpha == pytest.approx(fit.alpha, rel=1e-9)


def test_nothing_is_trained_and_the_error_falls_with_the_size(tmp_path):
    study = find_study("exponent")
    assert all(study.points(preset) == [] for preset in PRESETS.values())
    shown = study.present(study.find(PRESETS["smoke"], [], tmp_path))
    (table,) = shown.tables
    assert [row[0].value for row in table.rows] == [16, 32, 64, 128, 256, 512, 768, 1024]
    means = [row[table.columns.index("error of s, %")].value for row in table.rows]
    assert means == sorted(means, reverse=True)
    assert means[0] == pytest.approx(100 * (1 - shrunk(8)))
    assert means[-1] < 1
    assert list(shown.charts) == ["exponent"]
    assert shown.notes


def test_the_chart_has_a_panel_for_each_size_with_the_curve():
    chart = exponent_chart(fit_exponents(), title="alpha", subtitle="none")
    content = chart.to_dict()
    assert len(content["concat"]) == 8
    assert "1 + 1 / datum.s" in str(content["concat"][0])


def test_a_chart_needs_fits_of_different_places():
    with raises(ValueError):
        exponent_chart([], title="", subtitle="")
    with raises(ValueError):
        exponent_chart([ExponentFit(16, 1.0, 2.0)] * 2, title="", subtitle="")
