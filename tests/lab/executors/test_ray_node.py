"""A run that is fetched goes on from where it stands further, on its node or where it is fetched to."""

import tempfile

import pytest

from tempbalance.lab.executors.ray import Files, _settled
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.recipe import read_recipe
from tests.lab.campaign import job


def files(num_epochs: int, who: str) -> Files:
    lines = "".join(f'{{"epoch": {epoch}, "who": "{who}"}}\n' for epoch in range(1, num_epochs + 1))
    return {"metrics.jsonl": lines.encode(), "last.ckpt": who.encode()}


@pytest.mark.parametrize(
    ("here", "sent", "who"), [(0, 0, "sent"), (0, 2, "sent"), (2, 0, "here"), (2, 2, "here"), (2, 3, "sent")]
)
def test_a_run_goes_on_from_where_it_stands_further(tmp_path, monkeypatch, here, sent, who):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    asked = job(tmp_path / "elsewhere")
    if here:
        _settled(asked, files(here, "here"), "copy")
    settled = _settled(asked, files(sent, "sent"), "copy")
    assert settled.folder == tmp_path / "copy"
    assert ImageRecipe.from_dict(read_recipe(settled.folder / "asked.json")) == asked.recipe
    assert settled.num_finished == max(here, sent)
    assert (settled.folder / "last.ckpt").read_text() == who
    assert not asked.folder.exists()
