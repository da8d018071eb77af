"""The census case on made-up people."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from experiments import census
from experiments.datasets.census import FILES, encode_census
from experiments.datasets.folder import DataFolder
from experiments.protocol.config import config_of
from expunge.errors import DataError

pytestmark = pytest.mark.usefixtures("one_thread")


def people(count: int, years: tuple[int, ...], seed: int, share: float = 0.5) -> Any:
    generator = np.random.default_rng(seed)
    age = generator.integers(0, 96, count).astype(float)
    sex = np.where(generator.random(count) < share, "1", "2")
    working = ((age > 18) & (age < 66) & (generator.random(count) < 0.8)).astype(np.int64)
    columns = {"AGEP": age, "SEX": pa.array(sex).dictionary_encode(), "employed": working}
    columns |= {"year": np.resize(years, count), "prediction": working, "predicted_probability": working * 1.0}
    return pa.table(columns)


def test_rows_have_one_entry_a_question_and_no_answer_of_another_model() -> None:
    found = encode_census(people(50, (2015,), 0), people(80, (2016, 2017), 1))
    assert found.columns[-2:] == ("SEX=1", "SEX=2")
    assert len(found.columns) == 22
    np.testing.assert_allclose(np.linalg.norm(found.source.X, axis=1), 1.0)
    assert set(np.count_nonzero(found.source.X, axis=1)) == {2}
    assert set(found.later.year.tolist()) == {2016, 2017}


def test_a_missing_value_is_an_error() -> None:
    table = people(50, (2015,), 0)
    broken = table.set_column(0, "AGEP", pa.array([None, *table["AGEP"].to_pylist()[1:]]))
    with pytest.raises(DataError, match="missing values in AGEP"):
        encode_census(broken, people(80, (2016,), 1))


def test_drift_is_small_within_a_population_and_large_between_two() -> None:
    same, other, shifted = (
        encode_census(people(4000, (2016,), 9), people(4000, (2016,), seed, share)).later.X
        for seed, share in ((1, 0.5), (2, 0.5), (3, 0.8))
    )
    assert census.drift(same, other) < 0.05
    exact = (0.8 - 0.5) ** 2 / 0.5 + (0.2 - 0.5) ** 2 / 0.5
    assert census.drift(shifted, same) == pytest.approx(exact, rel=0.3)


def test_the_case_small(tmp_path: Path) -> None:
    later = people(900, (2016, 2017), 1)
    pa.parquet.write_table(people(400, (2015,), 0), tmp_path / FILES[0])
    pa.parquet.write_table(later.drop_columns(["employed"]), tmp_path / FILES[1])
    pa.parquet.write_table(later.select(["employed"]), tmp_path / FILES[2])
    alone = DataFolder(tmp_path).load("employment-2015")
    assert (len(alone.y), len(alone.y_test)) == (320, 80)
    config = copy.deepcopy(dict(config_of("census")))
    config["run"] |= {"l2": 0.05, "draws": 3, "distances": ["same", "chi2:0.1"], "epsilons": [1.0, 5.0]}
    config["run"]["rehearsal"] |= {"l2": [0.05]}
    records = []
    for case in census.cases(config, 1):
        result = json.loads(json.dumps(census.run(case, config, DataFolder(tmp_path)), allow_nan=False))
        records.append(
            {
                "key": case.key,
                "seed": case.seed,
                "options": dict(case.options),
                "result": result,
                "seconds": 0.0,
                "run": 0,
            }
        )
    checks = records[1]["result"]["checks"]
    assert len(checks) == 3
    assert all(one["true"] <= one["residual"] for one in checks)
    rehearsed, drifts, certified = census.tables(config, records)  # type: ignore[arg-type]
    assert len(rehearsed.rows) == 1
    assert len(drifts.rows) == 3
    assert [row[0] for row in certified.rows] == ["same", "chi2:0.1", "chi2:0.1, classes matched"]
    assert census.figures(config, records)["census.png"].startswith(b"\x89PNG")  # type: ignore[arg-type]
