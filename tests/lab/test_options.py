"""Options one by one: types, ranges, files that hold them, and the page about them.

After a change to an option, write docs/options.md with ``python -m tests.lab.test_options``.
"""

import json
import os
from pathlib import Path
from typing import get_args

import pytest

from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.options import ASSIGNMENTS, LAYER_KINDS, Score, Tail, allowed, check_dataset
from tempbalance.lab.recipe import find_kind, read_recipe
from tempbalance.ranking import assign
from tempbalance.spectral.score import ScoreName
from tempbalance.spectral.tail import TailName
from tests.cases import raises


def test_the_names_that_options_know_are_those_of_the_library():
    assert get_args(TailName) == get_args(Tail)
    assert get_args(ScoreName) == get_args(Score)
    assert get_args(assign.AssignmentName) == ASSIGNMENTS
    assert LAYER_KINDS == assign.KINDS


@pytest.mark.parametrize(
    ("name", "value", "carried"),
    [
        ("epochs", 2.5, [2.5]),
        ("epochs", True, [True]),
        ("epochs", "3", ["'3'"]),
        ("epochs", None, [None]),
        ("epochs", 0, [1, 0]),
        ("batch_size", 0, [1, 0]),
        ("limit", 0, [1, 0]),
        ("interval", 0, [1, 0]),
        ("min_eigenvalues", 0, [1, 0]),
        ("restart_epochs", 0, [1, 0]),
        ("restart_factor", 0, [1, 0]),
        ("lookahead_steps", 0, [1, 0]),
        ("start", -1, [0, -1]),
        ("seed", -1, ["2**64", -1]),
        ("seed", 2**64, ["2**64", 2**64]),
        ("lr", 0.0, ["above 0", 0.0]),
        ("lr", -0.1, ["above 0", -0.1]),
        ("lr", float("nan"), ["finite", "nan"]),
        ("lr", "inf", ["finite", "'inf'"]),
        ("lr", "fast", ["'fast'"]),
        ("lr", True, [True]),
        ("lr", 10**400, ["finite"]),
        ("lr", 1e300, ["1e+30", "1e+300"]),
        ("width", 0, ["above 0", 0]),
        ("width", 1e9, [32, "1000000000.0"]),
        ("epochs", 10**12, ["1,000,000,000", 10**12]),
        ("momentum", 1, [0, 1]),
        ("weight_decay", -1e-4, [0, -0.0001]),
        ("snr", -1, [0, -1]),
        ("tail_fraction", 1, [0, 1]),
        ("lookahead_alpha", 0, [0, 1]),
        ("scale_range", [0.5], ["0.5"]),
        ("scale_range", "ab", ["'ab'"]),
        ("scale_range", [1.5, 0.5], ["0 < low <= high", "1.5, 0.5"]),
        ("scale_range", [0, 1], ["0 < low <= high", "[0, 1]"]),
        ("method", 3, [3]),
        ("model", None, [None]),
        ("dataset", "", ["''"]),
        ("score_first", 1, [1]),
    ],
)
def test_a_value_of_another_type_or_out_of_range_is_named_with_the_rule(name, value, carried, tmp_path):
    with raises(ValueError, name, *carried):
        ImageRecipe.from_dict({name: value})
    path = tmp_path / "r.json"
    path.write_text(json.dumps({name: value}))
    with raises(ValueError, path, name):
        read_recipe(path)


@pytest.mark.parametrize(
    ("name", "value", "carried"),
    [
        ("model", "ResNet18", ["model", "'ResNet18'", "'resnet18'"]),
        ("tail", "medan", ["tail", "'medan'", "'median'"]),
        ("score", "alhpa", ["score", "'alhpa'", "'alpha'"]),
        ("assignment", "cubic", ["assignment", "'cubic'", *ASSIGNMENTS]),
        ("method", "CAL", ["method", "'CAL'", "'cal'"]),
        ("method", "tb+tb", ["method", "'tb+tb'", "'tb'"]),
        ("method", "tb+cal", ["method", "'tb+cal'", "'tb'"]),
        ("method", "tb+tb+snr", ["method", "'tb+tb+snr'", "'tb+snr'"]),
        ("nothing_like_it", 1, ["'nothing_like_it'", *ImageRecipe.model_fields]),
    ],
)
def test_an_unknown_name_is_answered_with_near_ones_or_all(name, value, carried):
    with raises(ValueError, *carried):
        ImageRecipe.from_dict({name: value})


@pytest.mark.parametrize(
    ("given", "control", "library"),
    [
        ("linear", "", "linear"),
        ("shuffled", "shuffled", "shuffled:linear:37"),
        ("shuffled:sqrt", "shuffled", "shuffled:sqrt:37"),
        ("shuffled:sqrt:7", "shuffled", "shuffled:sqrt:7"),
        ("mean:log2", "mean", "mean:log2"),
        ("embedding=5,head=0.5", "by type", {"embedding": 5.0, "head": 0.5}),
    ],
)
def test_a_control_is_shuffled_by_the_runs_seed_and_has_a_folder_of_its_own(given, control, library):
    recipe = ImageRecipe(method="tb", assignment=given, seed=37)
    assert (recipe.control, recipe.library_assignment) == (control, library)
    assign.check_assignment(library, (0.5, 1.5))
    assert (recipe.name == ImageRecipe(method="tb", seed=37).name) == (not control)
    assert ImageRecipe(method="cal", assignment=given, seed=37).id == ImageRecipe(method="cal", seed=37).id


