"""Images with labels: the paper's datasets and one's own, as uint8 tensors in memory, and batches of them."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import warnings
import zipfile
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
from tempbalance.lab.options import check_dataset
from tempbalance.runlog import replacing

Array = NDArray[Any]
Split = tuple[Array, Array]  # images, uint8 of shape (N, C, H, W), and labels, int64 of shape (N,)

PAD = 4  # zeros on each side before a crop, as in the paper
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist
IDX_NAMES = tuple(Path(file.name).name for file in remote_data()["mnist"].files)
_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_MOST_GAPS = 10  # the largest label is below this many times the number of classes with images
_ALL = slice(None)


@dataclass(frozen=True, eq=False)
class ImageData:
    """A dataset in memory: images are uint8 of shape ``(N, C, H, W)``, labels int64."""

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    num_classes: int
    mean: tuple[float, ...]  # of each channel of the training images, scaled to 0..1
    std: tuple[float, ...]  # 1 for a constant channel
    crop: bool  # whether training pads by four pixels and crops at random
    flip: bool  # whether training flips left and right at random

    def to(self, device: torch.device | str) -> ImageData:
        return replace(self, **{name: getattr(self, name).to(device) for name in _ARRAYS})

    def digest(self) -> str:
        """Return a checksum of all images and labels."""
        found = hashlib.sha256()
        for name in _ARRAYS:
            array = getattr(self, name).cpu().numpy()
            found.update(f"{name} {array.shape} ".encode())
            found.update(array)
        return found.hexdigest()


def load_data(
    name_or_path: str, *, cache: Path | None = None, limit: int | None = None, test_limit: int | None = None
) -> ImageData:
    """Load a known dataset, an ``.npz`` file or a folder of class folders; one's own data are cropped and flipped.

    An ``.npz`` file has train_images, train_labels, test_images and test_labels: images uint8 of shape ``(N, H, W)``,
    ``(N, H, W, C)`` or ``(N, C, H, W)`` with 1 or 3 channels, labels integers. A folder has ``train/<class>/*.png`` and
    ``test/<class>/*.png`` (or ``val/``, or JPEG, BMP or WebP files), all of one size; gray if all are, otherwise in
    colour, without transparency. Limits choose a fixed random sample; ``test_limit`` is that of training if not given.
    """
    for name, value in {"limit": limit, "test_limit": test_limit}.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    check_dataset(name_or_path)
    if name_or_path in DATASETS:
        known = DATASETS[name_or_path]
        (train, test), num_classes, name = known.load(name_or_path, cache), known.num_classes, name_or_path
    else:
        known, path = DATASETS["cifar10"], Path(name_or_path).expanduser()
        train, test, num_classes = _load_folder(path) if path.is_dir() else _load_npz(path)
        name = path.resolve().stem
    limits = (limit, limit, *(2 * [limit if test_limit is None else test_limit]))
    chosen = [_choose(each, most) for each, most in zip((*train, *test), limits, strict=True)]
    tensors: list[Any] = [torch.from_numpy(np.require(each, requirements=["C", "W"])) for each in chosen]
    arrays: dict[str, Any] = dict(zip(_ARRAYS, tensors, strict=True))
    mean, std = _statistics(tensors[0])
    return ImageData(name, **arrays, num_classes=num_classes, mean=mean, std=std, crop=known.crop, flip=known.flip)


def _choose(array: Array, limit: int | None) -> Array:
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


def _load_digits(name: str, cache: Path | None) -> tuple[Split, Split]:
    """Load scikit-learn's 8 x 8 digits, 0..16 scaled to 0..255; every fifth image (index 4, 9, ...) is a test image."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    images = np.rint(digits.images[:, None] * (255 / 16)).astype(np.uint8)
    labels = digits.target.astype(np.int64)
    is_test = np.arange(len(labels)) % 5 == 4
    return (images[~is_test], labels[~is_test]), (images[is_test], labels[is_test])


def _load_mnist(name: str, cache: Path | None) -> tuple[Split, Split]:
    """Load the four files of MNIST, or of Fashion-MNIST, which Debian has too, with other checksums."""
    paths = [DEBIAN_FASHION_MNIST / each for each in IDX_NAMES]
    if name == "mnist" or not all(path.is_file() for path in paths):
        paths = fetch_data(name, cache=cache)
    train_images, train_labels, test_images, test_labels = map(_read_idx, paths)
    return (
        (train_images[:, None], train_labels.astype(np.int64)),
        (test_images[:, None], test_labels.astype(np.int64)),
    )


def _read_idx(path: Path) -> Array:
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


def _load_cifar(name: str, cache: Path | None) -> tuple[Split, Split]:
    """Rows of a label and 3 x 32 x 32 pixels; of CIFAR-100 they have two labels, the second being one of 100."""
    label_at = 0 if name == "cifar10" else 1
    contents = read_archive(fetch_data(name, cache=cache)[0], "cifar-10*/*.bin")
    test = contents.pop(next(each for each in contents if "/test" in each))

    def parse(content: bytes) -> Split:
        rows = np.frombuffer(content, np.uint8).reshape(-1, label_at + 1 + 3 * 32 * 32)
        return rows[:, label_at + 1 :].reshape(-1, 3, 32, 32), rows[:, label_at].astype(np.int64)

    return parse(b"".join(contents.values())), parse(test)


