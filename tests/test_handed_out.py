"""docs/what-is-handed-out.md: every field of every file that is handed out has its line there, and no line is of none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import expunge
from expunge.certificate.statement import Statement
from expunge.desk import Policy, accept, create_desk, run
from expunge.record import TrainingRecord
from small_deposit import kept, rows, source, trained

PAGE = (Path(__file__).parent.parent / "docs" / "what-is-handed-out.md").read_text()
# fields that only some statements have, of which the code below makes none: each is named where it is written
RARE = {
    *("bound.tuned", "model.free_bias", "model.fixed_c", "model.weighted", "model.preparation"),
    *("model.encoder", "model.encoder_trained_on_source"),
}


def named(heading: str) -> set[str]:
    """What stands in the first column of the table under this heading."""
    part = PAGE.split(f"## {heading}")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def paths(content: Any, before: str = "") -> Iterator[str]:
    """Where the values of a JSON object are; failures and versions are many."""
    if not isinstance(content, dict) or not content:
        yield re.sub(r"^(noise\.failures|software)\..*", r"\1.*", before)
        return
    for name, value in content.items():
        yield from paths(value, f"{before}.{name}" if before else name)


@pytest.fixture(scope="module")
def handed_out(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Statement], list[TrainingRecord], Path]:
    """Statements and records with a deposit, with a surrogate, and of a desk, whose folder is the last."""
    X, y = source()
    promise = {"epsilon": 1.0, "delta": 1e-3}
    made = [
        expunge.unlearn(trained(), rows(1), deposit=kept().deposit, **promise),
        *(
            expunge.unlearn(
                trained(), rows(1), (X[200:], y[200:]), distance="same", curvature=each, force=True, **promise
            )
            for each in (None, "auto")
        ),
    ]
    policy = Policy(epsilon=0.5, delta=1e-3, distance="deposit", planned=10)
    desk = create_desk(tmp_path_factory.mktemp("handed") / "desk", None, None, policy, deposit=kept().deposit)
    accept(desk, *rows(1), "case")
    run(desk)
    folder = desk.layout.published_model(1)
    statements = [*(each.statement for each in made), expunge.read_statement(folder / "statement.json")]
    records = [each.model.record for each in made]
    assert all(record is not None for record in records)
    return statements, [record for record in records if record is not None], folder


@pytest.mark.usefixtures("one_thread")
def test_every_field_of_a_statement_has_its_line(handed_out: Any) -> None:
    found = {path for statement in handed_out[0] for path in paths(statement.content)}
    assert found | RARE == named("The statement, `statement.json`")


@pytest.mark.usefixtures("one_thread")
def test_every_field_of_a_published_record_has_its_line(handed_out: Any) -> None:
    lines = named("The published model, `model.safetensors`")
    assert {field.name for field in fields(TrainingRecord)} | {"schema", "row_bound"} | {"weight"} == lines
    for record in handed_out[1]:
        assert set(json.loads(record.to_json())) <= lines
        assert record.class_counts is record.residual is record.class_weights is None


@pytest.mark.usefixtures("one_thread")
def test_every_file_of_a_desk_s_folder_is_spoken_of(handed_out: Any) -> None:
    for path in handed_out[2].iterdir():
        assert f"`{path.name}`" in PAGE, path


def test_rare_fields_are_written_somewhere() -> None:
    """So that a line of the page does not outlive its field."""
    code = "".join(path.read_text() for path in (Path(expunge.__file__).parent).rglob("*.py"))
    for name in RARE:
        assert f'"{name.split(".")[1]}"' in code, name


@pytest.mark.usefixtures("one_thread")
def test_the_status_is_of_what_was_given_whoever_leaves() -> None:
    X, y = source()
    promise = {"epsilon": 1.0, "delta": 1e-3, "force": True}
    for gone in (rows(1), rows(7, 8, 9), rows(*range(40))):
        with_deposit = expunge.unlearn(trained(), gone, deposit=kept().deposit, **promise)
        with_surrogate = expunge.unlearn(trained(), gone, (X[200:], y[200:]), distance="same", **promise)
        assert (with_deposit.statement.status, with_surrogate.statement.status) == ("proven", "conditional")
