"""Batches of images: shuffled, cropped, flipped and normalised on the device where they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

_ALL = slice(None)
PAD = 4  # zeros on each side before a crop, as in the paper


def augment(
    images: Tensor, *, crop: bool, flip: bool, generator: torch.Generator, num: int | None = None, share: slice = _ALL
) -> Tensor:
    """Crop and flip each image of a batch at random.

    Args:
        images: Shape ``(B, C, H, W)``, uint8.
        crop: Pad each side with four zeros and cut the original size out at a random place, one of 81.
        flip: Mirror left and right, one image in two.
        generator: What offsets and flips are drawn from, in this order, on the device of the images.
        num: How many images offsets and flips are drawn for, if these are only a share of a batch.
        share: Which of them these images are.

    Returns:
        A batch of the same shape, type and device.
    """
    num = len(images) if num is None else num
    if crop:
        top, left = torch.randint(2 * PAD + 1, (2, num), generator=generator, device=images.device)[:, share]
        images = _crop(images, top, left)
    if flip:
        flips = torch.randint(2, (num, 1, 1, 1), generator=generator, device=images.device)[share]
        images = torch.where(flips.bool(), images.flip(3), images)
    return images


def _crop(images: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """Cut an image's own size out of each padded image, at its ``top`` and ``left``, shape ``(B,)``."""
    height, width = images.shape[2:]
    windows = functional.pad(images, (PAD, PAD, PAD, PAD)).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(len(images), device=images.device), :, top, left]


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Normalise images to float32: scale to 0..1, subtract the mean and divide by the standard deviation per channel.

    Args:
        images: Shape ``(B, C, H, W)``, uint8.
        mean: Mean of each channel, for pixels scaled to 0..1.
        std: Standard deviation of each channel, positive.

    Raises:
        ValueError: If there is not one mean and one positive standard deviation a channel.
    """
    num_channels = images.shape[1]
    if len(mean) != num_channels or len(std) != num_channels or min(std) <= 0:
        raise ValueError(f"mean and std > 0 must have {num_channels} values, got {mean!r} and {std!r}")
    # (x / 255 - mean) / std
    shift, scale = _constants(tuple(mean), tuple(std), images.device)
    return images.to(torch.float32, copy=True).sub_(shift).div_(scale)


@lru_cache(maxsize=8)
def _constants(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return 255 x mean and std on the device, where a constant made anew for each batch would have to be copied."""
    shift, scale = (255 * torch.tensor(each).to(device)[:, None, None] for each in (mean, std))
    return shift, scale


def batches(
    images: Tensor,
    labels: Tensor,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    crop: bool,
    flip: bool,
    mean: Sequence[float],
    std: Sequence[float],
    least: int = 1,
    share: slice = _ALL,
) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Return the training batches of one epoch, each as images, labels and the number of images of all shares.

    Order, crops and flips follow from ``(seed, epoch)`` and the type of the device, on which they are drawn: the same
    call gives the same bits.

    Args:
        images: Shape ``(N, C, H, W)``, uint8.
        labels: Shape ``(N,)``, on the same device.
        batch_size: How many images a batch has; see `batch_bounds`.
        seed: The run's seed, 0 or more.
        epoch: The epoch's number, 0 or more.
        crop: See `augment`.
        flip: See `augment`.
        mean: See `normalize`.
        std: See `normalize`.
        least: See `batch_bounds`.
        share: Which images of each batch to give: one process' part.

    Raises:
        ValueError: If an option is out of its range or there is not one label an image.
    """
    if len(images) != len(labels):
        raise ValueError(f"there must be one label an image, got {len(labels)} labels for {len(images)} images")
    for name, value, lowest in (("batch_size", batch_size, 1), ("seed", seed, 0), ("epoch", epoch, 0)):
        if value < lowest:
            raise ValueError(f"{name} must be at least {lowest}, got {value!r}")
    state = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)
    generator = torch.Generator(images.device).manual_seed(int(state[0]))
    order = torch.randperm(len(images), generator=generator, device=images.device)

    def generate() -> Iterator[tuple[Tensor, Tensor, int]]:
        for start, end in batch_bounds(len(order), batch_size, least=least):
            chosen, num = order[start:end][share], end - start
            batch = augment(images[chosen], crop=crop, flip=flip, generator=generator, num=num, share=share)
            yield normalize(batch, mean, std), labels[chosen], num

    return generate()


def batch_bounds(num_images: int, batch_size: int, *, least: int = 1) -> list[tuple[int, int]]:
    """Return the start and end of each batch.

    Args:
        num_images: Images in an epoch.
        batch_size: Images in all batches but the last, which has the rest.
        least: If the last batch is smaller, it joins the one before.

    Example:
        >>> batch_bounds(9, 4, least=2)
        [(0, 4), (4, 9)]
    """
    starts = list(range(0, num_images, batch_size))
    if len(starts) > 1 and num_images - starts[-1] < least:
        del starts[-1]
    return list(pairwise([*starts, num_images]))
