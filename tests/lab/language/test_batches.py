import pytest
import torch

from tempbalance.lab.language.training import TrainingBatches, evaluation_batches
from tests.cases import raises


def batches(num_tokens: int = 100, *, batch_size: int = 3, sequence: int = 4, seed: int = 1) -> TrainingBatches:
    return TrainingBatches(torch.arange(num_tokens), batch_size=batch_size, sequence=sequence, seed=seed, name="own")


def test_columns_are_read_from_the_top_down_without_a_gap() -> None:
    found = batches()
    assert found.num_steps == 8
    inputs = torch.cat([found[step][0] for step in range(found.num_steps)], 1)
    begin = int(inputs[0, 0])
    assert 0 <= begin < 4
    assert inputs.flatten().tolist() == list(range(begin, begin + 96))  # column after column
    for step in range(found.num_steps):
        inputs, targets = found[step]
        assert torch.equal(targets, inputs + 1)


def test_passes_begin_at_other_tokens_and_depend_on_the_seed_and_the_iteration_alone() -> None:
    found, again, other = batches(), batches(), batches(seed=2)
    begins = [int(found[number * 8][0][0, 0]) for number in range(40)]
    assert set(begins) == {0, 1, 2, 3}
    assert [int(again[number * 8][0][0, 0]) for number in reversed(range(40))] == begins[::-1]
    assert [int(other[number * 8][0][0, 0]) for number in range(40)] != begins


def test_the_shortest_text_has_one_batch_wherever_it_begins() -> None:
    for seed in range(8):
        inputs, targets = batches(16, seed=seed)[0]
        assert inputs.shape == targets.shape == (3, 4)
    with raises(ValueError, "own", 16, 3, 4, 15):
        batches(15)


@pytest.mark.parametrize("num_tokens", [2, 4, 5, 6, 29, 33])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_every_token_but_the_first_is_told_once(num_tokens: int, batch_size: int) -> None:
    tokens = torch.arange(num_tokens)
    found = list(evaluation_batches(tokens, batch_size=batch_size, sequence=4))
    assert torch.cat([targets.flatten() for _, targets in found]).tolist() == list(range(1, num_tokens))
    assert torch.cat([inputs.flatten() for inputs, _ in found]).tolist() == list(range(num_tokens - 1))
    assert all(inputs.shape[1] <= 4 and len(inputs) <= batch_size for inputs, _ in found)
