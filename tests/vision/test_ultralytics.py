"""ultralytics' own trainer: at every step its schedule's rate times the scales of the weights it held."""

import copy

import pytest

pytest.importorskip("ultralytics", reason="runs in its own environment: make test-vision")

import numpy as np
from PIL import Image
from ultralytics import YOLO

from tempbalance.integrations.ultralytics import balance
from tests.integrations.contract import OPTIONS, assert_same, note_rates
from tests.integrations.test_ultralytics import recomputed

pytestmark = pytest.mark.slow

EPOCHS, STEPS_AN_EPOCH = 3, 4


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Bright squares on noise."""
    folder = tmp_path_factory.mktemp("squares")
    generator = np.random.default_rng(0)
    for kind in ("images", "labels"):
        (folder / kind / "train").mkdir(parents=True)
    for index in range(4 * STEPS_AN_EPOCH):
        image = generator.integers(0, 80, (64, 64, 3), dtype=np.uint8)
        x, y = generator.integers(8, 40, 2)
        image[y : y + 16, x : x + 16] = 255
        Image.fromarray(image).save(folder / "images" / "train" / f"{index}.png")
        label = f"0 {(x + 8) / 64} {(y + 8) / 64} 0.25 0.25\n"
        (folder / "labels" / "train" / f"{index}.txt").write_text(label)
    (folder / "data.yaml").write_text(f"path: {folder}\ntrain: images/train\nval: images/train\nnames: [square]\n")
    return folder / "data.yaml"


class Stopped(Exception):  # noqa: N818
    """The training is cut off."""


class Watched:
    """A training with the rates of each step, and the weights that it held at the start of each epoch."""

    def __init__(self, weights, *, balanced=True, stop_after=None):
        self.noted, self.held, self.stop_after = [], {}, stop_after
        self.model = YOLO(weights)
        self.balance = balance(self.model, **OPTIONS) if balanced else None
        self.model.add_callback("on_train_start", lambda each: note_rates(each.optimizer, each.model, self.noted))
        self.model.add_callback("on_train_epoch_start", self._keep)
        self.model.add_callback("on_fit_epoch_end", self._stop)

    def _keep(self, trainer):
        self.trainer = trainer
        self.held[trainer.epoch] = copy.deepcopy(trainer.model)

    def _stop(self, trainer):
        if trainer.epoch == self.stop_after:
            raise Stopped

    def train(self, data, project, **options):
        options = options or {
            "data": str(data),
            "epochs": EPOCHS,
            "project": str(project),
            "imgsz": 64,
            "batch": 4,
            "nbs": 4,
            "optimizer": "SGD",
            "warmup_epochs": 1.5,
            "device": "cpu",
            "workers": 0,
            "val": False,
            "plots": False,
            "amp": False,
        }
        self.model.train(**options)


@pytest.fixture(scope="module")
def own(data, tmp_path_factory):
    """The rates of its own."""
    plain = Watched("yolo11n.yaml", balanced=False, stop_after=EPOCHS - 1)
    with pytest.raises(Stopped):
        plain.train(data, tmp_path_factory.mktemp("plain"))
    assert len(plain.noted) == EPOCHS * STEPS_AN_EPOCH
    return plain


def test_each_step_is_at_its_own_rate_times_the_scales_of_the_weights_it_held_also_after_a_resume(data, own, tmp_path):
    first = Watched("yolo11n.yaml", stop_after=1)
    with pytest.raises(Stopped):
        first.train(data, tmp_path)
    second = Watched(str(first.trainer.last), stop_after=EPOCHS - 1)
    with pytest.raises(Stopped):
        second.train(data, tmp_path, resume=True)
    assert len(first.held) == 2
    assert list(second.held) == [2]
    held = first.held | second.held
    expected = [recomputed(held[step // STEPS_AN_EPOCH], each) for step, each in enumerate(own.noted)]
    assert_same(first.noted + second.noted, expected)
    assert len(second.balance.scheduler.last_scores) > 20
    groups = first.trainer.optimizer.param_groups
    assert [len(group["params"]) for group in groups] == [
        len(each["params"]) for each in own.trainer.optimizer.param_groups
    ]
