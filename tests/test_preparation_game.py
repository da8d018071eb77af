"""Is somebody who was forgotten in what is handed out? A rare person against the preparation, exact and coarse.

The observer has every retained row and what is published. Exact preparation gives the person away, so that the game can
be lost; coarse preparation, the default, has neither her values nor her words, and what it is depends on chance more than
on her: 'was she ever there' is won little more often than by guessing.
"""

from __future__ import annotations

import math
import pickle
import random
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline, make_union
from sklearn.preprocessing import (
    MinMaxScaler,
    OneHotEncoder,
    StandardScaler,
)

import expunge
import expunge.sklearn
from expunge.errors import DataError, ModelError, OptionError
from expunge.record import LEARNT_COARSE, LEARNT_FROM_SOURCE
from expunge.rows import preparation
from expunge.rows.preparation import learn
from expunge.rows.tables import frame_table
from expunge.sklearn.pipelines import fitted_steps, is_coarse, join_pipeline, split_pipeline
from table_files import read_table

N = 600
AGE, WEALTH = 61.0, 7_654_321.0


def people(*, with_her: bool = True, seed: int = 0) -> pd.DataFrame:
    """N people; the last one is the only astronaut, and richer than all others together."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, N).astype(float),
            "wealth": rng.lognormal(10.0, 1.0, N).round(2),
            "job": rng.choice(["clerk", "cook", "none"], N).astype(object),
            "flag": np.zeros(N),
            "medal": ["no"] * N,
            "note": ["fine"] * (N // 2) + ["good"] * (N - N // 2),
            "pays": rng.integers(0, 2, N),
        }
    )
    her = {"age": AGE, "wealth": WEALTH, "job": "astronaut", "flag": 1.0, "medal": "yes", "note": "x" * 500, "pays": 1}
    frame.loc[N - 1] = her
    return frame if with_her else frame.iloc[: N - 1]


def learnt(frame: pd.DataFrame, preparation: str, rare: int = 10) -> dict[str, Any]:
    model = expunge.train(frame, label="pays", preparation=preparation, rare=rare)
    assert model.record is not None
    assert model.record.table is not None
    return model.record.table


def test_exact_preparation_of_a_table_gives_a_forgotten_person_away() -> None:
    table = learnt(people(), "exact", rare=1)
    columns = {each["column"]: each for each in table["columns"]}
    retained = people(with_her=False)
    for name, hers in (("age", AGE), ("wealth", WEALTH)):
        assert N * columns[name]["mean"] - retained[name].sum() == pytest.approx(hers, rel=1e-9)
    assert "astronaut" in columns["job"]["values"]
    assert {"flag", "medal"} <= set(columns), "columns that she alone made"
    assert "note" in {each["column"] for each in table["dropped"]}


@pytest.mark.parametrize("seed", range(5))
def test_coarse_preparation_of_a_table_keeps_neither_her_values_nor_her_words(seed: int) -> None:
    """Every decision is as it would be without her; of numbers a step may differ, which is part of the scale."""
    table, without = (learnt(people(with_her=her, seed=seed), "coarse") for her in (True, False))
    assert "astronaut" not in str(table)
    retained = people(with_her=False, seed=seed)
    for one, other in zip(table["columns"], without["columns"], strict=True):
        if one["kind"] == "category":
            assert one == other
            continue
        assert all(abs(one[name] - other[name]) <= 0.25 * one["scale"] for name in ("median", "mean", "scale"))
        hers = N * one["mean"] - retained[one["column"]].sum()
        assert abs(hers / people()[one["column"]].iloc[-1] - 1.0) > 0.5, "her value is not to be worked out"
    assert {**table, "columns": []} == {**without, "columns": []}
    assert table["coarse"] == {"digits": 2, "rare": 10, "most": 10.0}


# Was she ever there? ---------------------------------------------------------------------------------------------------

ALLOWED = math.e / (1.0 + math.e)  # how often epsilon 1 would let an observer be right
TABLES, DRAWS = 12, 150


def wealthy(n_rows: int, seed: int) -> pd.DataFrame:
    """The last one is several times richer than all others."""
    rng = np.random.default_rng(seed)
    wealth = np.append(rng.lognormal(10.0, 1.0, n_rows - 1), WEALTH)
    return pd.DataFrame({"wealth": wealth, "pays": rng.integers(0, 2, n_rows)})


def ordinary(n_rows: int, seed: int) -> pd.DataFrame:
    return wealthy(n_rows + 1, seed)[:-1]


def flagged(n_rows: int, seed: int) -> pd.DataFrame:
    """A number that is 1 for a few, she among them, and 0 for all others."""
    frame = ordinary(n_rows, seed)
    return frame.assign(wealth=np.arange(n_rows) >= n_rows - 11 - seed % 10).astype(float)


def of_a_rare_job(n_rows: int, seed: int) -> pd.DataFrame:
    """She is the tenth, or a later one, who is a pilot."""
    frame = ordinary(n_rows, seed)
    jobs = np.where(np.arange(n_rows) % 2, "clerk", "cook").astype(object)
    jobs[-10 - seed % 10 :] = "pilot"
    return frame.assign(wealth=jobs)


def often_right(frames: list[pd.DataFrame], prepare: Any) -> float:
    """How often the observer is right whose rule is the best: it knows how often each outcome comes either way.

    The rule is made from some draws and played on others, so that chance does not flatter it.
    """
    right = []
    for frame in frames:
        raws = [frame_table(each, "t") for each in (frame, frame[:-1])]
        with_her, without = ([prepare(raw) for _ in range(2 * DRAWS)] for raw in raws)
        known, others = Counter(with_her[:DRAWS]), Counter(without[:DRAWS])
        leads = [known[each] - others[each] for each in with_her[DRAWS:]]
        leads += [others[each] - known[each] for each in without[DRAWS:]]
        right += [1.0 if lead > 0 else 0.5 if lead == 0 else 0.0 for lead in leads]
    return float(np.mean(right))


@pytest.mark.parametrize("person", [wealthy, ordinary, flagged, of_a_rare_job])
@pytest.mark.parametrize(("n_rows", "most"), [(300, 0.65), pytest.param(2000, 0.58, marks=pytest.mark.slow)])
def test_whether_she_was_there_is_not_told(
    person: Any, n_rows: int, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one column: well below what epsilon 1 would allow, whoever she is."""
    monkeypatch.setattr("expunge.rows.preparation._chance", random.Random(7))
    frames = [person(n_rows, seed).assign(other=np.arange(n_rows) % 5) for seed in range(TABLES)]

    def prepared(raw: Any) -> str:
        return str([each for each in learn(raw, "pays")[0].columns if each.column == "wealth"])

    assert often_right(frames, prepared) < most < ALLOWED