def _load_svhn(name: str, cache: Path | None) -> tuple[Split, Split]:
    """X has shape (H, W, C, N); y has shape (N, 1), and calls the digit 0 10."""
    from scipy.io import loadmat  # type: ignore[import-untyped]

    contents = [loadmat(path, variable_names=["X", "y"]) for path in fetch_data(name, cache=cache)]
    train, test = ((each["X"].transpose(3, 2, 0, 1), each["y"].ravel().astype(np.int64) % 10) for each in contents)
    return train, test


def _load_tiny_imagenet(name: str, cache: Path | None) -> tuple[Split, Split]:
    """Return the images, decoded once into an .npz file of the cache; with that, the archive is not needed."""
    from filelock import FileLock

    folder = cache_folder(cache)
    decoded = folder / "tiny-imagenet-200.npz"
    if not decoded.is_file():
        (path,) = fetch_data(name, cache=cache)
        if not os.access(folder, os.W_OK):
            return _decode_tiny_imagenet(path)
        with FileLock(f"{decoded}.lock", timeout=LOCK_TIMEOUT):  # other processes wait for the one that decodes
            if not decoded.is_file():
                splits = _decode_tiny_imagenet(path)
                with replacing(decoded) as target:
                    arrays: dict[str, Any] = dict(zip(_ARRAYS, (*splits[0], *splits[1]), strict=True))
                    np.savez(target, **arrays)
                return splits
    train, test, _ = _load_npz(decoded)
    return train, test


def _decode_tiny_imagenet(path: Path) -> tuple[Split, Split]:
    """Return classes in the order of their names; the validation images are the test split, as annotated."""
    root = path.stem
    contents = read_archive(path, f"{root}/train/*.JPEG", f"{root}/val/*")
    annotations = contents.pop(f"{root}/val/val_annotations.txt").decode().splitlines()
    train = [(name, name.split("/")[2]) for name in contents if name.startswith(f"{root}/train/")]
    test = [(f"{root}/val/images/{name}", label) for name, label, *_ in (line.split("\t") for line in annotations)]
    classes = sorted({label for _, label in train})

    def split(files: list[tuple[str, str]]) -> Split:
        images, _ = decode([(name, io.BytesIO(contents[name])) for name, _ in files])
        return images, _indices([label for _, label in files], classes)

    return split(train), split(test)


def _indices(labels: Sequence[str], classes: Sequence[str]) -> Array:
    places = {name: index for index, name in enumerate(classes)}
    return np.array([places[label] for label in labels], dtype=np.int64)


@dataclass(frozen=True)
class Dataset:
    """A known dataset; ``load`` takes its name and the cache folder, the shape is channels, height and width."""

    load: Callable[[str, Path | None], tuple[Split, Split]]
    num_classes: int
    shape: tuple[int, int, int]
    crop: bool = True
    flip: bool = True


DATASETS: dict[str, Dataset] = {
    "digits": Dataset(_load_digits, 10, (1, 8, 8), crop=False, flip=False),
    "fashion_mnist": Dataset(_load_mnist, 10, (1, 28, 28)),
    "mnist": Dataset(_load_mnist, 10, (1, 28, 28), flip=False),
    "cifar10": Dataset(_load_cifar, 10, (3, 32, 32)),
    "cifar100": Dataset(_load_cifar, 100, (3, 32, 32)),
    "svhn": Dataset(_load_svhn, 10, (3, 32, 32), flip=False),
    "tiny_imagenet": Dataset(_load_tiny_imagenet, 200, (3, 64, 64)),
}


def decode(files: Sequence[tuple[str, Path | io.BytesIO]]) -> tuple[Array, bool]:
    """Return named image files as colour images of shape ``(N, 3, H, W)``, and whether all of them are gray."""
    from PIL import Image

    images: Array | None = None
    is_gray = True
    for index, (name, file) in enumerate(files):
        try:
            with Image.open(file) as image:
                mode = image.mode
                pixels = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
        except OSError as err:
            raise ValueError(f"{name}: not a readable image: {err}") from err
        if mode.startswith(("I", "F")):
            raise ValueError(f"{name}: images must have 8 bits a channel, got mode {mode!r}")
        if images is None:
            images = np.empty((len(files), *pixels.shape), np.uint8)
        if pixels.shape != images.shape[1:]:
            sizes = [" x ".join(map(str, shape[-2:])) for shape in (images.shape, pixels.shape)]
            raise ValueError(f"{name}: images must all have the size of the first, {sizes[0]}, got {sizes[1]}")
        images[index] = pixels
        is_gray = is_gray and mode in ("1", "L", "LA")
    assert images is not None
    return images, is_gray


