"""Many processes, with gloo and one thread each: what they find must be what one finds.

Two processes are forks of the one that tests, four are started by torchrun.
"""

import json
import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tempbalance import Execution, TempBalance, find_layers, param_groups
from tempbalance.execution.distributed import Ranks, find_ranks, share_out
from tests import process_that_dies, processes
from tests.cases import assert_carries, mlp, raises

ROOT = Path(__file__).parents[2]

# Python warns of forks while other threads run; here these are torch's, which no fork uses
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

TWO = ["ddp", "shares_of_the_work", "a_weight_that_is_nan", "processes_that_disagree", "sharded_by_fsdp2",
       "sharded_by_fsdp1", "a_sharded_weight_that_is_nan"]  # fmt: skip
MORE_OF_TWO = ["functions_that_fail", "not_shared", "sharded_by_fsdp2_and_offloaded",
               "sharded_by_fsdp2_and_not_shared", "sharded_by_fsdp1_after_the_optimizer",
               "sharded_by_fsdp1_for_gradients_only", "replicated_by_fsdp1", "tensor_parallel_layers",
               "sharded_attention", "memory_of_gathering", "bad_use", "in_the_background",
               "after_validation_in_bfloat16", "within_a_budget"]  # fmt: skip
FOUR = ["ddp", "a_group_of_pairs", "on_a_mesh_of_two_by_two", "sharded_by_fsdp2", "shares_of_the_work"]


def torchrun(num_processes: int, *arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}",
               *map(str, arguments)]  # fmt: skip
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=300)


def found_in(folder: Path, num_processes: int, names: list[str]) -> dict[str, list]:
    """What each case gave on each process."""
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(num_processes)]
    return {name: [each[name] for each in found] for name in names}


def run_forks(folder: Path, names: list[str]) -> dict[str, list]:
    assert processes.in_forks(2, processes.main, folder, names) == [0, 0]
    return found_in(folder, 2, names)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return run_forks(tmp_path_factory.mktemp("two"), TWO)


@pytest.fixture(scope="module")
def more_of_two(tmp_path_factory):
    return run_forks(tmp_path_factory.mktemp("more"), MORE_OF_TWO)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    folder = tmp_path_factory.mktemp("four")
    result = torchrun(4, "tests/processes.py", folder, *FOUR)
    assert result.returncode == 0, result.stderr[-4000:]
    return found_in(folder, 4, FOUR)


TWO_AND_FOUR = pytest.mark.parametrize("name", ["two", pytest.param("four", marks=pytest.mark.slow)])


@cache
def alone(seed: int = 0, **options) -> list[dict]:
    """What one process finds; through JSON, as the others' findings."""
    return json.loads(json.dumps(processes.train(mlp(processes.SIZES, seed=seed), **options)))


def assert_near(found: list[dict], expected: list[dict], *, scale: float = 1e-6) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert [row["name"] for row in one["rows"]] == [row["name"] for row in other["rows"]]
        assert [row["shape"] for row in one["rows"]] == [row["shape"] for row in other["rows"]]
        assert one["scores"] == pytest.approx(other["scores"], rel=1e-6)
        assert one["scales"] == pytest.approx(other["scales"], rel=scale)
        assert one["rates"] == pytest.approx(other["rates"], rel=scale)


def test_layers_are_shared_out_longest_first():
    assert share_out([7, 5, 4, 3, 3], 2) == [0, 1, 1, 0, 1]
    assert share_out([1, 1, 1, 1], 4) == [0, 1, 2, 3]
    assert share_out([2, 9], 1) == [0, 0]
    assert share_out([], 3) == []
    # no rank is later than 4/3 - 1/(3 m) of the best possible, here 1/4 of everything
    costs = [(7 * number) % 23 + 1 for number in range(60)]
    loads = [0] * 4
    for cost, owner in zip(costs, share_out(costs, 4), strict=True):
        loads[owner] += cost
    assert max(loads) <= (4 / 3 - 1 / 12) * sum(costs) / 4


def test_alpha_moves_over_the_steps_of_these_tests():
    first, *_, last = alone()
    assert len(first["scores"]) == 5
    assert all(first["scores"][name] != last["scores"][name] for name in first["scores"])
    assert sorted(first["scales"].values())[0] == 0.5


@TWO_AND_FOUR
def test_rates_under_ddp_are_those_of_one_process_to_the_bit(name, request):
    for found in request.getfixturevalue(name)["ddp"]:
        assert found == alone()


