"""The model card: front matter that readers of YAML take for what it is, a text, and nothing that is not public."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from expunge.cli import main
from expunge.errors import ExpungeError, FileError
from expunge.report.card import as_text, model_card, yaml_value
from expunge.unlearn import unlearn
from hostile import HOSTILE
from private_values import leaves, private_values
from small_deposit import kept, rows

YAML_11_FLOAT = re.compile(r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?")  # as YAML 1.1 has it: with a dot


def front_matter(card: str) -> dict[str, Any]:
    """The front matter of a card, of the little of YAML that it is written in; whatever else there is fails."""
    opening, block, rest = card.split("---\n", 2)
    assert opening == ""
    assert rest.startswith("\n# ")
    found: dict[str, Any] = {}
    inside: Any = None
    for line in block.splitlines():
        if re.fullmatch(r"[a-z_]+:", line):
            inside = found[line[:-1]] = {} if line == "expunge:" else []
        elif line.startswith("- "):
            assert re.fullmatch(r"[a-z-]+", line[2:])
            inside.append(line[2:])
        else:
            name, value = re.fullmatch(r"  ([a-z_0-9]+): (.+)", line).groups()  # type: ignore[union-attr]
            inside[name] = _value(value)
    return found


def _value(text: str) -> Any:
    if text.startswith('"') or text == "null":
        return json.loads(text)
    assert YAML_11_FLOAT.fullmatch(text), f"{text} is no number to some readers"
    return float(text)


def run(*words: object) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


@pytest.fixture
def result(workshop: Path, tmp_path: Path) -> Path:
    shutil.copytree(workshop / "result", tmp_path / "result")
    return tmp_path / "result"


def statement_of(result: Path) -> dict[str, Any]:
    return dict(json.loads((result / "statement.json").read_text()))


@pytest.mark.parametrize("number", [1.0, 1e-5, 5e-324, 1e22, 0.1, 123456789.125, 3])
def test_numbers_are_numbers_to_every_reader(number: float) -> None:
    text = yaml_value(number)
    assert YAML_11_FLOAT.fullmatch(text)
    assert float(text) == number


def test_the_front_matter_says_what_the_statement_says(result: Path) -> None:
    statement = statement_of(result)
    found = front_matter(model_card(statement, "statement.json"))
    assert found["tags"] == ["machine-unlearning", "certified-unlearning", "expunge"]
    about = found["expunge"]
    for name in ("status", "epsilon", "delta", "created"):
        assert about[name] == statement[name]
    assert about["model_sha256"] == statement["model"]["sha256"]
    assert about["base_model_keyed_digest"] == statement["model"]["before"]
    assert about["statement_digest"] == statement["digest"]
    assert (about["statement"], about["signed_by"]) == ("statement.json", None)
    assert "not said" in about["removed"]


def test_the_text_says_what_was_done_and_what_is_assumed(result: Path) -> None:
    statement = statement_of(result)
    card = model_card(statement, "statement.signed.json", "ab" * 32)
    for sentence in (*statement["assumptions"], *statement["limits"]):
        assert as_text(sentence) in card
    assert "stand-in data" in card
    assert "[statement](statement.signed.json)" in card
    assert "expunge verify statement.signed.json --model model.safetensors --public-key KEY.pub" in card
    assert "## Noted" not in card
    noted = unlearn(None, rows(2), deposit=kept().deposit, epsilon=1.0, delta=1e-3).statement.content
    of_a_deposit = model_card(noted, "statement.json")
    assert "what had been kept of the source" in of_a_deposit
    assert front_matter(of_a_deposit)["expunge"]["status"] == "proven"


@pytest.mark.parametrize("hostile", [*HOSTILE, "---\nexpunge: {}", "# title", "![x](http://x)", "a: b", "| a | b |"])
def test_hostile_notes_are_text(hostile: str, result: Path) -> None:
    card = model_card({**statement_of(result), "notes": [hostile], "created": hostile}, "statement.json")
    assert set(front_matter(card)) == {"tags", "expunge"}
    line = card.split("## Noted\n\n")[1].splitlines()[0]
    assert line == f"- {as_text(hostile)}"
    bare = re.sub(r"\\[\\`*_\[\]<>|~&$#+-]", "x", line[2:])
    assert not re.search(r"[`*_\[\]<>|~&$]", bare)
    assert not bare.startswith(("#", "+", "-"))


def test_what_cannot_be_shown_is_an_error(result: Path) -> None:
    for odd in ({"assumptions": 5}, {"epsilon": "much"}, {"model": None}):
        with pytest.raises(FileError, match="cannot be shown"):
            model_card({**statement_of(result), **odd}, "statement.json")
    with pytest.raises(ExpungeError, match="status"):
        model_card({**statement_of(result), "status": "certain"}, "statement.json")


# expunge card -------------------------------------------------------------------------------------------------------


def test_the_command_prints_or_writes_it(result: Path, tmp_path: Path) -> None:
    printed = run("card", result)
    assert printed.exit_code == 0, printed.stderr
    front_matter(printed.stdout)
    assert run("card", result, "--out", tmp_path / "README.md").exit_code == 0
    assert (tmp_path / "README.md").read_text() == printed.stdout
    assert json.loads(run("card", result, "--json").stdout) == {"card": printed.stdout, "file": None}
    again = run("card", result, "--out", tmp_path / "README.md")
    assert again.exit_code == 2
    assert "exists already" in again.stderr


def test_only_what_holds_has_a_card(result: Path, tmp_path: Path) -> None:
    statement = result / "statement.json"
    whole = statement.read_text()
    statement.write_text(whole.replace('"conditional"', '"proven"'))
    assert run("card", result, "--out", tmp_path / "README.md").exit_code == 1
    assert not (tmp_path / "README.md").exists()
    statement.unlink()
    assert run("card", result).exit_code == 2


def test_no_value_of_the_dossier_is_in_it(result: Path) -> None:
    dossier, statement = json.loads((result / "private" / "dossier.json").read_text()), statement_of(result)
    card = run("card", result).stdout
    private = private_values(dossier, statement)
    assert len(private) > 30
    assert not [value for value in private if value in card]
    public = {value for _, value in leaves(statement)}
    assert all(value in public for value in front_matter(card)["expunge"].values() if isinstance(value, float))
    shutil.rmtree(result / "private")
    assert run("card", result).stdout == card, "it is made without the dossier"
