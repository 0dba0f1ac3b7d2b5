"""Studies: what each trains in each preset, how much of it they share, and that a file is all a new one takes."""

import re
from collections import Counter
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from tempbalance.lab import studies as folder_of_studies
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.options import pretty
from tempbalance.lab.paper import paper_tables
from tempbalance.lab.points import PRESETS, find_preset, steps_like
from tempbalance.lab.recipe import SEEDS
from tempbalance.lab.study import StudyError, all_studies, find_study, jobs_of_all, read_only, totals_text
from tempbalance.lab.train import train
from tests.cases import assert_carries, raises

BEYOND = {"reference", "shrink", "decay", "assignment_all"}
OF_IMAGES = {
    "main", "optimizers", "adam", "learning_rate", "width", "score", "tail", "assignment", "scale_range", "start",
    "interval", "depth", "overhead", "gradients", "rank_one", "alpha", "layers", "spectra", *BEYOND,
}  # fmt: skip
OTHERS = {
    "language", "detection", "matrices", "exponent", "operator", "pruning", "llama", "few_labels", "operators",
    "images",
}  # fmt: skip
KINDS = {"pruning": {"images", "language"}, "llama": {"language"}, "few_labels": {"encoder"}, "operators": {"operator"}}
PAPER, LAPTOP, SMOKE = PRESETS.values()


def recipes(name: str, preset=PAPER) -> list[ImageRecipe]:
    return _recipes(name, preset.name) if preset in PRESETS.values() else _made(name, preset)


@cache
def _recipes(name: str, preset: str) -> list[ImageRecipe]:
    return _made(name, PRESETS[preset])


def _made(name: str, preset) -> list[ImageRecipe]:
    study = find_study(name)
    return [job.recipe for job in study.jobs(preset, study.points(preset), Path())]


def ids(name: str, preset=PAPER, **wanted) -> set[str]:
    found = recipes(name, preset)
    return {each.id for each in found if all(getattr(each, key) == value for key, value in wanted.items())}


def test_these_are_the_studies():
    assert set(all_studies()) == OF_IMAGES | OTHERS
    with raises(ValueError, "study", "'mains'", "'main'"):
        find_study("mains")
    with raises(ValueError, "preset", "'papers'", "'paper'"):
        find_preset("papers")


def test_main_has_exactly_the_grid_of_the_paper():
    found = recipes("main")
    assert Counter(each.method for each in found) == {"cal": 180, "snr": 230, "tb": 60, "tb+snr": 60}
    jobs = find_study("main").jobs(PAPER, find_study("main").points(PAPER), Path())
    assert totals_text(jobs) == "530 runs: 180 CAL, 230 SNR, 60 TB, 60 TB+SNR"
    assert len({(each.dataset, each.model) for each in found}) == 12
    vgg = {
        (each.lr, each.seed)
        for each in found
        if (each.dataset, each.model, each.method) == ("cifar100", "vgg16", "cal")
    }
    assert vgg == {(lr, seed) for lr in (0.025, 0.05, 0.1) for seed in (43, 37, 13, 51, 71)}
    assert {each.epochs for each in found} == {200}
    assert {each.width for each in found} == {1.0}


@pytest.mark.parametrize("table", ["main", "optimizers", "learning_rate", "width", "score", "tail"])
def test_each_table_of_the_paper_is_trained_point_by_point_with_its_numbers_beside(table):
    rows = paper_tables()[table].rows
    points = find_study(table).points(PAPER)
    if table == "score":  # with CAL beside it
        points = [point for point in points if point.cell["method"] == "tb"]
    assert len({point.recipe(seed) for point in points for seed in SEEDS}) == 5 * sum(len(row.points()) for row in rows)
    told = Counter(point.paper.mean for point in points if point.is_best)
    assert told == Counter(result.mean for row in rows for result in row.results)


