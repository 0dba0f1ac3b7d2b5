"""Steps of every method and kind wait for nothing: on a GPU no value is read and no constant is copied."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tempbalance.lab.images import training as images
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.language import training as language
from tempbalance.lab.language.recipe import LanguageRecipe
from tempbalance.lab.operators import training as operators
from tempbalance.lab.operators.recipe import OperatorRecipe
from tempbalance.lab.recipe import METHODS
from tests.lab.cut import cpu

# reading a value, making a constant on the host, results whose size depends on values
WAITING = {"_local_scalar_dense", "lift_fresh", "lift_fresh_copy", "nonzero", "masked_select", "equal", "is_nonzero"}


class Counted(TorchDispatchMode):
    """Names of the operations that would wait for a device, and of copies from one to another."""

    def __init__(self, optimizer=None):
        super().__init__()
        self.found: list[str] = []
        states = optimizer.state.values() if optimizer is not None else ()
        self.on_host = {id(each["step"]) for each in states if "step" in each}  # where torch counts steps

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        is_copied = name == "_to_copy" and kwargs.get("device") not in (None, args[0].device)
        if (name in WAITING and id(args[0]) not in self.on_host) or is_copied:
            self.found.append(name)
        return func(*args, **kwargs)


def steps(training, num: int) -> list[str]:
    """What waits in the second and later steps of an epoch, with the batches they are made of."""
    training.number, training.losses = 1, []
    training.model.train()
    batches = iter(training.batches(1))
    training.step(training.loss(next(batches)))
    with Counted(training.optimizer) as counted:
        for _ in range(num - 1):
            training.step(training.loss(next(batches)))
            training.after_step()
    assert len(training.read_losses()) == num
    return counted.found


def test_the_count_sees_what_waits():
    with Counted() as counted:
        float(torch.ones(()))
        torch.ones(3).to("meta")
        torch.tensor([1.0])
        torch.ones(3).nonzero()
    assert {"_local_scalar_dense", "_to_copy", "nonzero"} <= {*counted.found}
    assert any(name.startswith("lift_fresh") for name in counted.found)


@pytest.mark.parametrize("method", METHODS)
def test_a_step_on_images_waits_for_nothing(method):
    recipe = ImageRecipe(model="resnet18", width=0.0625, method=method, epochs=1, limit=64, batch_size=16)
    data = recipe.load()
    training = images.build(recipe, type(data)(**{**vars(data), "crop": True, "flip": True}), cpu())
    assert steps(training, 4) == []


@pytest.mark.parametrize("method", ["adam", "tb+adam"])
@pytest.mark.parametrize("model", ["gpt", "tensorized"])
def test_a_step_on_text_waits_for_nothing(method, model):
    size = {"layers": 1, "width": 16, "head": 8, "inner": 16, "sequence": 8, "batch_size": 4}
    recipe = LanguageRecipe(dataset="pydoc", model=model, method=method, iterations=20, interval=10, **size)
    assert steps(language.build(recipe, recipe.load(), cpu()), 4) == []


def test_a_step_on_functions_waits_for_nothing():
    size = {"width": 8, "modes": 4, "limit": 32, "test_limit": 4, "grid": 32, "batch_size": 4}
    recipe = OperatorRecipe(iterations=20, interval=10, **size)
    assert steps(operators.build(recipe, recipe.load(), cpu()), 4) == []
