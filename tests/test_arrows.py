"""Imports point one way, and a bare import stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "tempbalance"

# each module with the modules of ours that it may know
ARROWS = {
    "__init__": {"core.assign", "core.score", "core.spectrum", "core.tail",
                 "diagnosis", "errors", "groups", "layers", "scheduler", "table"},
    "errors": set(),
    "core.__init__": set(),
    "core.matrices": {"errors"},
    "core.spectrum": {"errors", "core.matrices"},
    "core.marchenko_pastur": {"core.matrices", "core.spectrum"},
    "core.tail": {"errors"},
    "core.score": {"errors", "core.tail"},
    "core.assign": {"errors"},
    "table": set(),
    "rates": set(),
    "wrappers": set(),
    "lora": {"errors", "core.spectrum"},
    "sharded": set(),
    "ranks": {"errors"},
    "layers": {"errors", "core.matrices", "lora", "sharded", "wrappers"},
    "groups": {"layers", "sharded", "wrappers"},
    "core.random_alpha": {"core.tail", "errors"},
    "scoring": {"errors", "core.matrices", "core.random_alpha", "core.spectrum", "core.tail", "core.score", "layers",
                "table"},
    "distributed": {"core.spectrum", "core.tail", "errors", "layers", "ranks", "scoring", "table"},
    "background": {"core.spectrum", "distributed", "layers", "ranks", "table"},
    "budget": {"layers", "sharded"},
    "charge": {"ranks", "rates"},
    "states": {"groups", "rates"},
    "comparing": {"core.assign", "errors", "table"},
    "blending": {"table"},
    "allocate": {"comparing", "table"},
    "tell_allocation": {"", "allocate", "lab.methods", "layout", "render", "report.text", "runlog", "tell"},
    "scheduler": {"background", "blending", "budget", "charge", "comparing", "states", "core.assign", "core.matrices",
                  "core.score", "core.tail",
                  "distributed", "groups", "layers",
                  "ranks", "rates", "scoring", "table", "wrappers"},
    "regularize": {"errors", "wrappers"},
    "integrations.__init__": set(),
    "integrations.options": {"scheduler"},
    "integrations.scales": {"groups", "scheduler"},
    "integrations.logs": {"groups", "scheduler", "table"},
    "integrations.accelerate": {"scheduler"},
    "integrations.lightning": {"groups", "integrations.logs", "integrations.options", "scheduler"},
    "curvature": {"errors"},
    "integrations.transformers": {"groups", "integrations.logs", "integrations.options", "scheduler", "states"},
    "integrations.timm": {"groups", "integrations.options", "integrations.scales", "scoring"},
    "integrations.ultralytics": {"groups", "integrations.options", "integrations.scales", "scheduler", "scoring"},
    "stored.__init__": set(),
    "stored.files": {"errors"},
    "stored.tensors": {"errors", "stored.files"},
    "stored.safetensors": {"errors", "stored.files", "stored.tensors"},
    "stored.opcodes": {"errors", "stored.files"},
    "stored.described": {"errors", "stored.files", "stored.opcodes"},
    "stored.archives": {"errors", "stored.files"},
    "stored.pickled": {"errors", "stored.archives", "stored.described", "stored.files", "stored.opcodes",
                       "stored.tensors"},
    "stored.formats": {"errors", "stored.files", "stored.pickled", "stored.safetensors", "stored.tensors"},
    "stored.adapters": {"errors", "stored.files", "stored.formats", "stored.tensors"},
    "stored.distributed": {"errors", "stored.described", "stored.files", "stored.opcodes", "stored.pickled",
                           "stored.tensors"},
    "stored.folders": {"errors", "stored.adapters", "stored.distributed", "stored.files", "stored.formats",
                       "stored.tensors"},
    "checkpoint": {"errors", "stored.files", "stored.folders", "stored.formats", "stored.tensors"},
    "runlog": set(),
    "report.text": set(),
    "report.histogram": {"report.text"},
    "report.look": {"report.text"},
    "report.spectrum_chart": {"report.look"},
    "report.layer_charts": {"report.histogram", "report.look", "report.spectrum_chart", "report.text", "table"},
    "report.page": {"report.text"},
    "report.layer_page": {"report.layer_charts", "report.page", "report.text", "table"},
    "report.runs": {"report.text", "runlog"},
    "report.run_data": {"report.histogram", "report.runs", "report.text", "runlog"},
    "report.run_charts": {"report.look", "report.run_data", "report.runs", "report.spectrum_chart", "runlog"},
    "report.run_page": {"report.page", "report.run_charts", "report.runs", "report.text", "runlog"},
    "report.study_data": {"report.text"},
    "report.study_look": {"report.look", "report.text"},
    "report.study_charts": {"report.look", "report.study_data", "report.study_look", "report.text"},
    "report.study_timing": {"report.look", "report.study_data", "report.study_look", "report.text"},
    "report.study_steps": {"report.histogram", "report.look", "report.study_data", "report.study_look", "report.text"},
    "report.study_alphas": {"report.look", "report.run_charts", "report.run_data", "report.study_data",
                            "report.study_look", "report.text"},
    "report.study_layers": {"report.look", "report.run_charts", "report.run_data", "report.study_data",
                            "report.study_look", "report.text"},
    "report.study_matrices": {"report.look", "report.study_data", "report.study_look", "report.text"},
    "report.study_exponent": {"report.look", "report.study_data", "report.study_look", "report.text"},
    "report.study_page": {"report.page", "report.text"},
    "report.figures": set(),
    "report.__init__": {"report.figures", "report.layer_charts", "report.layer_page", "report.run_charts",
                        "report.run_page"},
    "report.write": {"errors", "report", "report.text", "runlog"},
    "layout": {"report.text", "table"},
    "infer": {"core.matrices", "layers", "stored.tensors"},
    "measure": {"core.marchenko_pastur", "core.matrices", "core.score", "core.spectrum", "errors", "infer", "layers",
                "scoring", "table"},
    "verdict": {"table"},
    "diagnosis": {"checkpoint", "core.matrices", "core.tail", "infer", "layers", "layout", "measure", "report",
                  "scoring", "table", "verdict", "wrappers"},
    "against": {"diagnosis", "layers"},
    "render": {"against", "diagnosis", "layout", "report.text", "table"},
    "tell": {"diagnosis", "render", "report", "report.text", "runlog"},
    "lab.__init__": set(),
    "lab.augment": set(),
    "lab.download": set(),
    "lab.methods": set(),
    "lab.options": {"lab.methods"},
    "lab.own_data": set(),
    "lab.data": {"lab.download", "lab.options", "lab.own_data"},
    "lab.networks": {"lab.methods"},
    "lab.measure": set(),
    "lab.errors": set(),
    "lab.versions": set(),
    "lab.names": {"report.text"},
    "lab.task": {"lab.measure", "lab.options"},
    "lab.balancing": {"lab.options", "lab.task"},
    "lab.recipe": {"lab.balancing", "lab.data", "lab.measure", "lab.methods", "lab.names", "lab.options",
                   "report.text"},
    "lab.kinds": {"lab.methods", "lab.options", "lab.task", "runlog"},
    "lab.flags": {"lab.balancing", "lab.methods", "lab.options", "lab.recipe"},
    "lab.paper.__init__": set(),
    "lab.paper.fields": {"lab.methods"},
    "lab.paper.rows": set(),
    "lab.paper.tables": {"lab.methods", "lab.options", "lab.paper.fields", "lab.paper.rows", "lab.recipe"},
    "lab.paper.statements": {"lab.options", "lab.paper.fields"},
    "lab.resume": {"lab.kinds", "lab.task", "runlog"},
    "lab.optimizers": {"lab.methods", "lab.recipe"},
    "lab.module": {"", "lab.augment", "lab.balancing", "lab.data", "lab.errors", "lab.methods", "lab.networks",
                   "lab.optimizers",
                   "lab.recipe", "regularize", "runlog"},
    "lab.record": {"", "lab.errors", "lab.module", "lab.versions", "runlog"},
    "lab.loop": {"lab.errors", "lab.kinds", "lab.resume", "lab.task", "lab.versions", "runlog"},
    "lab.training": {"lab.data", "lab.errors", "lab.module", "lab.recipe", "lab.record", "lab.resume", "runlog"},
    "lab.language.__init__": set(),
    "lab.language.text": {"lab.download", "lab.methods"},
    "lab.language.batches": {"lab.language.text"},
    "lab.language.networks": {"lab.methods"},
    "lab.iterations.__init__": set(),
    "lab.iterations.recipe": {"lab.balancing", "lab.methods", "lab.options"},
    "lab.iterations.training": {"", "lab.balancing", "lab.errors", "lab.iterations.recipe", "runlog"},
    "lab.language.recipe": {"lab.iterations.recipe", "lab.language.text", "lab.measure", "lab.names", "lab.options",
                            "report.text"},
    "lab.language.training": {"", "lab.iterations.training", "lab.language.batches", "lab.language.networks",
                              "lab.language.recipe", "lab.language.text", "lab.loop", "runlog"},
    "lab.detection.__init__": set(),
    "lab.detection.shapes": set(),
    "lab.detection.annotations": {"lab.methods"},
    "lab.detection.voc": {"lab.detection.annotations"},
    "lab.detection.data": {"lab.detection.shapes", "lab.detection.voc", "lab.download"},
    "lab.detection.recipe": {"lab.detection.voc", "lab.measure", "lab.methods", "lab.options", "lab.recipe",
                             "lab.task", "report.text"},
    "lab.detection.record": {"", "integrations.ultralytics", "lab.detection.recipe", "lab.errors", "runlog"},
    "lab.detection.training": {"lab.detection.data", "lab.detection.recipe", "lab.detection.record", "lab.errors",
                               "lab.kinds", "lab.loop", "lab.methods", "lab.resume", "lab.versions", "runlog"},
    **{key: set() for key in ("lab.operator.__init__", "lab.operator.data", "lab.operator.network")},
    "lab.operator.recipe": {"lab.iterations.recipe", "lab.measure", "lab.names", "lab.operator.data", "lab.options"},
    "lab.operator.training": {"", "lab.iterations.training", "lab.loop", "lab.methods", "lab.operator.data",
                              "lab.operator.network", "lab.operator.recipe", "runlog"},
    "lab.matrices.__init__": set(),
    "lab.matrices.penalty": set(),
    "lab.matrices.recipe": {"lab.measure", "lab.options", "lab.recipe", "lab.task"},
    "lab.matrices.training": {"curvature", "errors", "lab.augment", "lab.data", "lab.errors", "lab.loop",
                              "lab.matrices.penalty",
                              "lab.matrices.recipe", "runlog"},
    "lab.show": {"lab.module", "runlog"},
    "lab.start": {"lab.loop", "lab.recipe", "lab.show", "lab.training", "runlog"},
    "lab.statistics": set(),
    "lab.tables": set(),
    "lab.jobs": {"lab.resume", "lab.task", "runlog"},
    "lab.worker": {"lab.errors", "lab.jobs", "lab.kinds", "runlog"},
    "lab.pool": {"lab.jobs"},
    "lab.sweep": {"lab.jobs", "lab.kinds", "runlog"},
    "lab.view": {"lab.jobs"},
    "lab.processes": {"lab.jobs", "lab.methods", "lab.pool", "lab.resume", "lab.sweep",
                      "lab.view", "runlog"},
    "lab.carry": {"lab.jobs", "runlog"},
    "lab.cluster_join": set(),
    "lab.cluster_node": {"lab.carry", "lab.jobs", "lab.kinds", "lab.pool", "runlog"},
    "lab.cluster": {"lab.carry", "lab.cluster_join", "lab.cluster_node", "lab.jobs", "runlog"},
    "lab.compare": {"lab.methods", "lab.recipe", "lab.statistics", "runlog"},
    "lab.point": {"lab.kinds", "lab.methods", "lab.options", "lab.paper.rows", "lab.recipe", "lab.task"},
    "lab.points": {"lab.data", "lab.options", "lab.paper.rows", "lab.paper.statements", "lab.paper.tables",
                   "lab.point"},
    "lab.findings": {"lab.jobs", "lab.kinds", "lab.measure", "lab.names", "lab.paper.rows", "lab.point",
                     "lab.statistics", "runlog"},
    "lab.study": {"lab", "lab.findings", "lab.jobs", "lab.methods", "lab.point", "lab.recipe", "lab.tables"},
    "lab.present": {"lab.findings", "lab.names", "lab.point", "lab.points", "lab.statistics", "lab.study",
                    "lab.tables", "report.study_charts", "report.study_data"},
    "lab.plan": {"lab.jobs", "lab.kinds", "lab.methods", "lab.names", "lab.point", "lab.present", "lab.study",
                 "runlog"},
    "lab.telling": {"lab.findings", "lab.methods", "lab.study", "lab.tables", "report", "report.page",
                    "report.study_page", "runlog"},
    "lab.ways": {"lab.findings", "lab.point", "lab.points", "lab.present", "lab.study"},
    "lab.studies.__init__": set(),
    "terminal": {"report.text"},
    "report.bench_chart": {"report.look", "report.study_data", "report.study_look"},
    "bench.__init__": set(),
    "bench.machine": {"lab.versions"},
    "bench.results": set(),
    "bench.reference": {"core.tail"},
    "bench.networks": {"lab.methods", "lab.networks"},
    "bench.contestants": {"bench.networks", "bench.reference", "core.tail", "layers", "scoring"},
    "bench.busy": {"bench.contestants"},
    "bench.memory": {"bench.contestants"},
    "bench.measure": {"bench.busy", "bench.contestants", "bench.machine", "bench.memory", "bench.networks",
                      "bench.results", "lab.methods"},
    "bench.present": {"bench.contestants", "bench.results", "lab.tables", "report.text"},
    "bench.draw": {"bench.contestants", "bench.present", "bench.results", "report", "report.bench_chart"},
    "bench.command": {"bench.draw", "bench.measure", "bench.networks", "bench.present", "bench.results", "lab.tables",
                      "terminal"},
    "study_commands": {"lab.cluster", "lab.jobs", "lab.plan", "lab.point", "lab.processes",
                       "lab.study", "lab.telling", "lab.view", "terminal"},
    "cli": {"", "tell_allocation", "bench.command", "lab.compare", "lab.kinds", "lab.loop", "lab.flags", "lab.jobs",
            "lab.methods",
            "lab.options",
            "lab.processes",
            "lab.recipe", "lab.start", "lab.task", "lab.view", "report.write", "runlog", "study_commands",
            "tell", "terminal"},
}  # fmt: skip

# what any study may know: adding one takes a file and no line here
STUDY = {"core.tail", "lab.findings", "lab.names", "lab.options", "lab.paper.statements", "lab.point", "lab.points",
         "lab.present", "lab.recipe", "lab.study", "lab.tables", "lab.ways", "report.study_alphas", "report.study_data",
         "report.study_exponent", "report.study_layers", "report.study_matrices", "report.study_steps",
         "report.study_timing", "runlog"}  # fmt: skip

PACKAGES = {"", "report", "lab"}  # their names are loaded when they are first used


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def imported(path: Path) -> set[str]:
    """Every module that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=module_name)
