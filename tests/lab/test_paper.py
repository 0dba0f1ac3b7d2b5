"""The paper's numbers: each as its LaTeX rows have it, each in its place, and none besides."""

import re
from collections import Counter
from importlib.resources import files
from itertools import groupby
from pathlib import Path

import pytest
import yaml

from tempbalance.lab.images.recipe import MODELS, ImageRecipe
from tempbalance.lab.options import DATASETS
from tempbalance.lab.paper import BETTER, paper_statements, paper_tables
from tempbalance.lab.recipe import SEEDS, find_method

ROWS = Path(__file__).parent / "paper_rows"
IMAGES = ("main", "optimizers", "learning_rate", "width", "score", "tail")

# what stands in the columns between the method and the end of a row
COLUMNS = {
    "main": ("lr", "snr", "accuracy", "scale_range"),
    "optimizers": ("lr", "restarts", "lookahead_steps", "lookahead_alpha", "accuracy", "scale_range"),
    "learning_rate": ("lr", "accuracy", "scale_range"),
    "width": ("lr", "width", "accuracy", "scale_range"),
    "score": ("score", "lr", "accuracy", "scale_range"),
    "tail": ("tail", "lr", "accuracy", "seconds", "scale_range"),
}
NAMES = {
    "TinyImageNet": "tiny_imagenet",
    "WRN16-8": "wrn16_8",
    "WRN28-6": "wrn28_6",
    r"\ALPHAHILL": "alpha",
    "AlphaWeighted": "alpha_weighted",
    "SpectralNorm": "spectral_norm",
    "Fix-finger": "peak",
    "Goodness-of-fit": "goodness_of_fit",
    "CAL + Adam": "adam",
    "CAL + AdamW": "adamw",
}
BOLD = re.compile(r"\\textbf\{([^}]*)\}")
NUMBER = re.compile(r"[-+]?\d+\.?\d*")
NAME = re.compile(r"\\(?:texttt|shortstack)\{([^}]*)\}")


def numbers(text):
    return tuple(float(each) for each in NUMBER.findall(text))


def named(cell):
    """The name in a cell, as the lab spells it."""
    found = NAME.search(cell)
    name = found[1] if found else cell.strip()
    return NAMES.get(name, name.lower().replace(" ", ""))


def values(option, cell):
    """What a cell lists, each value of an option in our unit."""
    if option in ("score", "tail"):
        return (named(cell),)
    if option in ("scale_range", "restarts"):
        return tuple(numbers(pair) for pair in re.findall(r"\(.*?\)", cell))
    return tuple(each / 512 if option == "width" else each for each in numbers(cell))


def parse(table):
    """The rows of a LaTeX table: cells by the name of their column. Rows of one shade have one dataset."""
    lines = (ROWS / f"{table}.tex").read_text().splitlines()
    for _, block in groupby(lines, key=lambda line: line.startswith(r"\gb")):
        rows = [[cell.strip() for cell in line.removeprefix(r"\gb").rstrip("\\ ").split("&")] for line in block]
        (dataset,) = (named(row[1]) for row in rows if row[1])
        for index, _, model, method, *cells in rows:
            named_cells = dict(zip(COLUMNS[table], cells, strict=True))
            yield {"index": int(index), "dataset": dataset, "model": named(model), "method": named(method)}, named_cells


def options(cells):
    """The cells of a row that list values of an option."""
    return {name: cell for name, cell in cells.items() if name not in ("accuracy", "seconds") and cell != "-"}


def in_tex(table):
    """Every row in one plain form: names, values tried, values in bold, means with deviations, seconds likewise."""
    for names, cells in parse(table):
        tried = {name: values(name, cell) for name, cell in options(cells).items()}
        bold = {
            name: values(name, found[1])[0] for name, cell in options(cells).items() if (found := BOLD.search(cell))
        }
        yield names, tried, bold, pairs(cells["accuracy"]), pairs(cells.get("seconds", ""))


def pairs(cell):
    found = numbers(cell)
    return list(zip(found[::2], found[1::2], strict=True))


def find_rows(table, **names):
    rows = paper_tables()[table].rows
    return [row for row in rows if all(getattr(row, name) == value for name, value in names.items())]


def best(row):
    return BETTER[row.metric](row.results, key=lambda result: result.mean)


