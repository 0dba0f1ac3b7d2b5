"""Images with labels: the paper's datasets and one's own, as uint8 tensors in memory, and batches of them."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from tempbalance.lab.download import LOCK_TIMEOUT, cache_folder, fetch_data, read_archive, remote_data
from tempbalance.lab.images.files import ARRAYS, Split, decode, load_folder, load_npz
from tempbalance.lab.options import check_dataset
from tempbalance.runlog import replacing

_ALL = slice(None)
PAD = 4  # zeros on each side before a crop, as in the paper
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist

IDX_NAMES = tuple(Path(file.name).name for file in remote_data()["mnist"].files)


@dataclass(frozen=True, eq=False)
class ImageData:
    """A dataset in memory.

    Attributes:
        name: Name of the dataset.
        train_images: Shape ``(N, C, H, W)``, uint8.
        train_labels: Shape ``(N,)``, int64.
        test_images: Shape ``(N, C, H, W)``, uint8.
        test_labels: Shape ``(N,)``, int64.
        num_classes: Number of classes.
        mean: Mean of each channel of the training images, scaled to 0..1.
        std: Standard deviation of each channel; 1 for a constant channel.
        crop: Whether training pads by four pixels and crops at random.
        flip: Whether training flips left and right at random.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: bool
    flip: bool

    def to(self, device: torch.device | str) -> ImageData:
        """Return the data with its tensors on a device."""
        return replace(self, **{name: getattr(self, name).to(device) for name in ARRAYS})

    def digest(self) -> str:
        """Return a checksum of all images and labels."""
        found = hashlib.sha256()
        for name in ARRAYS:
            array = getattr(self, name).cpu().numpy()
            found.update(f"{name} {array.shape} ".encode())
            found.update(array)
        return found.hexdigest()


@dataclass(frozen=True)
class Dataset:
    """A known dataset.

    Attributes:
        load: From the cache folder to its training and test split.
        num_classes: How many classes it has.
        shape: Channels, height and width of an image.
        crop: See `ImageData`.
        flip: See `ImageData`.
    """

    load: Callable[[Path | None], tuple[Split, Split]]
    num_classes: int
    shape: tuple[int, int, int]
    crop: bool = True
    flip: bool = True


def load_data(
    name_or_path: str, *, cache: Path | None = None, limit: int | None = None, test_limit: int | None = None
) -> ImageData:
    """Load a known dataset, an ``.npz`` file or a folder of class folders.

    One's own data is cropped and flipped when training.

    Args:
        name_or_path: A name in `DATASETS`; or the path of an ``.npz`` with train_images, train_labels, test_images and
            test_labels (images uint8 of shape ``(N, H, W)``, ``(N, H, W, C)`` or ``(N, C, H, W)`` with 1 or 3 channels,
            labels integers); or of a folder with ``train/<class>/*.png`` and ``test/<class>/*.png`` (or ``val/``, or
            JPEG, BMP or WebP files), all of one size; gray if all are, otherwise in colour, without transparency.
        cache: Where downloads are kept; see `cache_folder`.
        limit: Largest number of training images and of test images; a fixed random sample is chosen.
        test_limit: Largest number of test images; ``None`` for ``limit``.

    Raises:
        ValueError: If there is no such dataset, or a file holds something else than described.
        DownloadError: If the dataset is not in the cache and cannot be downloaded.
    """
    for name, value in {"limit": limit, "test_limit": test_limit}.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    limits = (limit, limit if test_limit is None else test_limit)
    check_dataset(name_or_path)
    if name_or_path in DATASETS:
        known = DATASETS[name_or_path]
        train, test = known.load(cache)
        return _build(name_or_path, train, test, known.num_classes, limits=limits, crop=known.crop, flip=known.flip)
    path = Path(name_or_path).expanduser()
    train, test, num_classes = load_folder(path) if path.is_dir() else load_npz(path)
    return _build(path.resolve().stem, train, test, num_classes, limits=limits, crop=True, flip=True)


def _build(
    name: str,
    train: Split,
    test: Split,
    num_classes: int,
    *,
    limits: tuple[int | None, int | None],
    crop: bool,
    flip: bool,
) -> ImageData:
    chosen = [_choose(each, limit) for split, limit in zip((train, test), limits, strict=True) for each in split]
    arrays = [np.require(each, requirements=["C", "W"]) for each in chosen]
    train_images, train_labels, test_images, test_labels = map(torch.from_numpy, arrays)
    mean, std = _statistics(train_images)
    return ImageData(
        name, train_images, train_labels, test_images, test_labels, num_classes, mean, std, crop=crop, flip=flip
    )


def _choose(array: NDArray[Any], limit: int | None) -> NDArray[Any]:
    """Choose a fixed random sample of an array, because data may be sorted by class."""
    if limit is None or limit >= len(array):
        return array
    return array[np.random.RandomState(0).permutation(len(array))[:limit]]


