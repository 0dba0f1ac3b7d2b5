"""Small diagnoses and runs with known numbers, and names that would like to be more than names."""

import numpy as np

from tempbalance.ranking.table import DiagnosisRow, PartRow
from tempbalance.runlog import RunFolder

HOSTILE = [
    "<script>window.pwned=1</script>",
    "</script><script>window.pwned=1</script>",
    "</SCRIPT ><img src=x onerror=window.pwned=1>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    '"><script>window.pwned=1</script>',
    "'><script>window.pwned=1</script>",
    '" onmouseover="alert(1)" x="',
    "' onfocus='alert(1)' autofocus='",
    "--><script>window.pwned=1</script>",
    "<!--<script>",
    "<![CDATA[<script>window.pwned=1</script>]]>",
    "</style><script>window.pwned=1</script>",
    "</title><script>window.pwned=1</script>",
    "</textarea><b>",
    "</option></select><b>",
    "</table><b>",
    "<iframe src=javascript:alert(1)>",
    "<a href=javascript:alert(1)>x</a>",
    "<base href=//example.com/>",
    "<meta http-equiv=refresh content='0;url=//example.com'>",
    "<link rel=stylesheet href=//example.com/x.css>",
    "<object data=//example.com>",
    "<details open ontoggle=alert(1)>",
    "javascript:alert(1)",
    "&lt;b&gt;&amp;&quot;&#x27;",
    "&#60;script&#62;alert(1)&#60;/script&#62;",
    "${alert(1)}",
    "{{constructor.constructor('alert(1)')()}}",
    "'+alert(1)+'",
    '"];alert(1);//',
    "datum.alpha",
    "a.b[0].c",
    "a['b']",
    "a\\.b\\[0\\]",
    "__proto__",
    "constructor",
    "toString",
    "hasOwnProperty",
    "null",
    "NaN",
    "",
    "\x1b[31mred\x1b[0m",
    "nul\x00bell\x07back\x08",
    "line\nbreak\r\ttab",
    "\u202egnp.exe\u202c",
    "\u2066isolate\u2069",
    "\u2028line\u2029paragraph",
    "zero\u200bwidth\ufeff",
    "\ud800 lone surrogate",
    "\uffff no character",
    "\u05d0\u05d1\u05d2 right to left",
    "x" * 5000,
]


def diagnosis_row(name, *, alpha=2.5, verdict="typical", size=64, **more):
    """A layer whose spectrum is that of an exact power law."""
    spectrum = ((np.arange(size) + 0.5) / size)[::-1] ** (-1 / (alpha - 1))
    fit = {"alpha": alpha, "alpha_stderr": 0.1, "xmin": float(np.median(spectrum)), "ks": 0.05, "num_tail": size // 2}
    values = {
        "alpha_over_random": alpha / 2,
        "verdict": verdict,
        "evidence": f"{name}, by its rule.",
        "spectra": {"": spectrum.tolist()},
        "mp_edge": 3.0,
        "spectral_norm": 9.0,
        **fit,
        **more,
    }
    return DiagnosisRow(name, (size, size), size, **values)


def row_with_parts(name, parts=("q", "k", "v"), size=64):
    whole = diagnosis_row(name, size=size)
    rows = tuple(
        PartRow(part, size, alpha=2.0 + place, xmin=1.5, num_tail=size // 2) for place, part in enumerate(parts)
    )
    values = {
        "parts": rows,
        "spectra": {part: whole.spectra[""] for part in parts},
        "verdict": "typical",
        "alpha_over_random": 1.5,
    }
    return DiagnosisRow(name, (3 * size, size), 3 * size, alpha=3.0, num_tail=3 * size // 2, **values)


def diagnosis_rows():
    return [
        diagnosis_row("conv1", alpha=3.5, verdict="under-trained"),
        diagnosis_row("conv10", alpha=1.75, verdict="strongly correlated"),
        row_with_parts("attention"),
        diagnosis_row("conv2", alpha=2.25, verdict="random-like"),
        DiagnosisRow("head", (10, 64), 10, reason="too few eigenvalues: 10 of 50"),
    ]


def write_run(folder, *, method="tb", seed=0, accuracy=90.0, epochs=3, layers=("a", "b"), eigenvalues=True, **options):
    """A complete run; alpha of the layer at place ``p`` in epoch ``e`` is 2 + p + e / 10, its rate 0.1 x (p + 1)."""
    run = RunFolder(folder)
    recipe = {"dataset": "digits", "model": "mlp", "width": 1.0, "method": method, "seed": seed, "epochs": epochs}
    run.write_recipe(
        {"recipe": {**recipe, "lr": 0.1, "tail": "median", "tail_fraction": 0.5, **options}, "versions": {}}
    )
    for epoch in range(epochs + 1):
        lines = [
            {"epoch": epoch, "layer": name, "alpha": 2 + place + epoch / 10, "score": 2.0, "scale": 1.0}
            | {"rate": 0.1 * (place + 1)}
            | ({"eigenvalues": [float(value) for value in range(1, 65 + epoch)]} if eigenvalues else {})
            for place, name in enumerate(layers)
        ]
        losses = {"train_loss": 2.0 / (epoch + 1), "test_loss": 3.0 / (epoch + 1)}
        accuracies = {"train_accuracy": 99.0, "test_accuracy": accuracy}
        run.append([{"epoch": epoch, **losses, **accuracies}] if epoch else [], lines)
    run.write_result({"test_accuracy": accuracy, "epochs": epochs})
    return run


def values_of(spec):
    """All data of a chart's description."""
    return spec["datasets"]["main"]
