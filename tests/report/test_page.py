"""Pages: whole, self-contained, and everything that comes from elsewhere shows as text."""

from __future__ import annotations

import contextlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from expunge.certificate.dossier import digest_of
from expunge.certificate.statement import Statement, parse_document
from expunge.certificate.verify import verify, verify_statement
from expunge.errors import ExpungeError, FileError
from expunge.report import desk_page, run_page, statement_page
from expunge.report.page import FACTS, plain
from expunge.unlearn import unlearn
from hostile import HOSTILE
from small_deposit import kept, rows, trained

STORED = Path(__file__).parents[1] / "stored"
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
    return sorted(STORED.glob("dossier-3-*.json"))


def page(content: dict[str, Any], **options: Any) -> str:
    return run_page(
        content,
        number=3,
        requests=[{"id": 1, "accepted": "2026-01-02T03:04:05+00:00", "due": "2026-02-01", "n_rows": 2}],
        composition={"models": 3, "epsilon": 1.9, "delta": 1e-4, "failures": 4e-5},
        limit=10.0,
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
        assert plain(words) in text
    for digest in (content["model"]["after"]["sha256"], content["digest"], "ab" * 32):
        assert digest in text
    assert "Request" in text
    for name in content["bound"]["inputs"]:
        assert FACTS[name] in text
    answered = answers_everything(page(content))
    assert ("no guarantee" in answered) == (content["status"] == "estimated")
    assert ("it is proven that" in answered) == (content["status"] == "proven")
    safe(run_page(content))


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_is_text(hostile: str) -> None:
    content = json.loads(certificates()[-1].read_text())
    content |= {"notes": [hostile], "assumptions": [hostile], "created": hostile}
    content["model"]["before"]["sha256"] = hostile
    assert "".join(safe(page(content, keyid=hostile)).text).count(hostile) >= 4
    read = "".join(safe(desk(hostile)).text)
    assert read.count(hostile) == 5
    assert "Private." in read
    assert "overdue" in read


def desk(reference: str) -> str:
    status = {
        "pending": 1, "aside": 1, "overdue": 1, "done": 0, "models": 1, "planned": 50, "epsilon": 1.0, "delta": 1e-4, "limit": 10.0, "models_left": 49,
        "deletions_left": None, "reach": None, "forgotten": None, "rows_left": None, "retrain": reference, "head": {"size": 5, "hash": "00" * 32}, "time": "2026-01-02T03:04:05+00:00",
    }  # fmt: skip
    request = {
        "id": 1, "reference": reference, "accepted": "2026-01-02T03:04:05+00:00", "due": "2026-01-03", "n_rows": 1, "state": "aside",
        "model": None, "late": True, "aside": {"kind": "repeat", "reason": reference, "remedy": reference},
    }  # fmt: skip
    model = {
        "model": 1, "time": "2026-01-02T03:04:05+00:00", "status": reference, "n_rows": 1, "total": 0.1, "sigma": 0.2,
        "composition": {"epsilon": 1.0}, "keyid": None,
    }  # fmt: skip
    return desk_page(status, [request], [model], total=2000, pages={1: "model-0001.html"})


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_contrast() -> None:
    """WCAG 2: 4.5 for text."""
    style = desk("x").split("</style>")[0]
    colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", style))
    for text in (colours["ink"], colours["soft"], colours["accent"], "#aa1111"):
        for paper in (colours["paper"], colours["tint"]):
            assert contrast(text, paper) >= 4.5, (text, paper)


# Read as a data protection officer would ------------------------------------------------------------------------------

QUESTIONS = ("What was asked?", "Was it done?", "How sure is it?", "What was assumed?", "What may", "What")


def prose(html: str) -> str:
    """The page's text without its style, commands, formulas, names of files and names in the file."""
    body = html.split("</style>")[1]
    return " ".join(re.sub("<[^>]+>", " ", re.sub(r"(?s)<(pre|code|dd)\b.*?</\1>", " ", body)).split())


def answers_everything(html: str) -> str:
    """A page that begins with the decision, answers each question in its order, and has no empty cell; its text."""
    Reader(html)
    body = html.split("</style>")[1]
    assert re.search(r"</h1>\s*<p class=\"lead\">[^<]+taken out of the model[^<]+\.</p>", body)
    text = prose(html)
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", body)
    for heading, question in zip(headings, QUESTIONS, strict=False):
        assert heading.startswith(question)
        assert heading.endswith("?")
    assert not re.search(r"<(td|th)\b[^>]*>(<span></span>|<code></code>|\s*)</\1>", body), "an empty cell"
    assert not re.findall(r"\b[a-z]+_[a-z_]+\b", text), "a name of the file in prose"
    return text


def test_a_page_says_what_to_do_with_which_file(workshop: Path) -> None:
    made = unlearn(trained(), rows(1, 2), epsilon=1.0, delta=1e-3, deposit=kept().deposit)
    statement, dossier = (
        json.loads((workshop / "result" / name).read_text()) for name in ("statement.json", "private/dossier.json")
    )
    for content, words in (
        (made.statement.content, ("Destroy the deposit from before", "sizes the noise has")),
        (statement, ("The next deletion cannot start from this model", "powers of two")),
    ):
        html = statement_page(content)
        text = answers_everything(html)
        for said in (*words, "take that one back", "at most 73.2 %" if content["epsilon"] == 1.0 else "at most"):
            assert said in text
        assert "dossier" in text
        assert "<code>private/</code>" in html
    for content, files in ((made.certificate.content, True), (dossier, False)):
        html = run_page(content)
        text = answers_everything(html)
        assert ("<code>private/model.deposit</code>" in html) == files
        assert ("Destroy the deposit from before" in text) == files
        assert ("keep one copy of the model from before" in text) != files
        assert "two like this one together" in text
        assert "two like this one together" not in page(content), "a desk counts"
        assert "of 400 rows" not in " ".join(re.findall("<blockquote>(.*?)</blockquote>", html)), "what may be said"
    for content in (statement_page(made.statement.content), page(made.certificate.content)):
        text = " ".join(re.sub("<[^>]+>", " ", content).split())
        assert "proven" in text
        assert "stand-in" not in text
        assert "powers of two" not in text
        assert "Assumed Nothing." in text
    for words in ("Higher order", "how far the retained rows&#39; gradient can bend", "--deposit-after"):
        assert words in page(made.certificate.content)


def test_a_test_is_to_be_published_nowhere() -> None:
    made = unlearn(trained(), rows(1, 2), epsilon=1.0, delta=1e-3, deposit=kept().deposit, insecure_test_seed=1)
    for html in (statement_page(made.statement.content), run_page(made.certificate.content)):
        text = answers_everything(html)
        assert "Nothing. This is a test." in text
        assert "73.2 %" not in text.split("What was assumed?")[0]


ODD = (None, 2**64, "x", [], {"a": 1})
HELD = ("assumptions", "limits", "bound")  # recomputed: whatever is odd there is found


def places(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a file's content."""
    inside = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [place for key, value in inside for place in ((*path, key), *places(value, (*path, key)))]


def changed(content: Any, place: tuple[Any, ...], value: Any) -> Any:
    """The content with another value at this place, and a digest that fits; `...` removes it."""
    copy = json.loads(json.dumps(content))
    at = copy
    for key in place[:-1]:
        at = at[key]
    if value is ...:
        del at[place[-1]]
    else:
        at[place[-1]] = value
    return copy | ({"digest": digest_of(copy)} if place != ("digest",) else {})


@pytest.mark.parametrize("kind", ["statement", "dossier"])
def test_odd_fields_that_verify_are_shown(kind: str, workshop: Path) -> None:
    """Each field of a file replaced by odd things: what verification lets through is shown, or cannot be in words."""
    files = {"statement": "statement.json", "dossier": "private/dossier.json"}
    content, shown = json.loads((workshop / "result" / files[kind]).read_text()), 0
    cells = [(place, value) for place in places(content) if place[0] not in HELD for value in (*ODD, ...)]
    for place, value in cells[::6]:
        try:
            document = parse_document(json.dumps(changed(content, place, value)).encode(), "it")
            verify_statement(document) if isinstance(document, Statement) else verify(document)
        except ExpungeError:
            continue
        with contextlib.suppress(FileError):  # an error in words, and no other
            if isinstance(document, Statement):
                safe(statement_page(document.content))
            else:
                safe(run_page(document.content))
            shown += 1
    assert shown > 5, "what verifies is held to what pages need"


def test_what_a_page_cannot_show_is_an_error_in_words() -> None:
    content = json.loads(certificates()[-1].read_text())
    for odd in ({"software": None}, {"notes": 5}, {"created": []}, {"bound": {}}, {"epsilon": "x"}):
        with pytest.raises(FileError, match="cannot be shown"):
            run_page(content | odd)
    with pytest.raises(FileError, match="cannot be shown"):
        desk_page({}, [], [], total=0, pages={})
