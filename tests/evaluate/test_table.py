"""Scores of several seeds as one table."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict

import pytest

from expunge.evaluate.evaluation import (
    MEANINGS,
    METRICS,
    TITLES,
    Cell,
    MethodScores,
    legend,
    remarks,
    shown,
    summarise,
    to_csv,
    to_json,
    to_markdown,
)
from expunge.evaluate.metrics import Score
from expunge.runtime.typed_json import read_as


def scores(value: float | None, name: str = "a", *flags: str) -> list[MethodScores]:
    return [MethodScores(name, {"test": Score(value, 0.1, flags)}, ("note",))]


def test_means_and_spreads_are_over_seeds() -> None:
    table = summarise([scores(0.5), scores(0.7), scores(None, "a", "odd")])
    cell = table.cells["a"]["test"]
    assert cell == Cell(pytest.approx(0.6), pytest.approx(math.sqrt(0.02)), 2, ("odd",))
    assert summarise([scores(0.5)]).cells["a"]["test"].spread is None
    assert summarise([scores(None)]).cells["a"]["test"].mean is None


def test_the_table_is_written_three_ways() -> None:
    table = summarise([scores(0.5, "=sum(1)", "odd"), scores(0.7, "=sum(1)")])
    page = to_markdown(table)
    assert "| =sum(1) | 60.0 ± 14.1 |" in page
    assert "- =sum(1) (Test): odd" in page
    (line,) = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert line["method"] == "'=sum(1)"
    assert float(line["mean"]) == pytest.approx(0.6)
    assert (
        json.loads(json.dumps(to_json(table), allow_nan=False))["methods"]["=sum(1)"]["metrics"]["test"]["seeds"] == 2
    )


def test_a_formula_behind_a_space_that_is_none_in_ascii_is_text_in_csv() -> None:
    for name in ("\u00a0=1+1", "\u3000@x"):
        (line,) = list(csv.DictReader(io.StringIO(to_csv(summarise([scores(0.5, name, "-odd")])))))
        assert (line["method"], line["flags"]) == ("'" + name, "'-odd")


def test_no_value_is_shown_as_none() -> None:
    assert shown("test", Cell(None, None, 0, ("odd",))) == "--"
    assert shown("fs1", Cell(0.04567, 0.001, 5, ())) == "0.046 ± 0.001"


def test_scores_survive_the_file() -> None:
    rows = [MethodScores("a", {"mia": Score(None, None, ("x",)), "rt": Score(3.0)}, ("n",))]
    assert [read_as(MethodScores, row) for row in json.loads(json.dumps([asdict(row) for row in rows]))] == rows


def test_every_metric_has_a_title_and_a_meaning() -> None:
    assert set(TITLES) == set(MEANINGS) == set(METRICS)


def test_what_is_said_of_several_is_said_once() -> None:
    table = summarise([scores(0.5, "a", "odd") + scores(0.6, "b", "odd")])
    assert remarks(table) == ["a, b (Test): odd", "a, b: note"]
    assert legend(table) == [f"Test: {MEANINGS['test']}"]
