"""A run's folder is whole whenever the process is killed."""

import contextlib
import errno
import hashlib
import json
import os
import resource
import secrets
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from tempbalance.runlog import (
    BusyRunError,
    RunFolder,
    RunFolderError,
    is_locked,
    read_signed,
    write_signed,
    write_whole,
)
from tests.cases import assert_carries, raises


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


def test_rewinding_forgets_later_lines_and_a_cut_line(tmp_path):
    run = RunFolder(tmp_path)
    run.append([{"epoch": epoch} for epoch in (1, 2)], [{"epoch": epoch} for epoch in (0, 1, 2)])
    marks, before = run.marks(), (tmp_path / "metrics.jsonl").read_bytes()
    run.append([{"epoch": 3}], [{"epoch": 3}], [{"epoch": 3}])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4')
    run.rewind(marks, only_check=True)
    assert len(run.metrics) == 3
    run.rewind(marks)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert [line["epoch"] for line in run.layers] == [0, 1, 2]
    assert run.steps == []
    run.rewind({})
    assert run.metrics == run.layers == []


def state(epoch: int) -> dict:
    return {"epoch": epoch, "weight": torch.arange(50.0) * epoch}


def epoch_of(run: RunFolder) -> int | None:
    content = run.checkpoint()
    assert content is None or torch.equal(content["weight"], torch.arange(50.0) * content["epoch"])
    return None if content is None else content["epoch"]


def test_one_checkpoint_is_kept_unless_all_are_asked_for(tmp_path):
    run = RunFolder(tmp_path)
    for epoch in (1, 2, 3):
        run.save_checkpoint(state(epoch), keep=epoch > 1)
        assert epoch_of(run) == epoch
    assert {path.name for path in tmp_path.iterdir()} == {"last.ckpt", "epoch-2.ckpt", "epoch-3.ckpt"}
    assert read_signed(tmp_path / "epoch-2.ckpt")["epoch"] == 2


def test_a_signed_file_is_one_that_torch_and_zip_read(tmp_path):
    write_signed(tmp_path / "best.ckpt", {"weight": torch.ones(3)})
    assert torch.load(tmp_path / "best.ckpt", weights_only=True)["weight"].tolist() == [1, 1, 1]
    with zipfile.ZipFile(tmp_path / "best.ckpt") as archive:
        assert archive.testzip() is None
        assert archive.comment.startswith(b"sha256 ")


def test_every_changed_byte_of_a_signed_file_is_noticed(tmp_path):
    path = tmp_path / "best.ckpt"
    write_signed(path, {"weight": torch.ones(3)})
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with raises(RunFolderError, path):
            read_signed(path)
    for damaged in (b"", whole[:-1], whole[: len(whole) // 2], whole + b"x"):
        path.write_bytes(damaged)
        with raises(RunFolderError, path):
            read_signed(path)


def test_a_damaged_checkpoint_counts_as_none(tmp_path):
    run = RunFolder(tmp_path)
    run.save_checkpoint(state(1))
    (tmp_path / "last.ckpt").write_bytes(b"dust")
    assert run.checkpoint() is None


def test_a_checkpoint_is_hashed_and_synced_once(tmp_path, monkeypatch):
    synced, hashed = [], []
    sync, sha256 = os.fsync, hashlib.sha256
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(1) or sync(descriptor))
    monkeypatch.setattr(hashlib, "sha256", lambda *content: hashed.append(1) or sha256(*content))
    RunFolder(tmp_path).save_checkpoint(state(1))
    assert (len(synced), len(hashed)) == (1, 1)


class KilledError(BaseException):
    pass


def test_a_kill_at_any_point_leaves_the_old_or_the_new_checkpoint(tmp_path):
    """Nothing at all happens after it, not even cleaning up; files that are left are removed by who comes next."""
    seen = set()
    for point in range(6):
        run = RunFolder(tmp_path / str(point))
        run.save_checkpoint(state(1))
        with pytest.MonkeyPatch.context() as monkeypatch:
            calls = iter(range(point))

            def stop_at(real, calls=calls):
                def wrapped(*args, **options):
                    if next(calls, None) is None:
                        raise KilledError
                    return real(*args, **options)

                return wrapped

            for owner, name in ((os, "open"), (torch, "save"), (os, "fsync"), (os, "replace"), (Path, "unlink")):
                monkeypatch.setattr(owner, name, stop_at(getattr(owner, name)))
            with contextlib.suppress(KilledError):
                run.save_checkpoint(state(2))
        seen.add(epoch_of(run))
        with run.locked():
            assert {path.name for path in run.path.iterdir()} == {"last.ckpt", "run.lock"}
    assert seen == {1, 2}


def test_a_link_under_a_temporary_name_is_not_followed(tmp_path, monkeypatch):
    target = tmp_path / "precious"
    target.write_text("as it was")
    monkeypatch.setattr(secrets, "token_hex", lambda _: "known")
    (tmp_path / ".page.html.known.new").symlink_to(target)
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "page.html", b"new")
    assert target.read_text() == "as it was"
    assert not (tmp_path / "page.html").exists()


