"""A run goes on from files that were carried elsewhere, whenever they were taken and whatever is killed meanwhile."""

import io
import os
import tempfile
from itertools import count

import pytest
from rich.console import Console

from tempbalance.lab.executors.ray import _settled, pack, unpack
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.recipe import read_recipe
from tempbalance.lab.train import train
from tempbalance.runlog import RunFolder
from tests.lab.campaign import job
from tests.lab.cut import resumed_after

RECIPE = ImageRecipe(dataset="digits", model="mlp", width=0.25, epochs=3, limit=300)


def files(tmp_path, num_epochs: int, **more: bytes) -> dict[str, bytes]:
    """The files of a run that stands at an epoch."""
    run = RunFolder(tmp_path / f"made{num_epochs}")
    run.save_checkpoint({"epoch": num_epochs})
    run.append([{"epoch": epoch} for epoch in range(1, num_epochs + 1)])
    return {"recipe.json": b"{}", **pack(run.path), **more}


def test_a_run_that_is_carried_elsewhere_goes_on_there(tmp_path):
    train(RECIPE, tmp_path / "one", device="cpu", keep_checkpoints=True, checkpoint_every=0)
    whole = pack(tmp_path / "one")
    assert whole.keys() == {"recipe.json", "metrics.jsonl", "layers.jsonl", "best.ckpt", "last.ckpt", "result.json"}
    (tmp_path / "one" / "result.json").unlink()
    (tmp_path / "one" / "epoch-2.ckpt").replace(tmp_path / "one" / "last.ckpt")
    unpack(pack(tmp_path / "one"), tmp_path / "other")
    console = Console(file=io.StringIO(), width=10_000)
    train(RECIPE, tmp_path / "other", device="cpu", console=console)
    told, *_ = console.file.getvalue().splitlines()
    assert resumed_after(told) == [2]
    assert str(tmp_path / "other") in told
    again = pack(tmp_path / "other")
    for name in ("metrics.jsonl", "layers.jsonl"):
        assert again[name] == whole[name]


def test_nothing_is_packed_of_a_folder_without_a_run(tmp_path):
    (tmp_path / "asked.json").write_text("{}")
    assert pack(tmp_path) == pack(tmp_path / "missing") == {}


def test_whenever_unpacking_is_killed_the_run_goes_on_from_the_old_or_the_new_checkpoint(tmp_path, monkeypatch):
    replace, seen = os.replace, set()
    early, late = files(tmp_path, 1), files(tmp_path, 2, **{"result.json": b"{}"})
    for num_left in count():
        run = RunFolder(tmp_path / str(num_left))
        unpack(early, run.path)
        left = iter(range(num_left))

        def killed(*paths, left=left):
            if next(left, None) is None:
                raise KeyboardInterrupt
            replace(*paths)

        monkeypatch.setattr(os, "replace", killed)
        try:
            unpack(late, run.path)
            break
        except KeyboardInterrupt:
            seen.add(epoch := run.checkpoint()["epoch"])
            assert run.result is None
            assert len(run.metrics) >= epoch
        finally:
            monkeypatch.setattr(os, "replace", replace)
    assert seen == {1, 2}
    assert num_left == len(late) > 3
    assert run.result == {}


def test_what_is_unpacked_again_is_the_same(tmp_path):
    late = files(tmp_path, 2, **{"result.json": b"{}"})
    for _ in range(2):
        unpack(late, tmp_path)
        assert pack(tmp_path) == late
    assert RunFolder(tmp_path).checkpoint() == {"epoch": 2}


def logged(num_epochs: int, who: str) -> dict[str, bytes]:
    lines = "".join(f'{{"epoch": {epoch}, "who": "{who}"}}\n' for epoch in range(1, num_epochs + 1))
    return {"metrics.jsonl": lines.encode(), "last.ckpt": who.encode()}


@pytest.mark.parametrize(
    ("here", "sent", "who"), [(0, 0, "sent"), (0, 2, "sent"), (2, 0, "here"), (2, 2, "here"), (2, 3, "sent")]
)
def test_a_run_goes_on_from_where_it_stands_further(tmp_path, monkeypatch, here, sent, who):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    asked = job(tmp_path / "elsewhere")
    if here:
        _settled(asked, logged(here, "here"), "copy")
    settled = _settled(asked, logged(sent, "sent"), "copy")
    assert settled.folder == tmp_path / "copy"
    assert ImageRecipe.from_dict(read_recipe(settled.folder / "asked.json")) == asked.recipe
    assert settled.num_finished == max(here, sent)
    assert (settled.folder / "last.ckpt").read_text() == who
    assert not asked.folder.exists()
