"""The pages in a browser: nothing is asked for, nothing runs that is not ours, and a choice changes the charts."""

import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("altair", reason="pages need the extra report")
pytest.importorskip("vl_convert", reason="pages need the extra report")
playwright = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")

from tempbalance.report import diagnosis_page, runs_page  # noqa: E402
from tests.cases import assert_carries  # noqa: E402
from tests.report.cases import HOSTILE, diagnosis_row, diagnosis_rows, row_with_parts, write_run  # noqa: E402

CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
COLOURS = """() => {
    const style = (name) => (each) => getComputedStyle(each)[name];
    const used = (selector, name) => Array.from(document.querySelectorAll(selector), style(name));
    const soft = used("figcaption, dt, thead button, tbody th button", "color");
    return [...used("body", "backgroundColor"), ...new Set([...used(".chart svg text", "fill"), ...soft])];
}"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on the PATH"),
]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser, tmp_path):
    """Opens a document and, at the end, asserts that it was quiet."""
    noise: list[str] = []
    contexts = []

    def opened(text: str, **options):
        path = Path(tmp_path / "page.html")
        path.write_text(text, encoding="utf-8")
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: noise.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: noise.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (noise.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: request.url == path.as_uri() or noise.append(f"request: {request.url}"))
        page.goto(path.as_uri())
        page.wait_for_function("document.documentElement.dataset.drawn")
        assert page.evaluate("document.documentElement.dataset.drawn") == "all"
        return page

    yield opened
    for context in contexts:
        context.close()
    assert noise == []


@pytest.fixture(scope="module")
def diagnosis():
    return diagnosis_page(diagnosis_rows(), model="net.pt", tail="median", summary={})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return runs_page([write_run(folder / method, method=method, epochs=4) for method in ("cal", "tb")])


def title(page, chart="spectrum"):
    return page.locator(f"#chart-{chart} .role-title-text text").first.text_content()


def bars(page):
    return page.locator("#chart-spectrum .mark-rect path").evaluate_all(
        "all => all.map(each => each.getAttribute('d'))"
    )


def names(page):
    return page.locator("tbody tr:not(.part) th").all_text_contents()


def becomes(page, chart, text):
    page.wait_for_function(
        "([chart, text]) => document.querySelector(`#chart-${chart} .role-title-text`).textContent.includes(text)",
        arg=[chart, text],
        timeout=5000,
    )


def test_every_chart_of_a_diagnosis_is_drawn_and_has_words(visit, diagnosis):
    page = visit(diagnosis)
    assert page.locator("#chart-alpha .mark-symbol.role-mark path").count() == 4
    assert len(bars(page)) > 3
    label = page.locator("#chart-alpha").get_attribute("aria-label")
    assert_carries(label, "4 layers", "median", "1.750", "conv10", "3.500", "conv1")


def test_a_click_on_a_heading_sorts_and_a_second_one_turns_it_around(visit, diagnosis):
    page = visit(diagnosis)
    heading = page.locator("thead th").nth(3)
    heading.get_by_role("button").click()
    assert names(page) == ["conv10", "conv2", "attention", "conv1", "head"]
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.get_by_role("button").click()
    assert names(page) == ["conv1", "attention", "conv2", "conv10", "head"]
    page.locator("thead th", has_text="layer").get_by_role("button").click()
    assert names(page) == ["attention", "conv1", "conv2", "conv10", "head"]
    assert heading.get_attribute("aria-sort") == "none"


def test_parts_are_shown_on_demand_and_stay_with_their_layer(visit, diagnosis):
    page = visit(diagnosis)
    part = page.locator("tr.part th", has_text="q")
    assert not part.is_visible()
    page.locator("#parts").check()
    page.locator("thead th", has_text="#").get_by_role("button").click()
    page.locator("thead th", has_text="#").get_by_role("button").click()
    assert part.is_visible()
    assert page.locator("tbody th").all_text_contents() == [
        "head",
        "conv2",
        "attention",
        "q",
        "k",
        "v",
        "conv10",
        "conv1",
    ]


def test_a_layer_is_chosen_from_the_list_the_table_and_the_chart(visit, diagnosis):
    page = visit(diagnosis)
    assert title(page) == "Spectrum of conv1"
    before = bars(page)
    page.locator("#inputs-spectrum select").select_option(label="conv2")
    becomes(page, "spectrum", "Spectrum of conv2")
    assert bars(page) != before
    page.locator("#parts").check()
    page.locator("tr.part button", has_text="k").click()
    becomes(page, "spectrum", "attention, part k")
    assert (
        page.locator("#inputs-spectrum select").evaluate("list => list.selectedOptions[0].label") == "attention, part k"
    )
    page.locator("#chart-alpha .mark-symbol.role-mark path").nth(1).click()
    becomes(page, "spectrum", "Spectrum of conv10")
    evidence = page.locator("[data-evidence]:visible")
    assert evidence.all_text_contents() == ["▼ strongly correlated. conv10, by its rule."]


def test_every_column_is_shown_on_demand(visit, diagnosis):
    page = visit(diagnosis)
    heading = page.locator("thead th", has_text="entropy")
    assert not heading.is_visible()
    page.locator("#more").check()
    assert heading.is_visible()


def test_the_slider_moves_a_spectrum_through_the_epochs(visit, runs):
    page = visit(runs)
    assert title(page) == "a, cal, epoch 4"
    before = bars(page)
    page.locator("#inputs-spectrum input[type=range]").fill("1")
    becomes(page, "spectrum", "a, cal, epoch 1")
    assert bars(page) != before
    page.locator("#inputs-spectrum select").nth(1).select_option(label="b")
    becomes(page, "spectrum", "b, cal, epoch 1")


def test_two_layers_are_chosen_and_the_curves_of_training_shown(visit, runs):
    page = visit(runs)
    lines = page.locator("#chart-two_layers .mark-line path")
    before = lines.first.get_attribute("d")
    page.locator("#inputs-two_layers select").nth(0).select_option(label="b (cal)")
    page.wait_for_function(
        "before => document.querySelector('#chart-two_layers .mark-line path').getAttribute('d') != before", arg=before
    )
    loss = page.locator("#chart-loss .mark-line path").first
    before, accuracy = loss.get_attribute("d"), page.locator("#inputs-accuracy input").first
    page.locator("#inputs-loss input").nth(1).check()
    page.wait_for_function(
        "before => document.querySelector('#chart-loss .mark-line path').getAttribute('d') != before", arg=before
    )
    assert accuracy.is_checked()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_charts_fit_and_text_has_contrast(visit, diagnosis, runs, scheme):
    for text in (diagnosis, runs):
        page = visit(text, viewport={"width": 390, "height": 800}, color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        used = page.evaluate(COLOURS)
        rooms = page.locator(".chart").evaluate_all("all => all.map(each => [each.scrollWidth, each.clientWidth])")
        assert all(width <= room for width, room in rooms), rooms
        paper, *inks = map(luminance, used)
        for ink in inks:
            assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5, used


def luminance(colour):
    """Relative luminance as WCAG has it, of rgb(r, g, b)."""
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_hostile_names_stay_names_in_a_diagnosis(visit):
    rows = [row_with_parts(name, parts=(name, "k")) if name else diagnosis_row(name) for name in HOSTILE]
    page = visit(diagnosis_page(rows, model=HOSTILE[0], tail="median", summary={"name": HOSTILE[1]}))
    assert page.evaluate("window.pwned") is None
    assert page.locator("main script, main img, main iframe, main b, main a").count() == 0
    assert names(page)[0] == HOSTILE[0]
    for name in ("__proto__", "constructor", "a.b[0].c"):
        page.locator("tbody tr:not(.part) button").get_by_text(name, exact=True).click()
        becomes(page, "spectrum", f"Spectrum of {name}")
    page.locator("#chart-alpha .mark-symbol.role-mark path").nth(3).hover(force=True)
    assert page.locator("#vg-tooltip-element td.value").first.text_content() == HOSTILE[3]
    assert page.evaluate("window.pwned") is None


def test_hostile_names_stay_names_in_runs(visit, tmp_path):
    layers = [name for name in HOSTILE if len(name) < 100]
    methods = ["__proto__", "constructor", "<img src=x onerror=window.pwned=1>"]
    runs = [write_run(tmp_path / str(place), method=m, layers=layers, epochs=1) for place, m in enumerate(methods)]
    page = visit(runs_page(runs))
    assert page.evaluate("window.pwned") is None
    for chart in ("alpha_histogram", "alpha_boxes", "accuracy"):
        shown = page.locator(f"#chart-{chart} svg text").all_text_contents()
        assert {"__proto__", "constructor"} <= set(shown), chart
    page.locator("#inputs-spectrum select").nth(0).select_option(label="__proto__")
    becomes(page, "spectrum", "__proto__, epoch 1")
    assert len(bars(page)) > 3
