import pytest
import torch

from tempbalance.bench.contestants import make_subject, step_turn
from tempbalance.bench.networks import NETWORKS, build_model


def on_meta(name):
    """The network in its full size, without values."""
    with torch.device("meta"):
        return NETWORKS[name].build(1.0)


@pytest.mark.parametrize(
    ("name", "millions"),
    [("resnet18", 11.2), ("resnet34", 21.3), ("resnet101", 42.7), ("vgg16", 14.8), ("wrn28_6", 13.2)],
)
def test_networks_of_images_have_the_parameters_that_their_authors_state(name, millions):
    assert sum(each.numel() for each in on_meta(name).parameters()) / 1e6 == pytest.approx(millions, abs=0.15)


def test_gpt2_has_the_shapes_of_the_small_one():
    model = on_meta("gpt2")
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters() if each.dim() == 2}
    assert shapes.pop("tokens.weight") == (50257, 768)
    assert shapes["blocks.11.qkv.weight"] == (2304, 768)
    assert shapes["blocks.11.down.weight"] == (768, 3072)
    assert len(shapes) == 4 * 12
    # 124.4 million with the 1024 positions, which are no layer
    assert sum(each.numel() for each in model.parameters()) + 1024 * 768 == 124_439_808


def test_the_block_of_a_llama_has_seven_matrices():
    shapes = [tuple(each.shape) for name, each in on_meta("llama_block").blocks.named_parameters() if each.dim() == 2]
    assert shapes == [(2048, 2048)] * 4 + [(5632, 2048)] * 2 + [(2048, 5632)]


def test_all_matrices_of_the_transformers_are_scored():
    assert len(make_subject("llama_block", quick=True).scored) == 7
    assert len(make_subject("gpt2", quick=True).scored) == 48


@pytest.mark.parametrize("name", ["resnet18", "llama_block"])
def test_a_training_step_leaves_the_weights_as_they_are(name):
    subject = make_subject(name, quick=True)
    before = [each.clone() for each in subject.model.parameters()]
    seconds = step_turn(subject).run()
    assert list(seconds) == ["training step"]
    assert seconds["training step"] > 0
    assert all(torch.equal(old, new) for old, new in zip(before, subject.model.parameters(), strict=True))
    assert all(each.grad is not None for each in subject.model.parameters())


def test_weights_are_the_same_each_time_and_nothing_else_changes():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, second = (build_model("vgg16", quick=True) for _ in range(2))
    assert torch.equal(first.linear.weight, second.linear.weight)
    assert torch.equal(torch.rand(3), expected)
