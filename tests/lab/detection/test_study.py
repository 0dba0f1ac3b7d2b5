from tempbalance.lab.points import PRESETS
from tempbalance.lab.study import find_study


def test_the_papers_preset_is_its_whole_grid_with_its_numbers():
    study = find_study("detection")
    points = study.points(PRESETS["paper"])
    assert len(points) == 12
    assert len(study.seeds(PRESETS["paper"])) == 5
    found = {(point.cell["method"], point.cell["optimizer"]): point.paper.mean for point in points}
    assert found == {
        ("cal", "adam"): 59.59,
        ("tb", "adam"): 60.03,
        ("cal", "adamw"): 59.68,
        ("tb", "adamw"): 59.96,
    }
    recipes = [point.recipe(43) for point in points]
    assert {recipe.lr for recipe in recipes} == {7.5e-6, 1e-5, 2.5e-5}
    assert {(recipe.scale_range, recipe.epochs, recipe.batch_size, recipe.eps) for recipe in recipes} == {
        ((0.6, 1.4), 200, 64, 1e-8)
    }


def test_small_presets_train_one_point_of_each_cell_on_drawn_shapes_from_random_weights():
    study = find_study("detection")
    for name in ("laptop", "smoke"):
        points = study.points(PRESETS[name])
        recipes = [point.recipe(43) for point in points]
        assert [recipe.method for recipe in recipes] == ["adam", "tb+adam", "adamw", "tb+adamw"]
        assert {(recipe.dataset, recipe.model) for recipe in recipes} == {("shapes", "yolov8n.yaml")}
        assert {point.stands_for for point in points} == {"voc2007"}
