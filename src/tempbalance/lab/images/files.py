"""One's own images: folders of class folders, and .npz files."""

from __future__ import annotations

import io
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Split = tuple[NDArray[np.uint8], NDArray[np.int64]]  # images (N, C, H, W) and labels (N,)

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
MOST_GAPS = 10  # the largest label is below this many times the number of classes with images


def decode(files: Sequence[tuple[str, Path | io.BytesIO]]) -> tuple[NDArray[np.uint8], bool]:
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


def load_folder(folder: Path) -> tuple[Split, Split, int]:
    """Load class folders in ``train`` and in ``test`` or ``val``, sorted by name.

    Hidden folders, and folders without images, are ignored.

    Raises:
        ValueError: If a folder or its images are missing, or a test class is no training class.
    """
    splits = [folder / "train", folder / "test" if (folder / "test").is_dir() else folder / "val"]
    for each, name in zip(splits, ("train", "test (or val)"), strict=True):
        if not each.is_dir():
            raise ValueError(f"{folder}: must have the folders train and test (or val), {name} is missing")
    train, test = (_find_images(split) for split in splits)
    if unknown := sorted({*test} - {*train}):
        raise ValueError(f"{splits[1]}: classes must be among those of {splits[0]}, got {unknown}")
    (train_images, train_labels, is_gray), (test_images, test_labels, is_test_gray) = (
        _read_classes(found, list(train)) for found in (train, test)
    )
    if train_images.shape[1:] != test_images.shape[1:]:
        raise ValueError(
            f"{folder}: training and test images must have one size, got {train_images.shape[2:]} and "
            f"{test_images.shape[2:]}"
        )
    num_channels = 1 if is_gray and is_test_gray else 3
    return (train_images[:, :num_channels], train_labels), (test_images[:, :num_channels], test_labels), len(train)


def _find_images(folder: Path) -> dict[str, list[Path]]:
    """Return the images of each class folder that has any, sorted by name."""
    classes = sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    found = {
        each.name: sorted(path for path in each.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
        for each in classes
    }
    found = {name: paths for name, paths in found.items() if paths}
    if not found:
        raise ValueError(f"{folder}: must have class folders with images ({', '.join(SUFFIXES)}), found none")
    return found


def _read_classes(
    found: dict[str, list[Path]], classes: Sequence[str]
) -> tuple[NDArray[np.uint8], NDArray[np.int64], bool]:
    images, is_gray = decode([(str(path), path) for paths in found.values() for path in paths])
    labels = [classes.index(name) for name, paths in found.items() for _ in paths]
    return images, np.array(labels, dtype=np.int64), is_gray


def load_npz(path: Path) -> tuple[Split, Split, int]:
    """Load and check the four arrays of a file.

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
    return train, test, _count_classes(path, train[1], test[1])


def _count_classes(path: Path, train_labels: NDArray[np.int64], test_labels: NDArray[np.int64]) -> int:
    """Return one more than the largest training label; warn of classes without training images.

    Raises:
        ValueError: If most classes would have no images, or a test label is none of the classes.
    """
    num_classes, num_present = int(train_labels.max()) + 1, len(np.unique(train_labels))
    if num_classes > MOST_GAPS * num_present:
        raise ValueError(
            f"{path}: train_labels must be below {MOST_GAPS} x the {num_present} classes there are, "
            f"got {num_classes - 1}: number the classes from 0 on"
        )
    if num_present < num_classes:
        warnings.warn(f"{path}: only {num_present} of the classes 0 to {num_classes - 1} have images", stacklevel=2)
    if test_labels.max() >= num_classes:
        raise ValueError(
            f"{path}: test_labels must be classes of train_labels, 0 to {num_classes - 1}, got {test_labels.max()}"
        )
    return num_classes


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise ValueError(f"{path}: must be an .npz file")
    with np.load(path, allow_pickle=False) as file:
        if missing := [name for name in ARRAYS if name not in file]:
            raise ValueError(f"{path}: must hold the arrays {', '.join(ARRAYS)}; {', '.join(missing)} missing")
        arrays = {}
        for name in ARRAYS:
            try:
                arrays[name] = file[name]
            except (ValueError, EOFError, OSError, MemoryError, zipfile.BadZipFile, zlib.error) as err:
                raise ValueError(f"{path}: {name} cannot be read: {err}") from err
            if not isinstance(arrays[name], np.ndarray):
                raise ValueError(f"{path}: {name} must be an array, got {type(arrays[name]).__name__}")
    return arrays


def _check_split(path: Path, split: str, images: NDArray[Any], labels: NDArray[Any]) -> Split:
    """Check images and labels, and move the channels to the front."""
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
    if labels.min() < 0:
        raise ValueError(f"{where} must be at least 0, got {labels.min()}")
    if labels.max() >= 2**31:
        raise ValueError(f"{where} must be below 2**31, got {labels.max()}")
    return images, labels.astype(np.int64)