def _statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, from the exact counts of its 256 values."""
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)]).double()
    shares = counts / counts.sum(1, keepdim=True)
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = shares @ values
    std = (shares * (values - mean[:, None]) ** 2).sum(1).sqrt()
    return tuple(mean.tolist()), tuple(each or 1.0 for each in std.tolist())


def _load_digits(cache: Path | None) -> tuple[Split, Split]:
    """Load scikit-learn's 8 x 8 digits, 0..16 scaled to 0..255; every fifth image (index 4, 9, ...) is a test image.

    The split is fixed and not stratified.
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    images = np.rint(digits.images[:, None] * (255 / 16)).astype(np.uint8)
    labels = digits.target.astype(np.int64)
    is_test = np.arange(len(labels)) % 5 == 4
    return (images[~is_test], labels[~is_test]), (images[is_test], labels[is_test])


def _load_mnist(cache: Path | None) -> tuple[Split, Split]:
    return _read_idx_files(fetch_data("mnist", cache=cache))


def _load_fashion_mnist(cache: Path | None) -> tuple[Split, Split]:
    """Load the files of Debian's package, whose checksums differ, or download them."""
    paths = [DEBIAN_FASHION_MNIST / name for name in IDX_NAMES]
    if not all(path.is_file() for path in paths):
        paths = fetch_data("fashion_mnist", cache=cache)
    return _read_idx_files(paths)


