"""Settings of the documentation site. `make docs` builds it into build/docs; every warning is an error there."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import tempbalance

HERE = Path(__file__).parent

project = "tempbalance"
author = project_copyright = "the tempbalance maintainers"
version = release = tempbalance.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["results", "claims.md"]  # claims.md is part of paper.md
default_role = "code"  # docstrings write names in single backticks
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
# The headings under which TempBalance groups its options.
napoleon_custom_sections = [
    (title, "params_style")
    for title in ("Scores and scales", "When layers are scored", "Which layers are scored", "Beyond the paper")
]

html_theme = "furo"
html_title = "tempbalance"
html_copy_source = False

# The commands' reference is written from their own help texts.
subprocess.run(
    [sys.executable, "-m", "typer", "tempbalance.cli", "utils", "docs"]
    + ["--name", "tempbalance", "--title", "Commands", "--output", str(HERE / "cli.md")],
    check=True,
    stdout=subprocess.DEVNULL,
)


def write_claims(path: Path) -> None:
    """Write the claims of the paper, with the study that tests each, as a table."""
    with TemporaryDirectory() as empty:
        command = [sys.executable, "-m", "tempbalance.cli", "study", "claims", "--format", "csv", "--out", empty]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    head, *rows = csv.reader(io.StringIO(text))
    study, claim, test = len(head) - 1 - head[::-1].index("study"), head.index("claim of the paper"), head.index("test")
    lines = [f"| `{row[study]}` | {row[claim]} | {row[test]} |" for row in rows]
    path.write_text("\n".join(["| study | claim | test |", "| --- | --- | --- |", *lines]) + "\n")


write_claims(HERE / "claims.md")
