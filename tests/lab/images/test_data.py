import gzip
import io
import os
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from hashlib import md5
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from sklearn.datasets import load_digits

from tempbalance.lab import options
from tempbalance.lab.download import remote_data
from tempbalance.lab.images import data as data_module
from tempbalance.lab.images.data import DATASETS, ImageData, load_data
from tests.cases import raises, warns

RNG = np.random.default_rng(0)


def pixels(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def check(data: ImageData, train_images, train_labels, test_images, test_labels) -> None:
    """Every tensor has its type and exactly these values."""
    for name, expected in (("train_images", train_images), ("test_images", test_images)):
        assert getattr(data, name).dtype == torch.uint8
        assert np.array_equal(getattr(data, name), expected)
        assert getattr(data, name).is_contiguous()
    for name, expected in (("train_labels", train_labels), ("test_labels", test_labels)):
        assert getattr(data, name).dtype == torch.int64
        assert getattr(data, name).tolist() == list(expected)


def place(cache: Path, monkeypatch: pytest.MonkeyPatch, name: str, *contents: bytes) -> None:
    """Put files into the cache as if they had been downloaded, and let their checksums be the right ones."""
    known, files = remote_data()[name], []
    for file, content in zip(known.files, contents, strict=True):
        (cache / file.name).parent.mkdir(exist_ok=True)
        (cache / file.name).write_bytes(content)
        files.append(replace(file, md5=md5(content).hexdigest()))
    monkeypatch.setitem(remote_data(), name, replace(known, files=tuple(files)))


def tar_of(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def cifar_rows(images: np.ndarray, *labels: np.ndarray) -> bytes:
    """For each image its labels, then red, green and blue, each row by row."""
    content = b""
    for index, image in enumerate(images):
        content += bytes(int(each[index]) for each in labels)
        for channel in image:
            content += b"".join(row.tobytes() for row in channel)
    return content


def cifar10_archive(images: np.ndarray, labels: np.ndarray) -> bytes:
    """Two images a batch, the batches not in order, the last two for testing."""
    names = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
    members = {
        f"cifar-10-batches-bin/{name}.bin": cifar_rows(images[2 * i : 2 * i + 2], labels[2 * i : 2 * i + 2])
        for i, name in enumerate(names)
    }
    return tar_of({"cifar-10-batches-bin/readme.html": b"<html>", **dict(reversed(members.items()))})


def test_cifar10_is_read_from_its_binary_archive(tmp_path, monkeypatch):
    images, labels = pixels(12, 3, 32, 32), RNG.integers(0, 10, 12)
    place(tmp_path, monkeypatch, "cifar10", cifar10_archive(images, labels))
    data = load_data("cifar10", cache=tmp_path)
    check(data, images[:10], labels[:10], images[10:], labels[10:])
    assert (data.name, data.num_classes, data.crop, data.flip) == ("cifar10", 10, True, True)


def test_cifar100_has_the_fine_labels(tmp_path, monkeypatch):
    images, coarse, fine = pixels(5, 3, 32, 32), RNG.integers(0, 20, 5), RNG.integers(0, 100, 5)
    members = {
        "cifar-100-binary/test.bin": cifar_rows(images[3:], coarse[3:], fine[3:]),
        "cifar-100-binary/train.bin": cifar_rows(images[:3], coarse[:3], fine[:3]),
    }
    place(tmp_path, monkeypatch, "cifar100", tar_of(members))
    data = load_data("cifar100", cache=tmp_path)
    check(data, images[:3], fine[:3], images[3:], fine[3:])
    assert (data.name, data.num_classes, data.crop, data.flip) == ("cifar100", 100, True, True)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder and the address at which its files can be had."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "served").mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield tmp_path / "served", f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_dataset_is_downloaded_and_then_needs_no_server(served, tmp_path, monkeypatch):
    folder, address = served
    images, labels = pixels(12, 3, 32, 32), RNG.integers(0, 10, 12)
    content = cifar10_archive(images, labels)
    (folder / "cifar.tar.gz").write_bytes(content)
    known = remote_data()["cifar10"]
    file = replace(known.files[0], urls=(f"{address}/cifar.tar.gz",), md5=md5(content).hexdigest())
    monkeypatch.setitem(remote_data(), "cifar10", replace(known, files=(file,)))
    monkeypatch.setenv("TEMPBALANCE_CACHE", str(tmp_path / "cache"))
    check(load_data("cifar10"), images[:10], labels[:10], images[10:], labels[10:])
    (folder / "cifar.tar.gz").unlink()
    check(load_data("cifar10"), images[:10], labels[:10], images[10:], labels[10:])


def test_svhn_has_its_channels_in_front_and_the_digit_0_as_0(tmp_path, monkeypatch):
    images, labels = pixels(6, 3, 32, 32), np.array([10, 1, 9, 10, 2, 3])

    def mat(chosen: range) -> bytes:
        file = io.BytesIO()
        array = np.zeros((32, 32, 3, len(chosen)), np.uint8)
        for place, index in enumerate(chosen):
            for channel in range(3):
                array[:, :, channel, place] = images[index, channel]
        savemat(file, {"X": array, "y": labels[chosen, None].astype(np.uint8)})
        return file.getvalue()

    place(tmp_path, monkeypatch, "svhn", mat(range(4)), mat(range(4, 6)))
    data = load_data("svhn", cache=tmp_path)
    check(data, images[:4], [0, 1, 9, 0], images[4:], [2, 3])
    assert (data.name, data.num_classes, data.crop, data.flip) == ("svhn", 10, True, False)


def idx(array: np.ndarray) -> bytes:
    return gzip.compress(struct.pack(f">BBBB{array.ndim}i", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())


def idx_files(images: np.ndarray, labels: np.ndarray, *, num_train: int) -> list[bytes]:
    return [idx(each) for each in (images[:num_train], labels[:num_train], images[num_train:], labels[num_train:])]


def test_mnist_is_read_from_its_four_files(tmp_path, monkeypatch):
    images, labels = pixels(5, 28, 28), RNG.integers(0, 10, 5).astype(np.uint8)
    place(tmp_path, monkeypatch, "mnist", *idx_files(images, labels, num_train=3))
    data = load_data("mnist", cache=tmp_path)
    check(data, images[:3, None], labels[:3], images[3:, None], labels[3:])
    assert (data.name, data.num_classes, data.crop, data.flip) == ("mnist", 10, True, False)


def test_fashion_mnist_comes_from_debians_package_where_that_is_complete(tmp_path, monkeypatch):
    installed, downloaded = pixels(5, 28, 28), pixels(5, 28, 28)
    labels = RNG.integers(0, 10, 5).astype(np.uint8)
    place(tmp_path, monkeypatch, "fashion_mnist", *idx_files(downloaded, labels, num_train=3))
    folder = tmp_path / "debian"
    folder.mkdir()
    monkeypatch.setattr(data_module, "DEBIAN_FASHION_MNIST", folder)
    contents = idx_files(installed, labels, num_train=3)
    for name, content in zip(data_module.IDX_NAMES, contents, strict=True):
        data = load_data("fashion_mnist", cache=tmp_path)
        check(data, downloaded[:3, None], labels[:3], downloaded[3:, None], labels[3:])
        (folder / name).write_bytes(content)
    data = load_data("fashion_mnist", cache=tmp_path)
    check(data, installed[:3, None], labels[:3], installed[3:, None], labels[3:])
    assert (data.name, data.num_classes, data.crop, data.flip) == ("fashion_mnist", 10, True, True)


@pytest.mark.parametrize(
    ("content", "carried"),
    [
        (idx(pixels(3, 28, 28))[:100], ["gzip"]),
        (b"no gzip", ["gzip"]),
        (idx(pixels(3)), ["IDX", 3]),
        (gzip.compress(struct.pack(">BBBB3i", 0, 0, 8, 3, 2, 28, 28) + bytes(10)), [1568, 10]),
    ],
    ids=["truncated", "no gzip", "other dimensions", "too few values"],
)
def test_a_damaged_idx_file_is_named(tmp_path, monkeypatch, content, carried):
    contents = idx_files(pixels(5, 28, 28), pixels(5), num_train=3)
    place(tmp_path, monkeypatch, "mnist", content, *contents[1:])
    with raises(ValueError, "train-images-idx3-ubyte.gz", *carried):
        load_data("mnist", cache=tmp_path)


def jpeg(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=100, subsampling=0)
    return file.getvalue()


def test_tiny_imagenet_is_read_from_its_zip_and_its_validation_images_get_the_annotated_classes(tmp_path, monkeypatch):
    red = np.full((64, 64, 3), (255, 0, 0), np.uint8)
    gray = pixels(64, 64)
    root = "tiny-imagenet-200"
    members = {
        f"{root}/train/n02/images/n02_0.JPEG": jpeg(red),
        f"{root}/train/n01/images/n01_1.JPEG": jpeg(gray),
        f"{root}/train/n01/images/n01_0.JPEG": jpeg(blue := red[:, :, ::-1].copy()),
        f"{root}/train/n01/n01_boxes.txt": b"n01_0.JPEG\t0\t0\t62\t62\n",
        f"{root}/val/images/val_0.JPEG": jpeg(blue),
        f"{root}/val/images/val_1.JPEG": jpeg(red),
        f"{root}/val/images/val_2.JPEG": jpeg(gray),
        f"{root}/val/val_annotations.txt": (
            b"val_1.JPEG\tn02\t0\t0\t62\t62\nval_0.JPEG\tn01\t0\t0\t9\t9\nval_2.JPEG\tn02\t1\t1\t5\t5\n"
        ),
        f"{root}/test/images/test_0.JPEG": b"not read",
    }
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    place(tmp_path, monkeypatch, "tiny_imagenet", file.getvalue())
    data = load_data("tiny_imagenet", cache=tmp_path)

    def decoded(name: str) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(members[f"{root}/{name}"])).convert("RGB")).transpose(2, 0, 1)

    train = [decoded(f"train/{name[:3]}/images/{name}.JPEG") for name in ("n01_0", "n01_1", "n02_0")]
    test = [decoded(f"val/images/{name}.JPEG") for name in ("val_1", "val_0", "val_2")]
    check(data, train, [0, 0, 1], test, [1, 0, 1])
    assert data.train_images[2, 0].min() > 250  # red, which a JPEG of quality 100 hardly changes
    assert data.train_images[2, 1:].max() < 5
    assert torch.equal(data.train_images[1, 0], data.train_images[1, 2])
    assert (data.name, data.num_classes, data.crop, data.flip) == ("tiny_imagenet", 200, True, True)
    (tmp_path / "tiny-imagenet-200.zip").unlink()  # the decoded images are enough
    monkeypatch.setattr(data_module, "decode", None)
    check(load_data("tiny_imagenet", cache=tmp_path), train, [0, 0, 1], test, [1, 0, 1])


def test_digits_are_scaled_to_bytes_and_every_fifth_is_a_test_image():
    data = load_data("digits")
    digits = load_digits()
    train = [index for index in range(1797) if index % 5 != 4]
    test = list(range(4, 1797, 5))
    images = np.array([[[round(value * 255 / 16) for value in row] for row in image] for image in digits.images])
    check(data, images[train, None], digits.target[train], images[test, None], digits.target[test])
    assert data.train_images.shape == (1438, 1, 8, 8)
    assert (data.train_images.min(), data.train_images.max()) == (0, 255)
    assert (data.name, data.num_classes, data.crop, data.flip) == ("digits", 10, False, False)


def test_mean_and_deviation_are_those_of_the_training_images(tmp_path):
    arrays = npz_arrays()
    arrays["train_images"][..., 2] = 51
    data = load_data(write_npz(tmp_path, **arrays))
    scaled = arrays["train_images"] / 255
    assert data.mean == pytest.approx(scaled.mean((0, 1, 2)))
    assert data.std == pytest.approx((*scaled.std((0, 1, 2))[:2], 1.0))  # a constant channel is left as it is


def npz_arrays() -> dict[str, np.ndarray]:
    return {
        "train_images": pixels(6, 5, 7, 3),
        "train_labels": np.array([0, 1, 2, 0, 1, 2], np.uint8),
        "test_images": pixels(4, 5, 7, 3),
        "test_labels": np.array([2, 1, 0, 0], np.int32),
    }


def write_npz(folder: Path, **arrays: np.ndarray) -> str:
    np.savez_compressed(folder / "own.npz", **arrays)
    return str(folder / "own.npz")


def test_an_npz_is_read_with_its_channels_last_first_or_absent(tmp_path):
    arrays = npz_arrays()
    first = {name: each.transpose(0, 3, 1, 2) if each.ndim == 4 else each for name, each in arrays.items()}
    labels = [arrays["train_labels"].tolist(), arrays["test_labels"].tolist()]
    for given in (arrays, first):
        data = load_data(write_npz(tmp_path, **given, class_names=np.array(["a", "b", "c"])))
        check(data, first["train_images"], labels[0], first["test_images"], labels[1])
    assert (data.name, data.num_classes, data.crop, data.flip) == ("own", 3, True, True)

    gray = {name: each[..., 1] if each.ndim == 4 else each for name, each in arrays.items()}
    data = load_data(write_npz(tmp_path, **gray))
    check(data, gray["train_images"][:, None], labels[0], gray["test_images"][:, None], labels[1])


@pytest.mark.parametrize(
    ("name", "value", "carried"),
    [
        ("train_images", pixels(6, 5, 7, 3).astype(np.float32), ["uint8", "float32"]),
        ("test_images", pixels(4, 105), [(4, 105)]),
        ("train_images", pixels(0, 5, 7, 3), [(0, 5, 7, 3)]),
        ("train_images", pixels(6, 5, 7, 4), ["channels", (6, 5, 7, 4)]),
        ("train_images", pixels(6, 3, 7, 3), ["channels", (6, 3, 7, 3)]),
        ("test_images", pixels(4, 5, 8, 3), [(3, 5, 7), (3, 5, 8)]),
        ("test_images", pixels(4, 5, 7), [(3, 5, 7), (1, 5, 7)]),
        ("train_labels", np.zeros(6), [6, "float64", (6,)]),
        ("train_labels", np.zeros(6, bool), [6, "bool"]),
        ("test_labels", np.zeros(3, int), [4, "int64", (3,)]),
        ("train_labels", np.zeros((6, 1), int), [6, "int64", (6, 1)]),
        ("train_labels", np.array([0, 1, 2, 0, 1, -1]), [0, -1]),
        ("test_labels", np.array([0, 1, 2, 3]), ["train_labels", 2, 3]),
        ("train_labels", np.array([0, 1, 2, 0, 1, 10**9]), ["4 classes", 10**9]),
        ("train_labels", np.array([0, 1, 2, 0, 1, 2**63], np.uint64), ["2**31", 2**63]),
    ],
)
def test_an_npz_with_a_wrong_array_is_refused_with_the_rule_and_the_value(tmp_path, name, value, carried):
    path = write_npz(tmp_path, **{**npz_arrays(), name: value})
    with raises(ValueError, path, name, *carried):
        load_data(path)


def test_an_npz_that_claims_more_than_any_memory_is_refused_in_one_line(tmp_path):
    path = write_npz(tmp_path, **{name: each for name, each in npz_arrays().items() if name != "train_images"})
    header = io.BytesIO()
    shape = (2_000_000_000, 100, 100, 3)
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("train_images.npy", header.getvalue())
    with raises(ValueError, path, "train_images"):
        load_data(path)


def test_a_pipe_as_dataset_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "own.npz")
    with raises(ValueError, tmp_path / "own.npz"):
        load_data(str(tmp_path / "own.npz"))
    for split in ("train", "test"):
        (tmp_path / "data" / split / "cat").mkdir(parents=True)
        os.mkfifo(tmp_path / "data" / split / "cat" / "a.png")
    with raises(ValueError, tmp_path / "data"):
        load_data(str(tmp_path / "data"))


