"""Hostile and broken files: refused in one line, soon, and without running anything, or read as if they were harmless.

A payload, where a file has one, creates a file called ``ran`` in the folder above, or sets an environment variable.
"""

import argparse
import io
import json
import os
import pickle
import socket
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import save
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

MARKER, VARIABLE = "ran", "TEMPBALANCE_RAN"
WEIGHT = {"weight": torch.arange(12.0).reshape(3, 4)}
STORAGE = bytes(48)
SETTING = f"__import__('os').environ.update({VARIABLE}='1')"
END = b"."

Build = Callable[[Path], Path]
CASES: dict[str, Build] = {}
# files whose objects are inert and whose weights are read all the same
INERT = {
    "torch_payload_beside_the_weights",
    "torch_payload_in_the_legacy_format",
    "torch_two_payloads",
    "torch_namespace",
    "torch_numpy_scalar",
    "index_of_a_payload",
}
# files that are read, and whose weight is listed with the reason why it is not scored
UNREADABLE = {
    "archive_expanded_to_a_terabyte",
    "adapter_without_a_partner",
    "adapter_of_different_ranks",
    "adapter_of_rank_zero",
    "adapter_of_vectors",
}


def build_case(name: str, folder: Path) -> Path:
    folder.mkdir(parents=True)
    return CASES[name](folder)


def case(build: Build) -> Build:
    CASES[build.__name__] = build
    return build


def add_files(prefix: str, suffix: str, contents: dict[str, Callable[[Path], bytes]]) -> None:
    """Cases that are one file each."""
    for name, content in contents.items():
        CASES[f"{prefix}_{name}"] = lambda folder, content=content: written(folder / f"a{suffix}", content(folder))


def written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


class Call:
    """Pickles to a call of a function, and maybe a state."""

    def __init__(self, function: Callable, *arguments: object) -> None:
        self.recipe = (function, arguments)

    def __reduce__(self) -> tuple:
        return self.recipe


def touch(folder: Path) -> str:
    return f"touch {folder / MARKER} {folder.parent / MARKER}"


def payload(folder: Path) -> Call:
    return Call(os.system, touch(folder))