def _load_folder(folder: Path) -> tuple[Split, Split, int]:
    """Load class folders in ``train`` and in ``test`` or ``val``, sorted by name."""
    parts = [folder / "train", folder / "test" if (folder / "test").is_dir() else folder / "val"]
    for each, name in zip(parts, ("train", "test (or val)"), strict=True):
        if not each.is_dir():
            raise ValueError(f"{folder}: must have the folders train and test (or val), {name} is missing")
    found = [_find_images(part) for part in parts]
    classes, test_classes = ({path.parent.name: None for path in paths} for paths in found)
    if unknown := sorted({*test_classes} - {*classes}):
        raise ValueError(f"{parts[1]}: classes must be among those of {parts[0]}, got {unknown}")
    (train, is_gray), (test, is_test_gray) = (decode([(str(path), path) for path in paths]) for paths in found)
    if train.shape[1:] != test.shape[1:]:
        raise ValueError(
            f"{folder}: training and test images must have one size, got {train.shape[2:]} and {test.shape[2:]}"
        )
    num_channels = 1 if is_gray and is_test_gray else 3
    train_labels, test_labels = (_indices([path.parent.name for path in paths], [*classes]) for paths in found)
    return (train[:, :num_channels], train_labels), (test[:, :num_channels], test_labels), len(classes)


def _find_images(folder: Path) -> list[Path]:
    """Return the images in class folders by name; hidden folders are ignored."""
    classes = sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    found = [
        path
        for each in classes
        for path in sorted(each.iterdir())
        if path.suffix.lower() in _SUFFIXES and path.is_file()
    ]
    if not found:
        raise ValueError(f"{folder}: must have class folders with images ({', '.join(_SUFFIXES)}), found none")
    return found


def _load_npz(path: Path) -> tuple[Split, Split, int]:
    """Load and check the four arrays of a file."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise ValueError(f"{path}: must be an .npz file")
    arrays = {}
    with np.load(path, allow_pickle=False) as file:
        if missing := [name for name in _ARRAYS if name not in file]:
            raise ValueError(f"{path}: must hold the arrays {', '.join(_ARRAYS)}; {', '.join(missing)} missing")
        for name in _ARRAYS:
            try:
                arrays[name] = file[name]
            except (ValueError, EOFError, OSError, MemoryError, zipfile.BadZipFile, zlib.error) as err:
                raise ValueError(f"{path}: {name} cannot be read: {err}") from err
            if not isinstance(arrays[name], np.ndarray):
                raise ValueError(f"{path}: {name} must be an array, got {type(arrays[name]).__name__}")
    train, test = (
        _check_split(f"{path}: {part}", arrays[f"{part}_images"], arrays[f"{part}_labels"])
        for part in ("train", "test")
    )
    if train[0].shape[1:] != test[0].shape[1:]:
        raise ValueError(
            f"{path}: train_images and test_images must have the same channels, height and width, got "
            f"{train[0].shape[1:]} and {test[0].shape[1:]}"
        )
    num_classes, num_present = int(train[1].max()) + 1, len(np.unique(train[1]))
    if num_classes > _MOST_GAPS * num_present:
        raise ValueError(
            f"{path}: train_labels must be below {_MOST_GAPS} x the {num_present} classes there are, "
            f"got {num_classes - 1}: number the classes from 0 on"
        )
    if num_present < num_classes:
        warnings.warn(f"{path}: only {num_present} of the classes 0 to {num_classes - 1} have images", stacklevel=2)
    if test[1].max() >= num_classes:
        raise ValueError(
            f"{path}: test_labels must be classes of train_labels, 0 to {num_classes - 1}, got {test[1].max()}"
        )
    return train, test, num_classes


def _check_split(where: str, images: Array, labels: Array) -> Split:
    """Check images and labels, and move the channels to the front."""
    if images.dtype != np.uint8:
        raise ValueError(f"{where}_images must be uint8, got {images.dtype}")
    if images.ndim not in (3, 4) or 0 in images.shape:
        raise ValueError(
            f"{where}_images must have the shape (N, H, W), (N, H, W, C) or (N, C, H, W), got {images.shape}"
        )
    if images.ndim == 3:
        images = images[:, None]
    else:
        is_first, is_last = images.shape[1] in (1, 3), images.shape[3] in (1, 3)
        if is_first == is_last:
            raise ValueError(
                f"{where}_images must have 1 or 3 channels, either as (N, H, W, C) or as (N, C, H, W), got "
                f"{images.shape}"
            )
        images = images.transpose(0, 3, 1, 2) if is_last else images
    if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        raise ValueError(f"{where}_labels must be {len(images)} integers, got {labels.dtype} of shape {labels.shape}")
    if labels.min() < 0:
        raise ValueError(f"{where}_labels must be at least 0, got {labels.min()}")
    if labels.max() >= 2**31:
        raise ValueError(f"{where}_labels must be below 2**31, got {labels.max()}")
    return images, labels.astype(np.int64)


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
    call gives the same bits. A ``share`` is one process' part of each batch.
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
    """Pad and crop uint8 images at one of 81 places, and mirror one in two left and right.

    Offsets and flips are drawn in this order, on the device of the images: for ``num`` images, of which these are the
    ``share``.
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