@pytest.mark.parametrize(
    "given", ["shuffle", "mean:cubic", "shuffled:linear:x", "shuffled:linear:7:8", "heads=5", "head=0", "head=five", ""]
)
def test_an_assignment_that_the_library_refuses_is_refused(given):
    with raises(ValueError, "assignment", repr(given), "shuffled:sqrt:7", "embedding=5,head=5"):
        ImageRecipe(assignment=given)


@pytest.mark.parametrize(
    "text",
    [
        '{"lr": 5e-05, "weight_decay": 1e-1}',
        "lr: 5e-5\nweight_decay: 1e-1\n",
        "lr: '5e-5'\nweight_decay: 0.1\n",
        "{lr: 0.00005, weight_decay: 1.0e-1}",
        '{"recipe": {"lr": 5e-05, "weight_decay": 0.1}, "versions": {}}',
    ],
)
def test_small_numbers_are_read_however_they_are_written(tmp_path, text):
    (tmp_path / "r").write_text(text)
    found = ImageRecipe.from_dict(read_recipe(tmp_path / "r"))
    assert (found.lr, found.weight_decay) == (5e-5, 0.1)


@pytest.mark.parametrize(
    ("text", "carried"),
    [
        ("", ["nothing"]),
        ("- a\n- b\n", ["list"]),
        ('{"recipe": 3}', ["int"]),
        ("lr: [1\n", ["JSON", "YAML"]),
        ("? [a, b]\n: 1\n", ["JSON", "YAML"]),
        ("lr: 1\nlr: 2\n", ["'lr' twice"]),
        ('{"lr": 1, "lr": 2}', ["'lr' twice"]),
        ("methd: tb\n", ["'methd'", "'method'"]),
        ("1: 2\n", ["'1'"]),
        (b"\xff\xfe\x00", ["0xff"]),
    ],
)
def test_a_file_that_holds_something_else_is_named(tmp_path, text, carried):
    path = tmp_path / "r.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with raises(ValueError, path, *carried) as caught:
        read_recipe(path)
    assert "\n" not in str(caught.value)


BOMB = "\n".join(["a: &a0 [x, x]", *(f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40))])


@pytest.mark.parametrize(
    ("text", "carried"),
    [
        (BOMB, ["'a'"]),
        (BOMB.replace("a:", "lr:", 1).replace("b39", "width"), ["width", "got [[["]),
        (BOMB.replace("a: &a0", "epochs: &a0", 1) + "\nkind: *a39\n", ["kind", "got [[["]),
        ("a: " + "[" * 100_000, ["nested too deeply"]),
        ("[" * 100_000, ["nested too deeply"]),
        ("lr: " + "1" * 4000, ["lr", "very large int"]),
        ("seed: 0x" + "f" * 100_000, ["seed", "very large int"]),
        (json.dumps({"x" * 100_000: 1}), ["unknown option 'xxx"]),
        ("dataset: a\n" * 100_000, ["200,000 bytes"]),
    ],
)
def test_a_hostile_file_is_refused_in_one_short_line(tmp_path, text, carried):
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with raises(ValueError, path, *carried) as caught:
        read_recipe(path)
    assert len(str(caught.value)) < 1200
    assert "\n" not in str(caught.value)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with raises(ValueError, tmp_path / "pipe", "regular file"):
        read_recipe(tmp_path / "pipe")


def test_a_dataset_is_written_in_one_way():
    assert ImageRecipe(dataset="pics/").dataset == ImageRecipe(dataset="./pics").dataset == "pics"
    assert ImageRecipe(width=1).width == 1.0
    assert isinstance(ImageRecipe(width=1).width, float)


def test_a_dataset_must_be_known_or_there(tmp_path):
    check_dataset("digits")
    check_dataset(str(tmp_path))
    with raises(ValueError, "dataset", "'Cifar-10'", "'cifar10'"):
        check_dataset("Cifar-10")


KINDS = ("images", "language", "matrices", "operator", "detection", "encoder")
HEAD = """# Options of recipes

`tempbalance train` has a flag for each option of images, such as `--batch-size` for `batch_size`. A
[recipe file](lab.md#recipe-files) takes the options of its `kind` by these names. This page is generated from the
declarations by `python -m tests.lab.test_options`.

| option | kinds | value | default | meaning |
| --- | --- | --- | --- | --- |
"""


def options_page() -> str:
    """A row for each declaration, with the kinds that share it."""
    rows = {}
    for kind in KINDS:
        for name, field in find_kind(kind).model_fields.items():
            rows.setdefault((name, allowed(field), field.description), {})[kind] = field.default
    lines = []
    for (name, rule, text), defaults in sorted(rows.items(), key=lambda row: row[0][0]):
        kinds = "all" if len(defaults) == len(KINDS) else ", ".join(defaults)
        values = {kind: f"`{json.dumps(value)}`" for kind, value in defaults.items() if value is not None}
        default = ", ".join(f"{value} ({kind})" for kind, value in values.items())
        if len(set(values.values())) == 1:
            default = next(iter(values.values()))
        lines.append(f"| `{name}` | {kinds} | {rule} | {default} | {text} |\n")
    return HEAD + "".join(lines)


PAGE = Path(__file__).parents[2] / "docs" / "options.md"


def test_the_page_of_options_is_that_of_the_declarations():
    assert PAGE.read_text() == options_page()


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_has_a_help_text_of_one_or_two_sentences(kind):
    for name, field in find_kind(kind).model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name
        assert allowed(field), name


if __name__ == "__main__":
    PAGE.write_text(options_page())
