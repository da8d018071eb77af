"""`--help`: named sections, an example, every option explained; the site's reference; completion in shells."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

import expunge
from command_line import COMMANDS, TOP, command_named, commands_of, done
from expunge.cli import main
from expunge.cli.options import OTHERS, Command

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[2]
FILES_PAGE = (ROOT / "docs" / "files.md").read_text(encoding="utf8")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_every_option_in_sections_with_an_example(command: str) -> None:
    found = command_named(command)
    assert isinstance(found, Command)
    assert found.help
    printed = done(f"{command} --help")
    text = " ".join(printed.split())
    assert " ".join(found.help.partition(".")[0].split()) in text
    assert command == "demo" or f"expunge {command} " in text, "an example"
    options = [parameter for parameter in found.params if isinstance(parameter, click.Option)]
    assert not [line for line in printed.splitlines() if line.strip().isupper()], "an argument among the options"
    assert "--json" in [name for option in options for name in option.opts]
    for option in options:
        assert option.help, option.name
        assert option.opts[0] in text
    if len(options) > 10:
        titles = list(dict.fromkeys(found.sections[str(option.name)] for option in options))
        assert OTHERS not in titles, "an option of no section"
        assert len(titles) >= 3
        places = {title: printed.splitlines().index(f"{title}:") for title in titles}
        assert places["Output"] == max(places.values())
    else:
        assert printed.splitlines()[-1].split()[:2] == ["-h,", "--help"], "what is not the command's own comes last"


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_every_command_once_and_the_exit_status(option: str) -> None:
    text = done(option)
    assert "Exit status" in text
    assert set(commands_of(main)) == set(TOP)
    listed = [line.split()[0] for line in text.splitlines() if line.startswith("  ") and line.split()[0] in TOP]
    assert listed == list(TOP)
    assert expunge.__version__ in done("--version")
    for group in ("", "desk", "tangent"):
        found = command_named(group)
        shown = done(f"{group} --help")
        for command in commands_of(found).values():
            assert command.short_help
            assert command.short_help in shown, "cut short at 80 columns"


def test_every_command_is_documented() -> None:
    """Some page says what it is for, apart from the generated reference."""
    pages = "".join(page.read_text() for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")])
    assert [command for command in TOP if f"expunge {command}" not in pages] == []


# The site's page on commands ------------------------------------------------------------------------------------------


def made_reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_commands", ROOT / "docs" / "make_commands.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


REFERENCE = made_reference()
PAGE = REFERENCE.page()


def test_the_reference_says_what_help_prints() -> None:
    for path in REFERENCE.commands():
        printed = CliRunner().invoke(main, [*path[1:], "--help"], prog_name="expunge", terminal_width=REFERENCE.WIDTH)
        assert f"# {' '.join(path)}\n\n```text\n{REFERENCE.stripped(printed.stdout)}```\n" in PAGE
    lines = PAGE.splitlines()
    assert max(map(len, lines)) <= 120
    assert not [line for line in lines if line != line.rstrip()]


# Completion -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_after_the_line_on_the_page(tmp_path: Path) -> None:
    """A real shell: the function that the script defines is called as the tab key would call it."""
    (tmp_path / "expunge").write_text(f"#!{sys.executable}\nfrom expunge.cli import main\nmain(prog_name='expunge')\n")
    (tmp_path / "expunge").chmod(0o755)
    (line,) = [line for line in FILES_PAGE.splitlines() if line.startswith("eval") and "bash_source" in line]
    script = f"""{line.split("#")[0]}
    COMP_WORDS=(expunge un); COMP_CWORD=1
    _expunge_completion expunge
    echo "${{COMPREPLY[@]}}"; complete -p expunge"""
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    told = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=120, check=True, env=environment
    )
    replied, registered = told.stdout.splitlines()
    assert replied == "unlearn"
    assert registered.endswith("-F _expunge_completion expunge")


# Systems without fcntl ------------------------------------------------------------------------------------------------


def without_fcntl(*lines: str) -> subprocess.CompletedProcess[str]:
    program = "\n".join(["import sys", "sys.modules['fcntl'] = None", *lines])
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)


def test_certificates_are_checked_without_fcntl_and_nothing_else_works(workshop: Path) -> None:
    """As on Windows; it was not run there, and the page says so."""
    assert "**not run, and all but checking cannot work:**" in FILES_PAGE
    result = workshop / "result"
    files = [str(result / name) for name in ("statement.json", "model.safetensors", "private/dossier.json")]
    asked = ["verify", files[0], "--model", files[1], "--dossier", files[2]]
    checked = without_fcntl("from expunge.cli import main", f"main({asked!r})")
    assert checked.returncode == 0, checked.stderr
    told = without_fcntl(
        "import expunge",
        f"statement, dossier = expunge.read_statement({files[0]!r}), expunge.read_certificate({files[2]!r})",
        f"print(len(expunge.verify_statement(statement, {files[1]!r}, dossier)))",
        "for name in ('train', 'unlearn', 'deposit'):",
        "    try:",
        "        getattr(expunge, name)",
        "    except ImportError as error:",
        "        print('fcntl' in str(error))",
    )
    checks, *lacking = told.stdout.splitlines()
    assert int(checks) > 50, told.stderr
    assert lacking == ["True"] * 3