@TWO_AND_FOUR
def test_each_layer_is_solved_once_and_only_small_plain_values_travel(name, request):
    found = request.getfixturevalue(name)["shares_of_the_work"]
    solved = [tuple(shape) for each in found for shape in each["solved"]]
    assert sorted(solved) == sorted((1, *layer.shape) for layer in find_layers(mlp(processes.SIZES))[1:-1])
    assert max(len(each["solved"]) for each in found) == -(-5 // len(found))
    for each in found:
        assert len(each["bytes"]) == 2
        assert max(each["bytes"]) < 1000
        assert set(each["kinds"]) <= {"tuple", "list", "str", "float", "int", "NoneType"}


@pytest.mark.parametrize("where", ["all", "first", "second"])
def test_a_bad_weight_is_told_by_all_in_the_same_sentence_and_nothing_moves(two, where):
    one, other = two["a_weight_that_is_nan"]
    assert one[where] == other[where]
    assert one[where][0] == "WeightError"
    assert_carries(one[where][1], "'9'", (88, 72), "NaN")
    assert one[f"after {where}"] == other[f"after {where}"] == one["before"]
    assert one["steps"] == other["steps"] == 1


@pytest.mark.parametrize("kind", ["fsdp2", "fsdp1"])
def test_a_bad_weight_that_is_sharded_is_told_by_all_though_others_are_still_to_be_gathered(two, kind):
    one, other = (found[kind] for found in two["a_sharded_weight_that_is_nan"])
    (error, told), is_same, num_steps = one
    assert one == other
    assert error == "WeightError"
    assert_carries(told, "'12'", (104, 88), "NaN")
    assert (is_same, num_steps) == (True, 1)


@pytest.mark.slow
def test_an_error_in_a_function_is_raised_by_all(more_of_two):
    one, other = more_of_two["functions_that_fail"]
    for found in zip(one, other, strict=True):
        assert ["ValueError", "no idea"] in found or ["ArithmeticError", "no idea"] in found
        assert all("no idea" in told for _, told in found)
    assert one[0] == other[0]


@pytest.mark.parametrize(
    ("name", "kind", "carried"),
    [
        ("shapes", "RuntimeError", ["'3'", (80, 96), (81, 96), "rank 0", "rank 1"]),
        ("number of layers", "RuntimeError", ["'12'", (104, 88), "rank 0", "rank 1"]),
        ("options", "RuntimeError", ["tail_fraction", 0.5, 0.4, "rank 0", "rank 1"]),
        ("range", "RuntimeError", ["scale_range", (0.5, 1.5), (0.5, 2.5)]),
        ("weights", "WeightError", ["layer '", "share=False", "rank 1"]),
        ("calls", "RuntimeError", ["step()", "rescore()", "rank 0", "rank 1"]),
        ("steps", "RuntimeError", [0, 1, "rank 0", "rank 1"]),
        ("one steps the schedule", "RuntimeError", ["schedule", "restore()"]),
        ("plan", "WeightError", ["'9'", (88, 72), "fused", 5]),
        ("frozen", "RuntimeError", ["'6'", (72, 80), "whole", "frozen"]),
    ],
)
def test_processes_that_disagree_are_told_so_by_all(two, name, kind, carried):
    one, other = (found[name] for found in two["processes_that_disagree"])
    assert one == other
    assert one[0] == kind
    assert_carries(one[1], *carried)


def test_after_disagreeing_training_goes_on_as_before(two):
    assert [found["after all"] for found in two["processes_that_disagree"]] == [alone()[-1]] * 2


@pytest.mark.slow
def test_processes_that_do_not_share_each_train_a_model_of_their_own(more_of_two):
    assert more_of_two["not_shared"] == [alone(0), alone(1)]


@pytest.mark.slow
def test_a_process_group_shares_among_its_own(four):
    found = four["a_group_of_pairs"]
    assert [each["records"] for each in found] == [alone(0), alone(0), alone(1), alone(1)]
    for each in found:
        assert each["stranger"][0] == "ValueError"
        assert_carries(each["stranger"][1], "share")
        assert each["pickled"][0] == "TypeError"
        assert_carries(each["pickled"][1], "share", "state_dict()")
        assert each["twin"] == 1


@pytest.mark.parametrize("name", ["sharded_by_fsdp2", "sharded_by_fsdp1"])
def test_scores_and_rates_of_a_sharded_model_are_those_of_the_whole_one(two, name):
    one, other = two[name]
    assert one == other
    assert_near(one, alone())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["sharded_by_fsdp2_and_offloaded", "sharded_by_fsdp2_and_not_shared", "sharded_by_fsdp1_for_gradients_only",
     "replicated_by_fsdp1"],
)  # fmt: skip
def test_other_ways_of_sharding_change_neither_scores_nor_rates(more_of_two, name):
    one, other = more_of_two[name]
    assert one == other
    assert_near(one, alone())


