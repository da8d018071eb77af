"""The site, build/site: every page that README.md leads to, with a search that needs no server: `make docs`.

Pages keep their places relative to each other, so that a link is the same in the repository and on the site. Notebooks
become pages. Five kinds of pages are made while the site is built and are not in git: the reference of commands, from
`--help`; that of Python names, from docstrings; the licences, from the packages' metadata; the rules of verification,
from their table; and all results next to the paper's, from experiments/results. Formulas become MathML: nothing in the
site is fetched from anywhere.
"""

from __future__ import annotations

import ast
import html
import importlib
import importlib.util
import json
import logging
import re
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build"
CONFIG, SHIM = Path(__file__).with_name("mkdocs.yml"), Path(__file__).with_name("iframe-worker.js")
DOORS = ("docs/request.md", "docs/deposit.md", "docs/handed-a-certificate.md", "docs/researcher.md")
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", flags=re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', flags=re.DOTALL)
MODULES = {
    "expunge": "The names that most programs need.",
    "expunge.sklearn": "scikit-learn models and pipelines: see [the page about them](../sklearn.md).",
    "expunge.networks": "Encoders and heads of torch models: see [networks](../networks.md).",
    "expunge.distance": "Declared distances: see [how to choose](../how-to-choose.md#the-distance).",
    "expunge.rows": "Files, streams and frames: see [files](../files.md).",
    "expunge.bounds": "The bounds themselves: see [theory](../theory.md).",
    "expunge.desk": "Requests over time: see [the desk](../desk.md).",
    "expunge.evaluate": "Measured afterwards: see [evaluate](../evaluate.md).",
    "expunge.report": "Pages for people.",
}


# Pages ----------------------------------------------------------------------------------------------------------------


def links(text: str) -> list[str]:
    """Targets of links within the repository, without their anchors; blocks of code are not looked into."""
    found = (target.partition("#")[0] for target in LINK.findall(CODE.sub("", text)))
    return [target for target in found if target and "://" not in target and not target.startswith("mailto:")]


def reachable(*start: Path) -> list[Path]:
    """List every file that some pages lead to, these first; pages and notebooks lead on."""
    found, waiting = [*start], [*start]
    while waiting:
        page = waiting.pop()
        for target in links(markdown(page)) if page.suffix in (".md", ".ipynb") else ():
            file = (page.parent / target).resolve()
            if file.is_file() and file not in found:
                found.append(file)
                waiting += [file] if file.suffix in (".md", ".ipynb") else []
    return found


def markdown(file: Path) -> str:
    """A page's text; of a notebook what its cells say, do and printed."""
    if file.suffix == ".md":
        return file.read_text(encoding="utf8")
    return notebook(json.loads(file.read_text(encoding="utf8")), file.name)


