import math

import pytest
import torch
from torch.nn import functional

from tempbalance.errors import WeightError
from tempbalance.spectral.matrices import (
    CONV_FACTOR,
    Part,
    cut_by_shape,
    cut_convolution,
    cut_fused,
    cut_matrix,
    cut_stack,
)
from tests.cases import raises
from tests.spectral.reference import convolution_slices

# weight shape, groups; a transposed convolution's weight is (in, out / groups, *positions)
KERNELS = {
    "conv1d": ((6, 4, 5), 1),
    "conv2d": ((6, 4, 3, 2), 1),
    "conv3d": ((5, 3, 2, 3, 2), 1),
    "pointwise": ((7, 5, 1, 1), 1),
    "grouped 1d": ((6, 4, 3), 2),
    "grouped 2d": ((12, 2, 3, 3), 3),
    "grouped 3d": ((8, 3, 2, 2, 2), 4),
    "depthwise": ((9, 1, 3, 3), 9),
    "depthwise with multiplier": ((12, 1, 3, 3), 4),
}
CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


def numbered(*shape: int) -> torch.Tensor:
    """A weight in which every entry is another number."""
    return torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)


def assert_same_matrices(slices, expected):
    assert len(slices) == len(expected) > 0
    assert all(each.shape == expected[0].shape for each in slices)
    assert sorted(each.flatten().tolist() for each in slices) == sorted(each.flatten().tolist() for each in expected)


def eigenvalues(matrices) -> torch.Tensor:
    """Nonzero squared singular values of all matrices together, ascending."""
    values = torch.cat([torch.linalg.svdvals(each) ** 2 for each in matrices]).sort().values
    return values[values > 1e-12]


def operator_at_each_position(weight: torch.Tensor, groups: int) -> list[torch.Tensor]:
    """The out x in matrix that a convolution applies at each kernel position, found by convolving unit impulses."""
    positions, channels = weight.shape[2:], weight.shape[1] * groups
    impulses = torch.eye(channels * math.prod(positions), dtype=weight.dtype).reshape(-1, channels, *positions)
    answers = CONVOLUTIONS[len(positions)](impulses, weight, groups=groups)  # (channels x positions, out, 1, ...)
    return list(answers.reshape(channels, math.prod(positions), -1).permute(1, 2, 0))


def transposed_operator_at_each_position(weight: torch.Tensor, groups: int) -> list[torch.Tensor]:
    """The same of a transposed convolution."""
    positions, channels = weight.shape[2:], weight.shape[0]
    impulses = torch.eye(channels, dtype=weight.dtype).reshape(channels, channels, *[1] * len(positions))
    answers = TRANSPOSED[len(positions)](impulses, weight, groups=groups)  # (in, out, *positions)
    return list(answers.flatten(2).permute(2, 1, 0))


def test_a_matrix_is_one_part_that_is_the_weight_itself():
    weight = numbered(3, 5)
    (part,) = cut_matrix(weight)
    assert part.name == ""
    assert part.factor == 1.0
    assert part.slices.shape == (1, 3, 5)
    assert torch.equal(part.slices[0], weight)
    assert part.slices.data_ptr() == weight.data_ptr()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_convolution_is_cut_as_by_a_loop_over_positions_and_groups(kernel):
    shape, groups = KERNELS[kernel]
    (part,) = cut_convolution(numbered(*shape), groups=groups)
    assert part.name == ""
    assert part.factor == CONV_FACTOR == 0.5
    assert len(part.slices) == groups * math.prod(shape[2:])
    assert_same_matrices(part.slices, convolution_slices(numbered(*shape), groups))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_convolutions_slices_have_the_singular_values_of_the_operator(kernel):
    shape, groups = KERNELS[kernel]
    weight = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (part,) = cut_convolution(weight, groups=groups)
    expected = eigenvalues(operator_at_each_position(weight, groups))
    torch.testing.assert_close(eigenvalues(part.slices), expected, rtol=1e-10, atol=0)
    assert len(expected) == part.num_eigenvalues


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_transposed_convolutions_slices_have_the_singular_values_of_the_operator(kernel):
    shape, groups = KERNELS[kernel]
    weight = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    (part,) = cut_convolution(weight, groups=groups)
    expected = eigenvalues(transposed_operator_at_each_position(weight, groups))
    torch.testing.assert_close(eigenvalues(part.slices), expected, rtol=1e-10, atol=0)
    assert len(expected) == part.num_eigenvalues


