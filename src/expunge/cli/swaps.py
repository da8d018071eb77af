"""Files given under each other's option: said so, with the swap, before anything is read."""

from __future__ import annotations

from pathlib import Path

from expunge.errors import FileError

WEIGHTS, DEPOSIT = "a model", "a deposit"


def looks_like(path: Path) -> str:
    """What kind of file this seems to be, by its name and the names of what it holds; data where nothing tells."""
    from expunge.deposit.contents import METADATA
    from expunge.errors import ExpungeError
    from expunge.rows.raw import safetensors_arrays

    if path.suffix.lower() not in (".safetensors", ".deposit"):
        return "data"
    try:
        arrays, metadata = safetensors_arrays(path)
    except (ExpungeError, OSError, ValueError):
        return "data"
    if METADATA in metadata:
        return DEPOSIT
    return WEIGHTS if "X" not in arrays else "data"


def require_model(model: Path, others: dict[str, Path | None]) -> None:
    """Refuse a file of data or a deposit that was given as the model; where another option has the model, say so."""
    if not model.is_file():
        return  # reading it says what is wrong
    found = looks_like(model)
    if found == WEIGHTS:
        return
    given = {option: path for option, path in others.items() if path is not None and path.is_file()}
    swapped = next((option for option, path in given.items() if looks_like(path) == WEIGHTS), None)
    if swapped is not None:
        raise FileError(
            f"--model {model} is {found}, and {swapped} {given[swapped]} is a model",
            "the two are swapped",
            f"Write --model {given[swapped]} {swapped} {model}.",
        )
    if found == DEPOSIT:
        raise FileError(
            f"--model {model} is a deposit", "a model is needed", "Give the model.safetensors that it was made for."
        )


def require_deposit(deposit: Path | None, model: Path | None) -> None:
    """Refuse a model that was given as the deposit."""
    if deposit is not None and deposit.is_file() and looks_like(deposit) == WEIGHTS:
        swap = f" Write --deposit {model} --model {deposit}." if model is not None and model.is_file() else ""
        raise FileError(
            f"--deposit {deposit} is a model",
            "a deposit is needed, which expunge deposit or expunge train --deposit wrote",
            f"Give the deposit.{swap if model is not None and looks_like(model) == DEPOSIT else ''}",
        )
