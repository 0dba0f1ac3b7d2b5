"""Commands of datasets."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tempbalance.cli.app import app
from tempbalance.lab.download import remote_data
from tests.cases import assert_carries


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["data", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def test_all_datasets_are_listed_with_size_licence_and_whether_they_are_there(tmp_path):
    found = run("list", "--cache", tmp_path)
    for name, data in remote_data().items():
        line = next(line for line in found.splitlines() if f" {name} " in line)
        assert_carries(line, " no ", data.licence.split()[0])
    assert_carries(found, tmp_path, " 170 MB", " 1.6 GB")


def test_the_path_of_a_dataset_that_is_there_is_printed_and_nothing_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr("tempbalance.lab.download._request", None)
    paths = [Path(line) for line in run("path", "cifar10", "--cache", tmp_path).splitlines()]
    assert all(path.is_relative_to(tmp_path) for path in paths)
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    line = next(line for line in run("list", "--cache", tmp_path).splitlines() if " cifar10 " in line)
    assert " yes " in line


@pytest.mark.parametrize("command", ["fetch", "path"])
def test_an_unknown_dataset_is_refused_before_anything_is_downloaded(tmp_path, command):
    names = ["cifar10", "cifar11"] if command == "fetch" else ["cifar11"]
    result = CliRunner().invoke(app, ["data", command, *names, "--cache", str(tmp_path)])
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_what_is_fetched_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("tempbalance.lab.download.fetch", lambda file, **_: tmp_path / file.name)
    assert run("fetch", "cifar10", "--cache", tmp_path) == run("path", "cifar10", "--cache", tmp_path)
