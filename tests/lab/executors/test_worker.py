"""What a process does with a run that it is asked to train, and what it answers."""

import errno
import json
from pathlib import Path

import pytest

from tempbalance.lab.download import DownloadError
from tempbalance.lab.executors import local
from tempbalance.lab.jobs import Job
from tempbalance.lab.runs import InterruptedRunError
from tempbalance.runlog import RunFolder
from tests.cases import assert_carries
from tests.lab.campaign import SETTINGS, job


@pytest.fixture
def asked(tmp_path) -> Job:
    found = job(tmp_path, epochs=1)
    found.folder.mkdir()
    found.ask()
    return found


def test_a_run_is_trained_and_what_it_says_is_kept(asked):
    (asked.folder / "failure.txt").write_text("Traceback\nValueError: last week")
    assert local.work(asked.folder, SETTINGS) == ("done", "")
    assert asked.state == "done"
    assert "epoch 1" in (asked.folder / "output.txt").read_text()
    assert not (asked.folder / "failure.txt").exists()


def test_a_run_that_another_process_trains_is_busy(asked):
    with RunFolder(asked.folder).locked():
        state, message = local.work(asked.folder, SETTINGS)
    assert state == "busy"
    assert str(asked.folder) in message


def test_a_failure_leaves_its_traceback_and_is_told_in_a_line(asked):
    (asked.folder / "asked.json").write_text(json.dumps({"dataset": "cifar11"}))
    state, message = local.work(asked.folder, SETTINGS)
    assert state == "failed"
    assert "'cifar11'" in message
    for name in ("failure.txt", "output.txt"):
        assert (asked.folder / name).read_text().startswith("Traceback")


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (InterruptedRunError("after 2 epochs"), ("died", "after 2 epochs")),
        (ValueError("two\n  lines"), ("failed", "two lines")),
        (ZeroDivisionError(), ("failed", "ZeroDivisionError")),
        (DownloadError("no network"), ("retry", "a download failed: no network (FOLDER)")),
        (MemoryError(), ("retry", "out of memory: MemoryError (FOLDER)")),
        (OSError(errno.ENOSPC, "full"), ("failed", "the disk is full: [Errno 28] full (FOLDER)")),
    ],
)
def test_errors_are_told_apart_and_only_a_failure_is_kept(asked, monkeypatch, error, answer):
    def train(*_, **settings):
        raise error

    monkeypatch.setattr("tempbalance.lab.train.train", train)
    state, message = local.work(asked.folder, SETTINGS)
    assert (state, message.replace(str(asked.folder), "FOLDER")) == answer
    if answer[0] in ("failed", "retry"):
        assert message in " ".join((asked.folder / "output.txt").read_text().split())
    assert (asked.folder / "failure.txt").exists() == (answer[0] == "failed")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no device that is always full")
def test_a_log_that_a_full_disk_does_not_take_is_a_failure_that_names_the_folder(asked):
    (asked.folder / "output.txt").symlink_to("/dev/full")
    state, message = local.work(asked.folder, SETTINGS)
    assert state in ("failed", "done")  # done if the log was lost after the result was written
    if state == "failed":
        assert_carries(message, "the disk is full", asked.folder)
