import json
import os

import pytest
from PIL import Image

from tempbalance.lab.detection import data as data_module
from tempbalance.lab.detection.data import CLASSES, read_voc, write_yolo
from tests.cases import raises
from tests.lab.detection.layout import annotation_xml, make_voc, object_xml


@pytest.fixture
def folder(tmp_path):
    return make_voc(tmp_path / "VOC2007")


def written(folder, target):
    return write_yolo(read_voc(folder), target).description.parent


def test_labels_are_class_centre_and_sides_as_shares_of_the_image(folder, tmp_path):
    (folder / "Annotations" / "a.xml").write_text(
        annotation_xml(object_xml("tvmonitor", (1, 1, 50, 20)), object_xml("aeroplane", (100, 80, 100, 80)))
    )
    target = written(folder, tmp_path / "yolo")
    rows = [line.split() for line in (target / "labels" / "train" / "a.txt").read_text().splitlines()]
    assert [row[0] for row in rows] == ["19", "0"]
    assert [float(value) for value in rows[0][1:]] == [0.25, 0.125, 0.5, 0.25]
    assert [float(value) for value in rows[1][1:]] == pytest.approx([0.995, 1 - 0.5 / 80, 0.01, 1 / 80])


def test_trainval_is_for_training_and_test_for_the_test_and_images_are_copied_as_they_are(folder, tmp_path):
    target = written(folder, tmp_path / "yolo")
    description = json.loads((target / "data.yaml").read_text())
    assert description["names"] == list(CLASSES)
    assert len(CLASSES) == 20
    assert (description["train"], description["val"], description["test"]) == ("images/train",) + ("images/test",) * 2
    found = sorted(str(path.relative_to(target)) for path in target.rglob("*.*"))
    images = ["images/test/c.jpg", "images/train/a.jpg", "images/train/b.jpg"]
    assert found == ["data.yaml", *images, "labels/test/c.txt", "labels/train/a.txt", "labels/train/b.txt"]
    assert (target / images[0]).read_bytes() == (folder / "JPEGImages" / "c.jpg").read_bytes()


def test_difficult_objects_are_left_out_and_an_image_with_no_other_is_background(folder, tmp_path):
    hard = object_xml(difficult="1")
    (folder / "Annotations" / "a.xml").write_text(annotation_xml(hard))
    (folder / "Annotations" / "b.xml").write_text(annotation_xml(hard, object_xml("cat")))
    target = written(folder, tmp_path / "yolo")
    assert (target / "labels" / "train" / "a.txt").read_text() == ""
    assert [line[:2] for line in (target / "labels" / "train" / "b.txt").read_text().splitlines()] == ["7 "]


def test_other_classes_are_named_in_a_file(folder):
    (folder / "classes.txt").write_text("cat\ndog\n")
    assert read_voc(folder).classes == ("cat", "dog")


@pytest.mark.parametrize("above", ["VOC2007", "VOCdevkit/VOC2007"])
def test_the_layout_is_found_in_the_folder_of_the_kit(tmp_path, above):
    make_voc(tmp_path / above)
    assert len(read_voc(tmp_path).splits["train"]) == 2


def test_a_limit_keeps_so_many_always_the_same_from_all_over_the_set(tmp_path):
    names = [f"{number:03}" for number in range(100)]
    folder = make_voc(tmp_path, {"trainval": names[:60], "test": names[60:]}, size=(100, 80))
    chosen = read_voc(folder, limit=20, test_limit=50)
    again = read_voc(folder, limit=20, test_limit=50)
    numbers = [int(image.path.stem) for image in chosen.splits["train"]]
    assert len(set(numbers)) == 20
    assert min(numbers) < 20
    assert max(numbers) >= 40
    assert chosen == again
    assert len(chosen.splits["test"]) == 40


def test_the_checksum_changes_with_an_image_a_label_and_the_split_and_with_nothing_else(tmp_path):
    folders = [make_voc(tmp_path / str(number)) for number in range(5)]
    image = folders[1] / "JPEGImages" / "a.jpg"
    content = image.read_bytes()
    image.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    (folders[2] / "Annotations" / "a.xml").write_text(annotation_xml(object_xml("cat")))
    main = folders[3] / "ImageSets" / "Main"
    (main / "trainval.txt").write_text("a\n")
    (main / "test.txt").write_text("b\nc\n")
    (folders[4] / "ImageSets" / "Main" / "dog_trainval.txt").write_text("a 1\nb -1\n")
    digests = [read_voc(folder).digest() for folder in folders]
    assert len(set(digests[:4])) == 4
    assert digests[4] == digests[0]