def test_a_module_knows_only_what_stands_left_of_it(path):
    ours = {
        name.removeprefix("tempbalance").removeprefix(".") for name in imported(path) if name.startswith("tempbalance")
    }
    name = module_name(path)
    assert ours <= (STUDY if name.startswith("lab.studies.") and name not in ARROWS else ARROWS[name])


def test_the_arrows_have_no_cycle():
    done: set[str] = set()
    while len(done) < len(ARROWS):
        ready = {name for name, known in ARROWS.items() if name not in done and known - PACKAGES <= done}
        assert ready, f"cycle among {set(ARROWS) - done}"
        done |= ready


@pytest.mark.parametrize("path", sorted((SOURCE / "core").glob("*.py")), ids=module_name)
def test_core_knows_neither_torch_nn_nor_torch_optim(path):
    assert not any(name.startswith(("torch.nn", "torch.optim")) for name in imported(path))
    used = {ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    assert not used & {"torch.nn", "torch.optim"}


def loaded_after(statement: str) -> set[str]:
    """The top-level packages that a fresh interpreter has loaded after a statement, beyond those it starts with."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in result.stdout.split()}


def test_importing_the_package_loads_nothing_but_torch_numpy_and_the_standard_library():
    everything = "import tempbalance; [getattr(tempbalance, name) for name in tempbalance.__all__]"
    of_torch = loaded_after("import torch, numpy, torch.optim.swa_utils")
    assert loaded_after(everything) - of_torch - {"tempbalance"} <= set(sys.stdlib_module_names)


def test_a_bare_import_does_not_even_load_torch():
    assert loaded_after("import tempbalance") <= {"tempbalance", *sys.stdlib_module_names}


def test_the_integrations_for_timm_and_ultralytics_and_the_logs_load_no_package():
    modules = [f"tempbalance.integrations.{name}" for name in ("logs", "timm", "ultralytics")]
    of_torch = loaded_after("import torch, numpy, torch.optim.swa_utils")
    assert loaded_after(f"import {', '.join(modules)}") - of_torch - {"tempbalance"} <= set(sys.stdlib_module_names)


def test_the_command_line_loads_neither_torch_nor_numpy():
    assert not {"torch", "numpy"} & loaded_after("import tempbalance.cli")
