import pytest
import torch
from torch import Tensor, nn

from tempbalance import param_groups
from tempbalance.lab.images.network import NETWORKS, Bottleneck, PreActivationBlock, build_network, follow_by_name
from tempbalance.lab.images.recipe import MODELS
from tests.cases import raises


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def shapes_inside(model: nn.Module, batch: Tensor) -> dict[str, tuple[int, ...]]:
    """The shape of what each module gives, by its name."""
    shapes = {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _, __, output, name=name: shapes.update({name: tuple(output.shape)}))
    model(batch)
    return shapes


def feeding_convolutions(model: nn.Module, batch: Tensor) -> dict[str, str | None]:
    """Each BatchNorm with the convolution whose very output it gets, None where it gets something else, such as a sum.

    Seen while data runs through the model, so it knows nothing of how layers and norms are registered.
    """
    outputs: list[tuple[Tensor, str]] = []
    fed: dict[str, str | None] = {}

    def note_output(name):
        return lambda _, __, output: outputs.append((output, name))

    def note_input(name):
        def hook(_, inputs):
            fed[name] = next((source for output, source in outputs if output is inputs[0]), None)

        return hook

    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(note_output(name))
        elif isinstance(module, nn.BatchNorm2d):
            module.register_forward_pre_hook(note_input(name))
    model(batch)
    return fed


def followed_layers(model: nn.Module) -> dict[str, str | None]:
    """Each BatchNorm with the layer in whose param group it is; weight and bias must be in the same."""
    label = {parameter: group.get("layer") for group in param_groups(model) for parameter in group["params"]}
    norms = {name: module for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)}
    for module in norms.values():
        assert label[module.weight] == label[module.bias]
    return {name: label[module.weight] for name, module in norms.items()}


# by hand: every 3x3 convolution 9 x in x out, every 1x1 in x out, every BatchNorm twice its channels


def basic(inputs: int, width: int, depth: int) -> int:
    """A stage of basic blocks: 2 convolutions and 2 norms each, and a projection where the number of channels rises."""
    first = 9 * inputs * width + 9 * width**2 + 4 * width
    return first + (depth - 1) * (18 * width**2 + 4 * width) + (inputs * width + 2 * width) * (inputs != width)


def bottleneck(inputs: int, width: int, depth: int) -> int:
    """A stage of bottlenecks, 4 x width out; the first has a projection."""
    behind = 9 * width**2 + 4 * width**2 + 2 * width + 2 * width + 8 * width
    projection = 4 * inputs * width + 8 * width
    return inputs * width + behind + projection + (depth - 1) * (4 * width**2 + behind)


def wide(inputs: int, width: int, depth: int) -> int:
    """A stage of pre-activation blocks: the norms have the channels of their inputs, all convolutions have biases."""
    first = 2 * inputs + 9 * inputs * width + 2 * width + 9 * width**2 + inputs * width + 3 * width
    return first + (depth - 1) * (18 * width**2 + 6 * width)


def vgg(*depths: int) -> int:
    widths = [64] * depths[0] + [128] * depths[1] + [256] * depths[2] + [512] * (depths[3] + depths[4])
    return sum(9 * inputs * width + 2 * width for inputs, width in zip([3, *widths[:-1]], widths, strict=True))


