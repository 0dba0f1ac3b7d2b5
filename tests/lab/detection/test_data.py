import hashlib
import io
import json
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tempbalance.lab.detection import data
from tempbalance.lab.detection.data import NUM_SHAPES, VOC2007, WEIGHTS, draw_shapes, ready_data, unpack
from tempbalance.lab.detection.recipe import NUM_IMAGES, NUM_TRAIN_VAL, PRETRAINED
from tempbalance.lab.download import DownloadError, fetch
from tests.cases import raises
from tests.lab.detection.layout import annotation_xml, make_voc, object_xml


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def pack(folder, path):
    with tarfile.open(path, "w") as archive:
        archive.add(folder, "VOCdevkit/VOC2007")
    return path


@pytest.fixture
def fetched(tmp_path, monkeypatch):
    """Both of VOC's archives, small; which of them were asked for."""
    train = make_voc(tmp_path / "1", {"trainval": ("a", "b")})
    test = make_voc(tmp_path / "2", {"test": ("c",)})
    archives = {
        "voc2007/VOCtrainval_06-Nov-2007.tar": pack(train, tmp_path / "1.tar"),
        "voc2007/VOCtest_06-Nov-2007.tar": pack(test, tmp_path / "2.tar"),
    }
    asked = []

    def fetch(file, *, cache):
        asked.append(file.name)
        return archives[file.name]

    monkeypatch.setattr(data, "fetch", fetch)
    return asked


def test_voc_is_unpacked_and_converted_once_and_nothing_else_is_left(fetched, tmp_path):
    first = ready_data("voc2007", cache=tmp_path / "cache")
    again = ready_data("voc2007", cache=tmp_path / "cache")
    assert first == again
    assert fetched == [file.name for file in VOC2007]
    assert names(tmp_path / "cache" / "detection") == ["voc2007-all-all"]
    folder = first.description.parent
    assert names(folder / "images" / "train") == ["a.jpg", "b.jpg"]
    assert names(folder / "images" / "test") == ["c.jpg"]
    assert json.loads(first.description.read_text())["digest"] == first.digest


def test_processes_that_want_the_same_data_wait_for_the_one_that_makes_them(fetched, tmp_path):
    with ThreadPoolExecutor(3) as pool:
        found = {*pool.map(lambda _: ready_data("voc2007", cache=tmp_path / "cache"), range(3))}
    assert len(found) == 1
    assert len(fetched) == len(VOC2007)


def test_a_part_of_the_data_has_a_folder_of_its_own(fetched, tmp_path):
    part = ready_data("voc2007", cache=tmp_path / "cache", limit=1)
    whole = ready_data("voc2007", cache=tmp_path / "cache")
    assert part.digest != whole.digest
    assert len(names(part.description.parent / "images" / "train")) == 1


def test_ones_own_data_are_converted_anew_when_they_change_and_only_then(tmp_path):
    folder = make_voc(tmp_path / "own")
    first = ready_data(str(folder), cache=tmp_path / "cache")
    assert ready_data(str(folder), cache=tmp_path / "cache") == first
    (folder / "Annotations" / "a.xml").write_text(annotation_xml(object_xml("cat")))
    second = ready_data(str(folder), cache=tmp_path / "cache")
    assert second.digest != first.digest
    assert second.description != first.description
    assert (second.description.parent / "labels" / "train" / "a.txt").read_text().startswith("7 ")


def test_drawn_shapes_are_there_without_a_download(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "draw_shapes", lambda folder: make_voc(folder))
    found = ready_data("shapes", cache=tmp_path)
    assert len(names(found.description.parent / "images" / "train")) == 2
    assert NUM_IMAGES["shapes"] == NUM_SHAPES


def test_the_published_split_has_images_for_validation_of_its_own(tmp_path):
    draw_shapes(tmp_path / "shapes", num_images=(10, 3))
    trainval = ready_data(str(tmp_path / "shapes"), cache=tmp_path)
    assert json.loads(trainval.description.read_text())["val"] == "images/test"
    train = ready_data(str(tmp_path / "shapes"), cache=tmp_path, split="train")
    assert json.loads(train.description.read_text())["val"] == "images/val"
    numbers = {part: len(names(train.description.parent / "images" / part)) for part in ("train", "val", "test")}
    assert numbers == {"train": 8, "val": 2, "test": 3}
    assert sum(NUM_TRAIN_VAL["shapes"]) == NUM_IMAGES["shapes"][0]
    assert sum(NUM_TRAIN_VAL["voc2007"]) == NUM_IMAGES["voc2007"][0]


def test_checksums_are_those_of_the_issue():
    assert [file.md5 for file in VOC2007] == ["c52e279531787c972589f7e41ab4ae64", "b6e924de25625d8de591ea690078ad9f"]
    assert {*WEIGHTS} == {*PRETRAINED}


@pytest.mark.parametrize("kind", ["outside", "absolute link", "device"])
def test_a_member_that_reaches_outside_is_refused(tmp_path, kind):
    member = tarfile.TarInfo("../evil" if kind == "outside" else "evil")
    if kind == "absolute link":
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    if kind == "device":
        member.type = tarfile.CHRTYPE
    with tarfile.open(tmp_path / "bad.tar", "w") as archive:
        archive.addfile(member)
    with raises(ValueError, tmp_path / "bad.tar"):
        unpack(tmp_path / "bad.tar", tmp_path / "here")
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("content", [b"", b"no archive at all" * 100])
def test_what_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "bad.tar").write_bytes(content)
    with raises(ValueError, tmp_path / "bad.tar"):
        unpack(tmp_path / "bad.tar", tmp_path / "here")


def test_an_archive_that_was_cut_off_is_refused(tmp_path):
    with tarfile.open(tmp_path / "bad.tar", "w") as archive:
        member = tarfile.TarInfo("file")
        member.size = 100_000
        archive.addfile(member, io.BytesIO(bytes(100_000)))
    whole = (tmp_path / "bad.tar").read_bytes()
    (tmp_path / "bad.tar").write_bytes(whole[:50_000])
    with raises(ValueError, tmp_path / "bad.tar"):
        unpack(tmp_path / "bad.tar", tmp_path / "here")


def test_weights_are_found_in_the_cache_by_their_checksum(tmp_path):
    content = b"weights"
    weights = replace(
        WEIGHTS["yolov8n"], urls=("http://127.0.0.1:9/yolov8n.pt",), sha256=hashlib.sha256(content).hexdigest()
    )
    path = tmp_path / "detection" / "yolov8n.pt"
    path.parent.mkdir()
    path.write_bytes(content)
    assert fetch(weights, cache=tmp_path) == path
    path.write_bytes(b"something else that would be run")
    with raises(DownloadError, "yolov8n.pt", "http://127.0.0.1:9"):
        fetch(weights, cache=tmp_path)


def test_a_pipe_in_the_place_of_pretrained_weights_is_refused(tmp_path):
    (tmp_path / "detection").mkdir()
    os.mkfifo(tmp_path / "detection" / "yolov8n.pt")
    with raises(DownloadError, "yolov8n.pt", "regular"):
        fetch(WEIGHTS["yolov8n"], cache=tmp_path)