@pytest.mark.parametrize("present", [12, 19, 40])
def test_a_column_that_few_rows_have_a_number_in_does_not_tell(present: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The few would decide centre and scale: she is one of so many with a number, and an ordinary one."""
    monkeypatch.setattr("expunge.rows.preparation._chance", random.Random(7))

    def sparse(seed: int) -> pd.DataFrame:
        frame = ordinary(300, seed).assign(other=np.arange(300) % 5)
        frame.loc[: 300 - present - 1, "wealth"] = np.nan
        return frame

    def prepared(raw: Any) -> str:
        made = learn(raw, "pays")[0]
        return str([each for each in (*made.columns, *made.dropped) if "wealth" in str(each)])

    assert often_right([sparse(seed) for seed in range(TABLES)], prepared) < 0.65


def test_an_empty_column_is_left_out_for_the_reason_that_one_with_her_value_is() -> None:
    frame = people().assign(title=None)
    hers = frame.assign(title=[None] * (N - 1) + ["Baroness"])
    dropped = [learnt(each, "coarse")["dropped"] for each in (frame, hers)]
    assert dropped[0] == dropped[1]
    assert "title" in str(dropped[0])


@pytest.mark.parametrize(
    ("column", "cell"),
    [("age", "about 40"), ("age", "4O"), ("wealth", "1_000"), ("wealth", "5%"), ("born", "in May")],
)
def test_a_cell_written_otherwise_does_not_decide_what_a_column_is(tmp_path: Any, column: str, cell: str) -> None:
    """In a file without types: words, for one cell's sake, would tell that somebody had it. Whoever trains corrects it."""
    rng = np.random.default_rng(1)
    frame = people(with_her=False)[["age", "wealth", "pays"]].assign(born=rng.integers(1950, 2000, N - 1))
    frame["born"] = frame["born"].astype(str) + "-03-01"
    frame.to_csv(tmp_path / "without.csv", index=False)
    text = frame.astype(object)
    text.loc[7, column] = cell
    text.to_csv(tmp_path / "with.csv", index=False)
    learn(read_table(tmp_path / "without.csv"), "pays")
    with pytest.raises(DataError, match="all but 1 rows") as refused:
        learn(read_table(tmp_path / "with.csv"), "pays")
    assert cell in str(refused.value)
    text.loc[7, column] = ""
    text.to_csv(tmp_path / "empty.csv", index=False)
    learn(read_table(tmp_path / "empty.csv"), "pays")


def test_the_game_can_be_won_where_nothing_is_left_to_chance() -> None:
    """Rounded to the nearest alone, somebody at a boundary shows for certain; and so does anybody in exact numbers."""

    def prepared(raw: Any) -> str:
        return str(learn(raw, "pays")[0].columns[0])

    pilots = [of_a_rare_job(300, seed) for seed in range(0, 20, 10)]
    assert often_right(pilots, prepared) == 1.0
    assert often_right([ordinary(300, 0)], lambda raw: str(learn(raw, "pays", coarse=False)[0])) == 1.0


def test_it_is_prepared_by_chance_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert type(preparation._chance) is random.SystemRandom
    raw = frame_table(wealthy(300, 0), "t")
    assert len({str(learn(raw, "pays")[0]) for _ in range(40)}) > 1


def test_coarse_is_the_default_and_its_numbers_stand_in_the_model_file(tmp_path: Any) -> None:
    model = expunge.train(people(), label="pays")
    (tmp_path / "m.safetensors").write_bytes(model.to_bytes())
    read = expunge.LinearModel.load(tmp_path / "m.safetensors")
    record = read.record
    assert record is not None
    assert record.preparation == LEARNT_COARSE
    assert record.table == learnt(people(), "coarse")
    again = people(seed=4).head(3)
    assert np.array_equal(read.predict_proba(again), model.predict_proba(again))
    assert expunge.train(people(), label="pays", preparation="exact").record.preparation == LEARNT_FROM_SOURCE
    for odd in ({"preparation": "rough"}, {"rare": 1}, {"rare": 0, "preparation": "exact"}):
        with pytest.raises(OptionError):
            expunge.train(people(), label="pays", **odd)


def test_a_centre_far_from_zero_is_not_rounded_away() -> None:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"x": rng.normal(10_000.37, 1.0, N), "pays": rng.integers(0, 2, N)})
    (column,) = learnt(frame, "coarse")["columns"]
    assert abs(column["mean"] - 10_000.37) <= 0.125
    assert 0.8 <= column["scale"] <= 1.3