@pytest.mark.parametrize("name", sorted(OF_IMAGES | OTHERS - {"exponent"}))
def test_every_preset_of_every_study_that_trains_has_runs_with_its_seeds(name):
    for preset in PRESETS.values():
        found = recipes(name, preset)
        assert found
        assert {each.seed for each in found} == set(find_study(name).seeds(preset))
        kinds = KINDS.get(name, {"images" if name in OF_IMAGES else name})
        assert {each.kind for each in found} == kinds


@pytest.mark.parametrize("name", sorted(OF_IMAGES))
def test_every_study_of_images_has_the_seeds_of_its_preset(name):
    for preset in PRESETS.values():
        if name in BEYOND:
            expected = SEEDS if preset is LAPTOP else preset.seeds
        else:
            given = find_study(name).num_seeds
            given = given.get(preset.name) if isinstance(given, dict) else given
            expected = SEEDS[: given or len(preset.seeds)]
        assert find_study(name).seeds(preset) == expected


@pytest.mark.parametrize("name", sorted(OF_IMAGES))
def test_small_presets_of_every_study_of_images_have_their_size(name):
    found = recipes(name, LAPTOP)
    if name in BEYOND:
        assert {(each.width, each.limit, each.test_limit) for each in found} == {(0.125, 4_000, 2_000)}
    else:
        assert {each.dataset for each in found} <= {"digits", "fashion_mnist"}
        assert {each.epochs for each in found} == {12}
        assert {(each.limit, each.test_limit) for each in found if each.dataset != "digits"} <= {(10_000, 2_000)}
        if name not in ("width", "overhead"):
            assert {each.width for each in found} == {0.25}
    smoke = {(each.dataset, each.epochs, each.limit) for each in recipes(name, SMOKE)}
    assert smoke == {("digits", 2, 256)}


def test_the_papers_preset_has_the_published_forms_and_small_ones_do_not():
    tail = {point.cell["tail"]: point.options for point in find_study("tail").points(PRESETS["paper"])}
    assert tail["median"]["tail"] == "median_published"
    assert tail["peak"]["tail"] == "peak"
    for point in find_study("main").points(PRESETS["paper"]):
        recipe = point.recipe(43)
        assert (recipe.tail, recipe.norms, recipe.snr_iterations, recipe.flip) == ("median_published", "name", 5, True)
    for preset in ("laptop", "smoke"):
        for point in find_study("main").points(PRESETS[preset]):
            recipe = point.recipe(43)
            assert (recipe.tail, recipe.norms, recipe.snr_iterations, recipe.flip) == ("median", "order", 1, None)


def test_studies_share_runs():
    resnet18 = {"dataset": "cifar100", "model": "resnet18", "method": "tb", "lr": 0.1, "scale_range": (0.5, 1.5)}
    main = ids("main", **resnet18)
    assert len(main) == 5
    for name in (
        "optimizers",
        "learning_rate",
        "width",
        "score",
        "tail",
        "assignment",
        "scale_range",
        "start",
        "interval",
    ):
        assert main <= ids(name), name
    assert ids("alpha") <= ids("main")
    assert ids("layers") <= ids("optimizers")
    studies = [find_study(name) for name in ("main", "alpha")]
    chosen = {study.name: study.points(PAPER) for study in studies}
    assert len(jobs_of_all(chosen, studies, PAPER, Path())) == 530


def test_a_study_of_the_laptop_trains_the_papers_best_point_on_data_that_stand_in():
    points = find_study("main").points(LAPTOP)
    assert len(points) == 16
    (point,) = [p for p in points if p.cell == {"dataset": "fashion_mnist", "model": "resnet18", "method": "snr"}]
    recipe = point.recipe(43)
    assert (recipe.lr, recipe.snr, recipe.limit, recipe.test_limit) == (0.1, 0.001, 10_000, 2_000)
    assert (point.stands_for, point.paper.mean) == ("cifar10", 95.57)
    assert recipe.data_text == "Fashion-MNIST, 10,000 + 2,000 images"
    assert {each.restart_epochs for each in recipes("optimizers", LAPTOP) if each.method == "sgdr"} == {6}


