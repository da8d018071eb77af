"""Tables as CSV: no cell is a formula; predictions among them."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

import expunge
from expunge.report import csv_text
from expunge.report.tables import predictions
from hostile import HOSTILE

# CSV that a spreadsheet shows as text.


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@x", "\tx", "\rx", " =1", "＝1", "\u00a0=1", "\u3000@x"])  # noqa: RUF001
def test_formulas_in_csv_are_text(cell: str) -> None:
    ((read,),) = csv.reader(io.StringIO(csv_text([cell], []), newline=""))
    assert read == "'" + cell


@pytest.mark.parametrize("cell", HOSTILE)
def test_csv_comes_back_as_it_went(cell: str) -> None:
    rows = list(csv.reader(io.StringIO(csv_text(["id", "reference"], [[-1, cell], [2.5, None]]), newline="")))
    assert rows[1][0] == "-1"
    assert rows[1][1].removeprefix("'") == cell.removeprefix("'")
    assert not rows[1][1].startswith(("=", "+", "-", "@"))
    assert rows[2] == ["2.5", ""]


# Predictions as CSV.


@pytest.mark.parametrize("loss", ["softmax", "ridge"])
def test_a_line_a_row_with_labels_and_probabilities_that_are_the_model_s(loss: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = np.where(X[:, 0] > 0, "=cmd()", "no")
    model = expunge.train(X, y, l2=0.01, max_norm=4.0, loss=loss)
    content, count = predictions(model, X)
    header, *lines = list(csv.reader(io.StringIO(content.decode())))
    assert count == len(lines) == 60
    assert [int(line[0]) for line in lines] == list(range(1, 61))
    assert [line[1].removeprefix("'") for line in lines] == model.predict(X).tolist()
    assert "=cmd()" not in {cell for line in lines for cell in line}
    if loss == "ridge":
        assert header == ["row", "predicted"]
        return
    assert header == ["row", "predicted", "probability of =cmd()", "probability of no"]
    assert np.array([line[2:] for line in lines], dtype=float) == pytest.approx(model.predict_proba(X), abs=1e-6)
