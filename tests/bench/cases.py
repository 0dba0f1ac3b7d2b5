"""Results with known ratios."""

from tempbalance.bench.results import Memory, Results, Times


def known_results(**options):
    """The reference takes 4, 2 and 3 times as long in three rounds, WeightWatcher 10 times, a step half as long."""
    ours = [1.0, 2.0, 1.0]
    speed = {
        "median": ours,
        "goodness_of_fit": ours,
        "peak": ours,
        "reference median": [4.0, 4.0, 3.0],
        "reference goodness_of_fit": [20.0, 40.0, 20.0],
        "reference peak": [5.0, 10.0, 5.0],
        "WeightWatcher": [10.0, 20.0, 10.0],
        "training step": [0.5, 1.0, 0.5],
    }
    busy = [
        Times("busy", "ResNet18", setting, {"median": [each], "reference median": [6.0]})
        for setting, each in (("nothing else runs", 1.0), ("another process keeps a core busy", 2.0))
    ]
    width = [Times("width", "ResNet18", f"width {each}", {"median": [0.1 * each**3]}) for each in (1, 2)]
    memory = [Memory("VGG16", "median", 3 * 2**20), Memory("VGG16", "reference", 40 * 2**20)]
    machine = {"cpu": "A processor", "cores": 2, "system": "Linux x86_64"}
    given = {"num_threads": 2, "num_rounds": 3, "quick": False, "complete": True, **options}
    times = [Times("speed", "VGG16", "", speed), *busy, *width, Times("speed", "not measured")]
    return Results(machine, {"torch": "2.13.0"}, times=times, memory=memory, **given)