def test_what_the_issue_asks_is_varied():
    assert {each.start for each in recipes("start")} == {0, 1, 4, 9}
    assert {each.interval_steps for each in recipes("interval")} == {None, 300, 200, 100, 50}
    assert {each.assignment for each in recipes("assignment")} == {"linear", "sqrt", "log2", "step"}
    assert len({each.scale_range for each in recipes("scale_range")}) == 5
    assert {each.model for each in recipes("depth")} == {"resnet18", "resnet34", "resnet101"}
    assert {each.method for each in recipes("adam")} == {"cal", "tb", "adam", "adamw", "adamp", "lamb"}
    assert {(each.model, each.width) for each in recipes("overhead")} == {
        ("resnet18", 1), ("resnet34", 1), ("resnet50", 1), ("resnet101", 1),
        ("resnet18", 1.5), ("resnet18", 2), ("resnet18", 4),
    }  # fmt: skip
    gradients, rank_one = recipes("gradients"), recipes("rank_one")
    assert {(each.log_steps, each.num_epochs, each.epochs) for each in gradients} == {(30, 10, 200)}
    assert {(each.log_steps, each.log_eigenvalues, each.num_epochs) for each in rank_one} == {(30, True, 10)}
    assert {each.log_layers for each in rank_one} == {"layer4.0.conv2"}  # all layers would take 240 MB a run
    assert len(gradients) == len(rank_one) == 5


@pytest.mark.parametrize("name", ["start", "interval", "score", "assignment", "scale_range"])
def test_cal_stands_beside_tb_in_ablations_with_the_same_runs_as_in_main(name):
    points = find_study(name).points(PAPER)
    networks = {point.cell["model"] for point in points if point.cell["method"] == "tb"}
    cal = [point for point in points if point.cell["method"] == "cal"]
    assert {point.cell["model"] for point in cal} == networks
    assert {each.recipe(43).id for each in cal} <= ids("main") | ids("learning_rate")
    for preset in PRESETS.values():
        findings = find_study(name).find(preset, find_study(name).points(preset), Path("nowhere"))
        baseline = [cell for cell in findings.cells if cell.labels["method"] == "cal"]
        assert baseline
        assert all(findings.compared_with(cell).labels["method"] == "tb" for cell in baseline)


@pytest.mark.parametrize(
    ("iterations", "options", "steps"),
    [
        (300, {"dataset": "cifar100", "batch_size": 128}, 300),
        (390, {"dataset": "digits", "batch_size": 128}, 11),
        (100, {"dataset": "digits", "batch_size": 128}, 3),
        (50, {"dataset": "fashion_mnist", "batch_size": 128, "limit": 10_000}, 10),
        (50, {"dataset": "digits", "batch_size": 128, "limit": 256}, 1),
    ],
)
def test_intervals_are_the_same_share_of_a_shorter_epoch(iterations, options, steps):
    assert steps_like(iterations, options) == steps


def test_intervals_of_own_data_follow_from_its_images(tmp_path):
    images, labels = np.zeros((512, 8, 8), dtype=np.uint8), np.arange(512) % 2
    path = tmp_path / "own.npz"
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    preset = find_preset("laptop", dataset=str(path))  # four steps an epoch
    assert {each.interval_steps for each in recipes("interval", preset)} == {None, 3, 2, 1}
    assert [point.cell["iterations"] for point in find_study("interval").points(preset)] == [390, 300, 200, 100, "cal"]


def added(folder, name, text, monkeypatch):
    """Find studies in one more file."""
    (folder / name).write_text(text)
    monkeypatch.setattr(folder_of_studies, "__path__", [*folder_of_studies.__path__, str(folder)])
    all_studies.cache_clear()


