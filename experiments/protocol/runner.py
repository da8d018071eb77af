"""Running an experiment: missing cases one by one or side by side, each stored as it finishes; then tables, figures.

Every case runs on one thread, however many run at once, so that its numbers do not depend on that.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from experiments.datasets.folder import DataFolder
from experiments.protocol.config import config_of, configs
from experiments.protocol.experiment import Case, Config, Record, module_of, table_from_json
from experiments.protocol.store import Results, open_results, read_results, require_folder, surroundings, write_results
from expunge.errors import OptionError
from expunge.runtime.files import PUBLIC, write_whole
from expunge.runtime.progress import Progress, silent


@dataclass(frozen=True)
class Job:
    """An experiment to run: all that a worker needs to know."""

    name: str
    config: Config
    data: DataFolder
    device: str = "cpu"

    @property
    def setting(self) -> dict[str, Any]:
        """What decides the numbers."""
        return {"run": self.config["run"], "data": self.data.described(self.config["about"]["needs"])}


def run_experiment(
    name: str,
    data: DataFolder,
    out: Path,
    *,
    seeds: int,
    only: str = "",
    device: str = "cpu",
    jobs: int = 1,
    folder: Path | None = None,
    progress: Progress = silent,
) -> Results:
    """Run what is missing, then write `<name>.json`, `<name>.md` and the figures; `folder` has other configs.

    With `only`, of the cases whose key has it.
    """
    config = config_of(name, folder)
    data.require(config["about"]["needs"])
    require_folder(out)
    job = Job(name, config, data, device)
    module = module_of(name)
    cases = [case for case in module.cases(config, seeds) if only in case.key]
    if not cases:
        names = ", ".join(sorted({case.key for case in module.cases(config, 1)}))
        raise OptionError(f"--only {only!r} names no case", "a part of a case's name is needed", f"Cases: {names}.")
    results = open_results(out, name, job.setting)
    missing = results.missing(cases)
    if missing:
        began = time.perf_counter()
        number = len(results.runs)
        for done, (case, result, seconds) in enumerate(_finished(job, missing, jobs, progress)):
            if done == 0:
                results = results.with_run(surroundings(device, jobs))
            record = _record(case, result, seconds, number)
            results = _timed(results.with_record(record), time.perf_counter() - began)
            write_results(out, results)
            progress(name, len(cases) - len(missing) + done + 1, len(cases))
    return show(config, results, out)


def show(config: Config, results: Results, out: Path) -> Results:
    """Tables and figures from the records, written beside them."""
    module = module_of(results.name)
    figures = module.figures(config, results.records)
    for file, content in figures.items():
        write_whole(out / file, content, PUBLIC)
    shown = results.with_shown(module.tables(config, results.records), list(figures))
    write_results(out, shown)
    write_whole(out / f"{results.name}.md", markdown(config, shown).encode(), PUBLIC)
    return shown


def show_all(out: Path, folder: Path | None = None) -> None:
    """The same for every experiment that has results, without running anything."""
    for name, config in configs(folder).items():
        results = read_results(out, name)
        if results is not None:
            show(config, results, out)


def markdown(config: Config, results: Results) -> str:
    """Title, data labels, tables."""
    lines = [
        f"# {config['about']['title']}",
        "",
        f"{config['about']['paper']}. Numbers from `{results.name}.json`.",
        "",
    ]
    for name, described in results.setting["data"].items():
        if described["label"]:
            lines += [f"Data `{name}`: {described['label']}.", ""]
    return "\n".join([*lines, *(table_from_json(table).to_markdown() for table in results.tables)])


def listed(data: DataFolder, folder: Path | None = None) -> list[dict[str, Any]]:
    """Every experiment: what of the paper, what it needs, whether that is there, how long it takes."""
    return [
        {
            "name": name,
            **{key: config["about"][key] for key in ("title", "paper", "minutes")},
            "needs": {need: data.has(need) for need in config["about"]["needs"]},
        }
        for name, config in configs(folder).items()
    ]


def _record(case: Case, result: dict[str, Any], seconds: float, run: int) -> Record:
    return {
        "key": case.key,
        "seed": case.seed,
        "options": dict(case.options),
        "result": result,
        "seconds": round(seconds, 2),
        "run": run,
    }


def _timed(results: Results, seconds: float) -> Results:
    """The last run with the seconds it has taken so far."""
    *earlier, last = results.runs
    described: Mapping[str, Any] = {**last, "seconds": round(seconds, 1)}
    return replace(results, runs=(*earlier, described))


def _finished(
    job: Job, cases: Sequence[Case], jobs: int, progress: Progress
) -> Iterator[tuple[Case, dict[str, Any], float]]:
    """Cases with their results, as they are done."""
    if jobs == 1 or len(cases) == 1:
        for case in cases:
            yield (case, *_one(job, case, progress))
        return
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(min(jobs, len(cases)), context, _end_with_parent) as pool:
        waiting = {pool.submit(functools.partial(_one, job), case): case for case in cases}
        try:
            for future in as_completed(waiting):
                yield (waiting[future], *future.result())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _one(job: Job, case: Case, progress: Progress = silent) -> tuple[dict[str, Any], float]:
    began, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            result = module_of(job.name).run(case, job.config, job.data, device=job.device, progress=progress)
    finally:
        torch.set_num_threads(threads)
    return result, time.perf_counter() - began


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work forever: it ends as well."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    sentinel = parent.sentinel

    def watch() -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
