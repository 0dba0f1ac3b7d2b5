"""A module and its state dict say the same: which tensors are layers, how they are cut, and what is left out."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import parametrizations, prune

from tempbalance.checkpoint import StoredTensor, read_checkpoint
from tempbalance.checkpoint.layers import infer_layers
from tempbalance.diagnosis import diagnose
from tempbalance.lab.images.network import build_network
from tempbalance.model.layers import find_layers
from tests.cases import assert_carries, raises


def inferred(tensors, **options):
    return infer_layers(read_checkpoint(tensors).tensors, **options)


def described(layers):
    """What a table depends on: names, shapes, what is left out and why, and the parts of each weight."""
    found = []
    for layer in layers:
        parts = [] if layer.skipped else layer.cut(layer.weight())
        found.append(
            (layer.name, layer.shape, layer.skipped, [(part.name, tuple(part.slices.shape)) for part in parts])
        )
    return found


def inverted_residual(before: int, inside: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, inside, 1, bias=False),
        nn.BatchNorm2d(inside),
        nn.Conv2d(inside, inside, 3, groups=inside, bias=False),
        nn.BatchNorm2d(inside),
        nn.Conv2d(inside, after, 1, bias=False),
        nn.BatchNorm2d(after),
    )


class ResNeXtBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7)
        self.conv1 = nn.Conv2d(64, 128, 1, bias=False)
        self.conv2 = nn.Conv2d(128, 128, 3, groups=32, bias=False)
        self.conv3 = nn.Conv2d(128, 256, 1, bias=False)
        self.downsample = nn.Sequential(nn.Conv2d(64, 256, 1, bias=False), nn.BatchNorm2d(256))
        self.fc = nn.Linear(256, 60)


class MobileNet(nn.Module):
    """With names as timm has them: in natural order the stem comes after the blocks."""

    def __init__(self, channels: int, num_classes: int):
        super().__init__()
        self.conv_stem = nn.Conv2d(channels, 32, 3, bias=False)
        self.blocks = nn.Sequential(inverted_residual(32, 64, 32), inverted_residual(32, 96, 32))
        self.classifier = nn.Linear(32, num_classes)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 64, 3), nn.Conv2d(64, 128, 3)
        self.up = nn.ConvTranspose2d(128, 64, 2)
        self.up1, self.out = nn.Conv2d(128, 64, 3), nn.Conv2d(64, 2, 1)


class GPT(nn.Module):
    def __init__(self, tied: bool):
        super().__init__()
        self.tok_emb = nn.Embedding(500, 64)
        self.pos_embed = nn.Parameter(torch.randn(1, 32, 64))
        self.register_buffer("tril", torch.ones(32, 32).tril())
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm((32, 64))
        self.head = nn.Linear(64, 500, bias=False)
        if tied:
            self.head.weight = self.tok_emb.weight


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(64, 4, bias=False)
        self.experts = nn.Module()
        self.experts.gate_up_proj = nn.Parameter(torch.randn(4, 64, 128))


class Conv1D(nn.Module):
    """A Linear stored the other way round, as in GPT-2."""

    def __init__(self, num_out, num_in):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_in, num_out))
        self.bias = nn.Parameter(torch.zeros(num_out))


def pruned() -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    prune.random_unstructured(model[0], "weight", amount=0.3)
    return model


MODELS = {
    **{
        name: lambda name=name: build_network(name, num_classes=10, channels=3, side=32, width=0.25)
        for name in ("resnet18", "resnet50", "vgg16", "wrn16_8", "mlp")
    },
    "grayscale": lambda: build_network("resnet18", num_classes=10, channels=1, side=28, width=0.25),
    "depthwise": lambda: nn.Sequential(
        nn.Conv2d(3, 32, 3), inverted_residual(32, 96, 24), inverted_residual(24, 144, 24), nn.Linear(24, 50)
    ),
    "depth multiplier": lambda: nn.Sequential(nn.Conv2d(3, 24, 3), nn.Conv2d(24, 48, 3, groups=24)),
    "resnext": ResNeXtBlock,
    "resnext of as many classes as a group takes channels": lambda: nn.Sequential(ResNeXtBlock(), nn.Linear(60, 4)),
    "mobilenet": lambda: MobileNet(3, 10),
    "mobilenet with one output": lambda: MobileNet(3, 1),
    "mobilenet of gray images": lambda: MobileNet(1, 10),
    "u-net of gray images": UNet,
    "generator": lambda: nn.Sequential(*(nn.ConvTranspose2d(a, b, 4) for a, b in [(100, 64), (64, 32), (32, 1)])),
    "three dimensions": lambda: nn.Sequential(nn.Conv3d(3, 16, 3), nn.Conv1d(16, 32, 5), nn.Linear(32, 8)),
    "lstm": lambda: nn.LSTM(32, 64, num_layers=2, bidirectional=True, proj_size=16),
    "gru": lambda: nn.GRU(32, 64),
    "rnn": lambda: nn.ModuleDict({"rnn": nn.RNN(32, 64), "cell": nn.LSTMCell(32, 64)}),
    "attention": lambda: nn.MultiheadAttention(64, 4, kdim=32, vdim=32),
    "gpt": lambda: GPT(tied=False),
    "tied gpt": lambda: GPT(tied=True),
    "experts": Experts,
    "conv1d of gpt-2": lambda: nn.ModuleDict({"wte": nn.Embedding(100, 64), "c_attn": Conv1D(192, 64)}),
    "bilinear": lambda: nn.ModuleDict({"bilinear": nn.Bilinear(32, 16, 8)}),
    "weight norm": lambda: nn.Sequential(
        parametrizations.weight_norm(nn.Linear(64, 32)), nn.utils.weight_norm(nn.Conv2d(8, 8, 3))
    ),
    "spectral norm": lambda: nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(64, 32)),
        nn.utils.spectral_norm(nn.Conv2d(8, 8, 3)),
        nn.utils.spectral_norm(nn.ConvTranspose2d(8, 16, 3)),
    ).eval(),
    "pruned": pruned,
    "head without a bias beside an embedding": lambda: nn.ModuleDict(
        {"embed_in": nn.Embedding(100, 64), "embed_out": nn.Linear(64, 100, bias=False)}
    ),
    "named as an embedding, with a bias": lambda: nn.ModuleDict({"class_embed": nn.Linear(64, 91)}),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", MODELS)
def test_a_module_and_its_state_dict_have_the_same_layers(name):
    model = MODELS[name]()
    assert described(inferred(model.state_dict()).layers) == described(find_layers(model))


@pytest.mark.parametrize("name", [name for name in MODELS if "net" in name or "resnext" in name])
def test_the_order_of_the_tensors_does_not_matter_for_kernels(name, tmp_path):
    model = MODELS[name]()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    found = infer_layers(read_checkpoint(tmp_path / "model.safetensors").tensors).layers
    assert sorted(described(found)) == sorted(described(find_layers(model)))


def test_two_tensors_that_would_be_one_layer_keep_their_names_apart():
    found = inferred({"fc": torch.randn(64, 64), "fc.weight": torch.randn(64, 32)})
    assert {layer.name: layer.shape for layer in found.layers} == {"fc": (64, 64), "fc.weight": (64, 32)}


def test_a_tensor_without_entries_is_no_layer():
    assert inferred({"a.weight": torch.randn(64, 64), "b.weight": torch.randn(64, 0, 3, 3)}).others == {
        "b.weight": "empty"
    }


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", ["weight norm", "spectral norm", "pruned"])
def test_a_weight_that_is_made_of_others_has_the_values_that_the_module_applies(name):
    model = MODELS[name]()
    layers = zip(inferred(model.state_dict()).layers, find_layers(model), strict=True)
    for ours, theirs in layers:
        torch.testing.assert_close(ours.weight(), theirs.weight())


def test_every_tensor_is_a_layer_or_has_a_reason():
    state = GPT(tied=True).state_dict()
    found = inferred(state)
    assert {*found.tensors, *found.others} == set(state)
    assert found.others["norm.weight"] == "normalisation"
    assert found.others["tril"] == "mask or table"
    assert found.others["blocks.layers.0.linear1.bias"] == "bias"
    assert found.others["blocks.layers.0.norm1.weight"] == "vector"
    reasons = {layer.name: layer.skipped for layer in found.layers}
    assert_carries(reasons["tok_emb"], "embedding", "'head'")
    assert reasons["pos_embed"] == "embedding"


@pytest.mark.parametrize(
    ("name", "shape", "is_embedding"),
    [
        ("transformer.wte.weight", (100, 64), True),
        ("model.embed_tokens.weight", (100, 64), True),
        ("bert.embeddings.position_embeddings.weight", (100, 64), True),
        ("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", (32, 8), True),
        ("shared.weight", (100, 64), True),
        ("cls_token", (1, 1, 64), True),
        ("visual.positional_embedding", (50, 64), True),
        ("vit.embeddings.patch_embeddings.projection.weight", (64, 3, 4, 4), False),
        ("patch_embed.proj.weight", (64, 3, 4, 4), False),
        ("time_embedding.linear_1.weight", (64, 64), False),
        ("unembed.weight", (64, 100), False),
        ("lm_head.weight", (100, 64), False),
        ("model.layers.0.self_attn.q_proj.weight", (64, 64), False),
    ],
)
def test_embeddings_are_told_by_name(name, shape, is_embedding):
    (layer,) = inferred({name: torch.randn(shape)}).layers
    assert (layer.skipped == "embedding") is is_embedding


def test_three_dimensions_are_a_kernel_unless_the_name_or_a_pattern_says_experts():
    tensors = {"mix.weight": torch.randn(4, 64, 128), "mlp.experts.w1": torch.randn(4, 64, 128)}
    parts = {layer.name: layer.cut(layer.weight()) for layer in inferred(tensors).layers}
    assert [tuple(part.slices.shape) for part in parts["mix"]] == [(128, 4, 64)]
    assert [part.name for part in parts["mlp.experts.w1"]] == [f"expert {index}" for index in range(4)]
    for pattern in ("mix", "mix.weight", "mi*"):
        layer = inferred(tensors, stacked=[pattern]).layers[0]
        assert len(layer.cut(layer.weight())) == 4
    with raises(ValueError, "stacked", "'nothing'"):
        inferred(tensors, stacked=["nothing"])


def test_integers_and_the_factors_of_adapters_inside_a_model_say_why_they_are_no_layers():
    tensors = {
        "q.base_layer.weight": torch.randn(64, 64),
        "q.lora_A.default.weight": torch.randn(4, 64),
        "q.lora_B.default.weight": torch.randn(64, 4),
        "q.qweight": torch.zeros(64, 8, dtype=torch.int32),
        "r.parametrizations.weight.original": torch.randn(64, 64),
    }
    found = inferred(tensors)
    assert [layer.name for layer in found.layers] == ["q.base_layer"]
    assert_carries(found.others["q.lora_A.default.weight"], "LoRA", "scaling")
    assert_carries(found.others["q.weight"], "packed", "quantization_config")
    assert_carries(found.others["r.parametrizations.weight.original"], "parametrization")


def test_a_product_of_adapters_has_as_many_eigenvalues_as_its_rank():
    core = torch.randn(8, 8)
    found = infer_layers([StoredTensor("q", (64, 32), torch.float32, lambda: core, rank=8)])
    assert found.ranks == {"q": 8}
    (layer,) = found.layers
    assert layer.shape == (64, 32)
    assert layer.cut(torch.empty(layer.shape, device="meta"))[0].num_eigenvalues == 8
    assert torch.equal(layer.cut(layer.weight())[0].slices[0], core)


UNFIT = {
    "mask": {"weight_orig": (64, 32), "weight_mask": (1, 32)},
    "weight norm": {"weight_v": (64, 32), "weight_g": (64,)},
    "weight norm of another size": {"weight_v": (64, 32), "weight_g": (32, 1)},
    "spectral norm": {"weight_orig": (64, 32), "weight_u": (64,), "weight_v": (1,)},
    "parametrized weight norm": {
        "parametrizations.weight.original1": (64, 32),
        "parametrizations.weight.original0": (1, 1, 1),
    },
    "parametrized spectral norm": {
        "parametrizations.weight.original": (64, 32),
        "parametrizations.weight.0._u": (1,),
        "parametrizations.weight.0._v": (32,),
    },
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_weight_whose_parts_do_not_fit_is_skipped_with_that_reason_and_the_others_are_scored(name):
    tensors = {f"a.{part}": torch.ones(shape) for part, shape in UNFIT[name].items()}
    table = diagnose({**tensors, "b.weight": torch.randn(64, 64)})
    assert [row.name for row in table.scored] == ["b"]
    assert_carries(table.skipped["a.weight"], "does not fit", "64 x 32")


UNLIKE = {
    "mask": {"weight_orig": ((64, 32), torch.float32), "weight_mask": ((64, 32), torch.complex64)},
    "weight norm": {"weight_v": ((64, 32), torch.float32), "weight_g": ((64, 1), torch.int64)},
    "spectral norm": {
        "weight_orig": ((64, 32), torch.float32),
        "weight_u": ((64,), torch.float64),
        "weight_v": ((32,), torch.float32),
    },
}


@pytest.mark.parametrize("name", UNLIKE)
def test_parts_of_a_weight_with_other_dtypes_are_not_combined(name):
    tensors = {f"a.{part}": torch.ones(shape, dtype=dtype) for part, (shape, dtype) in UNLIKE[name].items()}
    table = diagnose({**tensors, "b.weight": torch.randn(64, 64)})
    assert [row.name for row in table.scored] == ["b"]
    assert_carries(table.skipped["a.weight"], "does not fit 64 x 32 float32")


def test_a_weight_whose_part_cannot_be_read_is_skipped_and_the_others_are_scored(tmp_path):
    mask = torch.ones(64, 64).to_sparse()
    torch.save({"a.weight_orig": torch.randn(64, 64), "a.weight_mask": mask, "b.weight": torch.randn(64, 64)},
               tmp_path / "a.pt")  # fmt: skip
    table = diagnose(tmp_path / "a.pt")
    assert [row.name for row in table.scored] == ["b"]
    assert_carries(table.skipped["a.weight"], "sparse")
