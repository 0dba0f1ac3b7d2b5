"""Nothing in a file runs, and what is refused is refused in one line, soon, and in little memory."""

import errno
import os
import pickle
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
import torch
from benchmarks import damaged_files

from tempbalance.checkpoint import read_checkpoint
from tempbalance.errors import CheckpointError, WeightError
from tests.cases import raises
from tests.checkpoint import hostile

# two seconds each; archive_millions_of_marks, which is refused in the same place, stays in the fast tier
SLOW = {"archive_tuples_a_million_deep", "archive_millions_of_instructions"}
LARGE = (
    "bomb",
    "million",
    "gigabyte",
    "exabyte",
    "terabyte",
    "beyond_reason",
    "zip64",
    "double",
    "recursion",
    "device",
)
REFUSED = [name for name in hostile.CASES if name not in hostile.INERT | hostile.UNREADABLE]
UNFOLDING = sorted(name for name in REFUSED if any(word in name for word in LARGE))
WHOLE = {"zip": hostile.saved(hostile.WEIGHT), "legacy": hostile.legacy(hostile.WEIGHT),
         "safetensors": hostile.save(hostile.WEIGHT)}  # fmt: skip


def names_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in REFUSED]
)
def test_a_hostile_file_is_refused_in_one_line_and_nothing_of_it_runs(name, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    path = hostile.build_case(name, tmp_path / "files" / "case")
    before, start = names_below(tmp_path), time.process_time()
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    assert time.process_time() - start < 10
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    assert names_below(tmp_path) == before
    assert not any(Path(found).name == hostile.MARKER for found in before)
    assert hostile.VARIABLE not in os.environ


@pytest.mark.parametrize("name", sorted(hostile.INERT))
def test_objects_beside_the_weights_are_inert_and_the_weights_are_read(name, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    path = hostile.build_case(name, tmp_path / "files" / "case")
    before = names_below(tmp_path)
    (tensor,) = read_checkpoint(path).tensors
    assert torch.equal(tensor.load(), hostile.WEIGHT["weight"])
    assert names_below(tmp_path) == before
    assert hostile.VARIABLE not in os.environ


@pytest.mark.parametrize("name", sorted(hostile.UNREADABLE))
def test_a_weight_that_cannot_be_read_is_listed_with_its_reason(name, tmp_path):
    (tensor,) = read_checkpoint(hostile.build_case(name, tmp_path / "case")).tensors
    assert tensor.problem.isprintable()
    with raises(WeightError, tensor.problem):
        tensor.load()


def test_the_payload_would_run_in_an_unpickler_that_trusts(tmp_path):
    path = hostile.build_case("torch_plain_pickle_with_payload", tmp_path / "case")
    pickle.loads(path.read_bytes())
    assert (tmp_path / hostile.MARKER).exists()
    assert (tmp_path / "case" / hostile.MARKER).exists()


def test_there_are_hundreds_of_cases():
    assert len(hostile.CASES) > 150


LIMITED = """
import sys
import torch
from tempbalance.checkpoint import read_checkpoint
from tempbalance.errors import CheckpointError
peak = lambda: int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
for path in sys.argv[1:]:
    before = peak()
    try:
        read_checkpoint(path)
    except CheckpointError:
        print(peak() - before)
        continue
    sys.exit(f"{path} was not refused")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_files_that_would_unfold_take_little_memory(tmp_path):
    """The peak of one process that reads them all is that of the worst of them."""
    paths = [str(hostile.build_case(name, tmp_path / name)) for name in UNFOLDING]
    result = subprocess.run([sys.executable, "-c", LIMITED, *paths], capture_output=True, text=True, check=True)
    grown = dict(zip(UNFOLDING, map(int, result.stdout.split()), strict=True))
    assert sum(grown.values()) < 300 * 1024, grown


@pytest.mark.parametrize("name", ["zip_bomb", "safetensors_header_of_exabytes", "archive_text_of_four_gigabytes"])
def test_a_file_that_would_unfold_is_refused_before_it_is_in_memory(name, tmp_path):
    path = hostile.build_case(name, tmp_path / "case")
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError):
            read_checkpoint(path)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "carried"),
    [
        ("torch_payload", ["'a.pt'", "posix.system"]),
        ("torch_plain_pickle_of_protocol_0", ["posix.system"]),
        ("archive_names_from_the_memo", ["os.system"]),
        ("archive_instruction_inst", ["'weight'"]),
        ("archive_extension", ["EXT1"]),
        ("archive_state_of_a_tensor", ["StoredTensor"]),
        ("archive_storage_longer_than_its_record", ["'0'", "4,000,000", 48]),
        ("zip_bomb", ["49,228", "50,000,180"]),
        ("npz_of_58_terabytes", ["'a.npz'", "64,000,000,000,000", 48]),
        ("format_onnx", ["'a.onnx'", "ONNX"]),
        ("format_gguf", ["GGUF", ".safetensors", ".bin", ".pt", ".pth", ".ckpt"]),
        ("format_msgpack", ["'a.msgpack'"]),
        ("format_json", ["'a.json'"]),
        ("tar_with_payload", ["tar"]),
        ("safetensors_cut_off", ["'a.safetensors'"]),
        ("safetensors_lfs_pointer", ["git lfs pull"]),
        ("safetensors_overlap", ["'a.safetensors'"]),
        ("index_above", ["'in'", "'../outside.safetensors'"]),
        ("index_of_a_shard_that_links_outside", ["'a.safetensors'"]),
        ("index_of_a_missing_tensor", [r"'evil\n\x1b[31m'", "'a.safetensors'"]),
        ("index_of_ten_thousand_and_one_shards", ["10,001", "10,000"]),
        ("index_of_one_file_by_two_names", ["'case'"]),
        ("fifo", ["FIFO"]),
        ("socket_file", ["socket"]),
        ("device", ["device"]),
        ("missing", [r"'no\nsuch\x1b[31m.pt'", os.strerror(errno.ENOENT)]),
        ("torch_empty", ["'a.pt'"]),
        ("folder_that_is_empty", ["'case'"]),
        ("distributed_payload", [".metadata"]),
        ("distributed_piece_outside", ["'../outside.distcp'"]),
    ],
)
def test_a_refusal_names_the_file_and_what_is_wrong_in_it(name, carried, tmp_path):
    with raises(CheckpointError, *carried):
        read_checkpoint(hostile.build_case(name, tmp_path / "case"))


def test_a_piece_of_a_distributed_checkpoint_with_a_payload_is_refused_when_it_is_read(tmp_path):
    folder = hostile.distributed(tmp_path, lambda metadata: None)
    (tensor,) = read_checkpoint(folder).tensors
    assert torch.equal(tensor.load(), hostile.WEIGHT["weight"])
    piece = (folder / "__0_0.distcp").read_bytes()
    evil = hostile.archive(hostile.payload_bytes(tmp_path) + b".")
    (folder / "__0_0.distcp").write_bytes(evil + bytes(len(piece) - len(evil)))
    (tensor,) = read_checkpoint(folder).tensors
    with pytest.raises(CheckpointError):
        tensor.load()
    assert not (tmp_path / hostile.MARKER).exists()


def denied(path, *_):
    raise PermissionError(errno.EACCES, "Permission denied", path)


def test_a_file_without_permission_is_refused(tmp_path, monkeypatch):
    path = hostile.written(tmp_path / "a.pt", hostile.saved(hostile.WEIGHT))
    path.chmod(0)
    if os.geteuid() == 0:  # whom nothing is denied
        monkeypatch.setattr(os, "open", denied)
    with raises(CheckpointError, "'a.pt'", os.strerror(errno.EACCES)):
        read_checkpoint(path)


def test_a_damaged_file_is_refused_or_leaves_the_other_tensors_as_they_are(tmp_path):
    """A part of the campaign of benchmarks/damaged_files.py; TEMPBALANCE_DAMAGED=2000 runs all of it."""
    found = damaged_files.run(tmp_path, int(os.environ.get("TEMPBALANCE_DAMAGED", "300")), seed=0)
    assert all(counts["refused"] > 0 and counts["read"] > 0 for counts in found.values())


def test_a_file_may_end_anywhere(tmp_path):
    for content in WHOLE.values():
        for length in range(0, len(content), 13):
            path = hostile.written(tmp_path / "a.pt", content[:length])
            with pytest.raises(CheckpointError):
                read_checkpoint(path)