def notebook(book: dict[str, Any], name: str) -> str:
    """A notebook as a page, with a link to the file itself below its title."""
    parts = []
    for cell in book["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        printed = "".join("".join(output.get("text", [])) for output in cell["outputs"])
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
    title, _, rest = parts[0].partition("\n")
    return "\n\n".join([title, f"A notebook, as it was run: [{name}]({name}#).", rest.strip(), *parts[1:]]) + "\n"


def for_the_site(text: str) -> str:
    """Links to a notebook lead to the page made of it, except the one on that page itself."""
    text = re.sub(r"(\]\([^)\s]+)\.ipynb\)", r"\1.md)", text)
    return re.sub(r"(\]\([^)\s]+\.ipynb)#\)", r"\1)", text)


# Pages that are made here ---------------------------------------------------------------------------------------------


def script(name: str) -> Any:
    """Import a script of this folder."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def generated() -> dict[str, str]:
    """Make the pages that are not in git: commands, licences, rules, and the results next to the paper's."""
    sys.path[:0] = [str(ROOT)] if str(ROOT) not in sys.path else []
    from experiments.protocol.page import reproduction_page
    from expunge.certificate.rules import list_rules

    return {
        "docs/commands.md": script("make_commands").page(),
        "docs/licences.md": script("make_licences").page(),
        "docs/rules.md": f"# The rules of verification\n\nWhat [verifying](certificate.md) checks.\n\n{list_rules()}",
        "docs/reproduction.md": reproduction_page(ROOT / "experiments/results", ROOT / "docs/reproduction.md"),
    }


# Python names ---------------------------------------------------------------------------------------------------------


def exported(module: str) -> list[str]:
    """`__all__` of a package, or the functions and classes of a file, read and not imported."""
    folder = ROOT / "src" / module.replace(".", "/")
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    tree = ast.parse(file.read_text(encoding="utf8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [name for name in ast.literal_eval(node.value) if not name.startswith("__")]
    named = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [name for name in named if not name.startswith("_")]


def reference(module: str) -> str:
    """A module's page: each of its names, to be filled in by mkdocstrings."""
    names = "\n".join(f'::: {home(module, name)}\n    options:\n      heading: "{name}"\n' for name in exported(module))
    return f"# `{module}`\n\n{MODULES[module]}\n\n{names}"


def home(module: str, name: str) -> str:
    """Where a name is to be looked up: in the module that holds it where the package has a module of the same name too.

    >>> home("expunge", "unlearn"), home("expunge", "deposit"), home("expunge", "Statement")
    ('expunge.unlearn.unlearn', 'expunge.unlearn.deposit', 'expunge.Statement')
    """
    folder = ROOT / "src" / module.replace(".", "/")
    taken = (folder / f"{name}.py").exists() or (folder / name).is_dir()
    homes = getattr(importlib.import_module(module), "homes", {})
    return f"{module}.{homes.get(name, name)}.{name}" if taken else f"{module}.{name}"


# The site -------------------------------------------------------------------------------------------------------------


def stage(target: Path) -> None:
    """All pages, and the files they lead to, laid out under one folder as in the repository."""
    shutil.rmtree(target, ignore_errors=True)
    made = generated()
    linked = [(ROOT / page).parent / link for page, text in made.items() for link in links(text)]
    for file in reachable(ROOT / "README.md", *(file.resolve() for file in linked)):
        place = target / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix in (".md", ".ipynb"):
            place.with_suffix(".md").write_text(for_the_site(markdown(file)), encoding="utf8")
        if file.suffix != ".md":
            shutil.copyfile(file, place)
    for name, text in made.items():
        (target / name).write_text(text, encoding="utf8")
    (target / "assets").mkdir()
    shutil.copy(SHIM, target / "assets")
    for module in MODULES:
        place = target / "docs" / "api" / f"{module}.md"
        place.parent.mkdir(exist_ok=True)
        place.write_text(reference(module), encoding="utf8")


def github_slug(title: str, separator: str) -> str:
    """A heading's anchor, as GitHub makes it.

    >>> github_slug("A1. A declared `chi2`, or none?", "-")
    'a1-a-declared-chi2-or-none'
    """
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", separator)


def on_config(config: Any) -> Any:
    """Mkdocs asks for this: anchors are GitHub's, so that a link to a heading works in both places."""
    config.mdx_configs["toc"]["slugify"] = github_slug
    return config


def on_page_markdown(_text: str, page: Any, **_: Any) -> None:
    """Mkdocs asks for this: of pages that have a word, those for four kinds of readers come first, names last."""
    place = page.file.src_uri
    page.meta["search"] = {"boost": 4 if place in DOORS else 0.25 if place.startswith("docs/api/") else 1}


def on_page_content(content: str, **_: Any) -> str:
    """Mkdocs asks for this: formulas as MathML, which browsers draw by themselves."""
    from latex2mathml.converter import convert

    def drawn(found: re.Match[str]) -> str:
        if found[2] == "(":
            return str(convert(html.unescape(found[3])))
        return f'<div style="overflow-x: auto">{convert(html.unescape(found[3]), display="block")}</div>'

    return FORMULA.sub(drawn, content)


def build(folder: Path = FOLDER) -> Path:
    """Lay out the pages and make the site of them; a warning is an error."""
    from mkdocs.commands.build import build as built
    from mkdocs.config import load_config

    pages, site = folder / "pages", folder / "site"
    stage(pages)
    config = load_config(str(CONFIG), docs_dir=str(pages), site_dir=str(site), strict=True)
    config.plugins.on_startup(command="build", dirty=False)
    try:
        built(config)
    finally:
        config.plugins.on_shutdown()
    return site / "index.html"


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")  # a build that fails says why
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