# Pipelines ------------------------------------------------------------------------------------------------------------

COLUMNS = ["age", "wealth"]


def pipeline() -> Pipeline:
    numbers = make_union(StandardScaler(), make_pipeline(SimpleImputer(strategy="median"), StandardScaler()))
    words = OneHotEncoder(handle_unknown="ignore")
    return make_pipeline(
        make_column_transformer((numbers, COLUMNS), (words, ["job"])), LogisticRegression(max_iter=5000)
    )


def handed_out(fitted: Any) -> Any:
    """What a deletion hands over of a pipeline, with weights of no matter which size."""
    final = split_pipeline(fitted).final
    final.coef_, final.intercept_ = np.zeros_like(final.coef_), np.zeros_like(final.intercept_)
    return join_pipeline(fitted, final)


def numbers_in(value: Any, seen: set[int] | None = None) -> list[float]:
    """Every number in an object and in all that it holds."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, np.ndarray) and value.dtype.kind in "iuf":
        return [float(each) for each in value.ravel()]
    if isinstance(value, (int, float, np.number)):
        return [float(value)]
    inside = value if isinstance(value, (list, tuple, set, np.ndarray)) else getattr(value, "__dict__", None) or ()
    held = [*value.values(), *value.keys()] if isinstance(value, dict) else inside
    return [found for each in (held.values() if isinstance(held, dict) else held) for found in numbers_in(each, seen)]


def test_exact_steps_give_a_forgotten_person_away() -> None:
    frame, retained = people(), people(with_her=False)
    model = pipeline()
    model[0].transformers[0] = ("numbers", make_union(StandardScaler(), MinMaxScaler()), COLUMNS)
    fitted = handed_out(model.fit(frame, frame["pays"]))
    scaler, ends = (part for _, part in fitted[0].transformers_[0][1].transformer_list)
    assert N * scaler.mean_ - retained[COLUMNS].sum().to_numpy() == pytest.approx([AGE, WEALTH], rel=1e-9)
    assert (1.0 - ends.min_[1]) / ends.scale_[1] == pytest.approx(WEALTH, rel=1e-9)
    assert b"astronaut" in pickle.dumps(fitted)
    assert not {"n_samples_seen_", "var_", "data_max_", "data_min_", "max_abs_"} & {
        name for part in fitted_steps(fitted[:-1]) for name in vars(part)
    }, "what is not needed is not handed out"


@pytest.mark.parametrize("seed", range(3))
def test_coarse_steps_keep_neither_her_values_nor_her_words(seed: int) -> None:
    made = []
    for frame in (people(seed=seed), people(with_her=False, seed=seed)):
        fitted = handed_out(expunge.sklearn.coarsen(pipeline(), frame, frame["pays"]))
        assert all(is_coarse(part) for part in split_pipeline(fitted).learnt)
        assert b"astronaut" not in pickle.dumps(fitted)
        made.append(fitted)
    one, other = (np.sort([each for each in numbers_in(fitted[0]) if np.isfinite(each)]) for fitted in made)
    np.testing.assert_allclose(one, other, rtol=0.25)
    assert not np.isclose(np.abs(numbers_in(made[0][0])), WEALTH, rtol=0.02).any()
    later = people(seed=9)
    first, second = (each[:-1].transform(later) for each in made)
    assert first.shape == second.shape
    assert np.abs(first[:, :2]).max() <= 10.0


def test_coarse_steps_are_scikit_learn_s_own_and_refitted_ones_are_exact() -> None:
    frame = people()
    made = expunge.sklearn.coarsen(pipeline().fit(frame, frame["pays"]), frame, frame["pays"])
    assert not [part for part in fitted_steps(made) if type(part).__module__.startswith("expunge")]
    assert split_pipeline(made).preparation(None, chosen=False) == LEARNT_COARSE
    assert split_pipeline(pickle.loads(pickle.dumps(made))).preparation(None, chosen=False) == LEARNT_COARSE
    assert made.score(frame, frame["pays"]) > 0.45
    again = made.fit(frame, frame["pays"])
    assert "StandardScaler" in str(split_pipeline(again).preparation(None, chosen=False))


def letters(*, with_him: bool = True) -> tuple[list[str], list[str]]:
    rng = np.random.default_rng(5)
    words = np.array(["loan", "bank", "river", "money", "fish", "boat", "rate", "water", "bond", "tide"])
    texts = [" ".join(rng.choice(words, 12)) for _ in range(N - 1)]
    texts += ["loan loan anna.schmidt@example.org"] * with_him
    return texts, list(rng.choice(["a", "b"], N - 1)) + ["a"] * with_him


@pytest.mark.parametrize("kind", [TfidfVectorizer, CountVectorizer])
def test_a_word_that_one_person_used(kind: Any) -> None:
    exact, coarse = (
        [handed_out(make(make_pipeline(kind(), LogisticRegression()), *letters(with_him=him))) for him in (True, False)]
        for make in (lambda model, X, y: model.fit(X, y), expunge.sklearn.coarsen)
    )
    assert "schmidt" in exact[0][0].vocabulary_
    assert b"schmidt" not in pickle.dumps(coarse[0])
    assert coarse[0][0].vocabulary_ == coarse[1][0].vocabulary_
    if kind is TfidfVectorizer:
        loans = [each[0].idf_[each[0].vocabulary_["loan"]] for each in exact]
        used = [(1 + n) * np.exp(1.0 - idf) - 1 for n, idf in zip((N, N - 1), loans, strict=True)]
        assert used[0] - used[1] == pytest.approx(1.0), "that he used it too"
        assert np.array_equal(coarse[0][0].idf_, coarse[1][0].idf_)


def test_the_label_of_each_row_in_a_clustering_is_not_handed_out() -> None:
    frame = people()
    model = make_pipeline(KMeans(3, n_init=1, random_state=0), PCA(2), LogisticRegression())
    fitted = model.fit(frame[COLUMNS], frame["pays"])
    assert len(fitted[0].labels_) == N
    made = handed_out(fitted)
    assert not hasattr(made[0], "labels_")
    assert not hasattr(made[1], "n_samples_")
    assert np.array_equal(made[:-1].transform(frame[COLUMNS]), fitted[:-1].transform(frame[COLUMNS]))
    said = str(split_pipeline(fitted).preparation(None, chosen=False))
    assert said == "learnt from the source: KMeans, PCA"


def test_what_cannot_be_coarse_is_said() -> None:
    with pytest.raises(ModelError, match=r"TfidfVectorizer cannot be coarse.*words of 500 rows"):
        expunge.sklearn.coarsen(make_pipeline(TfidfVectorizer(), LogisticRegression()), *letters(), rare=500)
    with pytest.raises(OptionError, match="rare 1"):
        expunge.sklearn.coarsen(LogisticRegression(), np.eye(2), [0, 1], rare=1)
