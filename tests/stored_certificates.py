"""Statements, dossiers and models of this schema that are stored, and must open and verify for as long as it is read.

python tests/stored_certificates.py    issues them anew, when the schema is raised
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from expunge.distance import Distance

STORED = Path(__file__).parent / "stored"
NAMES = ("same", "chi2", "source", "matched", "paper", "deposit")


def issue() -> None:
    import honest

    kinds: dict[str, Any] = {
        "same": {"distance": "same"},
        "chi2": {"distance": Distance("chi2", 0.1, sampling="seen")},
        "source": {"distance": "source"},
        "matched": {"distance": "kl:0.01", "match_classes": True},
        "paper": {"distance": "tv:0.01", "bound": "paper", "constants": "paper", "epsilon": 0.9},
    }
    for name in NAMES:
        made = honest.kept_result("softmax", l2=0.05, n=300) if name == "deposit" else honest.result(1, **kinds[name])
        (STORED / f"dossier-3-{name}.json").write_text(made.certificate.to_json())
        (STORED / f"statement-3-{name}.json").write_text(made.statement.to_json())
        (STORED / f"model-3-{name}.safetensors").write_bytes(made.model.to_bytes())


def stored_dossier(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((STORED / f"dossier-3-{name}.json").read_text())
    return content


if __name__ == "__main__":
    issue()
