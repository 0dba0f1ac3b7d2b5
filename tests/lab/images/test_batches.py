import pytest
import torch
from torch import Tensor

from tempbalance.lab.images.data import PAD, ImageData, augment, batches, normalize

OPTIONS = {"batch_size": 8, "seed": 43, "epoch": 0}


def data_of(images: Tensor, labels: Tensor, mean=(0.0,), std=(1 / 255,)) -> ImageData:
    return ImageData("own", images, labels, images, labels, len(labels), mean, std, crop=True, flip=True)


def random_images(*shape: int) -> Tensor:
    """Without zeros, so that padding shows."""
    return torch.randint(1, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one_by_one(images: Tensor, offsets: Tensor | None, flips: Tensor | None) -> Tensor:
    """What `augment` does, pixel rows copied literally, an image at a time."""
    height, width = images.shape[2:]
    done = []
    for index, image in enumerate(images):
        if offsets is not None:
            top, left = offsets[:, index].tolist()
            padded = torch.zeros(len(image), height + 2 * PAD, width + 2 * PAD, dtype=torch.uint8)
            padded[:, PAD : PAD + height, PAD : PAD + width] = image
            image = padded[:, top : top + height, left : left + width]
        if flips is not None and flips[index]:
            image = torch.stack([image[:, :, column] for column in reversed(range(width))], dim=2)
        done.append(image)
    return torch.stack(done)


@pytest.mark.parametrize(
    ("shape", "crop", "flip"),
    [
        ((64, 3, 32, 32), True, True),
        ((5, 1, 28, 28), True, True),
        ((1, 1, 1, 1), True, True),
        ((9, 3, 6, 11), True, True),
        ((9, 3, 6, 11), True, False),
        ((9, 3, 6, 11), False, True),
        ((9, 3, 6, 11), False, False),
    ],
)
def test_a_batch_is_augmented_as_a_loop_over_its_images_does(shape, crop, flip):
    images = random_images(*shape)
    before = images.clone()
    result = augment(images, crop=crop, flip=flip, generator=seeded())

    generator = seeded()
    offsets = torch.randint(2 * PAD + 1, (2, len(images)), generator=generator) if crop else None
    flips = torch.randint(2, (len(images), 1, 1, 1), generator=generator).flatten() if flip else None
    assert result.dtype == torch.uint8
    assert torch.equal(result, one_by_one(images, offsets, flips))
    assert torch.equal(images, before)


def test_every_offset_occurs_about_equally_often_with_and_without_a_flip():
    image = random_images(1, 3, 32, 32)
    copies = image.expand(16200, -1, -1, -1)
    results = augment(copies, crop=True, flip=True, generator=seeded())

    places = torch.tensor([(top, left) for top in range(9) for left in range(9)] * 2).T
    flips = torch.arange(162) >= 81
    variants = one_by_one(image.expand(162, -1, -1, -1), places, flips)
    kinds, counts = results.flatten(1).unique(dim=0, return_counts=True)
    assert len(variants.flatten(1).unique(dim=0)) == 162
    assert torch.equal(kinds, variants.flatten(1).unique(dim=0))
    assert counts.min() > 50  # 100 are expected, with a deviation of 10
    assert counts.max() < 150


def test_images_of_one_batch_are_augmented_differently():
    copies = random_images(1, 3, 32, 32).expand(64, -1, -1, -1)
    assert len(augment(copies, crop=True, flip=False, generator=seeded()).flatten(1).unique(dim=0)) > 30
    assert len(augment(copies, crop=False, flip=True, generator=seeded()).flatten(1).unique(dim=0)) == 2


def test_normalised_pixels_are_scaled_to_one_and_standardised_per_channel():
    images = torch.tensor([[[[0, 255]], [[51, 102]]]], dtype=torch.uint8)
    result = normalize(images, (0.5, 0.2), (0.25, 0.1))
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, torch.tensor([[[[-2.0, 2.0]], [[0.0, 2.0]]]]))


def epoch_of(data: ImageData, **options) -> tuple[Tensor, Tensor]:
    pairs = list(batches(data, **{**OPTIONS, **options}))
    return torch.cat([images for images, _, _ in pairs]), torch.cat([labels for _, labels, _ in pairs])


def test_each_image_comes_once_an_epoch_with_its_own_label():
    labels = torch.arange(1, 101)
    images = labels.to(torch.uint8)[:, None, None, None].expand(-1, 1, 12, 12)  # each of one value: its label
    seen, seen_labels = epoch_of(data_of(images, labels))
    assert torch.equal(seen.amax((1, 2, 3)).round().long(), seen_labels)  # the maximum, as crops bring zeros in
    assert torch.equal(seen_labels.sort().values, labels)
    assert not torch.equal(seen_labels, labels)


def test_an_epoch_follows_from_seed_and_epoch_alone():
    images, labels = random_images(50, 3, 8, 8), torch.arange(50)
    data = data_of(images, labels, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    first = epoch_of(data, seed=13, epoch=5)
    torch.rand(100)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    again = epoch_of(data, seed=13, epoch=5)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert torch.equal(torch.get_rng_state(), state)


def test_seeds_and_epochs_give_different_orders_crops_and_flips():
    images, labels = random_images(1, 1, 16, 16).expand(64, -1, -1, -1), torch.arange(64)
    pairs = [(seed, epoch) for seed in range(5) for epoch in range(5)]  # (1, 2) and (2, 1) among them
    epochs = [epoch_of(data_of(images, labels), seed=seed, epoch=epoch) for seed, epoch in pairs]
    assert len({tuple(labels.tolist()) for _, labels in epochs}) == 25
    assert len({tuple(images.flatten().tolist()) for images, _ in epochs}) == 25


@pytest.mark.parametrize(
    ("num_images", "least", "sizes"),
    [(20, 1, [8, 8, 4]), (20, 4, [8, 8, 4]), (20, 5, [8, 12]), (17, 1, [8, 8, 1]), (17, 2, [8, 9]), (3, 4, [3])],
)
def test_the_last_batch_has_what_remains_and_is_joined_to_the_one_before_if_that_is_too_little(
    num_images, least, sizes
):
    images, labels = random_images(num_images, 1, 4, 4), torch.arange(num_images)
    found = list(batches(data_of(images, labels), **OPTIONS, least=least))
    assert [len(each) for _, each, _ in found] == [num for _, _, num in found] == sizes
    assert sorted(torch.cat([each for _, each, _ in found]).tolist()) == list(range(num_images))


def test_the_shares_of_two_processes_are_the_batches_of_one():
    images, labels = random_images(21, 3, 8, 8), torch.arange(21)
    data = data_of(images, labels, (0.5,) * 3, (0.2,) * 3)
    whole, even, odd = (
        list(batches(data, **OPTIONS, share=share)) for share in (slice(None), slice(0, None, 2), slice(1, None, 2))
    )
    for (all_images, all_labels, num), *shares in zip(whole, even, odd, strict=True):
        for rank, (part, part_labels, part_num) in enumerate(shares):
            assert torch.equal(part, all_images[rank::2])
            assert torch.equal(part_labels, all_labels[rank::2])
            assert part_num == num == len(all_labels)
