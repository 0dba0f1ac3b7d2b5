"""Trainers on two processes: the rates are those of one, on both, and what is saved in the middle goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.contract import Setting, assert_same, plain_loop

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "many_processes.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("found")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [*command, str(SCRIPT), str(folder)], capture_output=True, text=True, timeout=500, env=environment
    )
    assert result.returncode == 0, result.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("way", ["callback", "module"])
def test_under_lightnings_ddp_rates_are_those_of_a_plain_loop(found, way):
    for each in found:
        assert_same(each[f"lightning, {way}"], plain_loop(Setting()))


def test_lightning_saves_sharded_weights_while_a_scoring_is_under_way(found):
    one, other = (each["lightning, sharded"] for each in found)
    assert one == other
    assert len({rate for rates in one for rate in rates.values()}) > 2


def test_the_trainers_processes_have_the_same_rates_and_go_on_from_a_checkpoint(found):
    one, other = found
    assert one["trainer"] == other["trainer"] == one["trainer, resumed"] == other["trainer, resumed"]
    assert len({rate for rates in one["trainer"] for rate in rates.values()}) > 2
