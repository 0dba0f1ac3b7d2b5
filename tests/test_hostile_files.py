"""Nothing in a file runs, and what is refused is refused in one line, soon, and in little memory."""

import errno
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tempbalance.checkpoint import read_checkpoint
from tempbalance.errors import CheckpointError
from tests import hostile

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
UNFOLDING = sorted(name for name in hostile.CASES if any(word in name for word in LARGE))
WHOLE = {"zip": hostile.saved(hostile.WEIGHT), "legacy": hostile.legacy(hostile.WEIGHT),
         "safetensors": hostile.save(hostile.WEIGHT)}  # fmt: skip


def names_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("name", hostile.CASES)
def test_a_hostile_file_is_refused_in_one_line_and_nothing_of_it_runs(name, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    path = hostile.build_case(name, tmp_path / "files" / "case")
    before, start = names_below(tmp_path), time.monotonic()
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    assert time.monotonic() - start < 10
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    assert names_below(tmp_path) == before
    assert not any(Path(found).name == hostile.MARKER for found in before)
    assert hostile.VARIABLE not in os.environ


@pytest.mark.parametrize("name", ["torch_plain_pickle_with_payload", "torch_plain_pickle_of_protocol_0"])
def test_the_payload_would_run_in_an_unpickler_that_trusts(name, tmp_path):
    path = hostile.build_case(name, tmp_path / "case")
    pickle.loads(path.read_bytes())
    assert (tmp_path / hostile.MARKER).exists()
    assert (tmp_path / "case" / hostile.MARKER).exists()


def test_there_are_hundreds_of_cases_and_all_are_written_at_once(tmp_path):
    paths = hostile.hostile_files(tmp_path)
    assert len(paths) > 150
    assert len(set(paths.values())) == len(paths)


LIMITED = """
import sys
import torch
from tempbalance.checkpoint import read_checkpoint
from tempbalance.errors import CheckpointError
peak = lambda: int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
before = peak()
for path in sys.argv[1:]:
    try:
        read_checkpoint(path)
    except CheckpointError:
        continue
    sys.exit(f"{path} was not refused")
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("name", UNFOLDING)
def test_a_file_that_would_unfold_takes_little_memory(name, tmp_path):
    path = hostile.build_case(name, tmp_path / "case")
    result = subprocess.run([sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 300 * 1024


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("torch_payload", "asks for posix.system: nothing in a file is run; save only the state_dict()"),
        ("torch_two_payloads", "asks for posix.system, builtins.eval: nothing"),
        ("torch_plain_pickle_of_protocol_0", "asks for posix.system"),
        ("archive_names_from_the_memo", "asks for os.system"),
        ("archive_instruction_inst", "asks for os.system"),
        ("torch_namespace", "asks for argparse.Namespace"),
        ("torch_numpy_scalar", "asks for numpy"),
        ("torch_whole_module", "asks for torch.nn.modules.linear.Linear"),
        ("archive_items_of_a_tensor", "sets items of a PickledTensor, which torch.save never does"),
        ("archive_storage_longer_than_its_record", "storage '0' should have 4,000,000 bytes, the archive has 48"),
        ("archive_expanded_to_a_terabyte", "claims 1,099,511,627,776 bytes, its storage has 48"),
        ("zip_bomb", "more than a hundredfold"),
        ("zip_torchscript", "TorchScript, a program with its weights: .* torch.jit.load"),
        ("format_onnx", "ONNX, a program with its weights"),
        ("format_gguf", r"file of GGUF, which is not read: \.safetensors, \.bin, \.pt, \.pth, \.ckpt files"),
        ("format_msgpack", "not in a format that is read"),
        ("format_json", "hand over the folder"),
        ("tar_with_payload", "tar archive"),
        ("safetensors_cut_off", "does not fit|do not fit"),
        ("safetensors_lfs_pointer", "git lfs pull"),
        ("safetensors_overlap", "overlap or leave a hole at byte 48"),
        ("index_above", "names '../outside.safetensors', which lies outside"),
        ("index_of_a_shard_that_links_outside", "lies outside"),
        ("index_of_a_missing_tensor", r"says that 'evil\\n\\x1b\[31m' is in 'a.safetensors': it is not"),
        ("index_of_ten_thousand_and_one_shards", "names 10,001 shards, more than 10,000"),
        ("npz", r"zip archive that torch.save did not write, which is not read: \.safetensors"),
        ("index_of_one_file_by_two_names", "names one file as two shards"),
        ("fifo", "is a FIFO, not a file"),
        ("socket_file", "is a socket, not a file"),
        ("device", "is a device, not a file"),
        ("missing", r"'no\\nsuch\\x1b\[31m.pt': cannot be read: No such file or directory"),
        ("torch_empty", "is empty"),
        ("folder_that_is_empty", "has no weights"),
        ("distributed_payload", "asks for posix.system"),
        ("distributed_piece_outside", "lies outside"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_what_to_do(name, sentence, tmp_path):
    with pytest.raises(CheckpointError, match=sentence):
        read_checkpoint(hostile.build_case(name, tmp_path / "case"))


def test_a_piece_of_a_distributed_checkpoint_with_a_payload_is_refused_when_it_is_read(tmp_path):
    folder = hostile.distributed(tmp_path, lambda metadata: None)
    (tensor,) = read_checkpoint(folder).tensors
    assert torch.equal(tensor.load(), hostile.WEIGHT["weight"])
    piece = (folder / "__0_0.distcp").read_bytes()
    evil = hostile.archive(hostile.payload_bytes(tmp_path) + b".")
    (folder / "__0_0.distcp").write_bytes(evil + bytes(len(piece) - len(evil)))
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
    with pytest.raises(CheckpointError, match="Permission denied"):
        read_checkpoint(path)


@pytest.mark.parametrize("content", WHOLE.values(), ids=WHOLE)
def test_any_byte_of_a_file_may_be_wrong(content, tmp_path):
    """Each damaged file is read or refused; no other error comes out."""
    path = tmp_path / "a.pt"
    generator = torch.Generator().manual_seed(0)
    for position in torch.randint(len(content), (400,), generator=generator).tolist():
        path.write_bytes(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        try:
            tensors = read_checkpoint(path).tensors
        except CheckpointError:
            continue
        assert all(tensor.load().numel() >= 0 for tensor in tensors)


def test_a_file_may_end_anywhere(tmp_path):
    for content in WHOLE.values():
        for length in range(0, len(content), 7):
            path = hostile.written(tmp_path / "a.pt", content[:length])
            with pytest.raises(CheckpointError):
                read_checkpoint(path)