@pytest.mark.slow
def test_after_validation_the_sharded_weights_are_scored_and_not_what_was_gathered_of_them(more_of_two):
    for found in more_of_two["after_validation_in_bfloat16"]:
        assert found["gathered"] == "Parameter"
        assert found["same groups"]
        assert_near([found["record"]], alone()[:1])


@pytest.mark.slow
def test_four_processes_shard_as_two_do(four):
    assert all(found == four["sharded_by_fsdp2"][0] for found in four["sharded_by_fsdp2"])
    assert_near(four["sharded_by_fsdp2"][0], alone())


@pytest.mark.slow
def test_an_optimizer_that_was_built_before_fsdp1_keeps_its_parameters(more_of_two):
    one, other = more_of_two["sharded_by_fsdp1_after_the_optimizer"]
    assert one == other
    assert_near(one, alone()[:1])


@pytest.mark.slow
def test_scores_of_tensor_parallel_layers_are_those_of_the_whole_ones(more_of_two):
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp(processes.SIZES)
            self.layers[4] = nn.Identity()

        def forward(self, inputs):
            return self.layers(inputs)

    one, other = more_of_two["tensor_parallel_layers"]
    assert one == other
    # products of parts are added up in another order, so the weights that are trained differ by rounding; scales are
    # stretched from scores that lie within a quarter of each other
    assert_near(one, whole := json.loads(json.dumps(processes.train(Whole()))), scale=2e-5)
    assert one[0] == whole[0]


@pytest.mark.slow
def test_a_mesh_of_two_dimensions_is_gathered_along_both(four):
    for found in four["on_a_mesh_of_two_by_two"]:
        assert_near(found["hybrid"], alone())
        assert_near([found["both"]], alone()[:1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fsdp2", "fsdp1"])
def test_fused_tied_and_adapted_weights_are_those_of_the_whole_model(more_of_two, kind):
    for found in more_of_two["sharded_attention"]:
        whole, sharded = found["whole"], found[kind]
        assert sharded["layers"] == whole["layers"]
        assert sharded["groups"] == whole["groups"]
        assert len(whole["scores"]) == 5
        assert sharded["scores"] == pytest.approx(whole["scores"], rel=1e-6)
        assert sharded["scales"] == pytest.approx(whole["scales"], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fsdp2", "fsdp1"])
def test_gathering_holds_one_layer_and_the_one_that_is_on_its_way(more_of_two, kind):
    for found in more_of_two["memory_of_gathering"]:
        assert 1 <= found[kind] <= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "carried"),
    [
        ("before fsdp2", "ValueError", ["fully_shard", "tempbalance.param_groups(model)"]),
        ("before tensor parallel", "ValueError", ["parallelize_module", "tempbalance.param_groups(model)"]),
        ("split before", "ValueError", ["fully_shard", "tempbalance.param_groups(model)"]),
        ("other model", "ValueError", ["fully_shard", "tempbalance.param_groups(model)"]),
        ("another model of the same names", "ValueError", ["fully_shard", "tempbalance.param_groups(model)"]),
        ("meta", "WeightError", ["'12'", (104, 88), "meta"]),
        ("flat parameters", "ValueError", ["use_orig_params=True"]),
        ("bare", "ValueError", ["FullyShardedDataParallel"]),
        ("one layer alone", "WeightError", ["sharded"]),
    ],
)
def test_bad_use_of_sharded_models_gets_an_answer(more_of_two, name, kind, carried):
    for found in more_of_two["bad_use"]:
        assert found[name][0] == kind
        assert_carries(found[name][1], *carried)


@pytest.mark.parametrize("is_there", ["unavailable", "not in use"])
def test_without_torch_distributed_nothing_is_shared(monkeypatch, is_there):
    if is_there == "unavailable":
        monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
        monkeypatch.delattr(torch.distributed, "is_initialized")
    assert find_ranks(True) == Ranks(0, 1, None)
    model = mlp()
    scheduler = TempBalance(torch.optim.SGD(param_groups(model), lr=0.1), model)
    assert len(scheduler.last_scores) == 2
    with raises(TypeError, "share", 4):
        TempBalance(torch.optim.SGD(param_groups(model), lr=0.1), model, execution=Execution(share=4))


@pytest.mark.slow
def test_nothing_of_fsdp_or_dtensor_is_imported_to_look_for_it():
    code = (
        "import sys, torch, tempbalance; from torch import nn; tempbalance.param_groups(nn.Linear(60, 60));"
        "print([name for name in sys.modules if name in ('torch.distributed.fsdp', 'torch.distributed.tensor')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.slow
def test_in_the_background_rates_are_those_of_one_process_to_the_bit(more_of_two):
    expected = alone(background=True, interval=2, lag=2)
    assert [record["scales"] == {} for record in expected] == [True, True, False, False]
    for found in more_of_two["in_the_background"]:
        assert found["replicated"] == expected
        assert_near(found["sharded"], expected)


@pytest.mark.slow
def test_what_is_under_way_is_saved_by_one_process_or_after_all_have_waited(more_of_two):
    one, other = more_of_two["in_the_background"]
    for found in (one, other):
        for name in ("too early", "too early to copy"):
            assert found[name][0] == "RuntimeError"
            assert_carries(found[name][1], "wait()")
    rows = [{**row, "scale": 1.0, "compared": None} for row in alone()[0]["rows"]]
    expected = {"due": 2, "rows": rows, "error": None}
    assert one["saved by one"] == one["saved sharded"] == other["saved sharded"] == expected
    for record in one["after two"]:
        assert record["scores"] == alone()[0]["scores"]
    assert one["after two"] == other["after two"]


@pytest.mark.slow
def test_an_error_in_the_background_is_told_by_all_when_it_is_due(more_of_two):
    for found in more_of_two["in_the_background"]:
        assert found["error"][0] == "WeightError"
        assert_carries(found["error"][1], "'9'", (88, 72), "NaN")


@pytest.mark.slow
@pytest.mark.parametrize("clock", ["1e-06", "1000000.0"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "fsdp1"])
def test_within_a_budget_rank_0_chooses_and_all_have_the_same_rates_to_the_bit(more_of_two, kind, clock):
    one, other = (found[f"{kind} {clock}"] for found in more_of_two["within_a_budget"])
    assert one["records"] == other["records"]
    assert one["ages"] == other["ages"]
    num_refreshed = [sum(age == 0 for age in ages.values()) for ages in one["ages"]]
    assert sum(0 < number < 5 for number in num_refreshed) > 5
    assert max(one["ages"][-1].values()) < 40
    assert 0.05 < one["share"] <= 0.1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "fsdp1"])
