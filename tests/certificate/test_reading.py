"""Reading a claim: kinds and names, and no opinion."""

import copy
from typing import Any

import pytest

from expunge.certificate.claim import SCHEMA
from expunge.certificate.dossier import claim_of
from expunge.errors import ExpungeError
from forging import GONE, changed


def test_what_is_read_is_what_was_claimed(result) -> None:
    content = result.certificate.content
    claim = claim_of(content)
    assert (claim.epsilon, claim.delta, claim.bound, claim.schema) == (1.0, 1e-3, "residual", SCHEMA)
    assert claim.averaged is True
    assert {name: fact.value for name, fact in claim.facts.items()} == {
        name: entry["value"] for name, entry in content["bound"]["inputs"].items()
    }


@pytest.mark.parametrize(
    "change",
    [
        {"bound.inputs.change_trace": GONE},
        {"bound.inputs.luck": {"value": 1.0, "provenance": "measured"}},
        {"bound.inputs.weight_largest": {"value": 1.0, "provenance": "measured"}},
        {"change_trace": "many"},
        {"change_trace": True},
        {"change_trace": 1e301},
        {"bound.inputs.change_trace.provenance": "hearsay"},
        {"noise.averaged": 1},
        {"noise.averaged": GONE},
        {"bound.tuned": "no"},
        {"distance.kind": "wasserstein"},
        {"distance.sampling": "loose"},
        {"epsilon": None},
        {"delta": "small"},
        {"noise.failures": {"sampling": None}},
        {"sizes.parameters": []},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_is_no_claim_is_not_read(result, change: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, ExpungeError)):
        claim_of(changed(copy.deepcopy(result.certificate.content), change))