def test_an_npz_without_an_array_is_refused(tmp_path):
    arrays = npz_arrays()
    del arrays["test_images"], arrays["test_labels"]
    path = write_npz(tmp_path, **arrays)
    with raises(ValueError, path, "test_images, test_labels"):
        load_data(path)


def test_classes_without_images_are_warned_of(tmp_path):
    arrays = {**npz_arrays(), "train_labels": np.array([0, 1, 5, 0, 1, 5])}
    with warns(UserWarning, 3, "0 to 5"):
        assert load_data(write_npz(tmp_path, **arrays)).num_classes == 6


def test_an_npz_member_that_is_no_array_is_refused(tmp_path):
    path = write_npz(tmp_path, **{name: each for name, each in npz_arrays().items() if name != "train_images"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("train_images", b"no array")
    with raises(ValueError, path, "train_images", "bytes"):
        load_data(path)


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return open, (str(self.path), "w")


def test_nothing_that_a_file_contains_is_executed(tmp_path):
    trap = np.array([Trap(tmp_path / "sprung")] * 6, dtype=object)
    path = write_npz(tmp_path, **{**npz_arrays(), "train_images": trap})
    with raises(ValueError, path, "train_images"):
        load_data(path)
    (tmp_path / "own.npz").write_bytes(pickle.dumps(trap[0]))
    with raises(ValueError, path):
        load_data(path)
    assert not (tmp_path / "sprung").exists()


def test_a_damaged_npz_is_refused(tmp_path):
    path = Path(write_npz(tmp_path, **npz_arrays()))
    good = path.read_bytes()
    path.write_bytes(good[:-30])
    with raises(ValueError, path):
        load_data(str(path))
    path.write_bytes(good[:300] + bytes([good[300] ^ 1]) + good[301:])
    with raises(ValueError, path, "train_images"):
        load_data(str(path))


def write_images(folder: Path, images: dict[str, np.ndarray]) -> str:
    for name, image in images.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / name)
    return str(folder)


@pytest.mark.parametrize("test", ["test", "val"])
def test_a_folder_of_class_folders_is_read_in_the_order_of_names(tmp_path, test):
    cat, dog, other, last = (pixels(6, 9, 3) for _ in range(4))
    images = {"train/dog/1.png": dog, "train/cat/2.PNG": other, "train/cat/1.png": cat, f"{test}/dog/1.png": last}
    path = write_images(tmp_path / "pets", images)
    (tmp_path / "pets" / "train" / "cat" / "notes.txt").write_text("not an image")
    data = load_data(path)
    check(data, np.stack([cat, other, dog]).transpose(0, 3, 1, 2), [0, 0, 1], last.transpose(2, 0, 1)[None], [1])
    assert (data.name, data.num_classes, data.crop, data.flip) == ("pets", 2, True, True)


def test_hidden_and_empty_folders_are_no_classes_and_bmp_and_webp_are_images(tmp_path):
    image = pixels(6, 9, 3)
    names = ["train/b/1.bmp", "train/c/1.png", "train/.hidden/1.png", "test/b/1.webp"]
    path = write_images(tmp_path, dict.fromkeys(names, image))
    (tmp_path / "train" / "a").mkdir()
    (tmp_path / "test" / "z").mkdir()
    data = load_data(path)
    assert data.num_classes == 2
    assert data.train_labels.tolist() == [0, 1]
    assert data.test_labels.tolist() == [0]


def test_a_folder_is_gray_only_if_all_its_images_are(tmp_path):
    gray, colour = pixels(6, 9), pixels(6, 9, 3)
    data = load_data(write_images(tmp_path, {"train/a/1.png": gray, "test/a/1.png": gray}))
    check(data, gray[None, None], [0], gray[None, None], [0])
    data = load_data(write_images(tmp_path, {"train/a/1.png": gray, "test/a/1.png": colour}))
    check(data, np.stack([gray] * 3)[None], [0], colour.transpose(2, 0, 1)[None], [0])


@pytest.mark.parametrize(
    ("images", "carried"),
    [
        ({"train/a/1.png": pixels(6, 9)}, ["train", "test (or val)"]),
        ({"test/a/1.png": pixels(6, 9)}, ["train", "test (or val)"]),
        (
            {"train/b/1.png": pixels(6, 9), "test/a/1.png": pixels(6, 9)},
            ["test", ["a"]],
        ),
        ({"train/a/1.png": pixels(6, 9), "test/1.png": pixels(6, 9)}, ["test: "]),
        ({"train/1.png": pixels(6, 9), "test/1.png": pixels(6, 9)}, ["train: "]),
        (
            {"train/a/1.png": pixels(6, 9), "train/a/2.png": pixels(9, 6), "test/a/1.png": pixels(6, 9)},
            ["2.png", "6 x 9", "9 x 6"],
        ),
        (
            {"train/a/1.png": pixels(6, 9), "test/a/1.png": pixels(9, 6)},
            [(6, 9), (9, 6)],
        ),
        (
            {"train/a/1.png": np.full((6, 9), 40000, np.uint16), "test/a/1.png": pixels(6, 9)},
            ["1.png", "8 bits", "'I;16'"],
        ),
    ],
)
def test_a_folder_with_something_missing_or_unfitting_is_refused(tmp_path, images, carried):
    with raises(ValueError, tmp_path, *carried):
        load_data(write_images(tmp_path, images))


def test_a_file_that_is_no_image_is_named(tmp_path):
    path = write_images(tmp_path, {"train/a/1.png": pixels(6, 9), "test/a/1.png": pixels(6, 9)})
    (tmp_path / "train" / "a" / "2.png").write_bytes(b"no image")
    with raises(ValueError, "2.png"):
        load_data(path)


@pytest.mark.parametrize(
    ("name", "close"),
    [("cifar", "'cifar10' or 'cifar100'"), ("CIFAR-10", "'cifar10'"), ("fashon_mnist", "'fashion_mnist'")],
)
def test_an_unknown_name_is_answered_with_the_closest_known_ones(name, close):
    with raises(ValueError, "dataset", f"'{name}'", close):
        load_data(name)


def test_a_name_like_no_other_is_answered_with_all_of_them():
    with raises(ValueError, "dataset", "'nowhere/own.npz'", *DATASETS, ".npz"):
        load_data("nowhere/own.npz")


def test_the_known_datasets_are_the_papers():
    assert tuple(DATASETS) == options.DATASETS
    assert set(DATASETS) == {"digits", "fashion_mnist", "mnist", "cifar10", "cifar100", "svhn", "tiny_imagenet"}


def test_a_limit_chooses_the_same_images_from_all_over_the_data(tmp_path):
    labels = np.repeat(np.arange(4), 50)  # sorted by class
    images = np.broadcast_to(labels.astype(np.uint8)[:, None, None], (200, 2, 2))
    path = write_npz(tmp_path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    data = load_data(path, limit=40)
    assert sorted(data.train_labels.unique().tolist()) == [0, 1, 2, 3]
    assert torch.bincount(data.train_labels).min() >= 5
    assert torch.equal(data.train_images[:, 0, 0, 0].long(), data.train_labels)
    assert torch.equal(data.test_images[:, 0, 0, 0].long(), data.test_labels)
    assert data.num_classes == 4
    assert data.mean == pytest.approx((data.train_images.double().mean().item() / 255,))
    assert load_data(path, limit=40).digest() == data.digest()
    assert len(load_data("digits", limit=400).test_images) == 359


def test_a_digest_tells_a_changed_pixel_or_label(tmp_path):
    arrays = npz_arrays()
    first = load_data(write_npz(tmp_path, **arrays)).digest()
    assert load_data(write_npz(tmp_path, **arrays)).digest() == first
    arrays["test_images"][0, 0, 0, 0] ^= 1
    second = load_data(write_npz(tmp_path, **arrays)).digest()
    arrays["train_labels"][:2] = arrays["train_labels"][1::-1]
    assert len({first, second, load_data(write_npz(tmp_path, **arrays)).digest()}) == 3


@pytest.mark.parametrize("limit", [0, -1, 2.5, True])
def test_a_limit_that_is_no_count_is_refused(limit):
    with raises(ValueError, "limit", 1, limit):
        load_data("digits", limit=limit)


def test_all_tensors_move_to_a_device():
    data = load_data("digits", limit=5)
    moved = data.to("meta")
    tensors = [moved.train_images, moved.train_labels, moved.test_images, moved.test_labels]
    assert [each.device.type for each in tensors] == ["meta"] * 4
    assert (moved.name, moved.mean, moved.crop) == (data.name, data.mean, data.crop)
    assert data.train_images.device.type == "cpu"
