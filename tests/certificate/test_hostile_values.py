"""Whatever stands in a statement, a dossier, a model's record or a deposit: a verdict or a refusal, never a traceback."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import expunge
import honest
from deposit_problems import made as made_deposit
from expunge.certificate.dossier import Certificate, digest_of
from expunge.certificate.rules import Check, require_passed
from expunge.certificate.sign import verify_file
from expunge.certificate.statement import Statement
from expunge.certificate.verify import verify, verify_statement
from expunge.deposit.file import METADATA, parse_deposit
from expunge.desk.ledger import read_head
from expunge.errors import ExpungeError, VerificationFailed
from expunge.record import METADATA_KEY
from expunge.runtime.safetensors import read_safetensors, safetensors_parts
from private_values import leaves

pytestmark = pytest.mark.usefixtures("one_thread")

Json = dict[str, Any]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


# every place gets every eighth of them, by turns
HOSTILE = [
    *(10**400, -(10**400), 10**9, 2**63, -1, 0, 1.5, 1e308, -1e308, 5e-324, float("nan"), float("inf")),
    *(None, True, "NaN", "Infinity", "1e999", "", "x" * 100_000, "\x00\x1b[31m[/foo]"),
    *([], {}, [1], nested(60), nested(3000), {"a": 1}),
]
WRITTEN = ["1" + "0" * 400, "-1" + "0" * 5000, "1e308", "-1e400", "[" * 3000 + "1" + "]" * 3000, '"NaN"', "NaN", "null"]


def replaced(content: Json, path: tuple[Any, ...], value: Any) -> Json:
    """With another value there, and a digest of its own, as a forger would."""
    changed = copy.deepcopy(content)
    place: Any = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with contextlib.suppress(ValueError, RecursionError, TypeError):
        changed["digest"] = digest_of(changed)
    return changed


def branches(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of every value, objects and lists included."""
    below = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    inside = [place for key, value in below for place in branches(value, (*path, key))]
    return ([path] if path else []) + inside


@pytest.fixture(scope="module", params=["surrogate", "deposit"])
def issued(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A statement, its dossier and its model, of each kind of evidence."""
    if request.param == "deposit":
        case = made_deposit("logistic", l2=0.05, free=True, fixed_c=True)
        rows, options = (case.X[:1], case.y[:1]), {"deposit": case.deposit}
        made = expunge.unlearn(case.model, rows, epsilon=1.0, delta=1e-5, force=True, **options)
    else:
        model, source, surrogate = honest.problem(0)
        rows = honest.few(source, 0, 2)
        made = expunge.unlearn(model, rows, surrogate, epsilon=1.0, delta=1e-3, distance="same", force=True)
    path = tmp_path_factory.mktemp("hostile") / "model.safetensors"
    path.write_bytes(made.model.to_bytes())
    return made, path


def ended(check: Callable[[], Any], *, said: object = None) -> bool:
    """Whether it passed; whatever is not a refusal is an error of ours."""
    refused = None
    try:
        check()
    except ExpungeError as error:
        refused = str(error)
    assert refused is None or refused.isprintable(), said
    return refused is None


def test_any_value_in_a_statement(issued: tuple[Any, Path], within: Callable[[float], Any]) -> None:
    made, model = issued
    content = made.statement.content
    with within(120):
        for place, path in enumerate(branches(content)):
            for index, value in enumerate(HOSTILE[place % 8 :: 8]):
                forged = Statement(replaced(content, path, value))
                ended(lambda forged=forged: verify_statement(forged, model), said=(path, index))


def test_any_value_in_a_dossier(issued: tuple[Any, Path], within: Callable[[float], Any]) -> None:
    made, model = issued
    content = made.certificate.content
    with within(240):
        for place, path in enumerate(branches(content)):
            for index, value in enumerate(HOSTILE[place % 8 :: 8]):
                forged = Certificate(replaced(content, path, value))
                ended(lambda forged=forged: verify(forged, model), said=(path, index))
    for path in [("schema",), ("nonce",), ("model",), ("noise", "grid_exponent"), ("bound", "inputs")]:
        for value in HOSTILE:
            forged = Certificate(replaced(content, path, value))
            assert not ended(lambda forged=forged: verify_statement(made.statement, None, forged))


@pytest.mark.parametrize("place", ["noise.grid_exponent", "sizes.classes", "epsilon", "model.l2", "created"])
def test_any_text_in_a_file(place: str, issued: tuple[Any, Path], tmp_path: Path) -> None:
    made, model = issued
    path = tuple(place.split("."))
    for content, name in ((made.statement.content, "statement.json"), (made.certificate.content, "dossier.json")):
        text = json.dumps(replaced(content, path, "HERE"))
        for written in WRITTEN:
            (tmp_path / name).write_text(text.replace('"HERE"', written))
            with pytest.raises(VerificationFailed):
                verify_file(tmp_path / name, None, model)


def test_any_number_in_a_model_s_record(issued: tuple[Any, Path], tmp_path: Path) -> None:
    made, model = issued
    arrays, metadata = read_safetensors(model.read_bytes(), model)
    record = json.loads(metadata[METADATA_KEY])
    for path, value in leaves(record):
        text = json.dumps(replaced(record, path, "HERE") | {"digest": None}).replace(', "digest": null', "")
        for written in WRITTEN[: -1 if value is None else None]:
            parts = safetensors_parts(arrays, {METADATA_KEY: text.replace('"HERE"', written)})
            (tmp_path / "model.safetensors").write_bytes(b"".join(parts))
            assert not ended(lambda: verify_statement(made.statement, tmp_path / "model.safetensors"), said=path)


def test_any_number_in_a_deposit(tmp_path: Path) -> None:
    arrays, metadata = read_safetensors(made_deposit("softmax", l2=0.05).deposit.to_bytes(), tmp_path)
    numbers = json.loads(metadata[METADATA])
    for path, _ in leaves(numbers):
        text = json.dumps(replaced(numbers, path, "HERE") | {"digest": None}).replace(', "digest": null', "")
        for written in WRITTEN:
            content = b"".join(safetensors_parts(arrays, {METADATA: text.replace('"HERE"', written)}))
            ended(lambda content=content: parse_deposit(content, tmp_path / "x.deposit"), said=path)


@pytest.mark.parametrize("written", WRITTEN)
def test_any_number_in_a_saved_head(written: str) -> None:
    root = "00" * 32
    assert not ended(lambda: read_head(f'{{"size": {written}, "hash": "{root}"}}'.encode(), "head.json"))


@pytest.mark.parametrize(
    "value", [10**400, nested(100_000), "x" * 10**6, [10**5000]], ids=["int", "deep", "long", "in"]
)
def test_whatever_was_claimed_can_be_said(value: Any) -> None:
    with pytest.raises(VerificationFailed) as caught:
        require_passed([Check("sigma", value, 1.0)])
    assert len(str(caught.value)) < 1000