@pytest.mark.parametrize(
    ("text", "carried"),
    [
        ("own: {", ["own.yaml", "YAML"]),
        ("- own", ["own.yaml", "list"]),
        ("own: 1", ["own.yaml", "study own", "fields", "1"]),
        ("language: {}", ["own.yaml", "study language", "twice"]),
        ("own: {title: a, varies: b, present: layers.present_alpha}", ["study own", "field points"]),
        ("own: {tilte: a}", ["study own", "tilte"]),
        ("own: {points: {table: main, modles: [resnet18]}}", ["study own", "points", "modles"]),
        ("own: {points: {options: {lr: 0.1}, tabel: main}}", ["study own", "points", "tabel"]),
        ("own: {points: points.nothing}", ["study own", "points", "'points.nothing'"]),
        ("own: {present: {bars: [method], title: a, captoin: b}}", ["study own", "present", "captoin"]),
        ("own: {claims: [{form: best}]}", ["study own", "claims.0", "'best'"]),
        ("own: {claims: [{form: better, says: tb_beats_call}]}", ["study own", "claims.0", "says", "'tb_beats_cal'"]),
        ("own: {claims: [{form: bounded, limit: a, says: tb_beats_cal}]}", ["study own", "claims.0", "limit"]),
    ],
)
def test_what_is_wrong_with_an_entry_is_named(text, carried, tmp_path, monkeypatch):
    added(tmp_path, "own.yaml", text, monkeypatch)
    try:
        with raises(StudyError, *carried):
            all_studies()
    finally:
        monkeypatch.undo()
        all_studies.cache_clear()


def test_own_data_can_stand_in_for_those_of_a_small_preset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    preset = find_preset("laptop", dataset="own.npz")
    found = recipes("main", preset)
    assert {each.dataset for each in found} == {str(tmp_path / "own.npz")}
    assert {each.limit for each in found} == {10_000}
    assert len(found) == 24  # the two datasets of the preset have become one
    with raises(ValueError, "dataset", "preset paper", "'digits'"):
        find_preset("paper", dataset="digits")


def test_the_papers_own_runs_can_be_chosen():
    def count(only_paper):
        studies = list(all_studies().values())
        chosen = {each.name: each.choose(PAPER, {}, only_paper=only_paper) for each in studies}
        return len(jobs_of_all(chosen, studies, PAPER, Path()))

    ours = {name for name, each in all_studies().items() if not each.choose(PAPER, {}, only_paper=True)}
    ours_too = {"operator", "pruning", "llama", "few_labels", "operators", "images"}
    assert ours == {*BEYOND, *ours_too, "exponent"}  # the last one trains nothing
    assert all(point.is_paper for name in ("main", "optimizers", "score") for point in find_study(name).points(PAPER))
    adam = {point.cell["method"] for point in find_study("adam").choose(PAPER, {}, only_paper=True)}
    assert adam == {"cal", "tb", "adam", "lamb"}
    language = find_study("language").choose(PAPER, {}, only_paper=True)
    assert {point.options["causal"] for point in language} == {False}
    assert (count(only_paper=True), count(only_paper=False)) == (2000, 7825)


def test_a_part_of_a_study_can_be_chosen():
    study = find_study("main")
    points = study.choose(LAPTOP, read_only(["model=resnet18", "dataset=fashion_mnist"]))
    assert [point.cell["method"] for point in points] == ["cal", "snr", "tb", "tb+snr"]
    assert len(study.choose(LAPTOP, read_only(["method=cal", "method=tb"]))) == 8
    as_reported = read_only(["network=ResNet18", "data=Fashion-MNIST", "method=TB+SNR"])
    assert [point.cell["method"] for point in study.choose(LAPTOP, as_reported)] == ["tb+snr"]
    widths = find_study("width").choose(PAPER, read_only(["width=0.5"]))
    assert {point.options["width"] for point in widths} == {0.5}
    for given, *carried in (
        (["model=resnet19"], "main", "model", "'resnet19'", "'resnet18'"),
        (["modell=resnet18"], "main", "'modell'", "'model'"),
        (["resnet18"], "only", "NAME=VALUE", "'resnet18'"),
    ):
        with raises(ValueError, *carried):
            study.choose(LAPTOP, read_only(given))