STEM = 9 * 3 * 64 + 2 * 64
COUNTS = {
    "resnet18": (
        11_220_132,
        STEM + basic(64, 64, 2) + basic(64, 128, 2) + basic(128, 256, 2) + basic(256, 512, 2) + 513 * 100,
    ),
    "resnet34": (
        21_328_292,
        STEM + basic(64, 64, 3) + basic(64, 128, 4) + basic(128, 256, 6) + basic(256, 512, 3) + 513 * 100,
    ),
    "resnet50": (
        23_705_252,
        STEM
        + bottleneck(64, 64, 3)
        + bottleneck(256, 128, 4)
        + bottleneck(512, 256, 6)
        + bottleneck(1024, 512, 3)
        + 2049 * 100,
    ),
    "resnet101": (
        42_697_380,
        STEM
        + bottleneck(64, 64, 3)
        + bottleneck(256, 128, 4)
        + bottleneck(512, 256, 23)
        + bottleneck(1024, 512, 3)
        + 2049 * 100,
    ),
    "vgg16": (14_770_212, vgg(2, 2, 3, 3, 3) + 513 * 100),
    "vgg19": (20_081_188, vgg(2, 2, 4, 4, 4) + 513 * 100),
    "wrn16_8": (
        11_012_036,
        9 * 3 * 16 + 16 + wide(16, 128, 2) + wide(128, 256, 2) + wide(256, 512, 2) + 2 * 512 + 513 * 100,
    ),
    "wrn28_6": (
        13_185_508,
        9 * 3 * 16 + 16 + wide(16, 96, 4) + wide(96, 192, 4) + wide(192, 384, 4) + 2 * 384 + 385 * 100,
    ),
    "mlp": (2_149_988, (3 * 32 * 32 + 1) * 512 + 2 * 513 * 512 + 513 * 100),
}


def test_every_network_has_a_count():
    assert set(COUNTS) == set(NETWORKS)


@pytest.mark.parametrize("name", COUNTS)
def test_with_100_classes_a_network_has_as_many_parameters_as_its_architecture_says(name):
    with torch.device("meta"):  # shapes without numbers
        model = build_network(name, num_classes=100)
    total, by_hand = COUNTS[name]
    assert count(model) == total == by_hand


@pytest.mark.parametrize(("name", "millions"), [("resnet18", 11.22), ("resnet34", 21.33), ("vgg16", 14.77)])
def test_the_counts_are_the_papers(name, millions):
    assert round(COUNTS[name][0] / 1e6, 2) == millions


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_images_of_any_size_become_class_scores(name):
    for side, channels in ((8, 1), (28, 1), (32, 3), (64, 3)):
        model = build_network(name, num_classes=7, channels=channels, side=side, width=1 / 32)
        scores = model(torch.randn(2, channels, side, side))
        assert scores.shape == (2, 7)
        assert scores.isfinite().all()
        assert not torch.equal(scores[0], scores[1])


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_gets_a_gradient(name):
    torch.manual_seed(0)
    model = build_network(name, num_classes=7, side=8, width=0.0625)
    nn.functional.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.tensor([0, 1, 2, 3])).backward()
    assert [key for key, each in model.named_parameters() if not each.grad.any()] == []


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "mlp"])
def test_the_end_averages_over_all_positions(name):
    model = build_network(name, num_classes=5, width=0.0625)
    seen = {}
    model.pool.register_forward_hook(lambda _, inputs, output: seen.update(before=inputs[0], after=output))
    model(torch.randn(2, 3, 128, 128))
    assert seen["before"].shape[2] > 1
    assert torch.allclose(seen["after"], seen["before"].mean(dim=(2, 3)), atol=1e-6)


@pytest.mark.parametrize(("width", "channels"), [(0.5, 256), (1, 512), (1.5, 768)])
@pytest.mark.parametrize("name", ["resnet18", "vgg16"])
def test_the_papers_widths_are_those_of_the_last_stage(name, width, channels):
    with torch.device("meta"):
        model = build_network(name, num_classes=10, width=width)
    assert model.linear.in_features == channels
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    assert (first.in_channels, first.out_channels) == (3, 64 * width)


def test_channels_are_rounded_to_whole_numbers_of_at_least_one():
    narrow = build_network("resnet18", num_classes=10, width=0.3)
    stages = [getattr(narrow, f"layer{i}")[0].conv1.out_channels for i in (1, 2, 3, 4)]
    assert stages == [19, 38, 77, 154]  # of 19.2, 38.4, 76.8, 153.6
    for name in NETWORKS:
        model = build_network(name, num_classes=3, side=8, width=1e-6)
        assert model(torch.randn(2, 3, 8, 8)).shape == (2, 3)


