"""What a deletion hands over: a folder with the model, its statement and, apart and private, the dossier."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from expunge.rows.output import require_absent, write_folder
from expunge.runtime.durable import Content
from expunge.runtime.rounding import up

MODEL, STATEMENT, SIGNED, DOSSIER = "model.safetensors", "statement.json", "statement.signed.json", "dossier.json"
DEPOSIT = "model.deposit"
PRIVATE = "private"
LEFT = "style='text-align:left'"


class Result:
    """What results of deletions share: they can be saved, and show themselves in a notebook."""

    model: Any
    statement: Any
    certificate: Any
    deposit: Any

    def save(self, folder: str | Path, sign_key: Any = None) -> tuple[Path, ...]:
        """Write a new folder, whole or not at all; the paths of the files that may be handed out.

        What may not, the dossier and the deposit, is in `private/` in it. With `sign_key`, a private key as
        `expunge.certificate.sign.read_private_key` reads it, the statement is also written signed.
        """
        target = Path(folder)
        require_absent(target)
        public, private = result_files(self, sign_key)
        write_folder(target, public, private={PRIVATE: private})
        return tuple(target / name for name in public)

    def _repr_html_(self) -> str:
        """For notebooks: what was certified, what it rests on, and which part is private."""
        said = self.statement.content
        rows = {
            "status": said["status"],
            "epsilon, delta": f"{up(said['epsilon'])}, {up(said['delta'])}",
            "noise (standard deviation)": f"{said['sigma']:.4g}",
            "guarantee": said["guarantee"],
            "assumed": " ".join(said["assumptions"]) or "nothing",
            "not proven": " ".join(said["limits"]),
            "may be handed out": ".model, .statement",
            "private": ".certificate" + (", .deposit" if getattr(self, "deposit", None) is not None else ""),
        }
        cells = "".join(
            f"<tr><th {LEFT}>{escape(name)}</th><td {LEFT}>{escape(str(value))}</td></tr>"
            for name, value in rows.items()
        )
        return f"<table><caption>Unlearned</caption>{cells}</table>"


def result_files(result: Any, key: Any = None) -> tuple[dict[str, bytes], dict[str, Content]]:
    """The files of a result by name: those that may be handed out, and those that may not."""
    public = {MODEL: result.model.to_bytes(), STATEMENT: result.statement.to_json().encode()}
    if key is not None:
        from expunge.certificate.sign import seal

        public[SIGNED] = seal(result.statement, key)
    private: dict[str, Content] = {DOSSIER: result.certificate.to_json().encode()}
    if getattr(result, "deposit", None) is not None:
        private[DEPOSIT] = result.deposit.to_parts()
    return public, private
