"""Entries are read strictly, and written as they always were."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from expunge.bounds.calibration import Composition
from expunge.bounds.scale import ON_LADDER
from expunge.desk.check import verify_entries
from expunge.desk.ledger import (
    KINDS,
    Accuracy,
    Aside,
    Body,
    DeskCreated,
    Ledger,
    ModelPrepared,
    ModelPublished,
    RequestAccepted,
    RequestResumed,
    RequestSetAside,
    RequestWithdrawn,
    RunAbandoned,
    RunRefused,
    RunStarted,
    read_body,
)
from expunge.desk.policy import Policy
from expunge.errors import FileError, VerificationFailed

PREPARED = ModelPrepared(
    model=1,
    requests=(1,),
    n_rows=1,
    n_left=299,
    state_mac="00",
    carried="declared",
    status="conditional",
    epsilon=1,  # type: ignore[arg-type]  # somebody may write 1, and it stays so
    delta=1e-05,
    sigma=0.25,
    mu=0.5,
    total=0.125,
    terms={"training": 0.0625},
    failures=1e-06,
    composition=Composition(1, 0.5, 1e-05, 1e-06),
    noise_share=0.75,
    accuracy=Accuracy(0.5, 0.25, 4),
    keyid=None,
    files={"model.safetensors": "11"},
    sizes={"model.safetensors": 8},
    dossier="22",
    head_key="33",
    reach=None,
    forgotten=3,
    others=0,
    spent={"0.5": 1},
)
WRITTEN: list[tuple[Body, str]] = [
    (
        DeskCreated(Policy(0.5, 0.001, "same"), "aa", "bb", "cc", "float64"),
        '{"model_sha256":"aa","policy":{"between":"populations","days":30,"delta":0.001,"device":"cpu",'
        '"distance":"same","dtype":"float64","epsilon":0.5,"force":false,"match_classes":false,"noise":null,'
        '"noise_rows":null,"planned":50,"sampling":"strict","step":"converged","total_epsilon":null},'
        '"state_mac":"cc","store":"float64","surrogate_mac":"bb"}',
    ),
    (
        RequestAccepted(1, "case 1", "2030-01-01", 1, ("d1",), "m1", {"c1": 1}, 0, None),
        '{"aside":null,"classes":{"c1":1},"due":"2030-01-01","file_mac":"m1","n_rows":1,"others":0,'
        '"reference":"case 1","request":1,"rows":["d1"]}',
    ),
    (RunStarted(1, (1,)), '{"model":1,"requests":[1]}'),
    (RunAbandoned(1), '{"model":1}'),
    (
        PREPARED,
        '{"accuracy":{"after":0.25,"before":0.5,"rows":4},"carried":"declared","composition":{"delta":1e-05,'
        '"epsilon":0.5,"failures":1e-06,"models":1},"delta":1e-05,"dossier":"22","epsilon":1,"failures":1e-06,'
        '"files":{"model.safetensors":"11"},"forgotten":3,"head_key":"33","keyid":null,"model":1,"mu":0.5,"n_left":299,"n_rows":1,'
        '"noise_share":0.75,"others":0,"reach":null,"requests":[1],"sigma":0.25,"sizes":{"model.safetensors":8},"spent":{"0.5":1},'
        '"state_mac":"00","status":"conditional","terms":{"training":0.0625},"total":0.125}',
    ),
    (ModelPublished(1), '{"model":1}'),
    (RunRefused((1,), "RetrainNow", "why"), '{"kind":"RetrainNow","reason":"why","requests":[1]}'),
    (RequestWithdrawn(1, "a mistake"), '{"reason":"a mistake","request":1}'),
    (
        RequestSetAside(1, Aside("repeat", "why", "what to do")),
        '{"aside":{"kind":"repeat","reason":"why","remedy":"what to do"},"request":1}',
    ),
    (RequestResumed(1, 2), '{"others":2,"request":1}'),
]


def test_every_kind_is_here() -> None:
    assert {type(body) for body, _ in WRITTEN} == set(KINDS.values())


@pytest.mark.parametrize(("body", "text"), WRITTEN, ids=lambda value: getattr(value, "entry_kind", ""))
def test_an_entry_is_written_and_read_as_it_always_was(body: Body, text: str) -> None:
    assert body.to_text() == text
    assert read_body(body.entry_kind, text) == body
    assert read_body(body.entry_kind, text).to_text() == text


def changes(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The same with a key more, each key less, and each value of another type."""
    changed: list[dict[str, Any]] = [content | {"note": ""}]
    changed += [{key: value for key, value in content.items() if key != name} for name in content]
    return changed + [content | {name: {"odd": [1]}} for name in content]


@pytest.mark.parametrize(("body", "text"), WRITTEN, ids=lambda value: getattr(value, "entry_kind", ""))
def test_unknown_missing_and_mistyped_keys_are_refused(body: Body, text: str) -> None:
    for content in changes(json.loads(text)):
        with pytest.raises(ValueError, match=r"lacks or adds|\[1\]"):
            read_body(body.entry_kind, json.dumps(content))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("unheard of", "{}"),
        ("published", "[]"),
        ("published", "1"),
        ("published", '{"model":1,"model":1}'),
        ("published", '{"model":true}'),
        ("published", '{"model":1.0}'),
        ("started", '{"model":1,"requests":["1"]}'),
        ("prepared", PREPARED.to_text().replace('"mu":0.5', '"mu":NaN')),
        ("created", WRITTEN[0][1].replace('"days":30', '"days":30,"years":1')),
    ],
)
def test_what_is_no_entry(kind: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        read_body(kind, text)


def test_a_policys_field_with_a_default_may_be_missing() -> None:
    """A policy that says nothing of its noise lets each request choose it."""
    text = (
        WRITTEN[0][1]
        .replace('"match_classes":false,', "")
        .replace('"noise":null,', "")
        .replace('"noise_rows":null,', "")
    )
    created = read_body("created", text)
    assert created == WRITTEN[0][0]
    assert isinstance(created, DeskCreated)
    assert created.policy.scale == ON_LADDER


def test_a_request_that_is_set_aside_from_the_start_is_one_entry() -> None:
    accepted = WRITTEN[1][0]
    assert isinstance(accepted, RequestAccepted)
    whole = replace(accepted, others=1, aside=Aside("repeat", "why", "what to do"))
    assert read_body("accepted", whole.to_text()) == whole
    text = '"aside":{"kind":"repeat","reason":"why","remedy":"what to do"},"classes":{"c1":1}'
    assert text in whole.to_text()
    assert '"others":1' in whole.to_text()


def test_a_ledger_with_a_strange_entry_is_refused_when_read_and_when_checked(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    Ledger.create(path)
    with Ledger.open(path) as ledger:
        for body, _ in WRITTEN:
            ledger.append(body)
        verify_entries(ledger)
    with sqlite3.connect(path) as connection:
        connection.execute("""UPDATE entries SET body = '{"model":1,"note":2}' WHERE kind = 'published'""")
    connection.close()
    with Ledger.open(path) as ledger:
        with pytest.raises(FileError, match=r"entry 6 is not one \(lacks or adds note\)"):
            list(ledger.entries())
        with pytest.raises(FileError, match="keys of its kind"):
            ledger.last(ModelPublished)
        with pytest.raises(VerificationFailed):
            verify_entries(ledger)
