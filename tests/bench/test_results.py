import json

import pytest

from tempbalance.bench.measure import describe_machine, describe_versions
from tempbalance.bench.results import (
    Memory,
    Ratio,
    Times,
    read_results,
    setting_text,
    summarize,
    tables,
    to_markdown,
    write_results,
)
from tests.bench.cases import known_results
from tests.cases import assert_carries, raises


def test_a_ratio_is_taken_within_each_round():
    times = Times("speed", "a", "", {"slow": [4.0, 4.0, 3.0], "fast": [1.0, 2.0, 1.0]})
    assert times.ratio("slow", "fast") == Ratio(3.0, 2.5, 3.5)  # of 4, 2 and 3; medians alone would give 4
    assert times.ratio("slow", "absent") is None
    assert times.middle("slow") == 4.0


def test_one_round_has_no_spread():
    assert summarize([2.0]) == Ratio(2.0, 2.0, 2.0)


def test_results_are_read_as_they_were_written_and_have_no_date(tmp_path):
    results = known_results()
    write_results(results, tmp_path / "a.json")
    read = read_results(tmp_path / "a.json")
    results.times.pop()  # the one without a round is not kept
    assert read == results
    assert set(json.loads((tmp_path / "a.json").read_text())) == {
        "machine", "versions", "num_threads", "num_rounds", "quick", "complete", "notes", "times", "memory"
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"times": []}',
        "\x00",
        json.dumps({**vars(known_results()), "times": [], "memory": [], "machine": {}}),
        json.dumps({**vars(known_results()), "times": [], "memory": [], "versions": []}),
        json.dumps({**vars(known_results()), "times": [], "memory": [vars(Memory("a", "b", 0.5))]}),
        json.dumps({**vars(known_results()), "times": [{"part": "speed"}], "memory": []}),
        json.dumps({**vars(known_results()), "times": [vars(Times("speed", "a", "", {"x": [0.0]}))], "memory": []}),
        json.dumps(
            {**vars(known_results()), "times": [vars(Times("speed", "a", "", {"x": [1.0], "y": []}))], "memory": []}
        ),
    ],
)
def test_a_file_that_holds_no_results_is_refused_by_name(text, tmp_path):
    (tmp_path / "bad.json").write_text(text)
    with raises(ValueError, "bad.json", "tempbalance bench --out"):
        read_results(tmp_path / "bad.json")


def table_of(results, caption):
    (table,) = [each for each in tables(results) if each.caption.startswith(caption)]
    return table


def test_the_table_of_speed_has_a_row_for_each_tail():
    rows = table_of(known_results(), "One balancing").rows
    assert [row[1] for row in rows] == ["median", "goodness_of_fit", "peak"]
    assert rows[0] == ["VGG16", "median", "1.00", "3.00 (2.50 to 3.50)", "10.0 (10.0 to 10.0)",
                       "2.00 (2.00 to 2.00)", "0.51 %"]  # fmt: skip


def test_growth_is_told_beside_the_first():
    rows = table_of(known_results(), "How time grows with width").rows
    found = {row[1]: row[4] for row in rows if row[2] == "median"}
    assert found == {"width 1": "1.00 (1.00 to 1.00)", "width 2": "8.00 (8.00 to 8.00)"}


def test_busy_is_told_beside_the_quiet_and_the_reference():
    rows = [row for row in table_of(known_results(), "While another").rows if row[2] == "median"]
    assert [row[3:] for row in rows] == [
        ["1.00", "1.00 (1.00 to 1.00)", "6.00 (6.00 to 6.00)"],
        ["2.00", "2.00 (2.00 to 2.00)", "3.00 (3.00 to 3.00)"],
    ]


@pytest.mark.parametrize(("on_cpu", "use"), [([4.0, 4.0, 3.0], "the device"), ([0.5, 0.5, 0.5], 'device="cpu"')])
def test_the_faster_of_device_and_cpu_is_named(on_cpu, use):
    results = known_results()
    results.times.append(
        Times("device", "VGG16", "cuda", {"on the device": [1.0, 2.0, 1.0], "copied to the CPU": on_cpu})
    )
    ((*_, ratio, told),) = table_of(results, "One balancing with median of weights on a device").rows
    assert told == use
    assert ratio.startswith("3.00" if use == "the device" else "0.50")


def test_memory_is_told_in_megabytes():
    table = table_of(known_results(), "Peak memory")
    assert (table.columns, table.rows) == (("network", "median", "reference"), [["VGG16", "3", "40"]])


def test_markdown_has_all_tables_with_rows_as_long_as_their_heads():
    text = to_markdown(known_results())
    assert_carries(
        text.splitlines()[0],
        "A processor",
        "2 cores",
        "Linux x86_64",
        "2 threads",
        "torch 2.13.0",
        "3 interleaved rounds",
    )
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(blocks) == 4
    for lines in blocks:
        assert {line.count("|") for line in lines} == {lines[0].count("|")}
        assert len(lines) > 2


def test_small_forms_and_interruptions_are_told():
    plain = setting_text(known_results())
    small, stopped = setting_text(known_results(quick=True)), setting_text(known_results(complete=False))
    assert "small" in small
    assert len({plain, small, stopped}) == 3
    assert "up to 3" in stopped
    assert "1 thread " in setting_text(known_results(num_threads=1))


def test_the_machine_is_told_without_a_date():
    assert set(describe_machine()) == {"cpu", "cores", "system"}
    assert describe_machine()["cores"] >= 1
    assert describe_versions()["torch"].startswith("2.")
