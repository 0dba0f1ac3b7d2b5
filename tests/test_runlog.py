"""A run's folder is whole whenever the process is killed."""

import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tempbalance.runlog import BusyRunError, RunFolder, RunFolderError, write_whole
from tests.cases import assert_carries, raises


def save(content: bytes):
    return lambda path: path.write_bytes(content)


def test_a_folder_that_is_not_there_has_nothing(tmp_path):
    run = RunFolder(tmp_path / "none")
    assert run.recipe is run.result is run.checkpoint() is None
    assert run.metrics == run.layers == []
    assert not run.path.exists()


def test_what_was_written_is_read_back(tmp_path):
    run = RunFolder(tmp_path / "a" / "run")
    run.write_recipe({"recipe": {"lr": 0.1}})
    run.append([{"epoch": 1, "loss": 0.5}], [{"epoch": 0, "layer": "conv"}, {"epoch": 1, "layer": "conv"}])
    run.write_result({"test_accuracy": 90.0})
    assert run.recipe == {"recipe": {"lr": 0.1}}
    assert run.metrics == [{"epoch": 1, "loss": 0.5}]
    assert [line["epoch"] for line in run.layers] == [0, 1]
    assert run.result == {"test_accuracy": 90.0}


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    run = RunFolder(tmp_path)
    run.append([{"epoch": 1}, {"epoch": 2}])
    text = (tmp_path / "metrics.jsonl").read_text()
    for length in range(len(text)):
        (tmp_path / "metrics.jsonl").write_text(text[:length])
        assert [line["epoch"] for line in run.metrics] == [1] * text[:length].count("\n")


def test_rewinding_forgets_later_epochs_and_a_cut_line(tmp_path):
    run = RunFolder(tmp_path)
    run.append([{"epoch": epoch} for epoch in (1, 2, 3)], [{"epoch": epoch} for epoch in (0, 1, 2, 3)])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4')
    run.rewind(2)
    assert [line["epoch"] for line in run.metrics] == [1, 2]
    assert [line["epoch"] for line in run.layers] == [0, 1, 2]
    assert (tmp_path / "metrics.jsonl").read_text().endswith("\n")


def test_the_last_two_checkpoints_are_kept(tmp_path):
    run = RunFolder(tmp_path)
    for content in (b"one", b"two", b"three"):
        run.save_checkpoint(save(content))
        assert run.checkpoint().read_bytes() == content
    assert (tmp_path / "previous.ckpt").read_bytes() == b"two"
    assert not (tmp_path / "new.ckpt").exists()


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: b"\x00" + content[1:], lambda _: b""])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_used(tmp_path, damage):
    run = RunFolder(tmp_path)
    run.save_checkpoint(save(b"first"))
    run.save_checkpoint(save(b"second"))
    last = tmp_path / "last.ckpt"
    last.write_bytes(damage(b"second"))
    assert run.checkpoint() == tmp_path / "previous.ckpt"
    (tmp_path / "previous.ckpt").write_bytes(b"damaged too")
    assert run.checkpoint() is None


class KilledError(BaseException):
    pass


def kill_after(monkeypatch, num_calls: int) -> None:
    """Let so many writes, moves and deletions happen; nothing at all happens after them, not even cleaning up."""
    calls = iter(range(num_calls))

    def stop_at(real):
        def wrapped(*args, **options):
            if next(calls, None) is None:
                raise KilledError
            return real(*args, **options)

        return wrapped

    for owner, name in ((os, "replace"), (Path, "write_bytes"), (Path, "unlink")):
        monkeypatch.setattr(owner, name, stop_at(getattr(owner, name)))


def save_and_be_killed(run, content, num_calls) -> bool:
    """Whether it came to be killed; a write that is killed leaves half."""

    def save_half(path):
        with path.open("wb") as file:
            file.write(content[:1])
        path.write_bytes(content)

    with pytest.MonkeyPatch.context() as monkeypatch:
        kill_after(monkeypatch, num_calls)
        try:
            run.save_checkpoint(save_half)
        except KilledError:
            return True
    return False


POINTS = range(11)  # a save has ten writes, moves and deletions