def _read_idx_files(paths: Sequence[Path]) -> tuple[Split, Split]:
    """Four files in the order of `IDX_NAMES`."""
    train_images, train_labels, test_images, test_labels = map(_read_idx, paths)
    return (
        (train_images[:, None], train_labels.astype(np.int64)),
        (test_images[:, None], test_labels.astype(np.int64)),
    )


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a compressed IDX file: 0, 0, 8 (bytes), the number of dimensions, big-endian int32 sizes, values."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as err:
        raise ValueError(f"{path}: not a complete gzip file: {err}") from err
    num_dims = 1 if "idx1" in path.name else 3
    start = 4 + 4 * num_dims
    if content[:4] != bytes((0, 0, 8, num_dims)) or len(content) < start:
        raise ValueError(f"{path}: must start as an IDX file of {num_dims} dimensions does, got {content[:4]!r}")
    shape = tuple(np.frombuffer(content[4:start], ">i4").tolist())
    if len(content) - start != np.prod(shape):
        raise ValueError(f"{path}: must hold {np.prod(shape)} values for its shape {shape}, got {len(content) - start}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _load_cifar10(cache: Path | None) -> tuple[Split, Split]:
    """Rows of a label and 3 x 32 x 32 pixels."""
    contents = read_archive(fetch_data("cifar10", cache=cache)[0], "cifar-10-batches-bin/*.bin")
    test = contents.pop("cifar-10-batches-bin/test_batch.bin")
    return _parse_cifar(b"".join(contents.values()), label_at=0), _parse_cifar(test, label_at=0)


def _load_cifar100(cache: Path | None) -> tuple[Split, Split]:
    """Rows of a label of 20, one of 100, which is taken, and 3 x 32 x 32 pixels."""
    contents = read_archive(fetch_data("cifar100", cache=cache)[0], "cifar-100-binary/*.bin")
    train, test = (_parse_cifar(contents[f"cifar-100-binary/{name}.bin"], label_at=1) for name in ("train", "test"))
    return train, test


def _parse_cifar(content: bytes, *, label_at: int) -> Split:
    rows = np.frombuffer(content, np.uint8).reshape(-1, label_at + 1 + 3 * 32 * 32)
    return rows[:, label_at + 1 :].reshape(-1, 3, 32, 32), rows[:, label_at].astype(np.int64)


def _load_svhn(cache: Path | None) -> tuple[Split, Split]:
    train, test = map(_read_svhn, fetch_data("svhn", cache=cache))
    return train, test


def _read_svhn(path: Path) -> Split:
    """X has shape (H, W, C, N); y has shape (N, 1), and calls the digit 0 10."""
    from scipy.io import loadmat  # type: ignore[import-untyped]

    content = loadmat(path, variable_names=["X", "y"])
    return content["X"].transpose(3, 2, 0, 1), content["y"].ravel().astype(np.int64) % 10


def _load_tiny_imagenet(cache: Path | None) -> tuple[Split, Split]:
    """Return the images, decoded once into an .npz file of the cache; with that, the archive is not needed."""
    from filelock import FileLock

    folder = cache_folder(cache)
    decoded = folder / "tiny-imagenet-200.npz"
    if not decoded.is_file():
        (path,) = fetch_data("tiny_imagenet", cache=cache)
        if not os.access(folder, os.W_OK):
            return _decode_tiny_imagenet(path)
        with FileLock(f"{decoded}.lock", timeout=LOCK_TIMEOUT):  # other processes wait for the one that decodes
            if not decoded.is_file():
                splits = _decode_tiny_imagenet(path)
                with replacing(decoded) as target:
                    arrays: dict[str, Any] = dict(zip(ARRAYS, (*splits[0], *splits[1]), strict=True))
                    np.savez(target, **arrays)
                return splits
    train, test, _ = load_npz(decoded)
    return train, test


def _decode_tiny_imagenet(path: Path) -> tuple[Split, Split]:
    """Return classes in the order of their names; the validation images are the test split, as annotated."""
    root = path.stem
    contents = read_archive(path, f"{root}/train/*.JPEG", f"{root}/val/*")
    annotations = contents.pop(f"{root}/val/val_annotations.txt").decode().splitlines()
    train = [(name, name.split("/")[2]) for name in contents if name.startswith(f"{root}/train/")]
    test = [(f"{root}/val/images/{name}", label) for name, label, *_ in (line.split("\t") for line in annotations)]
    indices = {label: index for index, label in enumerate(sorted({label for _, label in train}))}

    def split(files: list[tuple[str, str]]) -> Split:
        images, _ = decode([(name, io.BytesIO(contents[name])) for name, _ in files])
        return images, np.array([indices[label] for _, label in files], dtype=np.int64)

    return split(train), split(test)


DATASETS: dict[str, Dataset] = {
    "digits": Dataset(_load_digits, 10, (1, 8, 8), crop=False, flip=False),
    "fashion_mnist": Dataset(_load_fashion_mnist, 10, (1, 28, 28)),
    "mnist": Dataset(_load_mnist, 10, (1, 28, 28), flip=False),
    "cifar10": Dataset(_load_cifar10, 10, (3, 32, 32)),
    "cifar100": Dataset(_load_cifar100, 100, (3, 32, 32)),
    "svhn": Dataset(_load_svhn, 10, (3, 32, 32), flip=False),
    "tiny_imagenet": Dataset(_load_tiny_imagenet, 200, (3, 64, 64)),
}


def batches(
    data: ImageData,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    flip: bool | None = None,
    least: int = 1,
    share: slice = _ALL,
) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Yield the training batches of one epoch, each as images, labels and the number of images of all shares.

    Order, crops and flips follow from ``(seed, epoch)`` and the type of the device, on which they are drawn: the same
    call gives the same bits.

    Args:
        data: On the device where batches are made.
        batch_size: Number of images in a batch; see `batch_bounds`.
        seed: The run's seed.
        epoch: The epoch's number, 0 or more.
        flip: Whether to flip; ``None`` as the data say.
        least: See `batch_bounds`.
        share: Which images of each batch to give: one process' part.
    """
    images, labels = data.train_images, data.train_labels
    state = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)
    generator = torch.Generator(images.device).manual_seed(int(state[0]))
    order = torch.randperm(len(images), generator=generator, device=images.device)
    flip = data.flip if flip is None else flip
    for start, end in batch_bounds(len(order), batch_size, least=least):
        chosen, num = order[start:end][share], end - start
        batch = augment(images[chosen], crop=data.crop, flip=flip, generator=generator, num=num, share=share)
        yield normalize(batch, data.mean, data.std), labels[chosen], num


def batch_bounds(num_images: int, batch_size: int, *, least: int = 1) -> list[tuple[int, int]]:
    """Return the start and end of each batch; a last one with fewer than ``least`` images joins the one before.

    Example:
        >>> batch_bounds(9, 4, least=2)
        [(0, 4), (4, 9)]
    """
    starts = list(range(0, num_images, batch_size))
    if len(starts) > 1 and num_images - starts[-1] < least:
        del starts[-1]
    return list(pairwise([*starts, num_images]))


def augment(
    images: Tensor, *, crop: bool, flip: bool, generator: torch.Generator, num: int | None = None, share: slice = _ALL
) -> Tensor:
    """Crop and flip each image of a batch, uint8 of shape ``(B, C, H, W)``, at random.

    Args:
        images: The batch.
        crop: Pad each side with four zeros and cut the original size out at a random place, one of 81.
        flip: Mirror left and right, one image in two.
        generator: Draws offsets and flips, in this order, on the device of the images.
        num: Number of images that offsets and flips are drawn for, if these are only a share of a batch.
        share: Which of them these images are.
    """
    num = len(images) if num is None else num
    if crop:
        top, left = torch.randint(2 * PAD + 1, (2, num), generator=generator, device=images.device)[:, share]
        height, width = images.shape[2:]
        windows = functional.pad(images, (PAD, PAD, PAD, PAD)).unfold(2, height, 1).unfold(3, width, 1)
        images = windows[torch.arange(len(images), device=images.device), :, top, left]
    if flip:
        flips = torch.randint(2, (num, 1, 1, 1), generator=generator, device=images.device)[share]
        images = torch.where(flips.bool(), images.flip(3), images)
    return images


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return uint8 images as float32: scaled to 0..1, minus the mean and over the standard deviation per channel."""
    # (x / 255 - mean) / std
    shift, scale = _constants(tuple(mean), tuple(std), images.device)
    return images.to(torch.float32, copy=True).sub_(shift).div_(scale)


@lru_cache(maxsize=8)
def _constants(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return 255 x mean and std on the device, where a constant made anew for each batch would have to be copied."""
    shift, scale = (255 * torch.tensor(each).to(device)[:, None, None] for each in (mean, std))
    return shift, scale
