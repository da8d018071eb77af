"""The documents, held to the code: links, commands, names and paths in them exist, and the README's program runs."""

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
from document_commands import check_command, check_options
from experiments.__main__ import main as experiments_main
from experiments.protocol.config import configs
from expunge.cli import main
from site_making import MAKING

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGE = Path(expunge.__file__).parent
README = ROOT / "README.md"
ARCHITECTURE = DOCS / "architecture.md"
GENERATED = {DOCS / "commands.md"}  # of --help; tests/cli/test_reference.py compares the two
IN_DOCS = sorted(DOCS.rglob("*.md"))
OURS = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *IN_DOCS]
PAGES = [*OURS, *sorted({file for file in MAKING.reachable(README) if file.suffix == ".md"} - {*OURS})]
WRITTEN = [page for page in PAGES if page not in GENERATED]
LONGEST_README, WIDEST_README = 130, 122


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def code_lines(page: Path) -> Iterator[str]:
    """Lines of the blocks of code, fenced or indented, those that are continued put together, comments left out."""
    text = page.read_text()
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^ {4}(.*\n(?: {4}.*\n)*)", text, flags=re.MULTILINE)
    for block in [*fenced, *indented]:
        for line in re.sub(r"\\\n", " ", block).splitlines():
            yield re.sub(r"\s#\s.*", "", line).strip()


def inline_code(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(page))


def slugs(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    titles = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    made = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    return {f"{slug}-{n}" if n else slug for slug, count in Counter(made).items() for n in range(count)}


# Length and links -----------------------------------------------------------------------------------------------------


def test_the_readme_is_short() -> None:
    lines = README.read_text().splitlines()
    assert len(lines) <= LONGEST_README
    assert max(map(len, lines)) <= WIDEST_README


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_relative_link_resolves(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{target}: no such file"
        assert file.is_relative_to(ROOT.resolve()), f"{target}: outside the repository"
        if anchor:
            assert anchor in slugs(file), f"{target}: no such heading"


def test_every_page_is_in_the_map_exactly_once() -> None:
    listed = (DOCS / "index.md").read_text().split("## All pages")[1]
    links = Counter(re.findall(r"^\| \[[^\]]+\]\(([^)]+)\) \|", listed, flags=re.MULTILINE))
    pages = {path.name for path in DOCS.iterdir() if path.suffix in (".md", ".html")} - {"index.md"}
    assert links == Counter(pages | {"decisions/README.md"})


def test_every_decision_is_listed() -> None:
    folder = DOCS / "decisions"
    links = re.findall(r"\]\(([^)]+)\)", (folder / "README.md").read_text())
    assert sorted(links) == sorted(path.name for path in folder.glob("0*.md"))


# Commands -------------------------------------------------------------------------------------------------------------


def commands(page: Path) -> Iterator[tuple[str, bool]]:
    """What follows `expunge` on a command line, and whether the line is whole; the words in a sentence need not be."""
    for line in code_lines(page):
        given = re.match(r"(?:.*\btorchrun\b.*-m )?expunge (.+)", line)
        if given:
            yield given[1], "..." not in line
    for words in inline_code(page):
        if words.startswith("expunge "):
            yield words.removeprefix("expunge "), False


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_every_command_parses(page: Path) -> None:
    for line, whole in commands(page):
        check_command(line, whole)


def test_the_readme_shows_the_commands_that_matter() -> None:
    shown = [line.split()[0] for line, whole in commands(README) if whole]
    assert {"train", "unlearn", "verify", "desk"} <= set(shown)


@pytest.mark.parametrize(
    "line", ["reproduce synthetic", "init desk/", "unlearn --chains 5", "desk status --nothing", "verify"]
)
def test_a_command_that_does_not_exist_is_noticed(line: str) -> None:
    with pytest.raises((AssertionError, click.UsageError)):
        check_command(line, whole=True)


@pytest.mark.parametrize("page", WRITTEN, ids=named)
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


@pytest.mark.parametrize("page", [README, ROOT / "CONTRIBUTING.md"], ids=named)
def test_every_target_of_make_exists(page: Path) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    asked = [line.split()[1] for line in code_lines(page) if line.startswith("make ")]
    assert asked
    assert set(asked) <= set(targets)


# Names and paths ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_every_dotted_name_can_be_had(page: Path) -> None:
    for name in re.findall(r"`(expunge(?:\.\w+)+)(?:\(.*?\))?`", prose(page)):
        assert can_be_had(name), name


def can_be_had(name: str) -> bool:
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


def test_a_name_that_is_gone_is_noticed() -> None:
    assert can_be_had("expunge.networks.mixed_linear.train_tangent")
    assert not can_be_had("expunge.networks.whole")
    assert not can_be_had("expunge.mechanism.unlearn_in_group")


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_every_module_and_test_exists(page: Path) -> None:
    for name in inline_code(page):
        path, _, test = name.partition("::")
        if re.fullmatch(r"[\w/-]+\.py", path):
            places = [ROOT / path, PACKAGE / path, *([] if "/" in path else PACKAGE.rglob(path))]
            places += [ROOT / "benchmarks" / path, ROOT / "examples" / path]
            there = [place for place in places if place.exists()]
            assert there, f"{path}: no such file"
            assert not test or f"def {test}(" in there[0].read_text(), f"{name}: no such test"


def test_every_path_of_the_architecture_page_exists_where_it_says() -> None:
    """In a row about a room names are inside that room; elsewhere they are whole paths."""
    for line in ARCHITECTURE.read_text().splitlines():
        row = re.match(r"\| `([a-z_]+)/`", line)
        for name in re.findall(r"`([\w/-]+(?:\.py|/))`", line):
            bases = [
                ROOT,
                PACKAGE,
                *([PACKAGE / row[1], PACKAGE / row[1] / "unproven", PACKAGE / row[1] / "deposit"] if row else []),
            ]
            assert any((base / name).exists() for base in bases), f"{name} in: {line}"


@pytest.mark.parametrize("page", [ARCHITECTURE, DOCS / "theory.md", DOCS / "notation.md"], ids=named)
def test_every_class_it_names_exists(page: Path) -> None:
    source = "\n".join(file.read_text() for file in PACKAGE.rglob("*.py"))
    for name, attribute in re.findall(r"`([A-Z][a-z]\w+)(?:\.(\w+))?(?:\(\))?`", prose(page)):
        if "_" in name or name in FOREIGN:
            continue
        assert re.search(rf"\bclass {name}\b", source), name
        assert not attribute or re.search(rf"\b{attribute}\b", source), f"{name}.{attribute}"


FOREIGN = {"AdamW"}


def test_every_file_of_a_room_that_decides_is_on_the_page() -> None:
    page = ARCHITECTURE.read_text()
    for room in ("distance", "bounds", "certificate", "solve", "request", "estimate", "evidence", "desk"):
        row = next(line for line in page.splitlines() if line.startswith(f"| `{room}/`"))
        files = {path.name for path in (PACKAGE / room).glob("*.py")} - {"__init__.py"}
        assert not {name for name in files if f"`{name}`" not in row}, room


def leaves(command: click.Command) -> Iterator[click.Command]:
    if isinstance(command, click.Group):
        for part in command.commands.values():
            yield from leaves(part)
    else:
        yield command


def test_no_command_takes_the_test_seed() -> None:
    """docs/sharp-edges.md, B4: noise from a seed can be had in Python only."""
    options = [option for command in leaves(main) for param in command.params for option in param.opts]
    assert "--json" in options
    assert not [option for option in options if "insecure" in option]


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