def test_the_clock_of_the_others_does_not_matter_and_they_do_not_talk_at_every_step(more_of_two, kind):
    slow, fast = (more_of_two["within_a_budget"][1][f"{kind} {clock}"] for clock in ("1e-06", "1000000.0"))
    assert slow["records"] == fast["records"]
    assert slow["asked"] == fast["asked"] < 36


@pytest.mark.slow
def test_with_time_enough_several_processes_have_the_rates_of_one_without_a_budget(more_of_two):
    for found in more_of_two["within_a_budget"]:
        assert found["large"] == alone()
        assert found["other budgets"][0] == "RuntimeError"
        assert_carries(found["other budgets"][1], "budget", 0.1, 0.2, "rank 0", "rank 1")


OPTIONS = {"interval": 2, "background": True, "lag": 2}  # so that a scoring is under way whenever it is killed


def assert_as_never_stopped(folder: Path) -> None:
    model = mlp(processes.SIZES)
    rates = process_that_dies.run(model, OPTIONS)
    expected = [rates, [parameter.tolist() for parameter in model.parameters()]]
    assert [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)] == [expected, expected]
    assert len({tuple(each) for each in rates}) == process_that_dies.NUM_STEPS


def test_a_killed_process_ends_the_other_and_started_again_both_end_as_if_never_stopped(tmp_path):
    arguments = (2, process_that_dies.main, tmp_path, "3", json.dumps(OPTIONS))
    assert processes.in_forks(*arguments) == [1, -signal.SIGKILL]
    assert (tmp_path / "checkpoint.pt").exists()
    assert not (tmp_path / "0.json").exists()
    assert processes.in_forks(*arguments) == [0, 0]
    assert_as_never_stopped(tmp_path)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folder of a training whose second process was killed in its fourth step, and how that ended."""
    folder = tmp_path_factory.mktemp("killed")
    start = time.monotonic()
    result = torchrun(2, "tests/process_that_dies.py", folder, 3, json.dumps(OPTIONS))
    return SimpleNamespace(folder=folder, result=result, seconds=time.monotonic() - start)


@pytest.mark.slow
def test_when_a_process_is_killed_the_others_end_with_an_error(killed):
    assert (killed.folder / "died").exists()
    assert killed.result.returncode != 0
    assert "SIGKILL" in killed.result.stderr
    assert not (killed.folder / "0.json").exists()
    assert killed.seconds < 120


@pytest.mark.slow
def test_restarted_from_a_checkpoint_it_ends_as_one_that_was_never_stopped(killed):
    assert (killed.folder / "checkpoint.pt").exists()
    result = torchrun(2, "tests/process_that_dies.py", killed.folder, 3, json.dumps(OPTIONS))
    assert result.returncode == 0, result.stderr[-4000:]
    assert_as_never_stopped(killed.folder)
