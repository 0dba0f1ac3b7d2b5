"""Quantised weights against the formulas of their layouts, entry by entry."""

import json

import pytest
import torch
from safetensors.torch import save_file

from tempbalance.checkpoint import read_checkpoint
from tempbalance.checkpoint.layers import infer_layers
from tests.cases import assert_carries

NF4 = torch.tensor([-1, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407,
                    0.5626, 0.723, 1])  # fmt: skip


def integers(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def floats(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.1


def read(folder, tensors, config=None):
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return {tensor.name: tensor for tensor in read_checkpoint(folder).tensors}


def assert_weight(found, name: str, expected: torch.Tensor) -> None:
    """The right values, and a table in which the weight is a layer and its parts are none."""
    assert found[name].shape == tuple(expected.shape)
    torch.testing.assert_close(found[name].load(), expected.float())
    layers = infer_layers(list(found.values()))
    assert [layer.name for layer in layers.layers] == [name.removesuffix(".weight")]
    assert all("part of a weight" in reason for reason in layers.others.values())


@pytest.mark.parametrize("has_format", [True, False])
def test_int8_of_bitsandbytes_is_scaled_row_by_row(tmp_path, has_format):
    held, scale = integers(-127, 128, 5, 7, dtype=torch.int8), floats(5)
    tensors = {"fc.weight": held, "fc.SCB": scale}
    if has_format:
        tensors["fc.weight_format"] = torch.tensor(0, dtype=torch.uint8)
    expected = torch.tensor([[int(held[i, j]) * float(scale[i]) / 127 for j in range(7)] for i in range(5)])
    assert_weight(read(tmp_path, tensors), "fc.weight", expected)


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_4_bit_of_bitsandbytes_is_a_code_times_the_scale_of_a_block(tmp_path, kind, is_nested):
    rows, columns, size, nested_size = 6, 40, 64, 2
    nibbles = integers(0, 16, rows * columns)
    packed = (nibbles[0::2] * 16 + nibbles[1::2]).to(torch.uint8)[:, None]
    num_blocks = -(-rows * columns // size)
    state = {"quant_type": kind, "blocksize": size, "dtype": "float16", "shape": [rows, columns]}
    tensors = {"fc.weight": packed, "fc.weight.quant_map": NF4}
    if is_nested:
        state |= {"nested_blocksize": nested_size, "nested_dtype": "float32", "nested_offset": 0.25}
        codes, outer, inner = integers(0, 256, num_blocks, dtype=torch.uint8), floats(2), floats(256)
        tensors |= {"fc.weight.absmax": codes, "fc.weight.nested_absmax": outer, "fc.weight.nested_quant_map": inner}
        absmax = [float(inner[int(codes[b])]) * float(outer[b // nested_size]) + 0.25 for b in range(num_blocks)]
    else:
        tensors["fc.weight.absmax"] = floats(num_blocks)
        absmax = tensors["fc.weight.absmax"].tolist()
    content = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    tensors[f"fc.weight.quant_state.bitsandbytes__{kind}"] = content
    flat = torch.tensor([float(NF4[int(nibbles[i])]) * absmax[i // size] for i in range(rows * columns)])
    assert_weight(read(tmp_path, tensors), "fc.weight", flat.view(rows, columns))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
def test_gptq_packs_inputs_and_keeps_zero_points_less_one(tmp_path, bits, form):
    inputs, outputs, group, each = 64, 32, 16, 32 // bits
    held, zeros = integers(0, 2**bits, inputs, outputs), integers(1, 2**bits, inputs // group, outputs)
    scales, order = floats(inputs // group, outputs), torch.randperm(inputs) // group
    packed, packed_zeros = (
        torch.zeros(inputs // each, outputs).long(),
        torch.zeros(inputs // group, outputs // each).long(),
    )
    for i in range(inputs):
        packed[i // each] |= held[i] << (bits * (i % each))
    for j in range(outputs):
        packed_zeros[:, j // each] |= (zeros[:, j] - (1 if form == "gptq" else 0)) << (bits * (j % each))
    tensors = {"fc.qweight": packed, "fc.qzeros": packed_zeros}
    tensors = {name: (value & 0xFFFFFFFF).to(torch.uint32).view(torch.int32) for name, value in tensors.items()}
    tensors |= {"fc.scales": scales.half(), "fc.g_idx": order.int()}
    expected = torch.zeros(outputs, inputs)
    for i in range(inputs):
        for j in range(outputs):
            expected[j, i] = float(scales.half()[order[i], j]) * int(held[i, j] - zeros[order[i], j])
    config = {"quant_method": "gptq", "bits": bits, "checkpoint_format": form}
    assert_weight(read(tmp_path, tensors, config), "fc.weight", expected)


def test_awq_packs_outputs_in_an_order_of_its_own(tmp_path):
    inputs, outputs, group = 32, 16, 8
    held, zeros = integers(0, 16, inputs, outputs), integers(0, 16, inputs // group, outputs)
    scales = floats(inputs // group, outputs).half()

    def pack(values):
        packed = torch.zeros(values.shape[0], outputs // 8).long()
        for column in range(outputs // 8):
            for place, source in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
                packed[:, column] |= values[:, 8 * column + source] << (4 * place)
        return packed.to(torch.uint32).view(torch.int32)

    expected = torch.zeros(outputs, inputs)
    for i in range(inputs):
        for j in range(outputs):
            expected[j, i] = float(scales[i // group, j]) * int(held[i, j] - zeros[i // group, j])
    tensors = {"fc.qweight": pack(held), "fc.qzeros": pack(zeros), "fc.scales": scales}
    assert_weight(read(tmp_path, tensors, {"quant_method": "awq", "bits": 4}), "fc.weight", expected)


@pytest.mark.parametrize(
    ("suffix", "scale_shape", "config"),
    [("scale", (), None), ("scale", (1,), None), ("scale", (10, 1), None), ("scale", (10,), None),
     ("scale_inv", (2, 3), None), ("scale_inv", (3, 2), {"weight_block_size": [4, 8]})],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_a_scale_beside_a_weight_is_of_the_tensor_a_row_or_a_block(tmp_path, suffix, scale_shape, config, dtype):
    held, scale = (integers(-20, 20, 10, 9)).to(dtype), floats(*scale_shape)
    found = read(tmp_path, {"fc.weight": held, f"fc.weight_{suffix}": scale}, config)
    grid = scale.view(scale_shape if len(scale_shape) == 2 else (-1, 1))
    block = config["weight_block_size"] if config else [10 // grid.shape[0], 9 // grid.shape[1]]
    expected = torch.zeros(10, 9)
    for i in range(10):
        for j in range(9):
            expected[i, j] = float(held[i, j]) * float(grid[i // block[0], j // block[1]])
    assert_weight(found, "fc.weight", expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("use_zip", [True, False])
def test_tensors_that_torch_quantised_are_what_torch_makes_of_them(tmp_path, use_zip):
    weight, scales = torch.randn(6, 8), torch.rand(6) + 0.01
    state = {
        "tensor.weight": torch.quantize_per_tensor(weight, 0.1, 3, torch.quint8),
        "channel.weight": torch.quantize_per_channel(weight, scales, torch.arange(6), 0, torch.qint8),
        "columns.weight": torch.quantize_per_channel(weight, torch.rand(8) + 0.01, torch.arange(8), 1, torch.qint32),
    }
    torch.save(state, tmp_path / "a.pt", _use_new_zipfile_serialization=use_zip)
    for tensor in read_checkpoint(tmp_path / "a.pt").tensors:
        torch.testing.assert_close(tensor.load(), state[tensor.name].dequantize())


@pytest.mark.filterwarnings("ignore")
def test_a_quantised_linear_layer_of_torch_has_its_weight_and_bias(tmp_path):
    model = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Linear(8, 6)), dtype=torch.qint8)
    torch.save(model.state_dict(), tmp_path / "a.pt")
    found = {tensor.name: tensor.load() for tensor in read_checkpoint(tmp_path / "a.pt").tensors}
    torch.testing.assert_close(found["0.weight"], model[0].weight().dequantize())
    torch.testing.assert_close(found["0.bias"], model[0].bias())


@pytest.mark.parametrize(
    ("tensors", "config", "carried"),
    [
        ({"fc.qweight": torch.zeros(8, 8, dtype=torch.int32)}, None, ["quantization_config"]),
        ({"fc.qweight": torch.zeros(8, 8, dtype=torch.int32)}, {"quant_method": "gptq", "bits": 3}, ["'gptq'", 3]),
        ({"fc.qweight": torch.zeros(8, 8, dtype=torch.int32)}, {"quant_method": "awq", "bits": 4}, ["do not fit"]),
        ({"fc.qweight": torch.zeros(8, 8, dtype=torch.int32)}, {"quant_method": [], "bits": 4}, ["[]", 4]),
        ({"fc.weight": torch.zeros(8, 8, dtype=torch.int8)}, None, ["int8", "scale"]),
        ({"fc.weight": torch.zeros(8, 8, dtype=torch.int8), "fc.SCB": torch.ones(3)}, None, ["SCB"]),
        ({"fc.weight": torch.zeros(8, 8, dtype=torch.int8), "fc.weight_scale": torch.ones(3)}, None, ["scales"]),
    ],
)
def test_weights_of_which_the_file_does_not_say_how_are_skipped_with_that_reason(tmp_path, tensors, config, carried):
    found = infer_layers(read(tmp_path, tensors, config).values())
    assert not found.layers
    assert_carries(found.others["fc.weight"], *carried)


@pytest.mark.parametrize("state", [b"{", b"[]", b'{"shape": [2, 2], "blocksize": 0}', b'{"shape": "x"}'])
def test_a_weight_whose_4_bit_description_is_broken_is_skipped_and_the_others_are_read(tmp_path, state):
    content = torch.tensor(list(state), dtype=torch.uint8)
    odd = {"fc.weight": torch.zeros(2, 1, dtype=torch.uint8), "fc.weight.quant_state.bitsandbytes__nf4": content}
    found = infer_layers(read(tmp_path, {**odd, "other.weight": torch.ones(8, 8)}).values())
    assert_carries(found.others["fc.weight"], "4-bit")
    assert [layer.name for layer in found.layers] == ["other"]


def test_integers_beside_a_scale_of_bitsandbytes_that_are_no_weight_stay_what_they_are(tmp_path):
    tensors = {"fc.other": torch.ones(8, 8, dtype=torch.int8), "fc.SCB": torch.ones(8)}
    assert torch.equal(read(tmp_path, tensors)["fc.other"].load(), tensors["fc.other"])
