import numpy as np
import pytest
from PIL import Image

from tempbalance.lab.detection.data import SHAPES, SIDE, draw_shapes, read_voc


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shapes")
    draw_shapes(folder, num_images=(60, 20))
    return folder


def test_every_class_is_drawn_in_both_parts(folder):
    data = read_voc(folder)
    assert data.classes == SHAPES
    assert [len(images) for images in data.splits.values()] == [60, 20]
    for images in data.splits.values():
        assert {box.label for image in images for box in image.boxes} == {0, 1, 2}


def test_a_box_holds_its_shape_and_nothing_but_noise_is_outside(folder):
    for image in read_voc(folder).splits["train"]:
        pixels = np.asarray(Image.open(image.path)).astype(float)
        outside = np.ones((SIDE, SIDE), bool)
        for box in image.boxes:
            left, top, right, bottom = (int(each) for each in (box.left, box.top, box.right, box.bottom))
            inside = pixels[top:bottom, left:right]
            middle = inside[inside.shape[0] // 2, inside.shape[1] // 2]
            assert middle.mean() > 75  # a colour of at least 90, after JPEG
            outside[max(top - 8, 0) : bottom + 8, max(left - 8, 0) : right + 8] = False
        if outside.any():
            assert pixels[outside].mean() < 70


def test_the_same_seed_draws_the_same_and_another_something_else(folder, tmp_path):
    for name, seed in (("again", 0), ("other", 1)):
        draw_shapes(tmp_path / name, num_images=(60, 20), seed=seed)
    digest = read_voc(folder).digest()
    assert read_voc(tmp_path / "again").digest() == digest
    assert read_voc(tmp_path / "other").digest() != digest


def test_an_image_does_not_depend_on_how_many_there_are(folder, tmp_path):
    draw_shapes(tmp_path / "few", num_images=(3, 1))
    one, other = (each / "JPEGImages" / "000002.jpg" for each in (folder, tmp_path / "few"))
    assert one.read_bytes() == other.read_bytes()
