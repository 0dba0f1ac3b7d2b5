"""A run's folder is whole whenever the process is killed."""

import errno
import json
import os

import pytest

from tempbalance.runlog import RunFolder, write_whole


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


def test_there_is_a_whole_checkpoint_after_a_kill_between_any_two_moves(tmp_path, monkeypatch):
    """Saving is killed before its first rename, before its second, and so on to the end."""

    class KilledError(BaseException):
        pass

    real = os.replace
    for allowed in range(6):
        run = RunFolder(tmp_path / str(allowed))
        run.save_checkpoint(save(b"first"))
        run.save_checkpoint(save(b"second"))
        calls = iter(range(100))

        def replace(source, target, calls=calls, allowed=allowed):
            if next(calls) >= allowed:
                raise KilledError
            real(source, target)

        monkeypatch.setattr(os, "replace", replace)
        try:
            run.save_checkpoint(save(b"third"))
        except KilledError:
            assert allowed < 4
        else:
            assert allowed >= 4
        monkeypatch.setattr(os, "replace", real)
        assert run.checkpoint().read_bytes() in (b"second", b"third")
        run.save_checkpoint(save(b"fourth"))
        assert run.checkpoint().read_bytes() == b"fourth"


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path):
    run = RunFolder(tmp_path)
    run.save_checkpoint(save(b"good"))

    def fill(path):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        run.save_checkpoint(fill)
    assert run.checkpoint().read_bytes() == b"good"
    assert not (tmp_path / "new.ckpt").exists()


def test_replacing_a_file_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    write_whole(path, b"{}")

    def refuse(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, json.dumps({"a": 1}).encode())
    assert path.read_bytes() == b"{}"
    assert list(tmp_path.iterdir()) == [path]
