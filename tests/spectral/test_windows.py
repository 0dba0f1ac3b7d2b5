"""Windows against a literal loop."""

import math

import pytest
import torch

from tempbalance.spectral.matrices import CONV_FACTOR, Part, check_windows, cut_convolution, cut_windows
from tests.cases import raises
from tests.spectral.test_matrices import numbered

SHAPES = [(1, 6, 6), (1, 4, 12), (1, 12, 4), (1, 5, 13), (3, 7, 9), (2, 10, 3), (1, 2, 11), (4, 1, 5), (1, 23, 17)]


def windows_one_by_one(slices: torch.Tensor, side: int) -> list[torch.Tensor]:
    def starts(length: int) -> list[int]:
        last, count = length - side, math.ceil(length / side)
        return [0] if count == 1 else [math.floor(last * i / (count - 1)) for i in range(count)]

    return [
        matrix[row : row + side, column : column + side]
        for matrix in slices
        for row in starts(matrix.shape[0])
        for column in starts(matrix.shape[1])
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_windows_are_those_of_a_loop_and_cover_the_matrices(shape):
    slices = numbered(*shape)
    for windows in ("square", 2, 3, 4, 100):
        side = min(shape[1:]) if windows == "square" else min(windows, *shape[1:])
        cut = cut_windows(Part("q", slices, 0.25), windows)
        assert (cut.name, cut.factor) == ("q", 0.25)
        assert cut.slices.tolist() == torch.stack(windows_one_by_one(slices, side)).tolist()
        assert set(cut.slices.flatten().tolist()) == set(slices.flatten().tolist())
        assert cut.num_eigenvalues == shape[0] * math.ceil(shape[1] / side) * math.ceil(shape[2] / side) * side


@pytest.mark.parametrize("shape", SHAPES[1:5])
def test_windows_of_a_weight_on_the_meta_device_have_the_same_shape(shape):
    meta = cut_windows(Part("", torch.empty(shape, device="meta")), 3)
    assert meta.slices.device.type == "meta"
    assert meta.slices.shape == cut_windows(Part("", numbered(*shape)), 3).slices.shape


def test_a_square_matrix_comes_out_unchanged_and_is_not_copied():
    slices = numbered(3, 5, 5)
    cut = cut_windows(Part("", slices), "square").slices
    assert torch.equal(cut, slices)
    assert cut.data_ptr() == slices.data_ptr()


@pytest.mark.parametrize("shape", [(1, 4, 12), (1, 12, 4), (1, 4, 7), (1, 9, 5)])
def test_windows_in_equal_steps_along_one_matrix_are_views(shape):
    slices = numbered(*shape)
    assert cut_windows(Part("", slices), "square").slices.untyped_storage().data_ptr() == slices.data_ptr()


def test_windows_of_a_convolution_are_windows_of_each_position():
    (part,) = cut_convolution(numbered(8, 4, 3, 3))
    cut = cut_windows(part, "square")
    assert cut.slices.shape == (18, 4, 4)
    assert cut.factor == CONV_FACTOR
    assert torch.equal(cut.slices[:2], torch.stack([part.slices[0, :4], part.slices[0, 4:]]))


def test_a_weight_without_entries_has_no_windows():
    assert cut_windows(Part("", torch.empty(1, 0, 5)), "square").slices.numel() == 0


def test_sizes_of_windows_are_taken():
    for windows in (None, "square", 2, 4096):
        check_windows(windows)


@pytest.mark.parametrize("windows", ["round", 1, 0, -3, 2.0, True, [2]])
def test_what_is_no_size_of_windows_is_refused(windows):
    with raises(ValueError, "windows", "'square'", repr(windows)):
        check_windows(windows)