def in_data(table):
    """Every row of our file in the form of `in_tex`, the values in bold being those at which its one result was."""
    for row in paper_tables()[table].rows:
        names = {"index": row.index, "dataset": row.dataset, "model": row.model, "method": row.method}
        several = [name for name, each in row.tried.items() if len(each) > 1]
        bold = {name: row.results[0].chosen[name] for name in several} if len(row.results) == 1 else {}
        seconds = [(each.seconds, each.seconds_std) for each in row.results if each.seconds is not None]
        yield names, row.tried, bold, [(each.mean, each.std) for each in row.results], seconds


@pytest.mark.parametrize("table", IMAGES)
def test_every_row_is_that_of_the_paper(table):
    assert list(in_data(table)) == list(in_tex(table))


@pytest.mark.parametrize("table", IMAGES)
def test_no_number_of_a_table_is_missing_and_none_is_added(table):
    text = (ROWS / f"{table}.tex").read_text()
    text = re.sub(r"\\multirow\{-?\d+\}|CIFAR\d+|ResNet\d+|VGG\d+|WRN\d+-\d+", "", text)

    def flat(value):
        return [number for each in value for number in flat(each)] if isinstance(value, tuple) else [value]

    ours = []
    for row in paper_tables()[table].rows:
        tried = {name: each for name, each in row.tried.items() if name not in ("score", "tail")}
        width = tuple(512 * each for each in tried.pop("width", ()))
        results = ((each.mean, each.std, each.seconds, each.seconds_std) for each in row.results)
        ours += flat((row.index, width, *tried.values(), *results))
    assert Counter(float(each) for each in ours if each is not None) == Counter(numbers(text))


@pytest.mark.parametrize("table", ["learning_rate", "width", "score"])
def test_where_every_point_has_a_number_they_come_in_the_order_of_what_was_tried(table):
    for row in paper_tables()[table].rows:
        (varied,) = (name for name, each in row.tried.items() if len(each) > 1)
        assert tuple(each.chosen[varied] for each in row.results) == row.tried[varied]


@pytest.mark.parametrize("table", ["detection", "language"])
def test_the_other_tasks_have_the_papers_means_and_gains(table):
    methods, cells = ([*line.rstrip("\\ ").split("&")] for line in (ROWS / f"{table}.tex").read_text().splitlines())
    rows = paper_tables()[table].rows
    assert [row.method for row in rows] == [named(method) for method in methods]
    for row, cell, before in zip(rows, cells, (None, *rows[:-1]), strict=True):
        mean, *gain = numbers(cell)
        assert row.results[0].mean == mean
        assert len(gain) == row.method.startswith("tb")
        for each in gain:
            assert each == pytest.approx(mean - before.results[0].mean)


def test_the_other_tasks_have_their_grids_and_settings():
    detection, language = paper_tables()["detection"], paper_tables()["language"]
    assert {(row.dataset, row.model) for row in detection.rows} == {("voc2007", "yolov8n")}
    assert {(row.dataset, row.model) for row in language.rows} == {("penn_treebank", "tensorized_transformer")}
    assert all(row.tried["lr"] == (7.5e-6, 1e-5, 2.5e-5) for row in detection.rows)
    assert all(row.tried["scale_range"] == ((0.6, 1.4),) for row in detection.rows if row.method.startswith("tb"))
    assert detection.settings == {
        "epochs": 200, "batch_size": 64, "weight_decay": 5e-4, "betas": (0.9, 0.999), "eps": 1e-8,
    }  # fmt: skip
    cal, tb = language.rows
    assert cal.tried == {"lr": (1.25e-4, 2.5e-4, 5e-4, 1e-3, 1.25e-3, 2.5e-3, 5e-3)}
    assert tb.tried == {
        "scale_range": ((0.5, 1.5), (1.0, 2.0)),
        "tail_fraction": (0.5, 1 / 1.25),
        "interval_iterations": (10, 25, 50),
    }
    assert language.settings == {
        "iterations": 40_000, "batch_size": 120, "dropout": 0.3, "betas": (0.9, 0.999), "eps": 1e-8,
    }  # fmt: skip
    assert (detection.seeds, detection.num_seeds) == (language.seeds, language.num_seeds) == ((), 5)
    assert (detection.metric, language.metric) == ("map", "perplexity")


def test_the_main_grid_has_48_rows_and_530_runs():
    rows = paper_tables()["main"].rows
    runs = Counter()
    for row in rows:
        runs[row.method] += 5 * len(row.points())
    assert len(rows) == 48
    assert runs == {"cal": 180, "snr": 230, "tb": 60, "tb+snr": 60}
    assert runs.total() == 530


