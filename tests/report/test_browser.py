"""The pages in a real browser: nothing in the console, nothing fetched, readable, printable, reachable by keyboard."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from report.browser import CHROMIUM, Browser
from report.test_page import HOSTILE, certificates, desk, page

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]
COMPLAINTS = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    content = json.loads(certificates()[-1].read_text())
    content["notes"] = HOSTILE
    texts = {
        "run": page(content, keyid="ab" * 32),
        "desk": desk("<script>document.title = 'pwned'</script>" + "x" * 150),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return {name: folder / f"{name}.html" for name in texts}


@pytest.mark.parametrize("name", ["run", "desk"])
@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_runs_nothing_is_fetched_and_it_fits(
    name: str, width: int, browser: Browser, pages: dict[str, Path]
) -> None:
    browser.width(width)
    browser.open(pages[name])
    complaints = [event for event in browser.events if event["method"] in COMPLAINTS]
    fetched = {
        event["params"]["request"]["url"] for event in browser.events if event["method"] == "Network.requestWillBeSent"
    }
    assert not complaints
    assert fetched == {pages[name].as_uri()}
    assert "pwned" not in browser.value("document.title")
    assert browser.value("document.scripts.length") == 0
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert (
        browser.value(
            "Math.min(...[...document.querySelectorAll('p, li, td, th')].map(e => parseFloat(getComputedStyle(e).fontSize)))"
        )
        >= 13
    )
    assert browser.screenshot().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["run", "desk"])
@pytest.mark.parametrize("width", [400, 1400])
def test_landmarks_names_and_tables(name: str, width: int, browser: Browser, pages: dict[str, Path]) -> None:
    browser.width(width)
    browser.open(pages[name])
    roles = browser.roles()
    kinds = [role for role, _ in roles]
    for landmark in ("banner", "navigation", "main", "contentinfo", "heading", "table", "columnheader", "rowheader"):
        assert landmark in kinds, landmark
    for role, called in roles:
        if role in ("image", "img", "graphics-document", "region", "navigation", "link"):
            assert called, role


@pytest.mark.parametrize("name", ["run", "desk"])
def test_the_keyboard_reaches_every_link_and_the_details(name: str, browser: Browser, pages: dict[str, Path]) -> None:
    browser.width(1400)
    browser.open(pages[name])
    wanted = browser.value("document.querySelectorAll('a, summary').length")
    seen = set()
    for _ in range(60):
        browser.press_tab()
        seen.add(browser.value("document.activeElement.outerHTML.slice(0, 120) + document.activeElement.tagName"))
    reached = [text for text in seen if text.endswith(("SUMMARY", "A"))]
    assert len(reached) >= wanted


def test_it_prints_the_mathematics_too(browser: Browser, pages: dict[str, Path]) -> None:
    browser.width(1400)
    browser.open(pages["run"])
    content = browser.pdf()
    assert content.startswith(b"%PDF")
    browser.call("Emulation.setEmulatedMedia", media="print")
    height = browser.value("document.querySelector('details').getBoundingClientRect().height")
    browser.call("Emulation.setEmulatedMedia", media="")
    assert height > 300, "closed on the screen, open on paper"
    assert len(re.findall(rb"/Type\s*/Page\b", content)) >= 2
