"""Write docs/does-it-help.md and its chart from the raw results in docs/results: ``python -m benchmarks.results``.

A file there is made from the runs of a study by ``tempbalance study report NAME --json docs/results/NAME.json``. A
later
machine adds a file, or runs to one, and this command again.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import altair as alt

from tempbalance.lab.findings import difference_text, effect_text
from tempbalance.lab.options import CONTROLS, pretty
from tempbalance.lab.recipe import Measure
from tempbalance.report.chart import BLUE, FAINT, INK, finish, save_figures
from tempbalance.report.statistics import Paired, paired

DOCS = Path(__file__).parents[1] / "docs"
CHART = "does-it-help"
_ROLES = {"TB": BLUE, "shuffled": "#d0505a", "mean": "#a9761c", "by type": "#2f9178", "other variant": "#8a63c4"}
_FIXED = ("by type", "attention 0.6 and feed-forward 1.2")  # variants of the study llama that solve no spectrum
_HEAD = """# Does it help?

Written by `make results` from the files in `docs/results`; do not edit.

Each setting trains a baseline, TB and its [controls](beyond.md#controls) with the same seeds over the same base rates,
and takes each method at its own best rate. `shuffled` gives TB's scales to the wrong layers, `mean` gives every layer
their mean. A gain that a control reaches too is not due to spectra. Sizes are those of a laptop: none is the paper's.

![Difference to the baseline in each setting, TB and its controls, with 95 % intervals](images/does-it-help.svg)

"""
_ADVICE = """## When to try it

Tune the base rate first. TB's scales have a mean below 1, so what it gains or loses at a fixed base rate may be the
effect of a smaller rate. Then compare on your own data:

```bash
tempbalance compare --dataset my.npz --controls --seeds 5
```

Look at three differences: TB against the baseline, against `shuffled` and against `mean`. Keep TB if all three are
gains. If `mean` does as well, change the base rate instead. If `shuffled` does as well, unequal rates help, but the
spectra do not. In networks with embeddings, first try a larger rate for embeddings and head, without spectra:
`assignment={"embedding": 5.0, "head": 5.0}`. The warning that shapes explain most of the variance of alpha means that
TB ranks layers by shape; then a fixed scale for each kind of layer costs nothing and may do the same. In your own loop:

```python
for assignment in ("linear", "shuffled", "mean"):
    scheduler = tempbalance.TempBalance(optimizer, model, schedule, assignment=assignment)
```

"""


@dataclass(frozen=True)
class Row:
    """A method of a setting at its best base rate.

    Attributes:
        method: Its name.
        rate: Its best base rate.
        rates: Base rates that were tried with as many seeds.
        values: Measure by seed.
    """

    method: str
    rate: float
    rates: tuple[float, ...]
    values: dict[int, float]


@dataclass(frozen=True)
class Setting:
    """All methods of a setting.

    Attributes:
        name: Network, data and size.
        baseline: Name of the method without balancing.
        measure: By which methods are compared.
        rows: Methods in order.
    """

    name: str
    baseline: str
    measure: Measure
    rows: tuple[Row, ...]

    @property
    def outcomes(self) -> dict[str, dict[int, float]]:
        """Measure by method and seed."""
        return {row.method: row.values for row in self.rows}

    def against(self, method: str, other: str) -> Paired | None:
        """Test a method against another seed by seed."""
        return paired(self.outcomes.get(method, {}), self.outcomes.get(other, {}))


def read_settings(content: dict[str, Any]) -> list[Setting]:
    """Return the settings of a file, each method at its best base rate among those with the most seeds."""
    measure, settings = Measure(**content["measure"]), {}
    for run in content["runs"]:
        methods = settings.setdefault(run["setting"], {})
        methods.setdefault(run["method"], {}).setdefault(run["rate"], []).append(run)
    return [
        Setting(
            name, content["baseline"], measure, tuple(_row(each, rates, measure) for each, rates in methods.items())
        )
        for name, methods in settings.items()
    ]


def _row(method: str, rates: dict[float, list[dict[str, Any]]], measure: Measure) -> Row:
    most = max(map(len, rates.values()))

    def rank(rate: float) -> tuple[int, float]:
        runs = rates[rate]
        ended = [run for run in runs if run["value"] is not None]  # the others diverged
        mean = fmean(measure.sign(run.get("validation", run["value"])) for run in ended) if ended else -math.inf
        return len(ended) - len(runs), mean

    best = max((rate for rate in rates if len(rates[rate]) == most), key=rank)
    values = {run["seed"]: run["value"] for run in rates[best] if run["value"] is not None}
    return Row(method, best, tuple(sorted(rate for rate in rates if len(rates[rate]) == most)), values)


def role(method: str) -> str:
    """Return the part of a method in a comparison."""
    _, _, variant = method.partition(", ")
    return variant if variant in _ROLES else "other variant" if variant else "TB"


def chart(settings: list[Setting]) -> alt.TopLevelMixin:
    """Draw differences in percent of the baseline's error or perplexity, so that all settings share an axis."""
    data = []
    for setting in settings:
        base = fmean(setting.outcomes[setting.baseline].values())
        # accuracy counts as error, so that left is better everywhere
        sign, unit = (1.0, base) if setting.measure.is_lower_better else (-1.0, 100 - base)
        for row in setting.rows:
            test = setting.against(row.method, setting.baseline)
            if row.method == setting.baseline or test is None:
                continue
            mean, half = sign * test.mean / unit * 100, (test.interval or 0.0) / unit * 100
            label = row.method.partition(", ")[2] or "TB"
            place = {"setting": setting.name, "method": label, "order": len(data), "role": role(row.method)}
            data.append({**place, "mean": round(mean, 3), "low": round(mean - half, 3), "high": round(mean + half, 3)})
    base_chart = alt.Chart(alt.NamedData(name="main", format=alt.JsonDataFormat(type="json")))
    roles = [each for each in _ROLES if any(datum["role"] == each for datum in data)]
    y = alt.Y("method:N", sort=alt.EncodingSortField("order"), title=None, axis=alt.Axis(labelLimit=260, minExtent=240))
    colour = alt.Color("role:N", scale=alt.Scale(domain=roles, range=[_ROLES[each] for each in roles]))
    x = alt.X("mean:Q", title="change of error or perplexity, % of the baseline's: left is better")
    zero = base_chart.mark_rule(color=INK).encode(x=alt.datum(0))
    bars = base_chart.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q"), x2="high:Q", y=y, color=colour)
    points = base_chart.mark_point(filled=True, size=60, opacity=1).encode(x=x, y=y, color=colour)
    names = list(dict.fromkeys(datum["setting"] for datum in data))
    header = alt.Header(
        labelAngle=0, labelAnchor="start", labelOrient="top", labelPadding=3, labelFontWeight="bold", labelColor=INK
    )
    faceted = (
        alt.layer(zero, bars, points)
        .properties(width=440, height=alt.Step(17))
        .facet(row=alt.Row("setting:N", sort=names, title=None, header=header), spacing=14)
        .resolve_scale(y="independent")
    )
    title = alt.Title(
        "Does it help, and is it the spectra?",
        subtitle="Difference to the baseline, 95 % interval over seeds, each method at its best base rate.",
        subtitleColor=FAINT,
    )
    described = "; ".join(f"{each['setting']}, {each['method']}: {each['mean']:+.1f} %" for each in data)
    return finish(faceted, data, title=title, description=described)


def page(files: dict[str, dict[str, Any]]) -> str:
    """Return the page."""
    settings = [setting for content in files.values() for setting in read_settings(content)]
    parts = [_HEAD, "## What was found\n\n"]
    for setting in settings:
        for method in setting.outcomes:
            if text := effect_text(setting.outcomes, method, setting.baseline, setting.measure):
                parts.append(f"- **{setting.name}.** {text}{_fixed_text(setting, method)}\n")
    parts += ["\n", _winners(settings), "\n\n", _ADVICE, "## Numbers\n\n", _TABLE_HEAD]
    parts += [_line(setting, row) for setting in settings for row in setting.rows]
    parts.append(_TABLE_NOTE)
    for name, content in files.items():
        parts.append(f"- `{content['command']}`: {content['about']}. Then `tempbalance study report {name} ")
        parts.append(f"--json docs/results/{name}.json` with the same options, and `make results`.\n")
    return "".join(parts)


_COLUMNS = (
    "setting",
    "method",
    "base rate",
    "result",
    "against the baseline",
    "against shuffled",
    "against mean",
    "seeds",
)
_TABLE_HEAD = f"| {' | '.join(_COLUMNS)} |\n{'| --- ' * len(_COLUMNS)}|\n"
_TABLE_NOTE = """
Results are means ± standard deviations over seeds. Differences are paired by seed, ± half their 95 % intervals, and not
corrected for their number. A base rate marked * is the smallest or largest that was tried: its method might do better
beyond. "Of 3 so far" counts the rates of a method that has not been trained at all of them yet. Language models choose
the best rate by the perplexity on validation text. Other settings have no validation data and choose it on the test
set, for all methods alike. Guessing reaches 50 % with sentences and 10 % with images.

## Commands

The data files: `tinyshakespeare_300k.txt` is the first 300,000 bytes of Tiny Shakespeare (`head -c 300000`),
`cifar10_16px.npz` holds images of CIFAR-10 averaged over squares of 2 x 2 pixels, and [few_labels](studies.md) says how
to make the folder `sst2_minilm`. Sizes and base rates were chosen after short trials: the grids were widened where the
best rate lay at an end.

"""


def _fixed_text(setting: Setting, method: str) -> str:
    """Compare a method with scales that are fixed by kind of layer."""
    tests = {name: setting.against(method, f"{method}, {name}") for name in _FIXED}
    found = {name: test for name, test in tests.items() if test is not None}
    if not found:
        return ""
    texts = [f"against {name} {difference_text(test, setting.measure)}" for name, test in found.items()]
    beaten = [test.interval is not None and setting.measure.sign(test.mean) > test.interval for test in found.values()]
    end = "" if all(beaten) else " A fixed rule by kind of layer is not shown to be worse, and needs no spectra."
    return f" With scales fixed by kind of layer: {', '.join(texts)}.{end}"


def _line(setting: Setting, row: Row) -> str:
    values, method = list(row.values.values()), row.method
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    edge = "\\*" if len(row.rates) > 1 and row.rate in (row.rates[0], row.rates[-1]) else ""
    most = max(len(each.rates) for each in setting.rows)
    edge += f" of {len(row.rates)} so far" if len(row.rates) < most else ""
    tests = [
        setting.against(method, other) for other in (setting.baseline, *(f"{method}, {each}" for each in CONTROLS))
    ]
    if method == setting.baseline:
        tests[0] = None
    found = ["" if test is None else difference_text(test, setting.measure) for test in tests]
    mean = f"{fmean(values):.2f}{spread} {setting.measure.unit}".rstrip()
    cells = [setting.name, pretty(method), f"{row.rate:g}{edge}", f"{setting.measure.word} {mean}", *found]
    return f"| {' | '.join(cells)} | {len(values)} |\n"


def _winners(settings: list[Setting]) -> str:
    """Say whether a method is shown to gain over the baseline and every control in two settings or more."""
    won: dict[str, list[str]] = {}
    for setting in settings:
        for method in setting.outcomes:
            others = (setting.baseline, *(f"{method}, {name}" for name in CONTROLS))
            tests = [setting.against(method, other) for other in others]
            if all(test and test.interval and setting.measure.sign(test.mean) > test.interval for test in tests):
                won.setdefault(method.partition(", ")[2] or "TB", []).append(setting.name)
    found = [f"{name} ({', '.join(where)})" for name, where in won.items()]
    shown = f"Shown over the baseline and both controls: {'; '.join(found)}." if found else ""
    if any(len(where) > 1 for where in won.values()):
        return shown
    none = "No variant gains over the baseline, the placebo and the mean in two settings or more: none is recommended."
    return f"{none} {shown}".rstrip()


def main(docs: Path = DOCS) -> None:
    """Write the page and the chart."""
    files = {path.stem: json.loads(path.read_text()) for path in sorted((docs / "results").glob("*.json"))}
    (docs / f"{CHART}.md").write_text(page(files))
    settings = [setting for content in files.values() for setting in read_settings(content)]
    save_figures({CHART: chart(settings)}, docs / "images", ["svg", "png"])


if __name__ == "__main__":
    main()