def test_a_resnet_halves_the_side_three_times_and_does_not_pool_before():
    shapes = shapes_inside(build_network("resnet18", num_classes=10, width=0.125), torch.randn(1, 3, 32, 32))
    assert [shapes[name] for name in ("conv1", "layer1", "layer2", "layer3", "layer4")] == [
        (1, 8, 32, 32), (1, 8, 32, 32), (1, 16, 16, 16), (1, 32, 8, 8), (1, 64, 4, 4)
    ]  # fmt: skip
    assert shapes["layer2.0.conv1"] == (1, 16, 16, 16)


def test_a_bottleneck_strides_in_its_3x3_convolution():
    shapes = shapes_inside(Bottleneck(8, 4, stride=2), torch.randn(1, 8, 6, 6))
    assert [shapes[name] for name in ("conv1", "conv2", "conv3")] == [(1, 4, 6, 6), (1, 4, 3, 3), (1, 16, 3, 3)]


def test_a_wide_resnet_halves_the_side_twice():
    shapes = shapes_inside(build_network("wrn16_8", num_classes=10, width=0.125), torch.randn(1, 3, 32, 32))
    assert [shapes[name] for name in ("conv1", "layer1", "layer2", "layer3")] == [
        (1, 2, 32, 32), (1, 16, 32, 32), (1, 32, 16, 16), (1, 64, 8, 8)
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "last"), [("resnet18", "bn2"), ("resnet50", "bn3")])
def test_a_block_adds_to_its_shortcut(name, last):
    model = build_network(name, num_classes=10, width=0.125)
    images = torch.rand(2, model.conv1.out_channels, 8, 8)
    stage = model.layer1
    for block in stage:
        nn.init.zeros_(getattr(block, last).weight)
    projected = stage[0].shortcut(images).relu()
    assert torch.equal(stage(images), projected)
    assert projected.abs().sum() > 0


def test_a_pre_activation_block_adds_to_its_shortcut_and_projects_the_raw_input():
    first, second = build_network("wrn16_8", num_classes=10, width=0.125).layer2
    images = torch.randn(2, first.bn1.num_features, 8, 8)
    for block in (first, second):
        nn.init.zeros_(block.conv2.weight)
        nn.init.zeros_(block.conv2.bias)
    projected = first.shortcut(images)
    assert len(second.shortcut) == 0
    assert torch.equal(second(first(images)), projected)
    assert (projected < 0).any(), "no activation behind the sum"


def test_a_pre_activation_block_strides_in_its_second_convolution_and_its_shortcut():
    shapes = shapes_inside(PreActivationBlock(4, 8, stride=2), torch.randn(1, 4, 6, 6))
    assert [shapes[name] for name in ("conv1", "conv2", "shortcut.0")] == [(1, 8, 6, 6), (1, 8, 3, 3), (1, 8, 3, 3)]


def test_the_last_norm_of_a_wide_resnet_has_the_published_momentum():
    norms = [each for each in build_network("wrn16_8", num_classes=10).modules() if isinstance(each, nn.BatchNorm2d)]
    assert [each.momentum for each in norms] == [0.1] * 12 + [0.9]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet18", {"bn1": "conv1", "layer2.0.bn2": "layer2.0.conv2", "layer2.0.shortcut.1": None}),
        ("wrn16_8", {"layer1.0.bn1": "layer1.0.conv1", "layer3.1.bn2": "layer3.1.conv2", "bn1": "conv1"}),
        ("vgg16", {"features.1": "features.0"}),
    ],
)
def test_by_name_a_norm_follows_the_convolution_of_its_number(name, expected):
    model = build_network(name, num_classes=10, width=0.125)
    follow_by_name(model)
    followed = followed_layers(model)
    assert {norm: followed.get(norm) for norm in expected} == expected
    assert not any(followed[norm] for norm in followed if "shortcut" in norm)


