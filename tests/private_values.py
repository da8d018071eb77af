"""What only a dossier says: values that nothing public may hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

FEWEST = 6  # characters: shorter ones, such as 3 rows, are in every text by chance, and compared as whole values


def leaves(content: Any, path: tuple[object, ...] = ()) -> Iterator[tuple[tuple[object, ...], Any]]:
    """Every value that is neither an object nor a list, with its place."""
    if isinstance(content, (dict, list)):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from leaves(value, (*path, key))
    else:
        yield path, content


def private_values(dossier: Any, statement: Any) -> set[str]:
    """The texts of all values of a dossier that the statement does not have, digits of numbers and whole sentences."""
    public = "\n".join(str(value) for _, value in leaves(statement))
    texts = {text for _, value in leaves(dossier) if (text := str(value)) not in public}
    shortened = {f"{value:.4g}" for _, value in leaves(dossier) if isinstance(value, float)}
    shortened -= {f"{value:.4g}" for _, value in leaves(statement) if isinstance(value, float)}
    return {text for text in texts | shortened if len(text) >= FEWEST}
