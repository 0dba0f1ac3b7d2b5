"""One file, in the format that its first bytes tell."""

from __future__ import annotations

from pathlib import Path

from tempbalance.errors import CheckpointError
from tempbalance.stored.files import READABLE, SUFFIXES, naming, open_file, shown
from tempbalance.stored.pickled import read_stream, read_zip, weights_of
from tempbalance.stored.safetensors import read_safetensors
from tempbalance.stored.tensors import Weights

_HEAD_BYTES = 512
_ONNX_ADVICE = "load it where it was made and save the state_dict() of the PyTorch model"
# the first bytes of formats that are not read
_OTHERS = ((b"GGUF", "GGUF"), (b"\x89HDF\r\n\x1a\n", "HDF5"), (b"\x1f\x8b", "gzip"), (b"\x93NUMPY", "NumPy"))


def read_file(path: Path) -> Weights:
    """The weights of a file.

    Raises:
        CheckpointError: If it is none that is read, is broken, or asks for more than to be read.
    """
    with naming(shown(path.name)):
        return _read(path)


def _read(path: Path) -> Weights:
    with open_file(path) as file:
        head = file.read(_HEAD_BYTES)
    if not head:
        raise CheckpointError("is empty")
    if head[8:9] == b"{":
        return Weights(read_safetensors(path))
    if head.startswith(b"PK"):
        return weights_of(path, read_zip)
    _refuse_others(head, path.suffix.lower())
    if head.startswith(b"\x80") or path.suffix.lower() in SUFFIXES[1:]:
        return weights_of(path, read_stream)
    if path.suffix.lower() == ".safetensors":
        return Weights(read_safetensors(path))
    raise CheckpointError(f"is not in a format that is read: {READABLE}")


def _refuse_others(head: bytes, suffix: str) -> None:
    """Say what a file of another format is, and what to do."""
    if suffix == ".onnx" or (head[:1] == b"\x08" and head[2:3] in (b"\x12", b":")):
        raise CheckpointError(f"is ONNX, a program with its weights: {_ONNX_ADVICE}")
    if head[257:262] == b"ustar":
        raise CheckpointError(f"is a tar archive (torch wrote them before 0.4), which is not read: {READABLE}")
    for magic, name in _OTHERS:
        if head.startswith(magic):
            raise CheckpointError(f"is a file of {name}, which is not read: {READABLE}")
    if head.startswith(b"version https://git-lfs"):
        raise CheckpointError("is a pointer of Git LFS, not the weights: fetch them with git lfs pull")
    if suffix == ".json":
        raise CheckpointError("is an index or a configuration: hand over the folder that it is in")
