"""Images with labels: the paper's datasets and one's own, as uint8 tensors in memory."""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tempbalance.lab.download import RemoteFile, fetch, read_archive

Split = tuple[NDArray[np.uint8], NDArray[np.int64]]  # images (N, C, H, W) and labels (N,)

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
SUFFIXES = (".png", ".jpg", ".jpeg")
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist

# Checksums: issue 3 for CIFAR, SVHN and Tiny ImageNet; torchvision's for MNIST and Fashion-MNIST.
CIFAR10 = RemoteFile(
    "cifar-10-binary.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    "c32a1d4ab5d03f1284b67883e8d87530",
)
CIFAR100 = RemoteFile(
    "cifar-100-binary.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
    "03b5dce01913d631647c71ecec9e9cb8",
)
SVHN = tuple(
    RemoteFile(f"svhn/{name}", (f"http://ufldl.stanford.edu/housenumbers/{name}",), md5)
    for name, md5 in (
        ("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
        ("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
    )
)
TINY_IMAGENET = RemoteFile(
    "tiny-imagenet-200.zip",
    ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
    "90528d7ca1a48142e341f4ef8d21d0de",
)
IDX_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def _idx_files(folder: str, mirrors: Sequence[str], md5s: Sequence[str]) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(f"{folder}/{name}", tuple(f"{mirror}/{name}" for mirror in mirrors), md5)
        for name, md5 in zip(IDX_NAMES, md5s, strict=True)
    )


MNIST = _idx_files(
    "mnist",
    ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
    (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
)
FASHION_MNIST = _idx_files(
    "fashion-mnist",
    (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    ),
    (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
)


@dataclass(frozen=True, eq=False)
class ImageData:
    """A dataset in memory.

    Attributes:
        name: What it is called.
        train_images: Shape ``(N, C, H, W)``, uint8.
        train_labels: Shape ``(N,)``, int64.
        test_images: Likewise.
        test_labels: Likewise.
        num_classes: Labels are below it.
        mean: Of each channel of the training images, scaled to 0..1.
        std: Likewise; 1 for a channel that is constant.
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
        """The same data with its tensors on a device."""
        return replace(self, **{name: getattr(self, name).to(device) for name in ARRAYS})


@dataclass(frozen=True)
class Dataset:
    """A known dataset.

    Attributes:
        load: From the cache folder to its training and test split.
        num_classes: How many classes it has.
        crop: See `ImageData`.
        flip: See `ImageData`.
    """

    load: Callable[[Path | None], tuple[Split, Split]]
    num_classes: int
    crop: bool = True
    flip: bool = True


def load_data(name_or_path: str, *, cache: Path | None = None, limit: int | None = None) -> ImageData:
    """Load a known dataset, an ``.npz`` file or a folder of class folders.

    One's own data is cropped and flipped when training.

    Args:
        name_or_path: A name in `DATASETS`; or the path of an ``.npz`` with train_images, train_labels, test_images and
            test_labels (images uint8 of shape ``(N, H, W)``, ``(N, H, W, C)`` or ``(N, C, H, W)`` with 1 or 3 channels,
            labels integers); or of a folder with ``train/<class>/*.png`` and ``test/<class>/*.png`` (or ``val/``, or
            JPEG files), all of one size; gray if all are, otherwise in colour, without transparency.
        cache: Where downloads are kept; see `cache_folder`.
        limit: Keep only the first so many training and the first so many test images.

    Raises:
        ValueError: If there is no such dataset, or a file holds something else than described.
        DownloadError: If the dataset is neither in the cache nor to be had.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(f"limit must be a whole number of at least 1, got {limit!r}")
    path = Path(name_or_path).expanduser()
    if name_or_path in DATASETS:
        known = DATASETS[name_or_path]
        train, test = known.load(cache)
        return _build(name_or_path, train, test, known.num_classes, limit=limit, crop=known.crop, flip=known.flip)
    if path.is_dir():
        train, test, num_classes = _load_folder(path)
    elif path.is_file():
        train, test, num_classes = _load_npz(path)
    else:
        close = get_close_matches(name_or_path.lower().replace("-", "_"), DATASETS)
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise ValueError(
            f"dataset must be one of {', '.join(DATASETS)}, or the path of an .npz file or of a folder with train and "
            f"test folders, got {name_or_path!r}{hint}"
        )
    return _build(path.resolve().stem, train, test, num_classes, limit=limit, crop=True, flip=True)


def _build(
    name: str, train: Split, test: Split, num_classes: int, *, limit: int | None, crop: bool, flip: bool
) -> ImageData:
    arrays = [np.require(each[:limit], requirements=["C", "W"]) for each in (*train, *test)]
    train_images, train_labels, test_images, test_labels = map(torch.from_numpy, arrays)
    mean, std = _statistics(train_images)
    return ImageData(
        name, train_images, train_labels, test_images, test_labels, num_classes, mean, std, crop=crop, flip=flip
    )


def _statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, from the exact counts of its 256 values."""
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)]).double()
    shares = counts / counts.sum(1, keepdim=True)
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = shares @ values
    std = (shares * (values - mean[:, None]) ** 2).sum(1).sqrt()
    return tuple(mean.tolist()), tuple(each or 1.0 for each in std.tolist())


def _load_digits(cache: Path | None) -> tuple[Split, Split]:
    """Scikit-learn's 8 x 8 digits, 0..16 scaled to 0..255; every fifth image (index 4, 9, ...) is a test image.

    The split is fixed and not stratified.
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    images = np.rint(digits.images[:, None] * (255 / 16)).astype(np.uint8)
    labels = digits.target.astype(np.int64)
    is_test = np.arange(len(labels)) % 5 == 4
    return (images[~is_test], labels[~is_test]), (images[is_test], labels[is_test])


def _load_mnist(cache: Path | None) -> tuple[Split, Split]:
    return _read_idx_files([fetch(file, cache=cache) for file in MNIST])


def _load_fashion_mnist(cache: Path | None) -> tuple[Split, Split]:
    """From Debian's package, whose files are compressed anew and so have other checksums, or downloaded."""
    paths = [DEBIAN_FASHION_MNIST / name for name in IDX_NAMES]
    if not all(path.is_file() for path in paths):
        paths = [fetch(file, cache=cache) for file in FASHION_MNIST]
    return _read_idx_files(paths)


def _read_idx_files(paths: Sequence[Path]) -> tuple[Split, Split]:
    """Four files in the order of `IDX_NAMES`."""
    train_images, train_labels, test_images, test_labels = map(_read_idx, paths)
    return (
        (train_images[:, None], train_labels.astype(np.int64)),
        (test_images[:, None], test_labels.astype(np.int64)),
    )


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in a compressed IDX file: 0, 0, 8 (bytes), the number of dimensions, each as big-endian int32, values.

    Raises:
        ValueError: If the file is anything else.
    """
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
    contents = read_archive(fetch(CIFAR10, cache=cache), "cifar-10-batches-bin/*.bin")
    test = contents.pop("cifar-10-batches-bin/test_batch.bin")
    return _parse_cifar(b"".join(contents.values()), label_at=0), _parse_cifar(test, label_at=0)


def _load_cifar100(cache: Path | None) -> tuple[Split, Split]:
    """Rows of a label of 20, one of 100, which is taken, and 3 x 32 x 32 pixels."""
    contents = read_archive(fetch(CIFAR100, cache=cache), "cifar-100-binary/*.bin")
    train, test = (_parse_cifar(contents[f"cifar-100-binary/{name}.bin"], label_at=1) for name in ("train", "test"))
    return train, test


def _parse_cifar(content: bytes, *, label_at: int) -> Split:
    rows = np.frombuffer(content, np.uint8).reshape(-1, label_at + 1 + 3 * 32 * 32)
    return rows[:, label_at + 1 :].reshape(-1, 3, 32, 32), rows[:, label_at].astype(np.int64)


def _load_svhn(cache: Path | None) -> tuple[Split, Split]:
    train, test = (_read_svhn(fetch(file, cache=cache)) for file in SVHN)
    return train, test


def _read_svhn(path: Path) -> Split:
    """X has shape (H, W, C, N); y has shape (N, 1), and calls the digit 0 10."""
    from scipy.io import loadmat  # type: ignore[import-untyped]

    content = loadmat(path, variable_names=["X", "y"])
    return content["X"].transpose(3, 2, 0, 1), content["y"].ravel().astype(np.int64) % 10


def _load_tiny_imagenet(cache: Path | None) -> tuple[Split, Split]:
    """Classes in the order of their names; the validation images, which are the test split, as annotated."""
    root = TINY_IMAGENET.name.removesuffix(".zip")
    contents = read_archive(fetch(TINY_IMAGENET, cache=cache), f"{root}/train/*.JPEG", f"{root}/val/*")
    annotations = contents.pop(f"{root}/val/val_annotations.txt").decode().splitlines()
    train = [(name, name.split("/")[2]) for name in contents if name.startswith(f"{root}/train/")]
    test = [(f"{root}/val/images/{name}", label) for name, label, *_ in (line.split("\t") for line in annotations)]
    indices = {label: index for index, label in enumerate(sorted({label for _, label in train}))}

    def split(files: list[tuple[str, str]]) -> Split:
        images, _ = _decode([(name, io.BytesIO(contents[name])) for name, _ in files])
        return images, np.array([indices[label] for _, label in files], dtype=np.int64)

    return split(train), split(test)


def _decode(files: Sequence[tuple[str, Path | io.BytesIO]]) -> tuple[NDArray[np.uint8], bool]:
    """Named image files as colour images of shape ``(N, 3, H, W)``, and whether all of them are gray.

    Raises:
        ValueError: If a file is no image, has more than 8 bits a channel, or another size than the first; it names it.
    """
    from PIL import Image

    images: NDArray[np.uint8] | None = None
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
    """Class folders in ``train`` and in ``test`` or ``val``; classes in the order of their names.

    Raises:
        ValueError: If a folder or its images are missing, or a test class is no training class.
    """
    splits = [folder / "train", folder / "test" if (folder / "test").is_dir() else folder / "val"]
    for each in splits:
        if not each.is_dir():
            raise ValueError(f"{folder}: must have the folders train and test (or val), {each.name} is missing")
    classes, test_classes = (sorted(each.name for each in split.iterdir() if each.is_dir()) for split in splits)
    if unknown := sorted({*test_classes} - {*classes}):
        raise ValueError(f"{splits[1]}: classes must be among those of {splits[0]}, got {unknown}")
    (train_images, train_labels, is_gray), (test_images, test_labels, is_test_gray) = (
        _read_class_folders(split, classes) for split in splits
    )
    if train_images.shape[1:] != test_images.shape[1:]:
        raise ValueError(
            f"{folder}: training and test images must have one size, got {train_images.shape[2:]} and "
            f"{test_images.shape[2:]}"
        )
    num_channels = 1 if is_gray and is_test_gray else 3
    return (train_images[:, :num_channels], train_labels), (test_images[:, :num_channels], test_labels), len(classes)


def _read_class_folders(folder: Path, classes: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64], bool]:
    found = [
        (path, index)
        for index, name in enumerate(classes)
        for path in sorted((folder / name).glob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    if not found:
        raise ValueError(f"{folder}: must have class folders with images ({', '.join(SUFFIXES)}), found none")
    images, is_gray = _decode([(str(path), path) for path, _ in found])
    return images, np.array([index for _, index in found], dtype=np.int64), is_gray


def _load_npz(path: Path) -> tuple[Split, Split, int]:
    """The four arrays of a file, checked.

    Raises:
        ValueError: If the file is no ``.npz``, lacks an array, or one is not as `load_data` describes.
    """
    arrays = _read_npz(path)
    train, test = (
        _check_split(path, split, arrays[f"{split}_images"], arrays[f"{split}_labels"]) for split in ("train", "test")
    )
    if train[0].shape[1:] != test[0].shape[1:]:
        raise ValueError(
            f"{path}: train_images and test_images must have the same channels, height and width, got "
            f"{train[0].shape[1:]} and {test[0].shape[1:]}"
        )
    num_classes = int(train[1].max()) + 1
    if test[1].max() >= num_classes:
        raise ValueError(
            f"{path}: test_labels must be classes of train_labels, 0 to {num_classes - 1}, got {test[1].max()}"
        )
    return train, test, num_classes


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path}: must be an .npz file")
    with np.load(path, allow_pickle=False) as file:
        if missing := [name for name in ARRAYS if name not in file]:
            raise ValueError(f"{path}: must hold the arrays {', '.join(ARRAYS)}; {', '.join(missing)} missing")
        arrays = {}
        for name in ARRAYS:
            try:
                arrays[name] = file[name]
            except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as err:
                raise ValueError(f"{path}: {name} cannot be read: {err}") from err
    return arrays


def _check_split(path: Path, split: str, images: NDArray[Any], labels: NDArray[Any]) -> Split:
    """Images with their channels in front, and labels.

    Raises:
        ValueError: If the type, the shape or a value is not allowed.
    """
    where = f"{path}: {split}_images"
    if images.dtype != np.uint8:
        raise ValueError(f"{where} must be uint8, got {images.dtype}")
    if images.ndim not in (3, 4) or 0 in images.shape:
        raise ValueError(f"{where} must have the shape (N, H, W), (N, H, W, C) or (N, C, H, W), got {images.shape}")
    if images.ndim == 3:
        images = images[:, None]
    else:
        is_first, is_last = images.shape[1] in (1, 3), images.shape[3] in (1, 3)
        if is_first == is_last:
            raise ValueError(
                f"{where} must have 1 or 3 channels, either as (N, H, W, C) or as (N, C, H, W), got {images.shape}"
            )
        images = images.transpose(0, 3, 1, 2) if is_last else images
    where = f"{path}: {split}_labels"
    if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        raise ValueError(f"{where} must be {len(images)} integers, got {labels.dtype} of shape {labels.shape}")
    labels = labels.astype(np.int64)
    if labels.min() < 0:
        raise ValueError(f"{where} must be at least 0, got {labels.min()}")
    return images, labels


DATASETS: dict[str, Dataset] = {
    "digits": Dataset(_load_digits, 10, crop=False, flip=False),
    "fashion_mnist": Dataset(_load_fashion_mnist, 10),
    "mnist": Dataset(_load_mnist, 10, flip=False),
    "cifar10": Dataset(_load_cifar10, 10),
    "cifar100": Dataset(_load_cifar100, 100),
    "svhn": Dataset(_load_svhn, 10, flip=False),
    "tiny_imagenet": Dataset(_load_tiny_imagenet, 200),
}
