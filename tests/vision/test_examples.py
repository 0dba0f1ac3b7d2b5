"""The examples that need torchvision run."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
# run as a script, with what conftest.py does for torchvision
RUN = "import runpy, sys; import tests.vision.conftest; runpy.run_path(sys.argv[1], run_name='__main__')"


@pytest.mark.slow
@pytest.mark.parametrize(("package", "name"), [("timm", "timm_schedule.py"), ("ultralytics", "ultralytics_yolo.py")])
def test_an_example_runs(package, name):
    if find_spec(package) is None:
        pytest.skip("runs in its own environment: make test-vision")
    command = [sys.executable, "-c", RUN, str(EXAMPLES / name)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=EXAMPLES.parent)
    assert result.returncode == 0, result.stderr
    assert "alpha" in result.stdout  # the table of layers
