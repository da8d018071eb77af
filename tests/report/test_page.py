"""Pages: whole, self-contained, and everything that comes from elsewhere shows as text."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from expunge.report import csv_text, desk_page, run_page
from expunge.report.chart import COLOURS, noise_curve, stacked

STORED = Path(__file__).parents[1] / "stored"
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; alert(1); '",
    "{{ 7 * 7 }} {% raw %}",
    "</style><script>x</script>",
    "<!-- --><svg onload=alert(1)>",
    '=HYPERLINK("http://evil","x")',
    "@SUM(1)",
    "javascript:alert(1)",
]
VOID = {"meta", "rect", "line", "circle", "path", "br", "img", "link", "input"}


class Reader(HTMLParser):
    """Tags, attributes and text; complains about what is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def certificates() -> list[Path]:
    return sorted(STORED.glob("certificate-1-*.json"))


def page(content: dict[str, Any], **options: Any) -> str:
    return run_page(
        content,
        number=3,
        requests=[{"id": 1, "accepted": "2026-01-02T03:04:05+00:00", "due": "2026-02-01", "n_rows": 2}],
        composition={"models": 3, "epsilon": 1.9, "delta": 1e-4, "failures": 4e-5},
        limit=10.0,
        accuracy={"before": 0.9, "after": 0.89, "rows": 500},
        **options,
    )


def safe(text: str) -> Reader:
    """Nothing that runs, nothing that is fetched, landmarks and names where a screen reader needs them."""
    read = Reader(text)
    names = [tag for tag, _ in read.tags]
    assert not {"script", "iframe", "object", "embed", "link", "img", "form", "base"} & set(names)
    for _, attributes in read.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("href", "src", "xlink:href", "action"):
            value = attributes.get(name)
            assert value is None or re.fullmatch(r"#[a-z]+|model-\d{4}\.html", value), value
    assert "url(" not in text.split("</style>", maxsplit=1)[0]
    assert "@import" not in text
    assert "default-src 'none'" in text
    assert names.count("h1") == 1
    assert names.count("main") == names.count("nav") == names.count("header") == names.count("footer") == 1
    identifiers = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    for tag, attributes in read.tags:
        if tag == "svg":
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
        if tag == "a" and str(attributes["href"]).startswith("#"):
            assert str(attributes["href"])[1:] in identifiers
        if tag == "section":
            assert attributes["aria-labelledby"] in identifiers
    assert dict(read.tags)["html"] == {"lang": "en"}
    return read


@pytest.mark.parametrize("path", certificates(), ids=lambda path: path.stem)
def test_every_kind_of_certificate_makes_a_page(path: Path) -> None:
    content = json.loads(path.read_text())
    read = safe(page(content, keyid="ab" * 32))
    text = " ".join(read.text)
    for words in (content["guarantee"], *content["assumptions"], *content["limits"], *content["notes"]):
        assert words in text
    for digest in (content["model"]["after"]["sha256"], content["digest"], "ab" * 32):
        assert digest in text
    assert "89.00 %" in text
    assert "Request" in text
    safe(run_page(content))


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_is_text(hostile: str) -> None:
    content = json.loads(certificates()[-1].read_text())
    content["notes"] = [hostile]
    content["assumptions"] = [hostile]
    content["model"]["before"]["sha256"] = hostile
    content["created"] = hostile
    read = safe(page(content, keyid=hostile))
    assert "".join(read.text).count(hostile) >= 4


def desk(reference: str) -> str:
    status = {
        "pending": 1, "overdue": 1, "done": 0, "models": 1, "planned": 50, "epsilon": 1.0, "delta": 1e-4, "limit": 10.0, "models_left": 49,
        "deletions_left": None, "retrain": reference, "head": {"size": 5, "root": "00" * 32}, "time": "2026-01-02T03:04:05+00:00",
    }  # fmt: skip
    request = {
        "id": 1, "reference": reference, "accepted": "2026-01-02T03:04:05+00:00", "due": "2026-01-03", "n_rows": 1, "state": "pending",
        "model": None, "late": True,
    }  # fmt: skip
    model = {
        "model": 1, "time": "2026-01-02T03:04:05+00:00", "status": reference, "n_rows": 1, "total": 0.1, "sigma": 0.2,
        "composition": {"epsilon": 1.0}, "keyid": None,
    }  # fmt: skip
    return desk_page(status, [request], [model], shown=1, total=2000, pages={1: "model-0001.html"})


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_references_on_the_desk_page(hostile: str) -> None:
    read = safe(desk(hostile))
    assert "".join(read.text).count(hostile) == 3
    assert "Private." in "".join(read.text)
    assert "overdue" in "".join(read.text)


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@x", "\tx", "\rx", " =1", "＝1"])  # noqa: RUF001
def test_formulas_in_csv_are_text(cell: str) -> None:
    ((read,),) = csv.reader(io.StringIO(csv_text([cell], []), newline=""))
    assert read == "'" + cell


@pytest.mark.parametrize("cell", HOSTILE)
def test_csv_comes_back_as_it_went(cell: str) -> None:
    rows = list(csv.reader(io.StringIO(csv_text(["id", "reference"], [[-1, cell], [2.5, None]]), newline="")))
    assert rows[1][0] == "-1"
    assert rows[1][1].removeprefix("'") == cell.removeprefix("'")
    assert not rows[1][1].startswith(("=", "+", "-", "@"))
    assert rows[2] == ["2.5", ""]


def test_the_bar_adds_up_and_every_part_is_seen() -> None:
    parts = stacked({"training": 0.0, "solver": 1e-12, "surrogate": 3.0, "sampling": 1.0})
    assert [round(part.share, 6) for part in parts] == [0.0, 0.0, 75.0, 25.0]
    assert parts[0].width == 0.0
    assert parts[1].width > 0.3
    assert sum(part.width for part in parts) == pytest.approx(100.0)
    for part, following in itertools.pairwise(parts):
        assert following.start == pytest.approx(part.start + part.width)
    assert stacked({"training": 0.0})[0].width == 0.0


def test_the_curve_falls_and_the_mark_is_on_it() -> None:
    curve = noise_curve(0.01, 1.0, 1e-5)
    points = [tuple(map(float, pair.split(","))) for pair in curve.path[1:].replace("L", "").split()]
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert [y for _, y in points] == sorted(y for _, y in points), "down the page is less noise"
    nearest = min(points, key=lambda point: abs(point[0] - curve.x))
    assert abs(nearest[1] - curve.y) < 5


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_contrast() -> None:
    """WCAG 2: 4.5 for text, 3 for graphics."""
    style = desk("x").split("</style>")[0]
    colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", style))
    for text in (colours["ink"], colours["soft"], colours["accent"], "#aa1111"):
        for paper in (colours["paper"], colours["tint"]):
            assert contrast(text, paper) >= 4.5, (text, paper)
    for colour in COLOURS:
        assert contrast(colour, colours["paper"]) >= 3.0