def break_image(folder, content):
    (folder / "JPEGImages" / "b.jpg").write_bytes(content)


BREAKS = {
    "no layout": (
        lambda f: os.rename(f / "JPEGImages", f / "Images"),
        ["VOC2007", "JPEGImages"],
    ),
    "no set": (lambda f: (f / "ImageSets/Main/test.txt").unlink(), ["test.txt"]),
    "empty set": (lambda f: (f / "ImageSets/Main/trainval.txt").write_text(" \n"), ["trainval.txt", "empty"]),
    "no text": (lambda f: (f / "ImageSets/Main/test.txt").write_bytes(b"\xff\xfe"), ["test.txt", "text"]),
    "twice": (lambda f: (f / "ImageSets/Main/test.txt").write_text("c\nc\n"), ["test.txt", "'c' 2"]),
    "in both": (lambda f: (f / "ImageSets/Main/test.txt").write_text("c\nb\n"), ["'b'"]),
    "path": (lambda f: (f / "ImageSets/Main/test.txt").write_text("../c\n"), ["test.txt", "'../c'"]),
    "no annotation": (lambda f: (f / "Annotations/b.xml").unlink(), ["b.xml", "'b'"]),
    "no image": (lambda f: (f / "JPEGImages/b.jpg").unlink(), ["b.jpg", "'b'"]),
    "no boxes": (lambda f: (f / "Annotations/b.xml").write_text("<annotation/>"), ["b.xml", "<object>"]),
    "other file": (lambda f: break_image(f, b"no image"), ["b.jpg", "JPEG"]),
    "empty image": (lambda f: break_image(f, b""), ["b.jpg", "JPEG"]),
    "no classes": (lambda f: (f / "classes.txt").write_text(""), ["classes.txt", "empty"]),
    "only difficult": (
        lambda f: (f / "Annotations/c.xml").write_text(annotation_xml(object_xml(difficult="1"))),
        ["test", "difficult"],
    ),
}


@pytest.mark.parametrize("case", BREAKS)
def test_what_is_missing_or_wrong_is_said_with_the_file(folder, case):
    change, carried = BREAKS[case]
    change(folder)
    with raises(ValueError, *carried):
        read_voc(folder)


@pytest.mark.parametrize(("name", "got"), [("nowhere", "nothing"), ("file", "a file")])
def test_what_is_no_folder_is_refused(tmp_path, name, got):
    (tmp_path / "file").write_text("")
    with raises(ValueError, tmp_path / name, got):
        read_voc(tmp_path / name)


def test_an_image_that_was_cut_off_is_refused_before_ultralytics_leaves_it_out(folder, tmp_path):
    path = folder / "JPEGImages" / "b.jpg"
    Image.effect_noise((100, 80), 50).save(path)
    break_image(folder, path.read_bytes()[:-200])
    assert read_voc(folder).splits["train"][1].size == (100, 80)  # its beginning is whole
    with raises(ValueError, path, "JPEG"):
        written(folder, tmp_path / "yolo")
    assert [each.name for each in tmp_path.iterdir()] == ["VOC2007"]


def test_a_conversion_that_stops_halfway_leaves_nothing_that_looks_whole_and_the_next_one_ends_it(
    folder, tmp_path, monkeypatch
):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(data_module.os, "rename", killed)
        patch.setattr(data_module.shutil, "rmtree", lambda *_, **__: None)  # a kill tidies nothing up
        with pytest.raises(KeyboardInterrupt):
            written(folder, tmp_path / "yolo")
    assert not (tmp_path / "yolo").exists()
    (tmp_path / "yolo.part" / "labels" / "train" / "old.txt").write_text("0 0 0 1 1\n")
    target = written(folder, tmp_path / "yolo")
    assert sorted(path.name for path in (target / "labels" / "train").iterdir()) == ["a.txt", "b.txt"]
    assert not (tmp_path / "yolo.part").exists()


def test_an_image_that_its_exif_data_turn_is_refused(tmp_path):
    folder = make_voc(tmp_path / "voc")
    path = folder / "JPEGImages" / "b.jpg"
    with Image.open(path) as image:
        exif = image.getexif()
        exif[0x0112] = 6
        image.save(path, exif=exif)
    with raises(ValueError, path, "EXIF", 6):
        write_yolo(read_voc(folder), tmp_path / "yolo")
