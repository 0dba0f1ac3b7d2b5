import dataclasses
import json

import pytest
import torch
from torch import nn

from tempbalance import LayerRow, LayerTable, TempBalance, param_groups
from tempbalance.ranking.table import PartRow, from_plain
from tests.cases import mlp, raises

ROWS = (
    LayerRow("stem", (16, 3, 3, 3), reason="first layer"),
    LayerRow("fc", (64, 72), 64, 2.5, 0.25, 0.125, 0.0625, 32, 2.5, 1.5),
    LayerRow(
        "qkv",
        (192, 64),
        192,
        alpha=3.0,
        score=3.0,
        scale=0.5,
        parts=(PartRow("q", 64, 3.0, 0.5, 0.1, 0.2, 32, 3.0), PartRow("k", 64, reason="all eigenvalues are zero")),
    ),
    LayerRow("lazy", reason="not scored yet"),
)


def test_a_table_is_a_sequence_of_its_rows():
    table = LayerTable(ROWS)
    assert len(table) == 4
    assert tuple(table) == ROWS
    assert (table[0], table[-1]) == (ROWS[0], ROWS[3])
    assert ROWS[1] in table
    assert LayerRow("other") not in table
    assert table.index(ROWS[2]) == 2


def test_a_name_is_in_the_table_if_it_finds_a_row():
    table = LayerTable(ROWS)
    assert all(row.name in table for row in ROWS)
    assert "fc2" not in table
    assert None not in table


@pytest.mark.parametrize("chosen", [slice(1, 3), slice(None, None, -1), slice(4, None)], ids=str)
def test_a_slice_of_a_table_is_a_table(chosen):
    part = LayerTable(ROWS)[chosen]
    assert isinstance(part, LayerTable)
    assert part.rows == ROWS[chosen]
    assert all(part[row.name] is row for row in ROWS[chosen])


def test_tables_are_equal_if_their_rows_are():
    table = LayerTable(ROWS)
    assert table == LayerTable(list(ROWS)) == table[:]
    assert table != LayerTable(ROWS[1:])
    assert table != ROWS


def test_a_row_is_found_by_the_name_of_its_layer():
    table = LayerTable(ROWS)
    assert [table[row.name] for row in ROWS] == list(ROWS)
    with raises(KeyError, "'fc2'"):
        table["fc2"]
    with pytest.raises(IndexError):
        table[4]


def test_a_table_does_not_change_with_the_list_it_was_made_from():
    rows = list(ROWS)
    table = LayerTable(rows)
    rows.clear()
    assert len(table) == 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        table[0].scale = 2.0


def test_a_table_prints_a_line_a_layer_that_ends_in_the_reason_of_a_skipped_one():
    head, stem, fc, qkv, lazy = str(LayerTable(ROWS)).splitlines()
    assert head == "layer  shape           alpha  score  scale"
    assert fc == "fc     64 x 72         2.500  2.500  1.500"
    assert qkv == "qkv    192 x 64        3.000  3.000  0.500"
    assert stem.startswith("stem   16 x 3 x 3 x 3                1.000  ")
    assert stem.endswith(ROWS[0].reason)
    assert lazy.startswith("lazy                                 1.000  ")
    assert lazy.endswith(ROWS[3].reason)


def test_an_empty_table_prints_its_head():
    assert str(LayerTable([])) == "layer  shape  alpha  score  scale"
    assert repr(LayerTable([])) == str(LayerTable([]))
    assert repr(LayerTable(ROWS)) == str(LayerTable(ROWS))


def test_columns_are_as_wide_as_their_widest_entry():
    name = "encoder.layers.11.attention.output"
    lines = str(LayerTable([*ROWS, LayerRow(name, (64, 64), 64, alpha=123.4567, score=-12.5)])).splitlines()
    assert lines[-1] == f"{name}  64 x 64         123.457  -12.500  1.000"
    assert len({line.index(mark) for line, mark in zip(lines[2:4], ("1.500", "0.500"), strict=True)}) == 1


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_comes_back_from_plain_values(row):
    plain = row.to_dict()
    assert from_plain(LayerRow, plain, "row") == row
    assert from_plain(LayerRow, json.loads(json.dumps(plain)), "row") == row
    assert isinstance(plain["shape"], list)
    assert all(type(part) is dict for part in plain["parts"])


def test_a_scheduler_tells_what_it_did_and_why():
    model = mlp()
    optimizer = torch.optim.SGD(param_groups(model), lr=0.1)
    scheduler = TempBalance(optimizer, model)
    table = scheduler.table()
    assert {row.name: row.score for row in table if not row.reason} == scheduler.last_scores
    assert {row.name: row.scale for row in table if not row.reason} == scheduler.last_scales
    assert all((row.score is None) == bool(row.reason) for row in table)
    assert [row.shape for row in table] == [(96, 64), (80, 96), (72, 80), (60, 72)]
    assert all(row.num_eigenvalues == min(row.shape) for row in table if not row.reason)


def test_before_the_first_scoring_each_layer_says_so():
    model = nn.Sequential(nn.Linear(64, 64), nn.LazyLinear(64), nn.Linear(64, 64))
    optimizer = torch.optim.SGD(param_groups(model), lr=0.1)
    table = TempBalance(optimizer, model, start=3).table()
    assert [(row.name, row.score, row.scale) for row in table] == [(name, None, 1.0) for name in ("0", "1", "2")]
    assert all("not scored" in row.reason for row in table)
    assert [row.shape for row in table] == [(64, 64), (), (64, 64)]


def test_a_table_stays_as_it_was_when_the_layers_are_scored_again():
    model = mlp()
    optimizer = torch.optim.SGD(param_groups(model), lr=0.1)
    scheduler = TempBalance(optimizer, model)
    before, rows = scheduler.table(), tuple(scheduler.table())
    with torch.no_grad():
        model[3].weight[0] *= 50
    scheduler.rescore()
    assert scheduler.table()["3"].alpha != before["3"].alpha
    assert tuple(before) == rows
    assert scheduler.table()["6"] == dataclasses.replace(before["6"], scale=scheduler.last_scales["6"])
