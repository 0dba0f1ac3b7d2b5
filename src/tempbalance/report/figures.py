"""Charts as files for papers and slides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import altair as alt
import vl_convert

FORMATS = ("svg", "pdf", "png")


def save_figures(charts: Mapping[str, alt.TopLevelMixin], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write each chart in each format.

    Args:
        charts: By name; the name becomes that of the file.
        folder: Where to; made if it is not there.
        formats: Of ``svg``, ``pdf``, ``png``.

    Returns:
        The files, chart by chart.

    Raises:
        ValueError: If a format is not known.
    """
    for each in formats:
        if each not in FORMATS:
            raise ValueError(f"formats must be of {', '.join(FORMATS)}, got {each!r}")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, chart in charts.items():
        spec = chart.to_dict()
        for each in formats:
            written.append(folder / f"{name}.{each}")
            written[-1].write_bytes(_rendered(spec, each))
    return written


def _rendered(spec: dict[str, object], form: str) -> bytes:
    if form == "svg":
        label = escape(str(spec["description"]))
        return vl_convert.vegalite_to_svg(spec).replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1).encode()
    if form == "pdf":
        return vl_convert.vegalite_to_pdf(spec)
    return vl_convert.vegalite_to_png(spec, scale=2)
