"""Execute the notebooks and keep their outputs: `make notebooks`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent / "notebooks").glob("*.ipynb"))


def executed(path: Path) -> nbformat.NotebookNode:
    """Return the notebook with the outputs of a run in an empty folder; a cell that fails raises an error."""
    notebook = nbformat.read(path, as_version=4)
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, timeout=400, record_timing=False, coalesce_streams=True, resources={"metadata": {"path": folder}}
        )
        client.execute()
    for cell in notebook.cells:
        if cell.source.startswith("%pip"):
            cell.outputs = []
    return notebook


if __name__ == "__main__":
    for path in NOTEBOOKS:
        nbformat.write(executed(path), path)
        print(path)
