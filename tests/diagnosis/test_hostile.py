"""Well-formed files with odd contents: a diagnosis, or a refusal in one line, soon and in little memory."""

import csv
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.metadata import MetadataIndex
from typer.testing import CliRunner

from tempbalance.checkpoint import read
from tempbalance.cli import app
from tempbalance.diagnosis import diagnose
from tempbalance.errors import CheckpointError
from tempbalance.report import diagnosis_page
from tests.cases import raises
from tests.checkpoint import hostile
from tests.report.cases import diagnosis_rows


def run(*arguments):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)], env={"COLUMNS": "200"})


def weights(**others):
    torch.manual_seed(0)
    return {"fc.weight": torch.randn(64, 64), **others}


def assert_only_fc_is_judged(result, *carried):
    assert result.exit_code == 0, result.output
    assert [row["name"] for row in json.loads(result.stdout)["layers"]] == ["fc"]
    reasons = " ".join(each["reason"] for each in json.loads(result.stdout)["skipped"])
    for each in carried:
        assert each in reasons


# small files that would take everything


@pytest.mark.parametrize("depth", [1, 60])
def test_a_name_of_tuples_in_metadata_is_refused_before_it_is_hashed(depth, tmp_path):
    name = ("a",)
    for _ in range(depth):
        name = (name, name)

    def change(metadata):
        place = hostile.place_of(metadata)
        made = MetadataIndex("weight", [0, 0])
        metadata.storage_data = {made: place}
        object.__setattr__(made, "fqn", name)

    with raises(CheckpointError, ".metadata"):
        diagnose(hostile.distributed(tmp_path, change))


@pytest.mark.parametrize(
    ("stem", "others"),
    [
        ("weight_orig", {"weight_mask": torch.ones(300, 1, 1)}),
        ("weight_v", {"weight_g": torch.ones(300, 1, 1, 1)}),
        ("weight_orig", {"weight_u": torch.ones(300), "weight_v": torch.ones(30, 10)}),
        ("parametrizations.weight.original1", {"parametrizations.weight.original0": torch.ones(300, 1, 1)}),
    ],
)
def test_parts_of_a_weight_are_not_broadcast(stem, others, tmp_path):
    parts = {f"odd.{name}": value for name, value in others.items()}
    save_file(weights(**{f"odd.{stem}": torch.randn(300, 300)}, **parts), tmp_path / "a.safetensors")
    assert_only_fc_is_judged(run(tmp_path / "a.safetensors", "--format", "json"), "does not fit")


@pytest.mark.parametrize("arguments", [["--list"], ["--wide"], ["--list", "--format", "csv"], ["--format", "csv"], []])
def test_a_long_name_is_cut_wherever_it_is_shown_but_in_json(arguments, tmp_path):
    long = "x" * 100_000
    tied = torch.randn(64, 64)
    others = {f"layers.{place}.weight": torch.randn(64, 64) for place in range(40)}
    torch.save({f"{long}.weight": tied, f"{long}y.weight": tied, **others}, tmp_path / "a.pt")
    result = run(tmp_path / "a.pt", *arguments)
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) < 1000
    whole = run(tmp_path / "a.pt", "--format", "json")
    assert long in whole.stdout


def test_a_weight_without_a_name_is_listed(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"": torch.randn(64, 64).numpy(), **weights()}))
    result = run(tmp_path / "a.pkl", "--list")
    assert result.exit_code == 0, result.output
    assert "64 x 64" in result.output


def test_a_long_name_is_cut_on_the_page(tmp_path):
    long = "x" * 100_000
    torch.save({f"{long}{place}.weight": torch.randn(64, 64) for place in range(8)}, tmp_path / "a.pt")
    assert run(tmp_path / "a.pt", "--html", tmp_path / "a.html").exit_code == 0
    assert long[:1000] not in (tmp_path / "a.html").read_text()


def test_a_dictionary_that_holds_itself_is_walked_once(tmp_path):
    held = weights()
    for number in range(20_000):
        held[f"state_dict{number}"] = held
    (tmp_path / "a.pt").write_bytes(pickle.dumps(held))
    start = time.process_time()
    assert [row.name for row in diagnose(tmp_path / "a.pt").judged] == ["fc"]
    assert time.process_time() - start < 5