def saved(value: object, **options: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def legacy(value: object) -> bytes:
    return saved(value, _use_new_zipfile_serialization=False)


def archive(pickled: bytes, records: dict[str, bytes] | None = None, method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip as torch.save writes it, around any pickle."""
    buffer = io.BytesIO()
    members = {"a/data.pkl": pickled, "a/byteorder": b"little", "a/data/0": STORAGE, "a/version": b"3\n"}
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, content in (members | (records or {})).items():
            file.writestr(name, content)
    return buffer.getvalue()


# pickles, written by hand: the opcodes of a storage, a tensor and a dictionary around it


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    data = pickle.encode_long(value)
    return b"\x8a" + bytes([len(data)]) + data


def numbers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def name(full: str) -> bytes:
    module, _, attribute = full.rpartition(".")
    return f"c{module}\n{attribute}\n".encode()


def storage(count: int = 12, kind: str = "torch.FloatStorage", key: str = "0") -> bytes:
    return b"(" + text("storage") + name(kind) + text(key) + text("cpu") + number(count) + b"tQ"


def tensor(offset: int = 0, shape: tuple = (3, 4), stride: tuple = (4, 1), stored: bytes | None = None) -> bytes:
    arguments = (stored or storage()) + number(offset) + numbers(shape) + numbers(stride) + b"\x89}"
    return name("torch._utils._rebuild_tensor_v2") + b"(" + arguments + b"tR"


def state(value: bytes, key: str = "weight") -> bytes:
    return b"\x80\x02}" + text(key) + value + b"s" + END


MODULE = name("a.Module") + b")\x81"


def module_state(children: bytes) -> bytes:
    return b"}" + text("_parameters") + b"}s" + text("_modules") + b"}" + children + b"sb"


def doubling_modules(depth: int) -> bytes:
    """A module with two children that are one object, whose children are one object, and so on."""
    twice = text("a") + b"h\2s" + text("b") + b"h\2s"
    made = MODULE + module_state(b"") + b"q\2"
    return b"\x80\x02" + made + (b"0" + MODULE + module_state(twice) + b"q\2") * depth + END


def many(count: int) -> bytes:
    """A dictionary of entries that are no tensors."""
    return b"}(" + b"".join(text(f"{index:x}") + b"N" for index in range(count)) + b"u"


LONG = "x" * 200


def named_alike(count: int) -> bytes:
    """A dictionary of one tensor under many names; the tensor is the value 0 of the memo."""
    return b"}(" + b"".join(text(f"{index:x}") + b"h\0" for index in range(count)) + b"u"


def deep_optimizer(depth: int, count: int) -> bytes:
    """A state of an optimizer in which many tensors have one long path."""
    inside = b"".join(b"}" + text(LONG) for _ in range(depth)) + named_alike(count) + b"s" * depth
    state = b"}" + text("state") + inside + b"s"
    return b"\x80\x02}" + text("weight") + tensor() + b"q\0s" + text("optimizer") + state + b"s" + END


def deep_module(depth: int, count: int) -> bytes:
    """A module far down in others, with many parameters that are one tensor."""
    leaf = MODULE + b"}" + text("_parameters") + named_alike(count) + b"s" + text("_modules") + b"}sb"
    outer = MODULE + b"}" + text("_parameters") + b"}s" + text("_modules") + b"}" + text(LONG)
    return b"\x80\x02" + tensor() + b"q\x000" + outer * depth + leaf + b"ssb" * depth + END


def embedded(pickled: bytes, count: int) -> bytes:
    """A list of one file embedded again and again, as pickle.dump embeds tensors."""
    inner = b"\x80\x02" + pickled + END
    content = b"\x80\x04B" + struct.pack("<I", len(inner)) + inner + b"\x85q\0"
    return content + name("torch.storage._load_from_bytes") + b"q\1(" + b"h\1h\0R" * count + b"l" + END


# a list of two references to a list of two references, two hundred deep
DOUBLING = b"]q\0" + b"".join(b"]q%c(h%ch%ce" % (index + 1, index, index) for index in range(200))
HUGE = number(10**600)
CALLING = name("torch._tensor._rebuild_from_type_v2")

PICKLES: dict[str, Callable[[Path], bytes]] = {
    "instruction_inst": lambda folder: state(b"(" + text(touch(folder)) + b"ios\nsystem\n"),
    "instruction_obj": lambda folder: state(b"(" + name("os.system") + text(touch(folder)) + b"o"),
    "extension": lambda folder: state(b"\x82\x01)R"),
    "names_from_the_memo": lambda folder: (
        b"\x80\x04" + text("os") + b"\x940" + text("system") + b"\x940h\x00h\x01\x93" + text(touch(folder)) + b"\x85R."
    ),
    "name_of_a_submodule": lambda folder: state(name("torch.serialization.os.system") + text(touch(folder)) + b"\x85R"),
    "eval": lambda folder: state(name("__builtin__.eval") + text(SETTING) + b"\x85R"),
    "getattr": lambda folder: state(name("builtins.getattr") + name("torch.hub") + text("load") + b"\x86R"),
    "state_of_an_unknown_class": lambda folder: state(name("ctypes.CDLL") + b")\x81}" + text("x") + text("y") + b"sb"),
    "persistent_module": lambda folder: state(b"(" + text("module") + name("torch.Tensor") + 2 * text("x=1") + b"tQ"),
    "persistent_number": lambda folder: state(number(3) + b"Q"),
    "persistent_text": lambda folder: state(b"Pstorage\n"),
    "items_of_a_list": lambda folder: state(b"]" + number(5) + number(7) + b"s"),
    "items_of_a_tensor": lambda folder: state(tensor() + b"(" + number(0) + number(7) + b"u"),
    "items_of_a_storage": lambda folder: state(storage() + number(10**6) + number(7) + b"s"),
    "items_of_a_tuple": lambda folder: state(b")" + number(0) + number(7) + b"s"),
    "append_to_a_dict": lambda folder: state(b"}" + number(0) + b"a"),
    "append_to_a_tensor": lambda folder: state(tensor() + b"(" + number(0) + b"e"),
    "odd_number_of_items": lambda folder: state(b"}(" + text("a") + b"u"),
    "state_of_a_tensor": lambda folder: state(tensor() + b"(" + storage() + number(0) + numbers((10**9,)) + b"tb"),
    "call_of_a_dtype": lambda folder: state(name("torch.float32") + b")R"),
    "call_of_a_tensor": lambda folder: state(tensor() + b")R"),
    "storage_longer_than_its_record": lambda folder: state(tensor(stored=storage(10**6))),
    "storage_shorter_than_its_record": lambda folder: state(tensor(stored=storage(4))),
    "storage_of_another_dtype": lambda folder: state(tensor(stored=storage(12, "torch.DoubleStorage"))),
    "storage_of_huge_length": lambda folder: state(tensor(stored=storage(2**61))),
    "storage_of_negative_length": lambda folder: state(tensor(stored=storage(-12))),
    "storage_that_is_missing": lambda folder: state(tensor(stored=storage(key="7"))),
    "storage_outside": lambda folder: state(tensor(stored=storage(key="../../../../etc/passwd"))),
    "shape_beyond_the_storage": lambda folder: state(tensor(shape=(3, 5))),
    "stride_beyond_the_storage": lambda folder: state(tensor(stride=(2**40, 1))),
    "stride_negative": lambda folder: state(tensor(stride=(-4, 1))),
    "stride_missing": lambda folder: state(tensor(stride=(4,))),
    "offset_beyond_the_storage": lambda folder: state(tensor(offset=1)),
    "offset_negative": lambda folder: state(tensor(offset=-1)),
    "expanded_to_a_terabyte": lambda folder: state(tensor(shape=(2**20, 2**18), stride=(0, 0))),
    "shape_of_a_thousand_sides": lambda folder: state(tensor(shape=(1,) * 1000, stride=(1,) * 1000)),
    "shape_negative": lambda folder: state(tensor(shape=(-3, -4))),
    "shape_of_no_number": lambda folder: state(name("torch._utils._rebuild_tensor_v2") + b"(" + storage() + b"NNNNNtR"),
    "memo_that_is_empty": lambda folder: state(b"h\x09"),
    "stack_that_is_empty": lambda folder: b"\x80\x02000" + END,
    "end_that_is_missing": lambda folder: state(tensor())[:-1],
    "text_of_four_gigabytes": lambda folder: b"\x80\x02X\xff\xff\xff\xff" + END,
    "text_of_an_exabyte": lambda folder: b"\x80\x04\x8d" + struct.pack("<Q", 2**60) + END,
    "number_of_two_gigabytes": lambda folder: b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + END,
    "number_of_negative_length": lambda folder: b"\x80\x02\x8b" + struct.pack("<i", -5) + END,
    "millions_of_instructions": lambda folder: b"\x80\x02" + b"}" * 5_000_000 + END,
    "millions_of_marks": lambda folder: b"\x80\x02" + b"(" * 5_000_000 + END,
    "itself_inside_itself": lambda folder: b"\x80\x02}q\x00" + text("model") + b"h\x00s" + END,
    "tuples_a_million_deep": lambda folder: b"\x80\x02)" + b"\x85" * 1_000_000 + END,
    "references_that_double": lambda folder: b"\x80\x02" + DOUBLING + END,
    "name_of_doubling_references": lambda folder: b"\x80\x04" + DOUBLING + b"h\x64\x93" + END,
    "call_of_calls": lambda folder: state(
        CALLING + b"q\0" + b"h\0N" * 50_000 + b")" + b"\x87" * 50_000 + b"R"
    ),
    "keys_without_a_hash": lambda folder: b"\x80\x02}]" + tensor() + b"s" + END,
    "no_mapping": lambda folder: b"\x80\x02" + number(5) + END,
    "no_tensors": lambda folder: state(number(5)),
    "text_that_is_not_utf8": lambda folder: b"\x80\x02}X\x02\x00\x00\x00\xff\xfeNs" + END,
    "name_with_a_line_break": lambda folder: state(b"\x93", key="os\nsystem") ,
    "nothing": lambda folder: b"",
    "memo_of_a_huge_number": lambda folder: b"\x80\x02}r" + struct.pack("<I", 2**31) + END,
    "key_of_doubling_tuples": lambda folder: b"\x80\x02)" + b"q\0h\0\x86" * 200 + b"q\0}h\0Ns" + END,
    "key_of_deep_tuples": lambda folder: b"\x80\x02})" + b"\x85" * 400_000 + b"Ns" + END,
    "key_of_deep_parameters": lambda folder: (
        b"\x80\x02}" + name("torch._utils._rebuild_parameter") * 200_000 + b")" + b"\x85R" * 200_000 + b"Ns" + END
    ),
    "one_long_key_many_times": lambda folder: (
        b"\x80\x02(" + b"K\1" * 200_000 + b"tq\0}" + b"h\0Ns" * 200_000 + END
    ),
    "keys_that_collide": lambda folder: (
        b"\x80\x02}(" + b"".join(number(index * (2**61 - 1)) + b"N" for index in range(40, 150_000)) + b"u" + END
    ),
    "tuples_as_keys": lambda folder: b"\x80\x02}(" + b"K\1\x85N" * 100_000 + b"u" + END,
    "names_without_end": lambda folder: b"\x80\x02" + b"".join(name(f"a.b{index}") for index in range(20_000)) + END,
    "state_of_a_class": lambda folder: state(name("a.b") + b"}" + text("x") + text("y") + b"sb"),
    "slots_of_a_class": lambda folder: state(name("a.b") + b"N}" + text("x") + text("y") + b"s\x86b"),
    "items_of_a_class": lambda folder: state(name("a.b") + b"(" + text("x") + b"e"),
    "modules_that_double": lambda folder: doubling_modules(200),
    "module_inside_itself": lambda folder: b"\x80\x02" + MODULE + b"q\2" + module_state(text("a") + b"h\2s") + END,
    "encoded_again_and_again": lambda folder: (
        b"\x80\x02" + text("x" * 1_000_000) + b"q\0" + name("_codecs.encode") + b"q\1"
        + (b"h\1h\0" + text("latin1") + b"\x86R") * 60_000 + END
    ),
    "buffer_out_of_band": lambda folder: state(b"\x97"),
    "one_long_name_many_times": lambda folder: (
        b"\x80\x04" + text("m" * 2**20) + b"q\0(" + b"h\0h\0\x93" * 1500 + b"l" + END
    ),
    "one_file_embedded_many_times": lambda folder: embedded(b"(" + b"ca\nb\n" * 990 + b"l", 10_000),
    "megabytes_embedded_many_times": lambda folder: embedded(b"B" + struct.pack("<I", 2**20) + bytes(2**20), 2000),
    "memo_numbers_of_one_hash": lambda folder: (
        b"\x80\x02N" + b"".join(b"p%d\n" % (index * (2**61 - 1)) for index in range(1, 200_001)) + END
    ),
    "storage_of_many_values": lambda folder: (
        b"\x80\x02(" + text("storage") + b"N" * 400_000 + b"tq\0" + b"h\0Q0" * 100_000 + END
    ),
    "call_with_many_values": lambda folder: (
        b"\x80\x02(" + b"N" * 400_000 + b"tq\0" + name("torch._utils._rebuild_parameter") + b"q\1"
        + b"h\1h\0R0" * 100_000 + END
    ),
    "object_of_one_mapping_many_times": lambda folder: state(
        name("a.b") + b"(" + many(20_000) + b"q\0" + b"h\0" * 20_000 + b"tR"
    ),
    "objects_that_share_a_mapping": lambda folder: state(
        many(50_000) + b"\x85q\0" + name("a.b") + b"q\1(" + b"h\1h\0R" * 20_000 + b"l"
    ),
    "names_beyond_reason_in_an_optimizer": lambda folder: deep_optimizer(12, 200_000),
    "names_beyond_reason_in_a_module": lambda folder: deep_module(60, 100_000),
    "modules_that_share_a_leaf": lambda folder: (
        b"\x80\x02" + MODULE + b"}" + text("_parameters") + many(50_000) + b"s" + text("_modules") + b"}sbq\2"
        + MODULE + module_state(b"(" + b"".join(text(f"{index:x}") + b"h\2" for index in range(20_000)) + b"u") + END
    ),
}  # fmt: skip
add_files("archive", ".pt", {key: lambda folder, make=make: archive(make(folder)) for key, make in PICKLES.items()})


add_files("torch", ".pt", {
    "payload": lambda folder: saved(payload(folder)),
    "payload_beside_the_weights": lambda folder: saved({"state_dict": WEIGHT, "callbacks": [payload(folder)]}),
    "payload_in_the_legacy_format": lambda folder: legacy({"state_dict": WEIGHT, "hyper_parameters": payload(folder)}),
    "two_payloads": lambda folder: saved({**WEIGHT, "a": payload(folder), "b": Call(eval, "1")}),
    "namespace": lambda folder: saved({"state_dict": WEIGHT, "args": argparse.Namespace(lr=1)}),
    "numpy_scalar": lambda folder: saved({"state_dict": WEIGHT, "loss": np.float64(1)}),
    "legacy_cut_off": lambda folder: legacy(WEIGHT)[:-10],
    "legacy_cut_in_the_pickle": lambda folder: legacy(WEIGHT)[:200],
    "legacy_of_another_length": lambda folder: legacy(WEIGHT).replace(struct.pack("<q", 12), struct.pack("<q", 2**40)),
    "legacy_payload_up_front": lambda folder: pickle.dumps(payload(folder), 2) + legacy(WEIGHT),
    "legacy_payload_at_the_end": lambda folder: legacy(WEIGHT).replace(b"\x80\x02]q\0", payload_bytes(folder)),
    "legacy_of_another_magic": lambda folder: pickle.dumps(0x1234, 2) + legacy(WEIGHT)[16:],
    "plain_pickle": lambda folder: pickle.dumps(WEIGHT["weight"].numpy()),
    "plain_pickle_with_payload": lambda folder: pickle.dumps(payload(folder)),
    "plain_pickle_of_protocol_0": lambda folder: pickle.dumps(payload(folder), 0),
    "plain_pickle_of_protocol_1": lambda folder: pickle.dumps(payload(folder), 1),
    "legacy_with_numbers_for_keys": lambda folder: legacy(WEIGHT).replace(b"\x80\x02]q\0", b"]" + HUGE + b"a"),
    "noise": lambda folder: bytes(range(255, 0, -1)) * 40,
    "text": lambda folder: b"<!DOCTYPE html><html>not found</html>\n",
    "empty": lambda folder: b"",
})  # fmt: skip
add_files("renamed", ".safetensors", {"pickle_with_payload": lambda folder: saved(payload(folder)),
                                      "stream_with_payload": lambda folder: legacy(payload(folder))})  # fmt: skip


# archives


def twice(_: Path) -> bytes:
    buffer = io.BytesIO(archive(state(tensor())))
    with zipfile.ZipFile(buffer, "a") as file:
        file.writestr("a/data/1", STORAGE)
    return buffer.getvalue().replace(b"a/data/1", b"a/data/0")


def patched(content: bytes, signature: bytes, at: int, value: bytes) -> bytes:
    """Overwrite a field of the first header with a signature."""
    start = content.index(signature) + at
    return content[:start] + value + content[start + len(value) :]


@case
def archive_with_a_directory_of_gigabytes(folder: Path) -> Path:
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, 2**32 - 1000, 0, 0)
    path = written(folder / "a.pt", b"PK\3\4")
    with path.open("r+b") as file:
        file.seek(2**32)
        file.write(end)
    return path


@case
def archive_with_a_zip64_lie(folder: Path) -> Path:
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, 2**62, 0)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, 4, 1)
    last = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0)
    return written(folder / "a.pt", b"PK\3\4" + end + locator + last)


def names_archive(member: str) -> bytes:
    return archive(state(tensor()), {member: b"x"})


def packed_views(_: Path) -> bytes:
    """Thousands of small tensors in one storage that has to be unpacked for each of them."""
    base = torch.zeros(3_000_000)
    plain = io.BytesIO(saved({f"{place}.weight": base[place : place + 4096].view(64, 64) for place in range(2000)}))
    buffer = io.BytesIO()
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for member in source.namelist():
            file.writestr(member, source.read(member))
    return buffer.getvalue()


def many_members(_: Path) -> bytes:
    """An archive of empty members, written by hand because zipfile would take a minute."""
    front, directory, start = [], [], 0
    for place in range(400_000):
        called = b"%x" % place
        directory.append(struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, *[0] * 7, len(called), *[0] * 5, start) + called)
        front.append(struct.pack("<4s5H3L2H", b"PK\3\4", 20, *[0] * 7, len(called), 0) + called)
        start += len(front[-1])
    size = sum(map(len, directory))
    return b"".join([*front, *directory, struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, size, start, 0)])


BOMB = bytes(50_000_000)
add_files("zip", ".pt", {
    "cut_off": lambda _: archive(state(tensor()))[:-60],
    "empty": lambda _: struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0, 0, 0, 0, 0),
    "of_a_name_twice": twice,
    "encrypted": lambda _: patched(archive(state(tensor())), b"PK\1\2", 8, b"\1"),
    "member_above": lambda _: names_archive("../../evil"),
    "member_absolute": lambda _: names_archive("/etc/evil"),
    "member_with_backslash": lambda _: names_archive("a\\..\\evil"),
    "member_with_nul": lambda _: archive(state(tensor()), {"a/xyz": b""}).replace(b"a/xyz", b"a\0xyz"[:5]),
    "big_endian": lambda _: archive(state(tensor()), {"a/byteorder": b"big"}),
    "bomb": lambda _: archive(state(tensor()), {"a/data/1": BOMB}, zipfile.ZIP_DEFLATED),
    "bomb_in_the_pickle": lambda _: archive(BOMB, method=zipfile.ZIP_DEFLATED),
    "pickle_beyond_reason": lambda _: archive(b"\x80\x02" + bytes(40 << 20)),
    "of_two_sizes": lambda _: patched(archive(state(tensor())), b"PK\1\2", 24, struct.pack("<L", 2**30)),
    "of_sizes_beyond_the_file": lambda _: patched(archive(state(tensor())), b"PK\1\2", 20, 2 * struct.pack("<L", 9999)),
    "header_elsewhere": lambda _: patched(archive(state(tensor())), b"PK\1\2", 42, struct.pack("<L", 7)),
    "lzma": lambda _: archive(state(tensor()), method=zipfile.ZIP_LZMA),
    "of_half_a_million_members": many_members,
    "views_of_one_packed_storage": packed_views,
    "deflated_and_broken": lambda _: patched(archive(state(tensor()), method=8), b"PK\3\4", 40, b"\xff" * 9),
    "two_roots": lambda _: names_archive("b/data.pkl"),
    "without_a_pickle": lambda _: archive(b"").replace(b"data.pkl", b"data.pkX"),
    "torchscript": lambda folder: archive(state(payload_bytes(folder)), {"a/constants.pkl": b"", "a/code/x.py": b""}),
})  # fmt: skip


def payload_bytes(folder: Path) -> bytes:
    return name("os.system") + text(touch(folder)) + b"\x85R"


def tar_with_payload(folder: Path) -> bytes:
    """The format of torch 0.1, which weights_only once let through."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member, content in (("storages", pickle.dumps(0, 2)), ("tensors", pickle.dumps(0, 2)),
                                ("pickle", pickle.dumps(payload(folder), 2))):  # fmt: skip
            info = tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


add_files("tar", ".pt", {"with_payload": tar_with_payload})
add_files("tar", ".tar", {"called_tar": tar_with_payload})


# safetensors


def header(value: object, data: bytes = STORAGE) -> bytes:
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack("<Q", len(content)) + content + data


def entry(begin: object = 0, end: object = 48, shape: object = (3, 4), dtype: object = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HEADERS: dict[str, object] = {
    "not_json": b'{"weight": oops}',
    "cut_json": b'{"weight": {"dtype"',
    "not_an_object": [1, 2, 3],
    "not_utf8": b'{"\xff\xfe": 1}',
    "key_twice": b'{"a": ' + json.dumps(entry()).encode() + b', "a": ' + json.dumps(entry()).encode() + b"}",
    "field_twice": b'{"a": {"dtype":"F32","dtype":"F32","shape":[3,4],"data_offsets":[0,48]}}',
    "a_million_brackets": b'{"a": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
    "nested_beyond_recursion": b'{"a": ' + b"[          " * 50_000 + b"]" * 50_000 + b"}",
    "a_number_of_many_digits": b'{"a": {"dtype":"F32","shape":[' + b"9" * 10_000 + b'],"data_offsets":[0,48]}}',
    "overlap": {"a": entry(), "b": entry(24, 48, (6,))},
    "same_bytes_twice": {"a": entry(), "b": entry()},
    "hole_between": {"a": entry(0, 16, (4,)), "b": entry(32, 48, (4,))},
    "hole_in_front": {"a": entry(16, 48, (8,))},
    "hole_behind": {"a": entry(0, 16, (4,))},
    "offsets_beyond_the_file": {"a": entry(0, 480, (120,))},
    "offsets_huge": {"a": entry(2**64, 2**64 + 48)},
    "offsets_negative": {"a": entry(-48, 0)},
    "offsets_reversed": {"a": entry(48, 0)},
    "offsets_not_numbers": {"a": entry("0", "48")},
    "offsets_fractional": {"a": entry(0.0, 48.0)},
    "offsets_of_another_size": {"a": entry(0, 48, (3, 5))},
    "shape_negative": {"a": entry(shape=(-3, -4))},
    "shape_huge": {"a": entry(shape=(2**40, 2**40))},
    "shape_huge_and_empty": {"a": entry(), "b": entry(48, 48, (0, 2**62, 2**62))},
    "shape_that_overflows": {"a": entry(shape=(2**32, 2**32, 12))},
    "shape_of_booleans": {"a": entry(0, 48, (True, 12))},
    "shape_fractional": {"a": entry(shape=(3.0, 4))},
    "shape_not_a_list": {"a": entry(shape="34")},
    "shape_of_a_thousand_sides": {"a": entry(shape=(1,) * 1000)},
    "dtype_unknown": {"a": entry(dtype="F42")},
    "dtype_with_markup": {"a": entry(dtype="<script>\n\x1b[31m" * 100)},
    "dtype_not_text": {"a": entry(dtype=["F32"])},
    "entry_not_an_object": {"a\nb": 3},
    "entry_with_more": {"a": {**entry(), "code": "import os"}},
    "entry_with_less": {"a": {"dtype": "F32"}},
    "metadata_not_text": {"__metadata__": {"a": {"b": 1}}, "a": entry()},
    "metadata_not_an_object": {"__metadata__": 3, "a": entry()},
}  # fmt: skip
add_files("safetensors", ".safetensors", {key: lambda _, value=value: header(value) for key, value in HEADERS.items()})
add_files("safetensors", ".safetensors", {
    "cut_off": lambda _: save(WEIGHT)[:-1],
    "with_more_behind": lambda _: save(WEIGHT) + b"x",
    "of_seven_bytes": lambda _: b"\1\0\0\0\0\0\0",
    "header_beyond_the_file": lambda _: struct.pack("<Q", 1000) + b'{"a":',
    "header_of_exabytes": lambda _: struct.pack("<Q", 2**63) + b"{}",
    "html": lambda _: b"<!DOCTYPE html><html>please sign in</html>\n",
    "lfs_pointer": lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n",
    "without_tensors": lambda _: header({}, b""),
})  # fmt: skip


@case
def safetensors_header_beyond_reason(folder: Path) -> Path:
    path = written(folder / "a.safetensors", struct.pack("<Q", 2**33) + b"{")
    os.truncate(path, 2**33 + 100)
    return path


# arrays of NumPy


def npz(shape: tuple[int, ...], data: bytes, method: int = zipfile.ZIP_STORED) -> bytes:
    """An archive with one array, whose header may claim another shape than its data has."""
    buffer, array = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(array, {"descr": "<f4", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(buffer, "w", method) as file:
        file.writestr("weight.npy", array.getvalue() + data)
    return buffer.getvalue()


add_files("npz", ".npz", {
    "of_58_terabytes": lambda _: npz((4_000_000, 4_000_000), STORAGE),
    "of_58_terabytes_compressed": lambda _: npz((4_000_000, 4_000_000), STORAGE, zipfile.ZIP_DEFLATED),
    "of_too_few_bytes": lambda _: npz((3, 5), STORAGE),
    "bomb": lambda _: npz((1000, 10_000), bytes(40_000_000), zipfile.ZIP_DEFLATED),
})  # fmt: skip


# folders


def index(folder: Path, shard_of: object, **files: bytes) -> Path:
    for file, content in files.items():
        written(folder / file, content)
    content = shard_of if isinstance(shard_of, bytes) else json.dumps({"weight_map": shard_of}).encode()
    written(folder / "model.safetensors.index.json", content)
    return folder


INDICES: dict[str, object] = {
    "absolute": {"weight": "/etc/passwd"},
    "above": {"weight": "../outside.safetensors"},
    "above_and_back": {"weight": "x/../../outside.safetensors"},
    "itself": {"weight": "."},
    "with_nul": {"weight": "a\0b"},
    "with_lone_surrogates": {"weight": "\ud800"},
    "of_a_missing_shard": {"weight": "b.safetensors"},
    "of_a_missing_tensor": {"weight": "a.safetensors", "evil\n\x1b[31m": "a.safetensors"},
    "of_numbers": {"weight": 3},
    "of_lists": ["a.safetensors"],
    "empty": {},
    "of_ten_thousand_and_one_shards": {f"a.{number}": f"{number}.safetensors" for number in range(10_001)},
    "not_json": b"{",
    "not_an_object": b"[]",
    "key_twice": b'{"weight_map": {"weight": "a.safetensors", "weight": "a.safetensors"}}',
}
for key, value in INDICES.items():
    CASES[f"index_{key}"] = lambda folder, value=value: index(
        written(folder / "outside.safetensors", save(WEIGHT)).parent / "in", value, **{"a.safetensors": save(WEIGHT)}
    )


@case
def index_of_a_shard_that_links_outside(folder: Path) -> Path:
    written(folder / "outside.safetensors", save(WEIGHT))
    inside = index(folder / "in", {"weight": "a.safetensors"})
    (inside / "a.safetensors").symlink_to("../outside.safetensors")
    return inside


@case
def index_in_a_folder_that_links_outside(folder: Path) -> Path:
    written(folder / "outside" / "a.safetensors", save(WEIGHT))
    inside = index(folder / "in", {"weight": "sub/a.safetensors"})
    (inside / "sub").symlink_to("../outside")
    return inside


@case
def index_that_links_outside(folder: Path) -> Path:
    index(folder / "outside", {"weight": "a.safetensors"})
    written(folder / "in" / "a.safetensors", save(WEIGHT))
    (folder / "in" / "model.safetensors.index.json").symlink_to("../outside/model.safetensors.index.json")
    return folder / "in"


@case
def index_of_one_file_by_two_names(folder: Path) -> Path:
    index(folder, {"weight": "a.safetensors", "other": "b.safetensors"}, **{"a.safetensors": save(WEIGHT)})
    (folder / "b.safetensors").symlink_to("a.safetensors")
    return folder


@case
def index_of_a_fifo(folder: Path) -> Path:
    index(folder, {"weight": "a.safetensors"})
    os.mkfifo(folder / "a.safetensors")
    return folder


@case
def index_of_a_payload(folder: Path) -> Path:
    return index(folder, {"weight": "a.bin"}, **{"a.bin": saved({**WEIGHT, "x": payload(folder)})})


@case
def folder_with_a_weight_that_links_outside(folder: Path) -> Path:
    written(folder / "outside.safetensors", save(WEIGHT))
    (folder / "in").mkdir()
    (folder / "in" / "model.safetensors").symlink_to("../outside.safetensors")
    return folder / "in"


@case
def folder_with_a_link_to_itself(folder: Path) -> Path:
    (folder / "model.safetensors").symlink_to("model.safetensors")
    return folder


@case
def folder_that_is_empty(folder: Path) -> Path:
    return folder


@case
def folder_without_weights(folder: Path) -> Path:
    return written(folder / "README.md", b"no weights").parent


# adapters


def adapter(folder: Path, tensors: dict[str, torch.Tensor], **config: object) -> Path:
    content = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, **config}
    written(folder / "adapter_config.json", json.dumps(content).encode())
    written(folder / "adapter_model.safetensors", save(tensors))
    return folder


PAIR = {"x.lora_A.weight": torch.ones(2, 3), "x.lora_B.weight": torch.ones(4, 2)}
ADAPTERS: dict[str, tuple[dict[str, torch.Tensor], dict[str, object]]] = {
    "of_another_type": (PAIR, {"peft_type": "IA3"}),
    "of_no_type": (PAIR, {"peft_type": None}),
    "without_alpha": (PAIR, {"lora_alpha": None}),
    "with_infinite_alpha": (PAIR, {"lora_alpha": float("inf")}),
    "with_alpha_as_text": (PAIR, {"lora_alpha": "__import__('os')"}),
    "with_a_pattern_that_never_ends": (PAIR, {"alpha_pattern": {"(x+x+)+y": 3}}),
    "with_a_pattern_that_is_a_list": (PAIR, {"alpha_pattern": ["x"]}),
    "with_a_hundred_thousand_patterns": (
        {f"x{number}.lora_A.weight": torch.ones(1, 1) for number in range(2000)},
        {"alpha_pattern": {f"y{number}": 1 for number in range(100_000)}},
    ),
    "without_a_partner": ({"x.lora_A.weight": torch.ones(2, 3)}, {}),
    "of_different_ranks": ({**PAIR, "x.lora_B.weight": torch.ones(4, 3)}, {}),
    "of_rank_zero": ({"x.lora_A.weight": torch.ones(0, 3), "x.lora_B.weight": torch.ones(4, 0)}, {}),
    "of_vectors": ({"x.lora_A.weight": torch.ones(2), "x.lora_B.weight": torch.ones(2)}, {}),
}
for key, (tensors, config) in ADAPTERS.items():
    CASES[f"adapter_{key}"] = lambda folder, tensors=tensors, config=config: adapter(folder, tensors, **config)


@case
def adapter_without_weights(folder: Path) -> Path:
    (adapter(folder, PAIR) / "adapter_model.safetensors").unlink()
    return folder


@case
def adapter_that_links_outside(folder: Path) -> Path:
    adapter(folder / "outside", PAIR)
    adapter(folder / "in", PAIR)
    (folder / "in" / "adapter_model.safetensors").unlink()
    (folder / "in" / "adapter_model.safetensors").symlink_to("../outside/adapter_model.safetensors")
    return folder / "in"


# torch.distributed.checkpoint


def distributed(folder: Path, change: Callable[[object], None]) -> Path:
    """A folder whose metadata is changed before it is written."""
    piece = saved(WEIGHT["weight"])
    chunk = ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([3, 4]))
    described = TensorStorageMetadata(TensorProperties(dtype=torch.float32), torch.Size([3, 4]), [chunk])
    place = _StorageInfo("__0_0.distcp", 0, len(piece))
    metadata = Metadata({"weight": described}, storage_data={MetadataIndex("weight", [0, 0]): place})
    change(metadata)
    written(folder / "in" / "__0_0.distcp", piece)
    written(folder / "outside.distcp", piece)
    written(folder / "in" / ".metadata", pickle.dumps(metadata))
    return folder / "in"


def distributed_pieces(folder: Path, weight: torch.Tensor, rows_of: dict[str, slice]) -> Path:
    """A matrix whose rows are in several files, as several processes save it."""
    chunks, places = [], {}
    for file, rows in rows_of.items():
        content = saved(weight[rows].clone())
        written(folder / "in" / file, content)
        chunks.append(ChunkStorageMetadata(torch.Size([rows.start, 0]), weight[rows].shape))
        places[MetadataIndex("weight", [rows.start, 0])] = _StorageInfo(file, 0, len(content))
    described = TensorStorageMetadata(TensorProperties(dtype=weight.dtype), weight.shape, chunks)
    written(folder / "in" / ".metadata", pickle.dumps(Metadata({"weight": described}, storage_data=places)))
    return folder / "in"


def place_of(metadata: object) -> object:
    return next(iter(metadata.storage_data.values()))


def described_in(metadata: object) -> object:
    return metadata.state_dict_metadata["weight"]


def index_of(offset: int) -> object:
    made = MetadataIndex("weight")
    object.__setattr__(made, "offset", (offset,))
    return made


DISTRIBUTED: dict[str, Callable[[Path, object], None]] = {
    "payload": lambda folder, metadata: setattr(metadata, "planner_data", payload(folder)),
    "piece_outside": lambda _, metadata: setattr(place_of(metadata), "relative_path", "../outside.distcp"),
    "piece_absolute": lambda _, metadata: setattr(place_of(metadata), "relative_path", "/etc/passwd"),
    "piece_at_no_path": lambda _, metadata: setattr(place_of(metadata), "relative_path", 3),
    "piece_missing": lambda _, metadata: setattr(place_of(metadata), "relative_path", "b.distcp"),
    "piece_beyond_its_file": lambda _, metadata: setattr(place_of(metadata), "length", 10**12),
    "piece_before_its_file": lambda _, metadata: setattr(place_of(metadata), "offset", -5),
    "piece_at_no_number": lambda _, metadata: setattr(place_of(metadata), "offset", "0"),
    "piece_transformed": lambda _, metadata: setattr(place_of(metadata), "transform_descriptors", ["zstd"]),
    "piece_nowhere": lambda _, metadata: setattr(metadata, "storage_data", {}),
    "pieces_missing": lambda _, metadata: setattr(described_in(metadata), "chunks", []),
    "pieces_twice": lambda _, metadata: described_in(metadata).chunks.append(described_in(metadata).chunks[0]),
    "shape_huge": lambda _, metadata: setattr(described_in(metadata), "size", torch.Size([2**40, 2**40])),
    "shape_of_text": lambda _, metadata: setattr(described_in(metadata), "size", "34"),
    "path_without_end": lambda _, metadata: setattr(metadata, "planner_data", {"weight": ("a",) * 10_000}),
    "place_of_huge_numbers": lambda _, metadata: metadata.storage_data.update({index_of(10**600): place_of(metadata)}),
    "place_of_negative_numbers": lambda _, metadata: metadata.storage_data.update({index_of(-1): place_of(metadata)}),
    "path_empty": lambda _, metadata: setattr(metadata, "planner_data", {"weight": ()}),
    "path_of_lists": lambda _, metadata: setattr(metadata, "planner_data", {"weight": ([],)}),
    "metadata_of_text": lambda _, metadata: setattr(metadata, "state_dict_metadata", "text"),
}
for key, change in DISTRIBUTED.items():
    CASES[f"distributed_{key}"] = lambda folder, change=change: distributed(folder, lambda it: change(folder, it))


@case
def distributed_pieces_hundreds_of_folders_down(folder: Path) -> Path:
    depth = 500  # shutil.rmtree could not remove a thousand
    place = _StorageInfo("a/" * depth + "b.distcp", 0, 100)

    def change(metadata: object) -> None:
        described, names = described_in(metadata), [f"{number}.weight" for number in range(8000)]
        metadata.state_dict_metadata = dict.fromkeys(names, described)
        metadata.storage_data = {MetadataIndex(each, [0, 0]): place for each in names}

    inside = distributed(folder, change)
    deep = os.open(inside, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("a", dir_fd=deep)
        below = os.open("a", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    with open("b.distcp", "wb", opener=lambda name, flags: os.open(name, flags, dir_fd=deep)) as file:
        file.write(bytes(100))
    os.close(deep)
    return inside


@case
def distributed_noise(folder: Path) -> Path:
    return written(folder / ".metadata", b"\x80\x04noise").parent


@case
def distributed_metadata_is_another_object(folder: Path) -> Path:
    return written(folder / ".metadata", pickle.dumps([1, 2])).parent


@case
def distributed_tensor_without_properties(folder: Path) -> Path:
    with patch.object(TensorProperties, "__getstate__", lambda _: ()):
        return distributed(folder, lambda _: None)


# what is no file of weights


@case
def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "a.pt")
    return folder / "a.pt"


@case
def socket_file(folder: Path) -> Path:
    # the path of a socket may be no longer than 107 bytes: it is made elsewhere and moved
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as made:
        made.bind(f"{short}/s")
        os.rename(f"{short}/s", folder / "a.pt")
    return folder / "a.pt"


@case
def device(folder: Path) -> Path:
    (folder / "a.pt").symlink_to("/dev/zero")
    return folder / "a.pt"


@case
def missing(folder: Path) -> Path:
    return folder / "no\nsuch\x1b[31m.pt"


@case
def link_to_nothing(folder: Path) -> Path:
    (folder / "a.pt").symlink_to("nothing")
    return folder / "a.pt"


@case
def path_through_a_file(folder: Path) -> Path:
    return written(folder / "a.pt", b"x") / "b.pt"


for suffix, content in {
    "onnx": b"\x08\x07\x12\x07pytorch\x1a\x052.1.0",
    "gguf": b"GGUF\x03\0\0\0",
    "h5": b"\x89HDF\r\n\x1a\n" + bytes(40),
    "npy": b"\x93NUMPY\x01\0" + bytes(40),
    "msgpack": b"\x81\xa1a\xc4\x04" + bytes(40),
    "tar.gz": b"\x1f\x8b\x08" + bytes(40),
    "json": b'{"weight_map": {}}',
    "pb": b"\x0a\x04abcd",
}.items():
    add_files("format", f".{suffix}", {suffix.replace(".", "_"): lambda _, content=content: content})
add_files(
    "renamed", ".pt", {"onnx": lambda _: b"\x08\x07\x12\x07pytorch\x1a\x052.1.0", "gguf": lambda _: b"GGUF\3\0\0\0"}
)
