import base64
import hashlib
import json
import re
from collections import Counter
from html.parser import HTMLParser

import pytest

pytest.importorskip("altair", reason="pages need the extra report")
pytest.importorskip("vl_convert", reason="pages need the extra report")

from tempbalance.report import diagnosis_page, runs_page
from tests.report.cases import HOSTILE, diagnosis_row, diagnosis_rows, row_with_parts, write_run


class Page(HTMLParser):
    """The elements and attributes of a page, the text of its cells, and its scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.cells, self.words = Counter(), [], [], []
        self.metas, self.links, self._open, self._in_cell = [], [], None, False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags[tag, tuple(sorted(name for name, _ in attrs))] += 1
        self._open = tag
        if tag == "meta":
            self.metas.append(dict(attrs))
        if tag == "script":
            self.scripts.append([dict(attrs), ""])
        if tag in ("td", "th"):
            self.cells.append("")
            self._in_cell = True
        self.links += [value for name, value in attrs if name in ("src", "href", "srcset", "action", "data", "poster")]

    def handle_endtag(self, tag):
        if tag == self._open:
            self._open = None
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data):
        if self._open == "script":
            self.scripts[-1][1] += data
        elif self._open != "style":
            self.words.append(data)
            if self._in_cell:
                self.cells[-1] += data

    @property
    def text(self):
        return " ".join(self.words)

    @property
    def specs(self):
        return json.loads(next(text for attrs, text in self.scripts if attrs.get("id") == "charts"))


def page_of(rows, *, model="net.pt", tail="median", **summary):
    return diagnosis_page(rows, model=model, tail=tail, summary=summary)


def page_of_names(names):
    rows = [
        row_with_parts(name, parts=(name, "k")) if place % 2 else diagnosis_row(name)
        for place, name in enumerate(names)
    ]
    return page_of(rows, model=names[0], **{f"fact{place}": name for place, name in enumerate(names)})


HARMLESS = [f"layer{place}" for place in range(len(HOSTILE))]


def test_a_diagnosis_has_its_summary_its_table_and_its_charts():
    page = Page(page_of(diagnosis_rows(), parameters=1234567))
    assert list(page.specs) == ["alpha_over_random", "alpha", "spectrum"]
    assert "1,234,567" in page.words
    first = page.cells.index("conv1")
    assert page.cells[first - 1 : first + 6] == ["1", "conv1", "▲ under-trained", "3.500", "0.10", "1.75", "64 x 64"]
    assert "conv1, by its rule." in page.text
    assert any("too few eigenvalues: 10 of 50" in cell for cell in page.cells)  # the reason of the row


def test_every_row_of_a_table_has_all_columns():
    text = re.sub(r"<script.*?</script>", "", page_of(diagnosis_rows()), flags=re.DOTALL)
    lines = re.findall(r"<tr.*?</tr>", text)
    widths = {sum(int(span or 1) for span in re.findall(r'<t[hd](?: colspan="(\d+)")?', line)) for line in lines}
    assert widths == {20}


def test_runs_have_their_methods_and_charts(tmp_path):
    accuracies = {("cal", 1): 90.0, ("cal", 2): 92.0, ("tb", 1): 91.0, ("tb", 2): 94.0}
    runs = [write_run(tmp_path / f"{m}{s}", method=m, seed=s, accuracy=a) for (m, s), a in accuracies.items()]
    page = Page(runs_page(runs))
    assert len(page.specs) == 7
    cells = [cell.strip() for cell in page.cells]
    assert cells[:4] == ["method", "test accuracy, %", "difference, points", "p"]
    assert cells[4:8] == ["cal", "91.00 ± 1.41", "", ""]
    assert cells[8:12] == ["tb", "92.50 ± 2.12", "+1.50 ± 6.35", "0.205"]  # t = 3 with one degree of freedom
    assert "All rows: seeds 2." in page.words  # a column that is the same in all rows


def test_without_eigenvalues_the_page_says_how_to_record_them(tmp_path):
    text = runs_page([write_run(tmp_path / "a", eigenvalues=False)])
    assert "--log-eigenvalues" in Page(text).text
    with_them = runs_page([write_run(tmp_path / "b")])
    assert "--log-eigenvalues" not in Page(with_them).text


def test_a_page_without_any_layer_says_so():
    page = Page(page_of([]))
    assert page.specs == {}
    assert "alpha" in page.text


@pytest.fixture(scope="module")
def hostile_text():
    return page_of_names(HOSTILE)


def test_names_of_a_diagnosis_add_neither_elements_nor_attributes(hostile_text):
    assert Page(hostile_text).tags == Page(page_of_names(HARMLESS)).tags


def test_names_of_runs_add_neither_elements_nor_attributes(tmp_path):
    def tags(names, folder):
        layers = {0: names}  # all names in one run, which is enough of them
        runs = [
            write_run(folder / str(place), method=name, layers=layers.get(place, names[:1]), epochs=1, model=name)
            for place, name in enumerate(names[:9])
        ]
        return Page(runs_page(runs)).tags

    names = [name for name in HOSTILE if len(name) < 100]
    assert tags(names, tmp_path / "a") == tags(HARMLESS[: len(names)], tmp_path / "b")


def test_a_page_has_no_character_that_is_not_seen(hostile_text):
    text = re.sub(r"<script>.*?</script>", "", hostile_text, flags=re.DOTALL)
    unseen = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\uffff\ud800-\udfff]"
    assert not re.search(unseen, text)
    assert "\\x1b[31mred" in hostile_text
    assert not re.search("[\x00\x1b\x07]", hostile_text)
    hostile_text.encode()


def test_a_long_name_is_cut_and_longer_on_hovering(hostile_text):
    assert f'title="{"x" * 96}…{"x" * 103}"' in hostile_text
    assert "x" * 500 not in hostile_text
    assert ">" + "x" * 24 + "…" + "x" * 31 + "<" in hostile_text


def test_the_policy_allows_the_two_scripts_of_the_page_and_nothing_else(hostile_text):
    page = Page(hostile_text)
    (policy,) = [meta["content"] for meta in page.metas if meta.get("http-equiv") == "Content-Security-Policy"]
    scripts = [text for attrs, text in page.scripts if attrs.get("type") != "application/json"]
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{digests[0]}' 'sha256-{digests[1]}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert page.metas.index({"charset": "utf-8"}) == 0


def test_no_element_points_outside(hostile_text):
    assert Page(hostile_text).links == ["data:,"]


def test_three_hundred_layers_of_4096_eigenvalues_are_a_page_of_less_than_three_megabytes():
    rows = [diagnosis_row(f"layers.{place}.mlp.weight", size=4096) for place in range(300)]
    assert len(page_of(rows).encode()) < 3e6