def test_a_weight_larger_than_the_memory_is_refused_with_both_numbers(tmp_path, monkeypatch):
    save_file(weights(), tmp_path / "a.safetensors")
    monkeypatch.setattr(read, "available_memory", lambda: 30_000)
    with raises(CheckpointError, "'a.safetensors'", "'fc.weight'", "32,768", "30,000"):
        diagnose(tmp_path / "a.safetensors")


def test_a_file_of_zeros_that_takes_no_room_on_the_disk_is_refused(tmp_path):
    side = 200_000
    entry = {"dtype": "F32", "shape": [side, side], "data_offsets": [0, 4 * side * side]}
    path = hostile.written(tmp_path / "a.safetensors", hostile.header({"fc.weight": entry}, b""))
    os.truncate(path, path.stat().st_size + 4 * side * side)
    available = read.available_memory()
    with raises(CheckpointError, "'a.safetensors'", f"{path.stat().st_size:,}", "are available") as caught:
        diagnose(path)
    said = int(re.search(r"([0-9,]+) bytes of memory are available", str(caught.value))[1].replace(",", ""))
    assert said == pytest.approx(available, rel=0.5)


def test_views_of_one_storage_may_not_unfold_without_end(tmp_path):
    base = torch.randn(70_000)
    views = {f"layers.{place}.weight": base[place : place + 65_536].view(256, 256) for place in range(4000)}
    torch.save(views, tmp_path / "a.pt")
    with raises(CheckpointError, "'a.pt'", "1,048,576,000", "280,000"):
        diagnose(tmp_path / "a.pt")


def experts(count):
    return {"mlp.experts.weight": torch.randn(count, 8, 8)}


def test_the_time_for_stacked_experts_grows_with_their_number_and_not_with_its_square():
    def seconds(count):
        start = time.process_time()
        diagnose(experts(count), min_eigenvalues=8)
        return time.process_time() - start

    seconds(50)
    assert seconds(1600) < 16 * max(seconds(200), 0.1)


def test_the_time_to_read_a_safetensors_file_grows_with_its_tensors_and_not_with_their_square(tmp_path):
    def seconds(count):
        save_file({f"layers.{place}.weight": torch.ones(2, 2) for place in range(count)}, tmp_path / "a.safetensors")
        start = time.process_time()
        assert (
            sum(tensor.load().numel() for tensor in read.read_checkpoint(tmp_path / "a.safetensors").tensors)
            == 4 * count
        )
        return time.process_time() - start

    seconds(50)
    assert seconds(4000) < 32 * max(seconds(250), 0.05)


@pytest.mark.slow
def test_the_time_for_a_page_grows_with_its_rows_and_not_with_their_square():
    rows = diagnosis_rows()

    def seconds(count):
        many = [replace(rows[place % len(rows)], name=f"layers.{place}") for place in range(count)]
        start = time.process_time()
        assert f"layers.{count - 1}" in diagnosis_page(many, model="a", tail="median", summary={})
        return time.process_time() - start

    seconds(10)
    assert seconds(4_000) < 8 * seconds(1_000)


@pytest.mark.parametrize("make", [torch.Tensor.numpy, torch.clone], ids=["arrays", "tensors"])
def test_a_pickle_of_protocol_0_is_read(make, tmp_path):
    held = weights(b=torch.ones(3))
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({name: make(each) for name, each in held.items()}, 0))
    found = {tensor.name: tensor.load() for tensor in read.read_checkpoint(tmp_path / "a.pkl").tensors}
    assert all(torch.equal(found[name], held[name]) for name in held)


@pytest.mark.parametrize("digits", [b"9" * 100_000, b"9" * 100_000 + b"L"])
def test_a_number_of_many_digits_is_refused(digits, tmp_path):
    (tmp_path / "a.pkl").write_bytes(b"(lp0\nI" + digits + b"\na.")
    with raises(CheckpointError, "'a.pkl'"):
        diagnose(tmp_path / "a.pkl")