@pytest.mark.parametrize("damaged", [None, "last.ckpt", "previous.ckpt", "last.ckpt.sha256", "previous.ckpt.sha256"])
def test_no_two_kills_at_any_points_lose_every_checkpoint_even_after_damage(tmp_path, monkeypatch, damaged):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    ended = set()
    for first in POINTS:
        for second in POINTS:
            run = RunFolder(tmp_path / f"{first}-{second}")
            run.save_checkpoint(save(b"1 whole"))
            run.save_checkpoint(save(b"2 whole"))
            if damaged:
                (run.path / damaged).write_bytes(b"")
            good = run.checkpoint().read_bytes()
            for content, point in ((b"3 whole", first), (b"4 whole", second)):
                was_killed = save_and_be_killed(run, content, point)
                found = run.checkpoint().read_bytes()
                assert found == content or (was_killed and found >= good)
                good = found
                ended.add(was_killed)
            run.save_checkpoint(save(b"5"))
            assert run.checkpoint().read_bytes() == b"5"
            (run.path / "last.ckpt").write_bytes(b"")
            assert run.checkpoint().read_bytes() == good
    assert ended == {True, False}


def test_a_damaged_last_checkpoint_does_not_take_the_place_of_the_one_before(tmp_path):
    run = RunFolder(tmp_path)
    for content in (b"1", b"2"):
        run.save_checkpoint(save(content))
    (tmp_path / "last.ckpt").write_bytes(b"damaged")
    assert run.damaged == ["last.ckpt"]
    run.save_checkpoint(save(b"3"))
    assert (tmp_path / "previous.ckpt").read_bytes() == b"1"
    assert run.damaged == []


def test_a_folder_with_checksums_at_the_places_their_checkpoints_have_left_is_read(tmp_path):
    digest = hashlib.sha256(b"one").hexdigest()
    (tmp_path / "previous.ckpt").write_bytes(b"one")
    (tmp_path / "last.ckpt.sha256").write_text(f"{digest}  last.ckpt\n")
    (tmp_path / "previous.ckpt.sha256").write_text("")
    assert RunFolder(tmp_path).checkpoint() == tmp_path / "previous.ckpt"


@pytest.mark.parametrize(
    ("name", "content", "carried"),
    [
        ("recipe.json", '{"recipe":', []),
        ("result.json", "[1]", ["[1]"]),
        ("metrics.jsonl", '{"epoch": 1}\n{"epo\n', ["line 2"]),
        ("layers.jsonl", '{"epoch": 1}\n{"layer": 3}\n', ["line 2", "epoch", "layer"]),
        ("metrics.jsonl", b"\xff\xfe\n", ["line 1"]),
    ],
)
def test_a_damaged_file_is_named_with_its_line(tmp_path, name, content, carried):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with raises(RunFolderError, name, *carried):
        getattr(RunFolder(tmp_path), name.partition(".")[0])


def test_a_number_that_is_not_finite_never_gets_into_a_log(tmp_path):
    with raises(ValueError, "JSON"):
        RunFolder(tmp_path).append([{"epoch": 1, "loss": float("nan")}])
    assert RunFolder(tmp_path).metrics == []


def test_who_comes_second_is_kept_out_of_a_folder(tmp_path):
    with RunFolder(tmp_path).locked(), raises(BusyRunError, tmp_path), RunFolder(tmp_path).locked():
        pytest.fail("two have the folder")
    with RunFolder(tmp_path).locked():
        assert RunFolder(tmp_path).metrics == []


@pytest.mark.slow
def test_a_second_process_is_kept_out_of_a_folder(tmp_path):
    code = f"from tempbalance.runlog import RunFolder\nwith RunFolder({str(tmp_path)!r}).locked(): print('in')"

    def other() -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    with RunFolder(tmp_path).locked():
        assert_carries(other().stderr, "BusyRunError", tmp_path)
    assert other().stdout == "in\n"


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path):
    run = RunFolder(tmp_path)
    run.save_checkpoint(save(b"good"))

    def fill(path):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with raises(OSError, errno.ENOSPC):
        run.save_checkpoint(fill)
    assert run.checkpoint().read_bytes() == b"good"
    assert not (tmp_path / "new.ckpt").exists()


def test_replacing_a_file_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    write_whole(path, b"{}")

    def refuse(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with raises(OSError, errno.ENOSPC):
        write_whole(path, json.dumps({"a": 1}).encode())
    assert path.read_bytes() == b"{}"
    assert list(tmp_path.iterdir()) == [path]
