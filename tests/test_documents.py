"""The documents, compared with the code in loops over all pages: links, commands, names and paths in them exist."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import expunge
from command_line import COMMANDS, check_command, check_options, command_named
from experiments.__main__ import main as experiments_main
from experiments.protocol.config import configs
from site_making import MAKING

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGE = Path(expunge.__file__).parent
README, CONTRIBUTING, ARCHITECTURE = ROOT / "README.md", ROOT / "CONTRIBUTING.md", DOCS / "architecture.md"
OURS = [README, CONTRIBUTING, ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
PAGES = [*OURS, *sorted({file for file in MAKING.reachable(README) if file.suffix == ".md"} - {*OURS})]
LONGEST_README = 130
FOREIGN = {"AdamW"}  # classes of other packages that pages name


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def code_lines(page: Path) -> Iterator[str]:
    """Lines of the blocks of code, fenced or indented, continued lines joined, comments left out."""
    text = page.read_text()
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^ {4}(.*\n(?: {4}.*\n)*)", text, flags=re.MULTILINE)
    for block in [*fenced, *indented]:
        for line in re.sub(r"\\\n", " ", block).splitlines():
            yield re.sub(r"\s#\s.*", "", line).strip()


def inline_code(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(page))


def anchors(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    titles = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    slugs = [MAKING.github_slug(title, "-") for title in titles]
    return {f"{slug}-{n}" if n else slug for slug, count in Counter(slugs).items() for n in range(count)}


def on_every_page(*pages: Path) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", pages or PAGES, ids=lambda page: str(page.relative_to(ROOT)))


# Size and links -------------------------------------------------------------------------------------------------------


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= LONGEST_README


@on_every_page()
def test_every_relative_link_resolves(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{target}: no such file"
        assert file.is_relative_to(ROOT.resolve()), f"{target}: outside the repository"
        assert not anchor or anchor in anchors(file), f"{target}: no such heading"


def test_every_page_is_in_the_map_exactly_once() -> None:
    listed = (DOCS / "index.md").read_text().split("## All pages")[1]
    links = Counter(re.findall(r"^\| \[[^\]]+\]\(([^)]+)\) \|", listed, flags=re.MULTILINE))
    assert links == Counter({path.name for path in DOCS.glob("*.md")} - {"index.md"})


# Commands -------------------------------------------------------------------------------------------------------------


def commands(page: Path) -> Iterator[tuple[str, bool]]:
    """What follows `expunge` on a command line, and whether the line is whole; the words in a sentence need not be."""
    for line in code_lines(page):
        given = re.match(r"(?:.*\btorchrun\b.*-m )?expunge (.+)", line)
        if given:
            yield given[1], "..." not in line
    for words in inline_code(page):
        if words.startswith("expunge ") and not words.startswith("expunge COMMAND"):
            yield words.removeprefix("expunge "), False


@on_every_page()
def test_every_command_parses(page: Path) -> None:
    for line, whole in commands(page):
        check_command(line, whole)


def test_a_command_that_does_not_exist_is_noticed() -> None:
    for line in ("reproduce synthetic", "init desk/", "unlearn --chains 5", "desk status --nothing", "verify"):
        with pytest.raises((AssertionError, click.UsageError)):
            check_command(line, whole=True)


@on_every_page()
def test_every_experiment_exists(page: Path) -> None:
    for line in [*code_lines(page), *inline_code(page)]:
        given = re.match(r"(?:\S+/)?python -m (experiments\S*)(.*)", line)
        if given is None:
            continue
        if given[1] != "experiments":
            assert (ROOT / f"{given[1].replace('.', '/')}.py").exists(), line
            continue
        words = shlex.split(given[2])
        context = click.Context(experiments_main, **experiments_main.context_settings)
        check_options(experiments_main, context, words, line)
        if words and not words[0].startswith("-"):
            assert words[0] in {*configs(), "all"}, line


def test_every_target_of_make_exists() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    asked = [
        line.split()[1] for page in (README, CONTRIBUTING) for line in code_lines(page) if line.startswith("make ")
    ]
    assert asked
    assert set(asked) <= set(targets)


def test_no_command_takes_the_test_seed() -> None:
    """docs/sharp-edges.md, B4: noise from a seed can be had in Python only."""
    options = [name for words in COMMANDS for option in command_named(words).params for name in option.opts]
    assert "--json" in options
    assert not [option for option in options if "insecure" in option]


# Names and paths ------------------------------------------------------------------------------------------------------


def is_importable(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


@on_every_page()
def test_every_dotted_name_is_importable(page: Path) -> None:
    for name in re.findall(r"`(expunge(?:\.\w+)+)(?:\(.*?\))?`", prose(page)):
        assert is_importable(name), name
    assert not is_importable("expunge.networks.nothing")


@on_every_page()
def test_every_file_and_test_exists(page: Path) -> None:
    for name in inline_code(page):
        path, _, test = name.partition("::")
        if re.fullmatch(r"[\w/-]+\.py", path) and page != CONTRIBUTING:  # which has examples of bad names
            places = [ROOT / path, PACKAGE / path, *([] if "/" in path else PACKAGE.rglob(path))]
            places += [ROOT / "benchmarks" / path, ROOT / "examples" / path]
            there = [place for place in places if place.exists()]
            assert there, f"{path}: no such file"
            assert not test or f"def {test}(" in there[0].read_text(), f"{name}: no such test"


def test_every_path_of_the_architecture_page_exists() -> None:
    """In a row about a room names are inside that room; elsewhere they are whole paths."""
    for line in ARCHITECTURE.read_text().splitlines():
        room = re.match(r"\| `([a-z_]+)/`", line)
        for name in re.findall(r"`([\w/-]+(?:\.py|/))`", line):
            inside = list((PACKAGE / room[1]).rglob(name)) if room else []
            assert inside or (ROOT / name).exists() or (PACKAGE / name).exists(), f"{name} in: {line}"


def test_every_module_that_the_source_names_exists() -> None:
    """In docstrings and comments, where a file is named by the end of its path."""
    modules = [file.as_posix() for file in PACKAGE.rglob("*.py")]
    for module in PACKAGE.rglob("*.py"):
        for name in re.findall(r"[\w/]+\.py\b", module.read_text()):
            there = (ROOT / name).exists() or any(each.endswith(f"/{name}") for each in modules)
            assert there, f"{name} in {module.relative_to(PACKAGE)}"


@on_every_page(ARCHITECTURE, DOCS / "theory.md", DOCS / "notation.md")
def test_every_class_it_names_exists(page: Path) -> None:
    source = "\n".join(file.read_text() for file in PACKAGE.rglob("*.py"))
    for name, attribute in re.findall(r"`([A-Z][a-z]\w+)(?:\.(\w+))?(?:\(\))?`", prose(page)):
        if "_" in name or name in FOREIGN:
            continue
        assert re.search(rf"\bclass {name}\b", source), name
        assert not attribute or re.search(rf"\b{attribute}\b", source), f"{name}.{attribute}"


# Programs -------------------------------------------------------------------------------------------------------------


def test_the_program_of_the_readme_runs() -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", README.read_text(), flags=re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    stated, total, accuracy = done.stdout.splitlines()
    status, sigma = stated.split()
    assert status == "conditional"
    assert 0.0 < float(total) < float(sigma)
    assert float(accuracy) > 0.5
