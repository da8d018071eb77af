"""Results of an experiment: one JSON file, written whole after every case; a run that was stopped goes on from it.

setting      config's [run] and the digests of the data: records of another setting are refused, a task more is none
runs         where and with what: versions, machine, seconds; each record names its entry
records      one a case
tables       made from the records when all were there
figures      names of the files drawn from them
"""

from __future__ import annotations

import errno
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch

from experiments.protocol.experiment import Case, Record, Table
from expunge import __version__
from expunge.errors import FileError
from expunge.runtime.files import PUBLIC, write_whole
from expunge.runtime.strict_json import not_a_number, without_duplicates

LAYOUT = 1


@dataclass(frozen=True)
class Results:
    """What is known so far."""

    name: str
    setting: Mapping[str, Any]
    runs: tuple[Mapping[str, Any], ...] = ()
    records: tuple[Record, ...] = ()
    tables: tuple[Mapping[str, Any], ...] = ()
    figures: tuple[str, ...] = ()

    def missing(self, cases: Sequence[Case]) -> list[Case]:
        """Cases without a record."""
        known = {(record["key"], record["seed"]) for record in self.records}
        return [case for case in cases if (case.key, case.seed) not in known]

    def with_record(self, record: Record) -> Results:
        """One more, in order of key and seed whichever was done first. Tables are then out of date."""
        records = sorted([*self.records, record], key=lambda one: (one["key"], one["seed"]))
        return replace(self, records=tuple(records), tables=(), figures=())

    def with_run(self, run: Mapping[str, Any]) -> Results:
        return replace(self, runs=(*self.runs, run))

    def with_shown(self, tables: Sequence[Table], figures: Sequence[str]) -> Results:
        """What was made from the records."""
        return replace(self, tables=tuple(table.to_json() for table in tables), figures=tuple(figures))

    @property
    def seconds(self) -> float:
        """Time all cases took together, on one core each."""
        return sum(record["seconds"] for record in self.records)

    @property
    def seeds(self) -> int:
        return len({record["seed"] for record in self.records})


def results_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def require_folder(folder: Path, option: str = "--out") -> None:
    """The folder, made where it is missing; refused before hours of work if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise FileError(
            f"nothing can be written to {folder} ({error.strerror})",
            "a folder for results is needed",
            f"Choose another {option}.",
        ) from error


def write_results(folder: Path, results: Results) -> None:
    """Replace the file, whole."""
    content = {
        "layout": LAYOUT,
        "name": results.name,
        "setting": results.setting,
        "runs": list(results.runs),
        "tables": list(results.tables),
        "figures": list(results.figures),
        "records": list(results.records),
    }
    text = json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    require_folder(folder)
    write_whole(results_file(folder, results.name), text.encode(), PUBLIC)


def read_results(folder: Path, name: str) -> Results | None:
    """What the file holds; None where there is none."""
    path = results_file(folder, name)
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_bytes(), parse_constant=not_a_number, object_pairs_hook=without_duplicates)
        if content["layout"] != LAYOUT or content["name"] != name:
            raise ValueError(f"layout {content['layout']!r} of {content['name']!r}")
        parts = {part: tuple(content[part]) for part in ("runs", "records", "tables", "figures")}
        return Results(name, content["setting"], **parts)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileError(
            f"{path} cannot be read ({error})",
            "results of an experiment are needed",
            "Remove it, or use another --out.",
        ) from error


def open_results(folder: Path, name: str, setting: Mapping[str, Any]) -> Results:
    """What is there, if it was made with the same setting or one with fewer tasks; else a new one."""
    described = json.loads(json.dumps(setting, allow_nan=False))
    stored = read_results(folder, name)
    if stored is None:
        return Results(name, described)
    if _with_tasks_of(stored.setting, described) != described:
        differing = sorted(
            part for part in {*stored.setting, *described} if stored.setting.get(part) != described.get(part)
        )
        raise FileError(
            f"{results_file(folder, name)} holds results of another setting ({', '.join(differing)})",
            "records of two settings are never mixed",
            "Remove that file, or use another --out.",
        )
    return replace(stored, setting=described)


def _with_tasks_of(setting: Mapping[str, Any], wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    """The setting with the tasks and data sets that only `wanted` has: no case of another task depends on them."""
    run, data = setting["run"], setting["data"]
    if "tasks" not in run:
        return setting
    tasks = {**wanted["run"].get("tasks", {}), **run["tasks"]}
    return {**setting, "run": {**run, "tasks": tasks}, "data": {**wanted["data"], **data}}


def surroundings(device: str, jobs: int) -> dict[str, Any]:
    """Where a run takes place and with what."""
    return {
        "versions": {
            "expunge": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "scikit-learn": sklearn.__version__,
        },
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "device": device if device == "cpu" else f"{device}, {torch.cuda.get_device_name()}",
        "jobs": jobs,
    }
