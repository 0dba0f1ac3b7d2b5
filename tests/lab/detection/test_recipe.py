import pytest

from tempbalance.lab.detection import recipe
from tempbalance.lab.detection.recipe import DetectionRecipe
from tempbalance.lab.points import PRESETS
from tempbalance.lab.recipe import make_recipe, recipe_dict
from tempbalance.lab.study import find_study
from tests.cases import raises
from tests.lab.detection.layout import make_voc


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(recipe, "find_spec", lambda name: object())


def test_defaults_are_the_papers():
    found = DetectionRecipe()
    assert (found.dataset, found.model, found.epochs, found.batch_size) == ("voc2007", "yolov8n", 200, 64)
    assert (found.betas, found.eps, found.weight_decay) == ((0.9, 0.999), 1e-8, 5e-4)
    assert found.scale_range == (0.6, 1.4)
    assert found.data_text == "PASCAL VOC 2007, 5,011 + 4,952 images"
    assert found.size_text == "640 pixels; 200 epochs"


def test_a_recipe_is_read_back_as_it_was_written():
    one = DetectionRecipe(method="adamw", seed=13, limit=7)
    assert make_recipe(recipe_dict(one)) == one


@pytest.mark.parametrize(
    ("options", "carried"),
    [
        ({"model": "yolov8"}, ["model", "yolov8n", ".yaml", "'yolov8'"]),
        ({"model": "../yolov8n.yaml"}, ["model", "'../yolov8n.yaml'"]),
        ({"model": "own.pt"}, ["model", "'own.pt'"]),
        ({"method": "sgd"}, ["method", "'sgd'"]),
        ({"method": "tb+adams"}, ["method", "'tb+adams'", "'tb+adam'"]),
        ({"image_size": 100}, ["image_size", 32, 100]),
        ({"seed": 2**32}, ["seed", "2**32", 2**32]),
        ({"betas": (0.9, 1.0)}, ["betas", (0.9, 1.0)]),
        ({"mosaic": 1.5}, ["mosaic", 0, 1.5]),
        ({"epochs": 0}, ["epochs", 1, 0]),
        ({"eps": 0}, ["eps", "above 0", 0]),
        ({"width": 1.0}, ["'width'"]),
    ],
)
def test_a_wrong_option_is_refused_with_its_rule_and_value(options, carried):
    with raises(ValueError, *carried):
        DetectionRecipe.from_dict(options)


def test_runs_without_balancing_are_the_same_whatever_scales_there_would_be():
    one, other = (DetectionRecipe(method="adam", scale_range=each) for each in ((0.6, 1.4), (0.5, 1.5)))
    assert one.id == other.id
    balanced = {DetectionRecipe(scale_range=each).id for each in ((0.6, 1.4), (0.5, 1.5))}
    assert len(balanced) == 2


def test_random_and_pretrained_weights_are_two_runs():
    assert DetectionRecipe(model="yolov8n.yaml").id != DetectionRecipe().id


def test_data_that_are_not_there_are_refused_before_anything_starts(tmp_path):
    with raises(ValueError, "dataset", "'voc2008'", "'voc2007'"):
        DetectionRecipe(dataset="voc2008").check_data()
    DetectionRecipe().check_data()
    DetectionRecipe(dataset=str(make_voc(tmp_path))).check_data()


def test_the_checksum_of_ones_own_data_is_known_before_a_run_and_bad_data_are_refused(tmp_path):
    folder = make_voc(tmp_path)
    one = DetectionRecipe(dataset=str(folder), limit=1)
    assert one.own_digest() is not None
    assert DetectionRecipe().own_digest() is None
    (folder / "Annotations" / "c.xml").write_text("<annotation/>")
    with raises(ValueError, "c.xml", "<object>"):
        DetectionRecipe(dataset=str(folder), limit=2).own_digest()


def test_what_to_install_is_said_where_ultralytics_is_missing(monkeypatch):
    monkeypatch.setattr(recipe, "find_spec", lambda name: None)
    with raises(ModuleNotFoundError, "pip install ultralytics", "AGPL"):
        DetectionRecipe().check_data()


def test_the_papers_preset_trains_on_the_published_split():
    recipes = [point.recipe(43) for point in find_study("detection").points(PRESETS["paper"])]
    assert {(each.split, each.min_eigenvalues, each.tail) for each in recipes} == {("train", 64, "median_published")}
    assert "2,501 + 2,510 (val) + 4,952 images" in recipes[0].data_text
    assert {each.best_by for each in recipes} == {"valid_fitness"}
    assert not DetectionRecipe().best_by
