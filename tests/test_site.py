"""The site: pages as they are laid out for it and, where mkdocs is installed (`make docs`), the site itself."""

from __future__ import annotations

import html
import importlib
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt

from notebooks import FOLDER
from site_making import MAKING

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOUGHT = {"retention": "index.html", "deposit": "docs/deposit.html", "epsilon": "docs/how-to-choose.html"}
TOOLS = ("mkdocs", "material", "mkdocstrings_handlers", "latex2mathml")
LACKING = [name for name in TOOLS if importlib.util.find_spec(name) is None]
needs_mkdocs = pytest.mark.skipif(bool(LACKING), reason=f"{', '.join(LACKING)} not installed: make docs")


# Pages, before the site is built --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    MAKING.stage(folder)
    return folder


def test_every_page_of_the_docs_and_every_notebook_can_be_reached_from_the_readme(pages: Path) -> None:
    written = [*DOCS.rglob("*.md"), *FOLDER.glob("*.ipynb")]
    assert not [file for file in written if not (pages / file.relative_to(ROOT)).exists()]


def test_every_link_leads_to_a_page_that_is_laid_out(pages: Path) -> None:
    seen = 0
    for page in pages.rglob("*.md"):
        for target in MAKING.links(page.read_text()):
            seen += 1
            assert (page.parent / target).is_file(), f"{page.relative_to(pages)}: {target}"
    assert seen > 300


def test_every_page_is_in_the_navigation_once(pages: Path) -> None:
    navigation = (DOCS / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    listed = re.findall(r"- (?:[\w.]+: )?(\S+\.md)$", navigation, flags=re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(pages)) for page in pages.rglob("*.md"))


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_four_doors_are_on_the_front_page_and_on_the_map(page: str) -> None:
    found = [(ROOT / page).parent / target for target in MAKING.links((ROOT / page).read_text())]
    assert {(ROOT / door).resolve() for door in MAKING.DOORS} <= {path.resolve() for path in found}


def test_a_notebook_becomes_a_page_with_code_output_and_a_link_to_itself() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "\n", "Words, and [another](other.ipynb)."]},
        {"cell_type": "code", "source": ["print(1)"], "outputs": [{"text": ["1\n"]}]},
        {"cell_type": "code", "source": ["a = 2"], "outputs": []},
    ]
    assert MAKING.for_the_site(MAKING.notebook({"cells": cells}, "a.ipynb")) == (
        "# Title\n\nA notebook, as it was run: [a.ipynb](a.ipynb).\n\nWords, and [another](other.md).\n\n"
        "```python\nprint(1)\n```\n\n```text\n1\n```\n\n```python\na = 2\n```\n"
    )


@pytest.mark.parametrize("name", MAKING.MODULES)
def test_the_reference_has_every_public_name_and_each_says_what_it_is(name: str) -> None:
    package = importlib.import_module(name)
    announced = MAKING.exported(name)
    assert announced == [public for public in getattr(package, "__all__", announced) if not public.startswith("__")]
    page = MAKING.reference(name)
    for public in announced:
        assert f"\n::: {MAKING.home(name, public)}\n" in page
        value = getattr(package, public)
        where, _, attribute = MAKING.home(name, public).rpartition(".")
        assert value is getattr(importlib.import_module(where), attribute)
        assert inspect.getdoc(value) or not (inspect.isclass(value) or inspect.isroutine(value)), f"{name}.{public}"


# The site -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(DOCS / "make_site.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr  # strict: whatever warns is an error
    assert not re.search("warning|error", done.stderr, flags=re.IGNORECASE), done.stderr
    return folder / "site"


@cache
def text_of(file: Path) -> str:
    return file.read_text(encoding="utf8")


def made_pages(site: Path) -> Iterator[Path]:
    for file in sorted(site.rglob("*.html")):
        if file.name != "404.html":
            yield file


@needs_mkdocs
def test_every_link_and_anchor_of_the_site_resolves(site: Path) -> None:
    """Looked up in the HTML, not asked of mkdocs."""
    seen = 0
    for file in made_pages(site):
        for target in re.findall(r'<(?:a|link|img|script)\b[^>]*?\s(?:href|src)="?([^"\s>]+)', text_of(file)):
            path, _, anchor = unquote(html.unescape(target)).partition("#")
            if re.match(r"(https?|mailto|data):", path):
                continue
            seen += 1
            place = (file.parent / path).resolve() if path else file
            assert place.exists(), f"{file.relative_to(site)}: {target}"
            if anchor and place.suffix == ".html" and anchor != "__codelineno":
                ids = re.findall(r'\sid="?([^"\s>]+)', text_of(place))
                assert anchor in map(html.unescape, ids), f"{file.relative_to(site)}: {target}"
    assert seen > 5000


@needs_mkdocs
def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for file in made_pages(site):
        loading = r'<(?:link|img|script|iframe|source)\b[^>]*?\s(?:href|src)="?(https?:[^"\s>]+)'
        assert not re.findall(loading, text_of(file)), file
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"url\([\"']?https?:|@import", text_of(sheet)), sheet


@needs_mkdocs
def test_formulas_are_drawn_and_none_is_left(site: Path) -> None:
    theory = text_of(site / "docs" / "theory.html")
    assert theory.count("<math") > 500
    for file in made_pages(site):
        assert "arithmatex" not in text_of(file), file


@needs_mkdocs
def test_pages_have_the_tables_lists_and_blocks_they_have_elsewhere(site: Path, pages: Path) -> None:
    """Python-Markdown reads some lists and tables otherwise than GitHub does: as many of each must come out."""
    reader = MarkdownIt("commonmark").enable("table")
    for page in pages.rglob("*.md"):
        if page.parent.name == "api":
            continue
        place = page.with_name("index.html") if page.name == "README.md" else page.with_suffix(".html")
        body = text_of(site / place.relative_to(pages)).split("<article", 1)[1].split("</article>")[0]
        wanted = reader.render(re.sub(r"^\$\$.*?\$\$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL))
        counted = {tag: len(re.findall(rf"<{tag}[ >]", wanted)) for tag in ("table", "li", "h2", "h3", "tr")}
        found = {tag: len(re.findall(rf"<{tag}[ >]", body)) for tag in counted}
        assert found == counted, page.relative_to(pages)


@needs_mkdocs
def test_the_reference_is_made_of_docstrings(site: Path) -> None:
    for name in MAKING.MODULES:
        page = text_of(site / "docs" / "api" / f"{name}.html")
        for public in MAKING.exported(name):
            assert re.search(rf'id="?{re.escape(MAKING.home(name, public))}["\s>]', page), f"{name}.{public}"
    assert "Keep what later deletions need of the source, before it goes" in text_of(site / "docs/api/expunge.html")


def index(site: Path) -> list[dict[str, Any]]:
    return list(json.loads((site / "search" / "search_index.json").read_text())["docs"])


@needs_mkdocs
@pytest.mark.parametrize("word", SOUGHT)
def test_the_index_has_the_word(site: Path, word: str) -> None:
    hits = [entry["location"] for entry in index(site) if word in f"{entry['title']} {entry['text']}".lower()]
    assert SOUGHT[word] in {location.partition("#")[0] for location in hits}
