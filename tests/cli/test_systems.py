"""What docs/files.md says of shells and of systems without `fcntl`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import expunge
from expunge.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "files.md").read_text(encoding="utf8")
PROGRAM = f"#!{sys.executable}\nfrom expunge.cli import main\nmain(prog_name='expunge')\n"
ASKED = {"un": {"unlearn"}, "desk re": {"report", "request", "resume"}, "verify --do": {"--dossier"}}


def completions(shell: str, typed: str) -> set[str]:
    """What a shell is told when somebody typed this and pressed the tab key."""
    words = f"expunge {typed}"
    place = typed.rsplit(maxsplit=1)[-1] if shell == "fish" else str(len(typed.split()))
    given = {"_EXPUNGE_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": place}
    told = CliRunner().invoke(main, [], prog_name="expunge", env=given).output
    if shell == "zsh":
        return set(told.splitlines()[1::3])
    return {line.split(",", 1)[1].split("\t")[0].strip() for line in told.splitlines() if line.startswith("plain,")}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("typed", ASKED)
def test_commands_and_options_are_completed(shell: str, typed: str) -> None:
    assert completions(shell, typed) == ASKED[typed]
    assert f"`{typed}<TAB>" in PAGE
    assert all(f"`{word}`" in PAGE for word in ASKED[typed])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_line_on_the_page_gives_a_script(shell: str) -> None:
    assert f"_EXPUNGE_COMPLETE={shell}_source expunge" in PAGE
    given = {"_EXPUNGE_COMPLETE": f"{shell}_source"}
    told = CliRunner().invoke(main, [], prog_name="expunge", env=given)
    assert "_expunge_completion" in told.output
    assert f"_EXPUNGE_COMPLETE={shell}_complete" in told.output


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_after_the_line_on_the_page(tmp_path: Path) -> None:
    """A real shell: the function that the script defines is called as the tab key would call it."""
    (tmp_path / "expunge").write_text(PROGRAM)
    (tmp_path / "expunge").chmod(0o755)
    (line,) = [line for line in PAGE.splitlines() if line.startswith("eval") and "bash_source" in line]
    script = f"""{line.split("#")[0]}
    COMP_WORDS=(expunge un); COMP_CWORD=1
    _expunge_completion expunge
    echo "${{COMPREPLY[@]}}"; complete -p expunge"""
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "PATH": path},
    )
    replied, registered = done.stdout.splitlines()
    assert replied == "unlearn"
    assert registered.endswith("-F _expunge_completion expunge")


def without_fcntl(*lines: str) -> subprocess.CompletedProcess[str]:
    program = "\n".join(["import sys", "sys.modules['fcntl'] = None", *lines])
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)


def test_certificates_are_checked_without_fcntl_and_nothing_else_works(tmp_path: Path) -> None:
    """As on Windows; it was not run there, and the page says so."""
    assert "**not run, and all but checking cannot work:**" in PAGE
    rng = np.random.default_rng(0)
    labels = np.arange(600) % 2
    rows = np.eye(2, 3)[labels] + 0.3 * rng.normal(size=(600, 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    model = expunge.train(rows[:300], labels[:300], l2=0.1, max_norm=1.0)
    forget, surrogate = (rows[:1], labels[:1]), (rows[300:], labels[300:])
    expunge.unlearn(model, forget, surrogate, epsilon=1.0, delta=1e-3, distance="same").save(tmp_path / "result")
    files = [
        str(tmp_path / "result" / name) for name in ("statement.json", "model.safetensors", "private/dossier.json")
    ]
    asked = ["verify", files[0], "--model", files[1], "--dossier", files[2]]
    checked = without_fcntl("from expunge.cli import main", f"main({asked!r})")
    assert checked.returncode == 0, checked.stderr
    in_python = without_fcntl(
        "import expunge",
        f"statement, dossier = expunge.read_statement({files[0]!r}), expunge.read_certificate({files[2]!r})",
        f"print(len(expunge.verify_statement(statement, {files[1]!r}, dossier)))",
    )
    assert int(in_python.stdout) > 50, in_python.stderr
    for name in ("train", "unlearn", "deposit"):
        assert "fcntl" in without_fcntl("import expunge", f"expunge.{name}").stderr
    assert "fcntl" in without_fcntl("from expunge.desk import open_desk").stderr