def test_every_point_of_a_grid_is_a_recipe_and_no_two_are_the_same():
    for table in IMAGES:
        recipes = [
            ImageRecipe(dataset=row.dataset, model=row.model, method=row.method, **point)
            for row in paper_tables()[table].rows
            for point in row.points()
        ]
        assert len(recipes) == len(set(recipes))
        assert all(each.epochs == 200 and each.batch_size == 128 and each.momentum == 0.9 for each in recipes)


def test_a_result_says_the_whole_point_at_which_it_was():
    (row,) = find_rows("optimizers", model="resnet34", method="sgdr")
    assert best(row).options == {
        "lr": 0.05, "restart_epochs": 100, "restart_factor": 1,
        "epochs": 200, "batch_size": 128, "weight_decay": 5e-4, "momentum": 0.9, "width": 1.0,
    }  # fmt: skip
    assert len(row.points()) == 9
    assert best(row).options in row.points()
    for table in IMAGES:
        assert all(result.options in row.points() for row in paper_tables()[table].rows for result in row.results)


def test_the_best_of_a_row_is_its_highest_accuracy_or_lowest_perplexity():
    (row,) = find_rows("width", model="vgg19", method="tb")
    assert (best(row).options["width"], best(row).mean, best(row).std) == (1.5, 74.80, 0.35)
    assert [best(row).mean for row in find_rows("language")] == [49.94, 47.30]


def test_what_two_tables_say_of_the_same_run_agrees():
    seen = {}
    for table in IMAGES:
        for row in paper_tables()[table].rows:
            for result in row.results:
                recipe = ImageRecipe(dataset=row.dataset, model=row.model, method=row.method, **result.options)
                assert seen.setdefault(recipe, (result.mean, result.std)) == (result.mean, result.std), row
    assert len(seen) < sum(len(row.results) for table in IMAGES for row in paper_tables()[table].rows)


def test_the_settings_are_those_that_the_text_states():
    text = {name: each.value for name, each in paper_statements().items()}
    for name, table in paper_tables().items():
        if name not in IMAGES:
            continue
        assert table.seeds == SEEDS == text["seeds"]
        assert table.num_seeds == text["num_seeds"] == 5
        common = {"epochs", "batch_size", "weight_decay", "momentum"}
        width = {} if name == "width" else {"width": 1.0}
        assert table.settings == {**{name: text[name] for name in common}, **width}
    assert paper_tables()["tail"].num_timings == text["num_timings"] == 10


def plain(fragment):
    """The numbers of a piece of LaTeX: powers of ten, fractions of n, thousands, percentages, ranges with dots."""
    fragment = re.sub(r"_\{\d\}", "", fragment)
    fragment = re.sub(r"\\frac\{n\}\{([\d.]+)\}", lambda found: str(1 / float(found[1])), fragment)
    fragment = re.sub(r"([\d.]+)\s*\\times\s*10\^\{?(-?\d+)\}?", r"\1e\2", fragment)
    fragment = re.sub(r"(?<![\d.])10\^\{(-\d+)\}", r"1e\1", fragment)
    found = [
        float(number) * {"K": 1000, "%": 0.01}.get(unit, 1)
        for number, unit in re.findall(r"(-?\d+\.?\d*(?:e-?\d+)?)\\?([K%]?)", fragment)
    ]
    if r"\cdots" in fragment:
        *first, last = found
        found = [
            first[0] + i * (first[1] - first[0]) for i in range(round((last - first[0]) / (first[1] - first[0])) + 1)
        ]
    return found


def flat_numbers(value):
    if isinstance(value, dict):
        value = tuple(value.values())
    return [number for each in value for number in flat_numbers(each)] if isinstance(value, tuple) else [value]


def test_what_the_text_states_is_what_it_writes():
    lines = (ROWS / "text.tex").read_text().splitlines()
    written = {name.strip(): plain(fragment) for name, fragment in (line.split("&", 1) for line in lines)}
    stated = {name: each.value for name, each in paper_statements().items() if each.value is not None}
    assert stated.keys() == written.keys()
    for name, value in stated.items():
        assert flat_numbers(value) == pytest.approx(written[name]), name


def mean_of(table, **wanted):
    (row,) = find_rows(table, **wanted)
    return best(row).mean


