import pytest

from tempbalance.lab.detection import recipe
from tempbalance.lab.detection.recipe import DetectionRecipe
from tempbalance.lab.kinds import make_task, task_options
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
    assert make_task(task_options(one)) == one


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "yolov8"}, r"model must be yolov8n or a name that ends in \.yaml, got 'yolov8'"),
        ({"model": "../yolov8n.yaml"}, r"model must be yolov8n or .*, got '\.\./yolov8n\.yaml'"),
        ({"model": "own.pt"}, "model must be yolov8n or"),
        ({"method": "sgd"}, "unknown method 'sgd'"),
        ({"method": "tb+adams"}, r"unknown method 'tb\+adams': did you mean 'tb\+adam'"),
        ({"image_size": 100}, "image_size must be at least 32 and a multiple of 32, got 100"),
        ({"seed": 2**32}, r"seed must be at least 0 and below 2\*\*32 - 1, got 4294967296"),
        ({"betas": (0.9, 1.0)}, r"betas must be two numbers, at least 0 and below 1, got \(0\.9, 1\.0\)"),
        ({"mosaic": 1.5}, "mosaic must be from 0 to 1, got 1.5"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"eps": 0}, "eps must be > 0, got 0.0"),
        ({"width": 1.0}, "unknown option 'width'"),
    ],
)
def test_a_wrong_option_is_refused_with_its_rule_and_value(options, said):
    with pytest.raises(ValueError, match=said):
        DetectionRecipe.from_dict(options)


def test_runs_without_balancing_are_the_same_whatever_scales_there_would_be():
    one, other = (DetectionRecipe(method="adam", scale_range=each) for each in ((0.6, 1.4), (0.5, 1.5)))
    assert one.id == other.id
    balanced = {DetectionRecipe(scale_range=each).id for each in ((0.6, 1.4), (0.5, 1.5))}
    assert len(balanced) == 2


def test_random_and_pretrained_weights_are_two_runs():
    assert DetectionRecipe(model="yolov8n.yaml").id != DetectionRecipe().id


def test_data_that_are_not_there_are_refused_before_anything_starts(tmp_path):
    with pytest.raises(ValueError, match=r"unknown dataset 'voc2008': did you mean 'voc2007'.*VOC's layout"):
        DetectionRecipe(dataset="voc2008").check_data()
    DetectionRecipe().check_data()
    DetectionRecipe(dataset=str(make_voc(tmp_path))).check_data()


def test_the_checksum_of_ones_own_data_is_known_before_a_run_and_bad_data_are_refused(tmp_path):
    folder = make_voc(tmp_path)
    one = DetectionRecipe(dataset=str(folder), limit=1)
    assert one.own_digest() is not None
    assert DetectionRecipe().own_digest() is None
    (folder / "Annotations" / "c.xml").write_text("<annotation/>")
    with pytest.raises(ValueError, match=r"c\.xml: must have an <object>"):
        DetectionRecipe(dataset=str(folder), limit=2).own_digest()


def test_what_to_install_is_said_where_ultralytics_is_missing(monkeypatch):
    monkeypatch.setattr(recipe, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install ultralytics .*AGPL"):
        DetectionRecipe().check_data()
