"""Tests of a changed module in a child of a process that has everything heavy loaded, but nothing of the package."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import importlib.util
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "expunge"
HEAVY = (
    "numpy", "scipy.special", "scipy.stats", "scipy.optimize", "scipy.linalg", "torch", "torch.func", "sklearn.datasets",
    "pytest", "_pytest.assertion.rewrite", "hypothesis", "mpmath", "cryptography.hazmat.primitives.asymmetric.ed25519", "click.testing",
    "safetensors.torch", "pyarrow.parquet", "jinja2", "rich.console", "threadpoolctl",
)  # fmt: skip
CAUGHT, SURVIVED, OVERTIME = "caught", "survived", "overtime"
MOST_MEMORY = 12 << 30


def prepare() -> None:
    """Load what is heavy; the package's own modules stay out, so that a child meets its own version of them."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT)]
    sys.dont_write_bytecode = False
    os.chdir(ROOT)
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    _without_shrinking()
    loaded = [name for name in sys.modules if name.split(".")[0] == "expunge"]
    assert not loaded, loaded


def _without_shrinking() -> None:
    """That a property fails is all there is to know; the simplest example of it takes hypothesis long to find."""
    from hypothesis import Phase, settings

    settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate])
    settings.load_profile("mutants")


class _Loader(SourceFileLoader):
    """A module whose code is given."""

    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        return self.code


class _Finder:
    """Finds one module, changed."""

    def __init__(self, name: str, path: Path, code: CodeType) -> None:
        self.name, self.path, self.code = name, path, code

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        places = [str(self.path.parent)] if self.path.name == "__init__.py" else None
        loader = _Loader(name, str(self.path), self.code)
        return importlib.util.spec_from_file_location(name, self.path, loader=loader, submodule_search_locations=places)


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Failures:
    """A plugin of pytest that keeps what failed, the longest time a test took, and whether every file could be read."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.longest = 0.0
        self.read = True

    def pytest_collectreport(self, report: Any) -> None:
        self.read = self.read and not report.failed

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.longest = max(self.longest, report.duration)
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)


class Watch:
    """A plugin that ends the process where one test takes more seconds of computing than this, and tells what failed."""

    def __init__(self, seconds: float, tell: Callable[[str], object]) -> None:
        self.seconds, self.tell = seconds, tell

    def pytest_runtest_logstart(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, self.seconds)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.tell(report.nodeid)


def run_tests(tests: Sequence[str], left_out: Sequence[str], *, first: bool, plugin: object) -> int:
    """pytest in this process; `first`: stop at the first failure."""
    import pytest

    options = ["-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "-W", "ignore"]
    options += ["-x"] if first else []
    options += [f"--deselect={name}" for name in left_out]
    return int(pytest.main([*options, *tests], plugins=[plugin]))


def doctests_pass(module: ModuleType) -> bool:
    return doctest.testmod(module, verbose=False).failed == 0


def judge(
    name: str,
    path: Path,
    code: CodeType,
    tests: Sequence[str],
    left_out: Sequence[str],
    seconds: float,
    tell: Callable[[str], object],
) -> bool:
    """Whether a doctest or a test fails with this code in the module's place. In a child: it changes what is imported.

    No test may take more than so many seconds of computing. The first that fails is told.
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    sys.meta_path.insert(0, _Finder(name, path, code))  # type: ignore[arg-type]
    try:
        if not doctests_pass(importlib.import_module(name)):
            return True
    except Exception:
        return True
    return bool(tests) and run_tests(tests, left_out, first=True, plugin=Watch(seconds, tell)) != 0


@dataclass
class Job:
    """Something for a child to do; its answer is the exit status, 0 for False, and what it tells before."""

    label: Any
    work: Callable[[Callable[[str], object]], bool]
    limit: float


@dataclass(frozen=True)
class Ended:
    """How a job ended, in a word, after how long, and what it told."""

    label: Any
    result: str
    seconds: float
    told: str


def in_children(jobs: Iterator[Job], at_once: int, output: str = os.devnull) -> Iterator[Ended]:
    """Every job in a child of its own, `at_once` at a time; each is ended when its time is up."""
    running: dict[int, tuple[Job, float, int]] = {}
    waiting = True
    while running or waiting:
        while waiting and len(running) < at_once:
            job = next(jobs, None)
            if job is None:
                waiting = False
                break
            pid, ear = _fork(job, output)
            running[pid] = (job, time.monotonic(), ear)
        yield from _finished(running)
        time.sleep(0.02)


def _fork(job: Job, output: str) -> tuple[int, int]:
    """The child, and where what it tells is read."""
    sys.stdout.flush()
    ear, mouth = os.pipe()
    pid = os.fork()
    if pid:
        os.close(mouth)
        return pid, ear
    status = 2
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
        sink = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        status = int(job.work(lambda words: bool(os.write(mouth, words.encode()))))
    finally:
        os._exit(status)


def _finished(running: dict[int, tuple[Job, float, int]]) -> Iterator[Ended]:
    for pid, (job, start, ear) in list(running.items()):
        seconds = time.monotonic() - start
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            result = {0: SURVIVED, -signal.SIGPROF: OVERTIME}.get(code, CAUGHT)
        elif seconds > job.limit:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            result = OVERTIME
        else:
            continue
        del running[pid]
        yield Ended(job.label, result, seconds, _heard(ear))


def _heard(ear: int) -> str:
    """What was told; what the child left running may hold the other end, and is not waited for."""
    os.set_blocking(ear, False)
    with contextlib.suppress(BlockingIOError), os.fdopen(ear, "rb", 0) as told:
        return (told.read(4096) or b"").decode()
    return ""