def test_a_convolution_that_is_not_contiguous_is_cut_alike():
    weight = numbered(3, 3, 4, 6).permute(3, 2, 0, 1)
    (part,) = cut_convolution(weight, groups=2)
    assert_same_matrices(part.slices, convolution_slices(weight, 2))


def test_a_stack_is_one_part_per_expert():
    weight = numbered(3, 4, 5)
    parts = cut_stack(weight)
    assert [part.name for part in parts] == ["expert 0", "expert 1", "expert 2"]
    for part, expert in zip(parts, weight, strict=True):
        assert part.factor == 1.0
        assert part.slices.shape == (1, 4, 5)
        assert torch.equal(part.slices[0], expert)


def test_equal_fused_parts_follow_each_other_in_the_weight():
    weight = numbered(6, 4)
    parts = cut_fused(weight, sizes=3, names=("q", "k", "v"))
    assert [part.name for part in parts] == ["q", "k", "v"]
    for part, rows in zip(parts, (slice(0, 2), slice(2, 4), slice(4, 6)), strict=True):
        assert part.factor == 1.0
        assert torch.equal(part.slices, weight[rows].unsqueeze(0))


def test_fused_parts_of_different_sizes_are_numbered_without_names():
    weight = numbered(8, 4)
    parts = cut_fused(weight, sizes=(4, 3, 1))
    assert [part.name for part in parts] == ["0", "1", "2"]
    for part, rows in zip(parts, (slice(0, 4), slice(4, 7), slice(7, 8)), strict=True):
        assert torch.equal(part.slices, weight[rows].unsqueeze(0))


def test_fused_parts_lie_along_the_dimension_asked_for():
    weight = numbered(4, 6)
    parts = cut_fused(weight, sizes=[2, 4], names=["a", "b"], dim=1)
    assert [part.name for part in parts] == ["a", "b"]
    assert torch.equal(parts[0].slices[0], weight[:, :2])
    assert torch.equal(parts[1].slices[0], weight[:, 2:])


@pytest.mark.parametrize("sizes", [4, 0, -1, (2, 3), (2, 5), (7, -1), (6, 0), ()])
def test_fused_parts_that_do_not_add_up_are_refused(sizes):
    carried = sizes if isinstance(sizes, int) else list(sizes)
    with raises(WeightError, "fused", carried, "dimension 0", 6):
        cut_fused(numbered(6, 4), sizes=sizes)


@pytest.mark.parametrize("shape", [(6,), (6, 4, 3)])
def test_a_fused_weight_that_is_not_two_dimensional_is_refused(shape):
    with raises(WeightError, 2, len(shape)):
        cut_fused(numbered(*shape), sizes=3)


def test_as_many_names_as_fused_parts_are_needed():
    with pytest.raises(ValueError, match="zip"):
        cut_fused(numbered(6, 4), sizes=3, names=("q", "k"))


def test_without_being_told_two_dimensions_are_a_matrix_and_more_a_convolution():
    assert torch.equal(cut_by_shape(numbered(3, 5))[0].slices, numbered(1, 3, 5))
    for shape in ((4, 3, 5), (4, 3, 2, 3), (4, 3, 2, 2, 2)):
        (part,) = cut_by_shape(numbered(*shape))
        assert part.factor == CONV_FACTOR
        assert_same_matrices(part.slices, convolution_slices(numbered(*shape)))


@pytest.mark.parametrize("shape", [(), (5,)])
def test_a_weight_of_fewer_than_two_dimensions_is_refused(shape):
    with raises(WeightError, len(shape)):
        cut_by_shape(torch.zeros(shape))


@pytest.mark.parametrize(("shape", "expected"), [((1, 3, 5), 3), ((9, 6, 4), 36), ((0, 6, 4), 0), ((2, 0, 4), 0)])
def test_a_part_has_as_many_eigenvalues_as_the_smaller_sides_of_its_slices(shape, expected):
    assert Part("", torch.zeros(shape)).num_eigenvalues == expected


@pytest.mark.parametrize("shape", [(0, 3, 3, 3), (3, 0, 3, 3), (3, 3, 0, 3), (0, 4, 5)])
def test_an_empty_convolution_is_a_part_without_eigenvalues(shape):
    (part,) = cut_convolution(torch.zeros(shape))
    assert part.num_eigenvalues == 0


def test_groups_that_do_not_divide_the_kernel_are_refused():
    with raises(WeightError, "groups", 4, 6):
        cut_convolution(numbered(6, 4, 2), groups=4)  # though 48 entries could be cut into 4
