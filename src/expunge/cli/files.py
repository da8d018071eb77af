"""The files that commands take and write: sets of rows, models and deposits that may be swapped, results, verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from expunge.cli.console import out, print_certificate
from expunge.runtime.values import option

MODEL = "The trained model, .safetensors with weight (K x d) and, where there is one, bias (K)."
LABEL = "Label column of tables (default: the one the model was trained on, else y, or label)."
MODEL_FILE, DEPOSIT, DATA = "a model", "a deposit", "data"


@dataclass(frozen=True)
class Sets:
    """A model, the rows to forget, and what is known of the source."""

    model: Path = option(MODEL, section="Sets")
    forget: Path = option("The rows to forget, with their labels.")
    deposit: Path | None = option(
        "What was kept of the source (expunge deposit): the rows are looked up in it, and leave it.", None
    )
    surrogate: Path | None = option(
        "Without a deposit: rows that resemble the source, with --distance saying how closely.", None
    )
    label: str | None = option(LABEL, None)
    columns: tuple[str, ...] | None = option(
        "Feature columns of tables, with commas between (default: all but the label's; a model that was trained on a "
        "prepared table knows its own).",
        None,
    )

    def __post_init__(self) -> None:
        require_kinds(self.model, self.deposit, {"--forget": self.forget, "--surrogate": self.surrogate})

    def read(self, memory: str | int | None, model: Any) -> tuple[Any, Any]:
        """The rows to forget and the surrogate, read whole or to be streamed; None for a surrogate not given."""
        from expunge.rows.files import is_folder
        from expunge.rows.tables import is_table

        given = [path for path in (self.forget, self.surrogate) if path is not None]
        # a label column may be named though only one of the two files is a table
        tables = [path for path in given if is_table(path) or is_folder(path)] or [self.forget]

        def read(path: Path) -> Any:
            named = (self.label, self.columns) if path in tables else (None, None)
            return open_rows(path, *named, memory, model, may_stream=path is self.surrogate)

        return read(self.forget), None if self.surrogate is None else read(self.surrogate)


def open_rows(path: Path, label: Any, columns: Any, memory: Any, model: Any, *, may_stream: bool = True) -> Any:
    """What is in a file or folder, read whole or to be streamed."""
    from expunge.model import table_of
    from expunge.rows import open_data
    from expunge.runtime.group import launched_as_group
    from expunge.runtime.memory import Memory

    return open_data(
        path,
        label,
        columns=columns,
        memory=Memory.of(memory),
        stream=may_stream and (memory is not None or launched_as_group() or None),
        preparation=table_of(model),
    )


def read_rows(path: Path, label: str | None, model: Any) -> Any:
    """What is in a file, read whole: rows as a model takes them."""
    from expunge.model import table_of
    from expunge.rows import read_data

    return read_data(path, label, preparation=table_of(model))


def read_prepared(path: Path) -> tuple[Any, Any]:
    """Examples before a network, as it takes them, and their labels."""
    from expunge.networks.encoders import Normalisation, read_examples

    examples = read_examples(path)
    return Normalisation().apply(examples.inputs), examples.labels


def _kind_of(path: Path) -> str:
    """What kind of file this seems to be, by its name and the names of what it holds; data where nothing tells."""
    from expunge.deposit.file import METADATA
    from expunge.errors import ExpungeError
    from expunge.rows.arrays import locate_safetensors

    if path.suffix.lower() not in (".safetensors", ".deposit"):
        return DATA
    try:
        arrays, metadata = locate_safetensors(path)
    except (ExpungeError, OSError, ValueError):
        return DATA
    if METADATA in metadata:
        return DEPOSIT
    return DATA if "X" in arrays else MODEL_FILE


def require_kinds(model: Path | None, deposit: Path | None, data: dict[str, Path | None]) -> None:
    """Refuse a model, a deposit or data given under another's option; reading says what else is wrong with a file."""
    from expunge.errors import FileError

    given = {"--model": model, "--deposit": deposit, **data}
    files = {flag: path for flag, path in given.items() if path is not None and path.is_file()}
    kinds = {flag: _kind_of(path) for flag, path in files.items()}
    for flag, wanted in (("--model", MODEL_FILE), ("--deposit", DEPOSIT)):
        found = kinds.get(flag, wanted)
        other = next((each for each, kind in kinds.items() if kind == wanted), None)
        if found == wanted or (found == DATA and other is None):
            continue
        given_as = f"{flag} {files[flag]} is {found}"
        if other is None:
            raise FileError(given_as, f"{wanted} is needed", f"Give {wanted}.")
        swapped = f"{other} {files[other]} is {wanted}: the two are swapped"
        raise FileError(given_as, swapped, f"Write {flag} {files[other]} {other} {files[flag]}.")


def private_name(path: Path) -> Path:
    """Refuse a name for a private file by which it could be handed out."""
    from expunge.errors import FileError

    if path.suffix.lower() == ".safetensors":
        raise FileError(
            f"{path} for a deposit",
            "so are models called, which are handed out; a deposit is private",
            f"Name it for example {path.with_suffix('.deposit').name}.",
        )
    return path


def write_result(target: Path, result: Any, key: Any = None, *, deposit: Path | None = None) -> dict[str, Any]:
    """Write the folder of a result, whole or not at all, and say what is in it; `deposit` is the one before.

    JSON, which programs log, has public things and paths alone; the screen also shows the bound, which is private.
    """
    from expunge.rows import output

    names = [path.name for path in result.save(target, key)]
    dossier, left = target / output.PRIVATE_PART / output.DOSSIER, target / output.PRIVATE_PART / output.DEPOSIT
    print_certificate(result.certificate.content)
    out.print("may be handed out: " + ", ".join(str(target / name) for name in names))
    out.print(f"private, for the auditor alone, since it tells who left: {dossier}")
    content = {
        "model": str(target / output.MODEL),
        "statement_file": str(target / output.STATEMENT),
        "statement": result.statement.content,
        "dossier_file": str(dossier),
    }
    if deposit is None:
        return content
    facts = result.certificate.content["bound"]["inputs"]
    moved, spread = result.certificate.sigma * facts["output_noise"]["value"], facts["output_spread"]["value"]
    out.print(f"the noise moves an output by about {moved:.3g}; the model's own are about {spread:.3g}")
    out.print(f"private, for the next deletion: {left} is the deposit of what is retained")
    out.bold(
        f"destroy {deposit}, and every copy: the forgotten rows are still in it, and beside the new one it tells who "
        "left (an auditor who is to check both has to do so first)"
    )
    return content | {"deposit_file": str(left), "destroy": str(deposit)}