def test_an_expanded_buffer_is_skipped_and_the_other_layers_are_scored(tmp_path):
    torch.save(weights(bias_table=torch.ones(1).expand(2000, 2000)), tmp_path / "a.pt")
    assert_only_fc_is_judged(run(tmp_path / "a.pt", "--format", "json"), "expanded")


# wrong answers


def test_a_flipped_bit_in_a_storage_of_several_views_is_refused(tmp_path):
    base = torch.randn(2, 64, 64)
    torch.save({"a.weight": base[0], "b.weight": base[1]}, tmp_path / "a.pt")
    content, held = bytearray((tmp_path / "a.pt").read_bytes()), base.numpy().tobytes()
    content[content.index(held) + 9000] ^= 1
    (tmp_path / "a.pt").write_bytes(content)
    with raises(CheckpointError, "'a.pt'", "CRC-32"):
        diagnose(tmp_path / "a.pt")


def test_members_of_an_archive_that_overlap_are_refused(tmp_path):
    content = bytearray(hostile.saved({"a": torch.randn(64, 64), "b": torch.randn(64, 64)}))
    entries = [place for place in range(len(content)) if content[place : place + 4] == b"PK\1\2"]
    first, second = [place for place in entries if b"/data/" in content[place : place + 70]][:2]
    content[second + 42 : second + 46] = content[first + 42 : first + 46]
    (tmp_path / "a.pt").write_bytes(content)
    with raises(CheckpointError, "'a.pt'", "inside"):
        diagnose(tmp_path / "a.pt")


def test_a_layer_that_is_not_read_to_its_end_because_the_file_changed_ends_the_diagnosis(tmp_path):
    save_file({f"{place}.weight": torch.randn(64, 64) for place in range(3)}, tmp_path / "a.safetensors")
    save_file({f"{place}.weight": torch.randn(64, 64) for place in range(3)}, tmp_path / "b.safetensors")

    def replace(num_done, _):
        if num_done == 2:
            os.replace(tmp_path / "b.safetensors", tmp_path / "a.safetensors")

    with raises(CheckpointError, "'a.safetensors'", "replaced"):
        diagnose(tmp_path / "a.safetensors", progress=replace)


@pytest.mark.parametrize("make", [dict, OrderedDict], ids=["dict", "OrderedDict"])
@pytest.mark.parametrize("protocol", range(6))
def test_a_key_that_stands_twice_in_a_pickled_mapping_is_refused(make, protocol, tmp_path):
    many = {f"{number:04}.bias": 0 for number in range(1500)}  # a pickle sets a thousand keys at once
    content = pickle.dumps({"model": make({"one.weight": torch.ones(8, 8), **many, "two.weight": 0})}, protocol)
    (tmp_path / "a.pkl").write_bytes(content)
    assert "one.weight" in {tensor.name for tensor in read.read_checkpoint(tmp_path / "a.pkl").tensors}
    (tmp_path / "a.pkl").write_bytes(content.replace(b"two.weight", b"one.weight"))
    with raises(CheckpointError, "'a.pkl'", "'one.weight'", "twice"):
        diagnose(tmp_path / "a.pkl")


@pytest.mark.parametrize("long", [b"x" * 500, b"1" * 500], ids=["text", "digits"])
def test_a_long_key_that_stands_twice_is_refused(long, tmp_path):
    first, second = (f"{long.decode()}{number}.weight" for number in (1, 2))
    content = pickle.dumps({first: 0, second: 0, **weights()})
    (tmp_path / "a.pkl").write_bytes(content.replace(second.encode(), first.encode()))
    with raises(CheckpointError, "'a.pkl'", "twice"):
        diagnose(tmp_path / "a.pkl")


def test_pieces_of_a_distributed_tensor_that_overlap_are_refused(tmp_path):
    weight = torch.randn(64, 64)
    rows = {"__0_0.distcp": slice(0, 32), "__1_0.distcp": slice(1, 33)}
    folder = hostile.distributed_pieces(tmp_path, weight, rows)
    with raises(CheckpointError, "'weight'", "overlap"):
        diagnose(folder)


# one layer's error


