"""Requests with all options in one list, as tests like to write them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from expunge.door import ask
from expunge.model import LinearModel, checked_model
from expunge.request.promise import Declared, Execution, Promise
from expunge.request.request import Request


def asked(model: Any, forget: Any, surrogate: Any, **given: Any) -> Request:
    """`ask`, its options sorted into what changes the promise, what is declared and what changes only speed."""

    def taken(kind: type) -> dict[str, Any]:
        names = {field.name for field in fields(kind)}
        return {name: given.pop(name) for name in list(given) if name in names}

    promise, declared, execution = (kind(**taken(kind)) for kind in (Promise, Declared, Execution))
    bias = given.pop("bias", None)
    whole = model if isinstance(model, LinearModel) else checked_model(model, bias)
    return ask(whole, forget, surrogate, promise, declared=declared, execution=execution, **given)