@pytest.mark.parametrize(("side", "num_pools"), [(1, 0), (8, 3), (28, 4), (32, 5), (64, 5)])
def test_a_vgg_skips_the_pools_where_the_side_is_1_and_keeps_its_names(side, num_pools):
    model = build_network("vgg16", num_classes=10, side=side, width=0.125)
    assert sum(isinstance(module, nn.MaxPool2d) for module in model.modules()) == num_pools
    assert list(model.state_dict()) == list(build_network("vgg16", num_classes=10, width=0.125).state_dict())
    assert sum(isinstance(module, nn.Linear) for module in model.modules()) == 1


def test_an_mlp_has_three_hidden_layers():
    model = build_network("mlp", num_classes=10, channels=1, side=8, width=0.5)
    layers = [(each.in_features, each.out_features) for each in model.modules() if isinstance(each, nn.Linear)]
    assert layers == [(64, 256), (256, 256), (256, 256), (256, 10)]


@pytest.mark.parametrize(
    ("name", "width"),
    [
        *((name, 0.0625) for name in ("resnet18", "resnet34", "resnet50", "resnet101", "vgg16", "vgg19")),
        ("vgg16", 0.25),
    ],
)
def test_each_norm_trains_with_the_convolution_that_feeds_it(name, width):
    model = build_network(name, num_classes=10, width=width)
    fed = feeding_convolutions(model, torch.randn(2, 3, 32, 32))
    assert None not in fed.values()
    assert len(set(fed.values())) == len(fed) == sum(isinstance(each, nn.Conv2d) for each in model.modules())
    assert followed_layers(model) == fed


@pytest.mark.parametrize(
    ("name", "num_blocks", "width"), [("wrn16_8", 2, 0.125), ("wrn28_6", 4, 0.125), ("wrn16_8", 2, 0.25)]
)
def test_in_a_wide_resnet_a_norm_of_a_sum_trains_with_the_convolution_added_last(name, num_blocks, width):
    model = build_network(name, num_classes=10, width=width)
    fed = feeding_convolutions(model, torch.randn(2, 3, 32, 32))
    added_last = ""
    for norm, source in fed.items():  # in the order of the data
        if source is None:
            fed[norm] = added_last
        else:
            added_last = source.replace("conv1", "conv2")  # the second of the block in which the norm stands
    assert fed["layer1.0.bn1"] == "conv1"
    assert fed["layer1.0.bn2"] == "layer1.0.conv1"
    assert fed["layer2.0.bn1"] == f"layer1.{num_blocks - 1}.conv2"
    assert fed["bn1"] == f"layer3.{num_blocks - 1}.conv2"
    assert followed_layers(model) == fed


@pytest.mark.parametrize(
    ("name", "hint"),
    [("resnet17", "resnet18"), ("ResNet50", "resnet50"), ("vgg-16", "vgg16"), ("wrn_28_6", "wrn28_6")],
)
def test_an_unknown_name_is_answered_with_the_closest_known_one(name, hint):
    with raises(ValueError, "model", f"'{name}'", f"'{hint}'"):
        build_network(name, num_classes=10)


def test_a_name_like_no_other_is_answered_with_all_of_them():
    with raises(ValueError, "model", "'transformer'", *NETWORKS):
        build_network("transformer", num_classes=10)


@pytest.mark.parametrize("name", NETWORKS)
def test_images_need_not_be_square(name):
    model = build_network(name, num_classes=7, channels=1, side=(2, 9), width=0.0625)
    assert model(torch.randn(2, 1, 2, 9)).shape == (2, 7)


def test_the_names_that_options_know_are_those_of_the_networks():
    assert tuple(NETWORKS) == MODELS
