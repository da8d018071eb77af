"""Audits of several tasks in parts, which may be stopped and continued."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from expunge.certificate.attest import MODEL_NAME, Subject, subjects_of
from expunge.certificate.facts import OLD_SCHEMAS
from expunge.certificate.statement import Statement, read_document, statement_of
from expunge.certificate.verify import verify
from expunge.data import read_data
from expunge.data.partial import Partial
from expunge.data.raw_tables import is_table
from expunge.errors import FileError, ModelError, OptionError
from expunge.evaluate.audit import Audit, Evidence, collect, conclude, join, require_confidence
from expunge.evaluate.case import Labelled, prepared_rows
from expunge.evaluate.source_free import SourceFree, source_free
from expunge.evaluate.tasks import AuditTask, certificate_task
from expunge.evidence.deposit.contents import read_deposit
from expunge.model import LinearModel, one_row_a_class, read_model, table_of
from expunge.record import TrainingRecord
from expunge.request.subject import head_of
from expunge.runtime.paths import readable
from expunge.runtime.progress import Progress

PART = 2_500  # runs a side that are lost at most when a run is stopped


def run_audits(
    tasks: Sequence[AuditTask], runs: int, confidence: float, partial: Partial | None, progress: Progress
) -> dict[str, Audit]:
    """Each task's audit; parts that `partial` holds are read, the others run and saved.

    Noise is the operating system's.
    """
    require_confidence(confidence)
    audits = {}
    for task in tasks:
        parts = []
        for start in range(0, runs, PART):
            progress(f"Audit {task.name}", start, runs)
            unit = f"{task.name}-{start}"
            kept = None if partial is None else partial.load(unit)
            if kept is None:
                part = collect(task.request, task.measured, task.retrained, min(PART, runs - start))
                if partial is not None:
                    partial.save(unit, _to_json(part))
            else:
                part = _from_json(kept)
            parts.append(part)
        progress(f"Audit {task.name}", runs, runs)
        audits[task.name] = conclude(task.request, task.measured, task.retrained, join(parts), confidence=confidence)
    return audits


def setting_of(tasks: Sequence[AuditTask], runs: int) -> dict[str, Any]:
    """What an audit's parts belong to: claims, models and every number behind the bound."""
    described = [
        {
            "task": task.name,
            "epsilon": task.request.guarantee.epsilon,
            "delta": task.request.guarantee.delta,
            "model": task.request.subject.sha256,
            "facts": {name: fact.value for name, fact in task.measured.facts.items()},
        }
        for task in tasks
    ]
    return {"tasks": described, "runs": runs}


def _to_json(part: Evidence) -> dict[str, Any]:
    return {
        side: {name: values.tolist() for name, values in getattr(part, side).items()}
        for side in ("unlearned", "retrained")
    }


def _from_json(content: dict[str, Any]) -> Evidence:
    return Evidence(
        *({name: np.array(values) for name, values in content[side].items()} for side in ("unlearned", "retrained"))
    )


def task_from_files(
    certificate_file: Path,
    model_file: Path | None,
    retain: Path | None,
    forget: Path | None,
    surrogate: Path | None,
    label: str | None,
    deposit: Path | None = None,
) -> AuditTask:
    """The setting of a certificate, from files; of a statement nobody can tell."""
    _require({"--model": model_file, "--retain": retain, "--forget": forget}, "auditing a certificate's setting")
    assert model_file is not None
    model, digest = read_model(model_file)
    stay, leave = _read(retain, label, model), _read(forget, label, model)
    assert stay is not None
    assert leave is not None
    document = read_document(certificate_file)
    if isinstance(document, Statement):
        raise FileError(
            f"{certificate_file} is a statement",
            "its setting is in the dossier, which tells who left",
            "Give private/dossier.json, which was written with it.",
        )
    kept = None if deposit is None else read_deposit(deposit)
    return certificate_task(document, model, digest, stay, leave, _read(surrogate, label, model), kept)


def source_free_from_files(
    published: Path | None, before: Path | None, forget: Path | None, fresh: Path | None, label: str | None
) -> SourceFree:
    """The audit without retraining, from files."""
    _require({"--published": published, "--forget": forget, "--fresh": fresh}, "auditing without the source")
    assert published is not None
    model, _ = read_model(published)
    record = _record(model)
    parts = [_read(forget, label, model), _read(fresh, label, model)]
    rows = [
        prepared_rows(part, model, record, name)
        for part, name in zip(parts, ("the forget set", "the fresh set"), strict=True)
        if part
    ]
    earlier = None if before is None else _earlier(before, model)
    return source_free(head_of(model, record), model.matrix(), *rows, before=earlier)


def _earlier(before: Path, published: LinearModel) -> Tensor:
    """The weights of the model from before, with a row a class where the published model has that."""
    earlier = read_model(before)[0]
    weights = (earlier if published.n_classes == 1 else one_row_a_class(earlier)).matrix()
    if weights.shape != published.matrix().shape:
        raise ModelError(
            f"--before {before} has weights of shape {tuple(weights.shape)}, bias included",
            f"the published model's are {tuple(published.matrix().shape)}",
            "Give the model that it was unlearned from.",
        )
    return weights


def audited_subjects(certificate_file: Path | None, published: Path | None) -> tuple[Subject, ...]:
    """What an audit was about, for those who may not see the dossier: published model and statement, by digest.

    Of a dossier, which is verified first, they are those that were handed out with it; else it is the model's file.
    """
    if certificate_file is None:
        if published is None:
            raise OptionError(
                "--test-result with built-in tasks",
                "a result for others is about a model of yours",
                "Give --certificate, or --published with --fresh.",
            )
        return (Subject(MODEL_NAME, hashlib.sha256(readable(published).read_bytes()).hexdigest()),)
    dossier = read_document(certificate_file)
    if isinstance(dossier, Statement) or dossier.content["schema"] in OLD_SCHEMAS:
        raise FileError(
            f"{certificate_file} has schema {dossier.content['schema']!r}",
            "a result for others is about the statement of a dossier",
            "Give private/dossier.json of a result.",
        )
    verify(dossier)
    statement = statement_of(dossier)
    return subjects_of(statement, hashlib.sha256(statement.to_json().encode()).hexdigest())


def _record(model: LinearModel) -> TrainingRecord:
    if model.record is None:
        raise OptionError(
            "the published model has no record",
            "its loss and norm bound are needed",
            "Use the file expunge unlearn wrote.",
        )
    return model.record


def _require(files: dict[str, Path | None], purpose: str) -> None:
    missing = [name for name, path in files.items() if path is None]
    if missing:
        raise OptionError("no " + ", ".join(missing), f"{purpose} needs {', '.join(files)}", "Give them.")


def _read(path: Path | None, label: str | None, model: LinearModel) -> Labelled | None:
    if path is None:
        return None
    data = read_data(path, label if is_table(path) else None, preparation=table_of(model))
    return data.rows