def test_the_text_and_the_tables_agree_on_the_cost_of_balancing():
    text = {name: each.value for name, each in paper_statements().items()}
    (row,) = (row for row in find_rows("tail", model="resnet18") if row.tried["tail"] == ("median",))
    assert text["balancing_seconds"] == best(row).seconds
    assert text["balancing_minutes"] == pytest.approx(text["balancing_seconds"] * text["epochs"] / 60)
    assert text["overhead"] == pytest.approx(text["balancing_minutes"] / text["training_minutes"], abs=0.005)
    assert text["interval"] == 50_000 // text["batch_size"]


def test_the_claims_hold_in_the_tables_but_where_a_note_says_so():
    cells = sorted({(row.dataset, row.model) for row in paper_tables()["main"].rows})
    of = {
        cell: {
            name: mean_of("main", dataset=cell[0], model=cell[1], method=name)
            for name in ("cal", "snr", "tb", "tb+snr")
        }
        for cell in cells
    }
    notes = {name: each.note for name, each in paper_statements().items() if each.note}
    assert all(each["tb"] > each["cal"] for each in of.values())
    behind_snr = {cell for cell, each in of.items() if each["tb"] <= each["snr"]}
    assert behind_snr == {("cifar100", "vgg19"), ("cifar100", "resnet34"), ("svhn", "resnet18")}
    assert "96.63" in notes["tb_beats_snr"]
    assert {cell for cell, each in of.items() if each["tb+snr"] < max(each.values())} == {("tiny_imagenet", "wrn16_8")}
    assert "64.09" in notes["tb_snr_is_best"]
    tails = {(row.model, row.tried["tail"][0]): best(row) for row in paper_tables()["tail"].rows}
    ahead = {key for key, each in tails.items() if each.mean > tails[key[0], "median"].mean}
    assert ahead == {("resnet18", "peak")}
    assert "79.06" in notes["median_is_best"]
    assert all(each.seconds >= tails[model, "median"].seconds for (model, _), each in tails.items())


@pytest.mark.parametrize("table", ["learning_rate", "width"])
@pytest.mark.parametrize("model", ["resnet18", "resnet34", "vgg16", "vgg19"])
def test_balancing_is_ahead_of_cosine_annealing_at_every_rate_and_width(table, model):
    cal, tb = find_rows(table, model=model)
    assert (cal.method, tb.method) == ("cal", "tb")
    assert all(ours.mean > each.mean for ours, each in zip(tb.results, cal.results, strict=True))


def test_the_best_of_the_optimizers_is_balanced_sgdp_and_of_the_scores_alpha():
    for model in ("resnet18", "resnet34"):
        rows = find_rows("optimizers", model=model)
        assert max(rows, key=lambda row: best(row).mean).method == "tb+sgdp"
    for model in ("resnet18", "resnet34", "vgg16", "vgg19"):
        by_score = {row.tried["score"][0]: row.results for row in find_rows("score", model=model)}
        for other in ("alpha_weighted", "spectral_norm"):
            assert all(ours.mean > each.mean for ours, each in zip(by_score["alpha"], by_score[other], strict=True))


def test_every_file_goes_with_the_package():
    inside = {each.name for each in files("tempbalance.lab.paper").iterdir() if each.name.endswith(".yaml")}
    assert inside == {f"{name}.yaml" for name in (*paper_tables(), "text")}


def test_what_a_result_was_chosen_from_was_tried_once_and_names_are_known():
    for table in paper_tables().values():
        assert table.metric in BETTER
        for row in table.rows:
            find_method(row.method)
            assert row.dataset in (*DATASETS, "voc2007", "penn_treebank"), row
            assert row.model in (*MODELS, "yolov8n", "tensorized_transformer"), row
            assert all(len({*values}) == len(values) for values in row.tried.values()), row
            for result in row.results:
                assert result.chosen.items() <= {(n, v) for n, each in row.tried.items() for v in each}, row
                assert min(getattr(result, name) or 1.0 for name in ("mean", "std", "seconds", "seconds_std")) > 0


def test_a_statement_is_made_once_and_says_or_claims():
    content = yaml.safe_load((files("tempbalance.lab.paper") / "text.yaml").read_text(encoding="utf-8"))
    statements = [each for section in content.values() for each in section.items()]
    assert len(paper_statements()) == len(statements)
    for name, fields in statements:
        assert ("says" in fields) != ("claims" in fields), name
        assert "untested" not in fields or "claims" in fields, name