@pytest.mark.parametrize(
    "odd",
    [
        {"rnn.weight_ih_l0": torch.randn(256, 64), "rnn.weight_hh_l0": torch.randn(64)},
        {"rnn.weight_ih_l0": torch.randn(256, 64), "rnn.weight_hh_l0": torch.tensor(3.0)},
        {"rnn.weight_ih_l0": torch.randn(256, 64), "rnn.weight_hr_l0": torch.randn(64)},
    ],
    ids=["a vector", "a number", "a projection that is a vector"],
)
def test_a_recurrent_weight_beside_an_odd_one_does_not_end_the_diagnosis(odd, tmp_path):
    torch.save(weights(**odd), tmp_path / "a.pt")
    assert "fc" in [row.name for row in diagnose(tmp_path / "a.pt").judged]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_an_adapter_in_float8_is_scored(dtype, tmp_path):
    torch.manual_seed(0)
    pair = {"a.lora_A.weight": torch.randn(16, 64), "a.lora_B.weight": torch.randn(64, 16)}
    folder = hostile.adapter(tmp_path, {name: each.to(dtype) for name, each in pair.items()})
    (row,) = diagnose(folder).diagnoses
    wide = {name: each.to(dtype).float() for name, each in pair.items()}
    (wanted,) = diagnose(hostile.adapter(tmp_path / "wide", wide)).diagnoses
    assert row.alpha == pytest.approx(wanted.alpha, rel=1e-6)


@pytest.mark.parametrize(
    "odd",
    [
        {"b.lora_A.weight": torch.ones(2, 3)},
        {"b.lora_A.weight": torch.ones(2, 3), "b.lora_B.weight": torch.ones(4, 3)},
        {"b.lora_A.weight": torch.ones(0, 3), "b.lora_B.weight": torch.ones(4, 0)},
        {"b.lora_A.weight": torch.ones(2), "b.lora_B.weight": torch.ones(2)},
        {"b.lora_A.weight": torch.ones(2, 3).long(), "b.lora_B.weight": torch.ones(4, 2).cfloat()},
    ],
)
def test_a_pair_of_factors_that_cannot_be_multiplied_is_skipped_and_the_others_are_scored(odd, tmp_path):
    torch.manual_seed(0)
    pair = {"a.lora_A.weight": torch.randn(16, 64), "a.lora_B.weight": torch.randn(64, 16)}
    found = diagnose(hostile.adapter(tmp_path, {**pair, **odd}))
    assert [row.name for row in found.judged] == ["a"]
    assert "lora_" in found.skipped["b"]


# names


@pytest.mark.parametrize("name", ["\uffff\ufffe\U0001fffe", "\udfff\ud800", "]]>&<\"'\x0b"])
def test_a_name_that_xml_cannot_hold_leaves_table_page_and_figures_whole(name, tmp_path):
    torch.save({f"{name}.weight": torch.randn(64, 64), "fc.weight": torch.randn(64, 64)}, tmp_path / "a.pt")
    for form in ("table", "csv", "json"):
        result = run(tmp_path / "a.pt", "--format", form)
        assert result.exit_code == 0, result.output
        assert not [char for char in result.output if not char.isprintable() and char != "\n"]
    result = run(tmp_path / "a.pt", "--html", tmp_path / "a.html", "--figures", tmp_path / "figures")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "a.html").read_text(encoding="utf-8")
    for path in (tmp_path / "figures").glob("*.svg"):
        ElementTree.parse(path)


def test_the_table_is_printed_even_if_figures_cannot_be_written(tmp_path):
    save_file(weights(), tmp_path / "a.safetensors")
    (tmp_path / "figures").write_text("a file")
    result = run(tmp_path / "a.safetensors", "--figures", tmp_path / "figures")
    assert result.exit_code == 1
    assert "fc" in result.stdout
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("sign", "=+-@")
def test_a_cell_of_csv_that_a_spreadsheet_would_compute_is_text(sign, tmp_path):
    name = f"{sign}HYPERLINK(1)"
    save_file({f"{name}.weight": torch.randn(64, 64), f"{sign}1": torch.ones(3)}, tmp_path / "a.safetensors")
    for arguments in ([], ["--list"], ["--against", tmp_path / "a.safetensors"]):
        result = run(tmp_path / "a.safetensors", "--format", "csv", *arguments)
        assert result.exit_code == 0, result.output
        cells = [cell for line in csv.reader(io.StringIO(result.stdout)) for cell in line]
        assert f"'{name}" in cells or f"'{name}.weight" in cells
        for cell in cells:
            assert cell[:1] not in ("=", "+", "@")
            assert cell[:1] != "-" or float(cell) < 0


