"""Run by torchrun in the tests: one process of a group.

group_driver.py FOLDER TARGET        writes the update and the certificate as JSON
group_driver.py FOLDER TARGET deposit  keeps a deposit of the rows in FOLDER/rows
group_driver.py FOLDER TARGET cli    the command itself; EXPUNGE_TEST_KILL names the moment at which EXPUNGE_TEST_RANK dies
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import expunge.door
import expunge.heads.rows
import expunge.mechanism
import expunge.rows.streams
import expunge.surrogate
from asking import asked
from expunge.deposit.make import make_deposit
from expunge.model import read_model
from expunge.request.promise import Execution
from expunge.rows import open_data, read_data
from expunge.runtime.group import joined_group


def die() -> None:
    if os.environ.get("EXPUNGE_TEST_RANK") == os.environ.get("RANK"):
        os.kill(os.getpid(), signal.SIGKILL)


def dying_before(module: Any, name: str) -> None:
    function = getattr(module, name)

    def replaced(*given: Any, **options: Any) -> Any:
        die()
        return function(*given, **options)

    setattr(module, name, replaced)


def command(folder: Path, target: Path) -> None:
    from expunge.cli import main

    where = {
        "first pass": (expunge.door, "survey"),
        "step": (expunge.surrogate, "newton_step"),
        "moments": (expunge.surrogate, "change_moments"),
    }
    moment = os.environ.get("EXPUNGE_TEST_KILL")
    if moment == "end":
        dying_at_the_end()
    elif moment is not None:
        dying_before(*where[moment])
    budget = ["--epsilon", "2", "--delta", "1e-5", "--distance", "chi2:0.01", "--force"]
    files = ["--model", str(folder / "model.safetensors"), "--forget", str(folder / "forget.npz")]
    main(["unlearn", *budget, *files, "--surrogate", str(folder / "shards"), "--out", str(target)])


def dying_at_the_end() -> None:
    """After all that is measured, before what every process must confirm."""
    measure = expunge.mechanism.measure

    def replaced(*given: Any, **options: Any) -> Any:
        found = measure(*given, **options)
        die()
        return found

    expunge.mechanism.measure = replaced


def result(folder: Path, target: Path) -> None:
    model, _ = read_model(folder / "model.safetensors")
    forget, standing = read_data(folder / "forget.npz"), open_data(folder / "shards")
    if os.environ.get("EXPUNGE_TEST_OTHER") == os.environ["RANK"]:
        forget = (forget[0][1:], forget[1][1:])
    with joined_group("cpu", timeout=60.0) as group:
        request = asked(model, forget, standing, epsilon=2.0, delta=1e-5, distance="chi2:0.01", force=True, group=group)
        measured = expunge.mechanism.measure(request, seed=5)
        if group.first:
            made = expunge.mechanism.certify(request, measured, insecure_test_seed=5)
            found = {"update": measured.step.update.tolist(), "certificate": made.certificate.content}
            target.write_text(json.dumps(found))


def deposit(folder: Path, target: Path) -> None:
    model, _ = read_model(folder / "model.safetensors")
    with joined_group("cpu", timeout=60.0) as group:
        execution = Execution(group=group)
        made = make_deposit(model, open_data(folder / "rows", stream=True), execution=execution, seed=3).deposit
        if group.first:
            target.write_bytes(made.to_bytes())
        else:
            assert len(made.hashes) == 0, "the first process alone looks at rows as they came"


if __name__ == "__main__":
    expunge.rows.streams.READ_BYTES = 1 << 14
    expunge.heads.rows.BLOCK_BYTES = 1 << 13
    {"cli": command, "deposit": deposit, "result": result}[(sys.argv[3:] or ["result"])[0]](
        Path(sys.argv[1]), Path(sys.argv[2])
    )
