"""Notebooks run without Jupyter: their code cells, one after the other, in one namespace.

    PYTHONPATH=tests python -m notebooks examples/notebooks/text_classifier.ipynb

runs one and writes what its cells printed into the file.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"


def run(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The names that the cells leave, and the notebook with what they printed; the last must not raise."""
    book = json.loads(path.read_text(encoding="utf8"))
    names: dict[str, Any] = {"__name__": path.stem}
    count = 0
    for cell in book["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"{path.name}, cell {count}", "exec"), names)
        text = printed.getvalue()
        cell["execution_count"] = count
        output = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
        cell["outputs"] = [output] if text else []
    return names, book


if __name__ == "__main__":
    for given in map(Path, sys.argv[1:]):
        made = run(given)[1]
        given.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf8")