def test_control_characters_of_paths_to_write_are_escaped(tmp_path):
    save_file(weights(), tmp_path / "a.safetensors")
    page = tmp_path / "\x1b[31m\u202e.html"
    result = run(tmp_path / "a.safetensors", "--html", page, "--figures", tmp_path / "\x1b]0;x\x07")
    assert result.exit_code == 0
    assert not [char for char in result.output if not char.isprintable() and char != "\n"]


# what is written


def test_a_page_is_not_written_through_a_link_that_waits_under_its_name(tmp_path):
    save_file(weights(), tmp_path / "a.safetensors")
    victim = tmp_path / "victim"
    victim.write_text("kept")
    for name in ("page.html.new", "page.html.tmp", "page.html"):
        (tmp_path / name).symlink_to(victim)
    assert run(tmp_path / "a.safetensors", "--html", tmp_path / "page.html").exit_code == 0
    assert victim.read_text() == "kept"
    assert not (tmp_path / "page.html").is_symlink()
    assert "<html" in (tmp_path / "page.html").read_text()


# campaigns


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="time and memory are read from /proc")
def test_odd_damaged_and_crafted_files_are_read_or_refused_in_one_line_soon_and_in_little_memory():
    """The small form of `make campaign`."""
    command = [sys.executable, "-m", "benchmarks.campaigns.files", "--seconds", "40", "--workers", "1"]
    found = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "0 traceback, 0 hang, 0 memory, 0 wrong" in found.stdout


# prints "ready" once the reading, the first solve or the drawing of the page has begun
INTERRUPTED = """
import sys
from tempbalance.cli import app
from tempbalance.diagnosis import measure
import tempbalance.diagnosis.diagnose
import vl_convert

where, name = {"reading": (sys.modules["tempbalance.diagnosis.diagnose"], "read_checkpoint"),
               "solving": (measure, "solve"), "drawing": (vl_convert, "javascript_bundle")}[sys.argv.pop(1)]
inner = getattr(where, name)

def begun(*arguments, **options):
    print("ready", flush=True)
    return inner(*arguments, **options)

setattr(where, name, begun)
app()
"""


# a library that swallows a KeyboardInterrupt while it is imported, as some do
SWALLOWING = """
import sys
import time
from tempbalance.cli import app

class Finder:
    def find_spec(self, name, *_):
        if name == "tempbalance.cli.diagnose":
            print("ready", flush=True)
            try:
                time.sleep(20)
            except KeyboardInterrupt:
                pass

sys.meta_path.insert(0, Finder())
app()
"""


@pytest.mark.slow
def test_ctrl_c_ends_the_command_while_libraries_are_imported(tmp_path):
    command = [sys.executable, "-c", SWALLOWING, "diagnose", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == -signal.SIGINT


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["reading", "solving", "drawing"])
def test_the_command_ends_within_a_second_of_ctrl_c(phase, tmp_path):
    torch.manual_seed(0)
    side, count = (64, 2) if phase == "drawing" else (1500, 30)
    save_file({f"{place}.weight": torch.randn(side, side) for place in range(count)}, tmp_path / "a.safetensors")
    page = ["--html", str(tmp_path / "a.html")] if phase == "drawing" else []
    command = [sys.executable, "-c", INTERRUPTED, phase, "diagnose", str(tmp_path / "a.safetensors"), *page]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.stdout.readline() != "ready\n":
        assert process.poll() is None
    time.sleep(1 if phase == "solving" else 0)
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - begin < 1
    if phase == "drawing":
        assert (process.returncode, errors) == (-signal.SIGINT, "")
        assert {path.name for path in tmp_path.iterdir()} == {"a.safetensors"}
    else:
        assert (process.returncode, errors.strip()) == (130, "stopped")