def complete(path: Path) -> RunFolder:
    run = RunFolder(path)
    run.append([{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}], [{"epoch": 1, "layer": "conv", "alpha": 3.5}])
    run.write_result({"test_accuracy": 90.25})
    return run


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("metrics.jsonl", lambda text: text.replace("0.25", "0.35")),
        ("metrics.jsonl", lambda text: text + text.splitlines()[1] + "\n"),
        ("metrics.jsonl", lambda text: "".join(reversed(text.splitlines(keepends=True)))),
        ("metrics.jsonl", lambda text: text.splitlines(keepends=True)[0]),
        ("layers.jsonl", lambda text: text.replace("3.5", "3.6")),
        ("result.json", lambda text: text.replace("90.25", "91.25")),
    ],
)
def test_a_changed_log_or_result_of_a_complete_run_is_named(tmp_path, name, change):
    run = complete(tmp_path)
    assert (len(run.metrics), len(run.layers), run.result) == (2, 1, {"test_accuracy": 90.25})
    (tmp_path / name).write_text(change((tmp_path / name).read_text()))
    with raises(RunFolderError, tmp_path / name):
        getattr(run, name.partition(".")[0])


@pytest.mark.parametrize("epochs", [(1, 1), (2, 1), (1, 3), (2,)])
def test_epochs_are_logged_from_1_on_each_once(tmp_path, epochs):
    run = RunFolder(tmp_path)
    run.append([{"epoch": epoch} for epoch in epochs])
    with raises(RunFolderError, "metrics.jsonl", "line"):
        run.metrics  # noqa: B018


def test_a_log_that_was_changed_since_a_checkpoint_is_named(tmp_path):
    run = RunFolder(tmp_path)
    run.append([{"epoch": 1, "loss": 0.5}], [{"epoch": 0, "layer": "conv"}])
    marks = run.marks()
    run.append([{"epoch": 2, "loss": 0.5}])
    (tmp_path / "layers.jsonl").unlink()
    with raises(RunFolderError, "layers.jsonl"):
        run.rewind(marks)


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


def test_a_full_disk_is_the_error_and_leaves_the_last_good_checkpoint(tmp_path):
    """Torch has an error of its own for it."""
    run = RunFolder(tmp_path)
    run.save_checkpoint(state(1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with raises(OSError, errno.EFBIG):
            run.save_checkpoint({"epoch": 2, "weight": torch.zeros(100_000)})
        with raises(OSError, errno.EFBIG):
            run.append([{"epoch": 1, "text": "x" * 200_000}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert epoch_of(run) == 1
    assert {path.name: path.stat().st_size > 0 for path in tmp_path.iterdir()} == {
        "last.ckpt": True,
        "metrics.jsonl": False,
    }


@pytest.mark.parametrize("name", ["metrics.jsonl", "result.json", "recipe.json"])
def test_a_pipe_under_the_name_of_a_file_is_refused_and_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with raises(RunFolderError, name, "regular"):
        getattr(RunFolder(tmp_path), name.partition(".")[0])


def test_a_pipe_as_lock_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "run.lock")
    assert not is_locked(tmp_path / "run.lock")


@pytest.mark.parametrize("change", [lambda path: path.write_bytes(b""), Path.unlink], ids=["emptied", "removed"])
@pytest.mark.parametrize("name", ["metrics.jsonl", "layers.jsonl"])
def test_a_log_that_was_emptied_or_removed_after_the_run_was_complete_is_noticed(tmp_path, name, change):
    run = RunFolder(tmp_path)
    run.append([{"epoch": 1}], [{"epoch": 1, "layer": "fc"}])
    run.write_result({"test_accuracy": 1.0})
    run.check_logs()
    change(tmp_path / name)
    with raises(RunFolderError, name, "complete"):
        run.check_logs()


def test_files_that_a_killed_process_left_half_written_are_removed(tmp_path):
    names = ["recipe.json", "result.json", "metrics.jsonl", "last.ckpt", "best.ckpt", "epoch-3.ckpt"]
    left = [tmp_path / f".{name}.{'0a' * 8}.new" for name in names]
    other = tmp_path / f".page.html.{'0a' * 8}.new"
    for path in (*left, other):
        path.write_bytes(b"half")
    with RunFolder(tmp_path).locked():
        assert not any(path.exists() for path in left)
    write_whole(tmp_path / "page.html", b"whole")
    assert other.exists()  # somebody may still write it
    os.utime(other, (0, 0))
    write_whole(tmp_path / "page.html", b"whole")
    assert not other.exists()


def test_a_pipe_as_checkpoint_counts_as_damage(tmp_path):
    os.mkfifo(tmp_path / "last.ckpt")
    assert RunFolder(tmp_path).checkpoint() is None


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