ENTRY = """
tail_fraction:
  title: How much of the spectrum is the tail?
  varies: the tail's share
  points:
    {table: optimizers, best: true, models: [resnet18], methods: [tb], vary: {tail_fraction: [0.5, 0.25]}}
  present:
    bars: [tail_fraction]
    title: TB with longer and shorter tails
    caption: Accuracy against the tail's share.
  reference: {tail_fraction: 0.5}
""".strip("\n")


def test_a_study_is_added_by_one_entry_of_at_most_15_lines(tmp_path, monkeypatch):
    assert len(ENTRY.splitlines()) <= 15
    added(tmp_path, "own.yaml", ENTRY, monkeypatch)
    try:
        study = find_study("tail_fraction")
        assert set(all_studies()) == OF_IMAGES | OTHERS | {"tail_fraction"}
        assert [point.cell["tail_fraction"] for point in study.points(LAPTOP)] == [0.5, 0.25]
        assert study.num_runs(LAPTOP) == 6
        jobs = study.jobs(SMOKE, study.points(SMOKE), tmp_path)
        results = [train(job.recipe, job.folder, device="cpu", threads=1)["test_accuracy"] for job in jobs]
        report = study.report(study.find(SMOKE, study.points(SMOKE), tmp_path))
        assert list(report.charts) == ["tail_fraction"]
        row = dict(zip(report.tables[0].columns, report.tables[0].rows[1], strict=True))
        assert row["seeds"] == "2 of 2"
        first, second = results[:2], results[2:]
        assert row["against tail fraction 0.5"].value == pytest.approx(fmean(second) - fmean(first))
        assert_carries(report.title, "tail_fraction", "How much")
    finally:
        monkeypatch.undo()
        all_studies.cache_clear()


def test_every_comparison_of_images_is_an_entry_of_at_most_15_lines_beside_its_claims_and_variants():
    text = (Path(folder_of_studies.__file__).parent / "comparisons.yaml").read_text()
    entries = [each.partition("\n\n")[0] for each in re.split(r"\n(?=\w+:\n)", text)[1:]]
    assert len(entries) == 16
    for entry in entries:
        entry = re.sub(r"\n  claims:.*(\n    .*)*", "", entry)
        assert len(re.sub(r"\n +(variants:|\").*", "", entry).splitlines()) <= 15, entry


def test_names_are_written_as_the_paper_writes_them():
    assert [pretty(each) for each in ("tb+sgdp", "adamw", "tiny_imagenet", "median", None, 12)] == [
        "TB+SGDP", "AdamW", "Tiny ImageNet", "median", "None", "12",
    ]  # fmt: skip


def test_baselines_are_scored_only_where_a_study_draws_their_alphas():
    drawn = {each.id for name in ("alpha", "layers") for each in recipes(name)}
    assert all(each.is_scored for name in ("alpha", "layers") for each in recipes(name))
    for name in OF_IMAGES:
        for each in recipes(name):
            assert each.is_scored == (each.is_balanced or each.id in drawn), (name, each.id)
    main = recipes("main")
    best = {each.id for each in recipes("alpha") if not each.is_balanced}
    assert Counter(each.is_scored for each in main) == {True: 120 + len(best), False: 410 - len(best)}
    assert best <= {each.id for each in main}  # trained once for both


def test_options_of_scoring_do_not_tell_apart_runs_that_are_not_scored():
    one, other = (ImageRecipe(method="cal", score_baseline=False, tail=tail) for tail in ("median", "peak"))
    assert one.id == other.id != ImageRecipe(method="cal").id
    assert ImageRecipe(method="tb", score_baseline=False).id == ImageRecipe(method="tb").id
    with raises(ValueError, "log_gradients", "score_baseline"):
        ImageRecipe(method="cal", score_baseline=False, log_gradients=True)
