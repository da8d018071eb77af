"""The desk from the command line: the same story as from Python, and nothing but that."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from expunge.cli import main

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("cli")
    for name, count, seed in (("source", 300, 1), ("surrogate", 400, 2), ("test", 100, 3)):
        labels = np.arange(count) % 3
        features = 2.0 * np.eye(3, 4)[labels] + 0.3 * np.random.default_rng(seed).normal(size=(count, 4))
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        np.savez(place / f"{name}.npz", X=features, y=labels)
        if name == "source":
            for number in range(4):
                np.savez(place / f"f{number}.npz", X=features[number : number + 1], y=labels[number : number + 1])
    done(place, "train --data source.npz --l2 0.1 --max-norm 1 --out model.safetensors --quiet")
    done(place, "keygen --out k")
    return place


def run(place: Path, line: str, *more: str) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        result = CliRunner().invoke(main, [*line.split(), *more])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


def done(place: Path, line: str, *more: str) -> Any:
    result = run(place, line, *more)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout) if "--json" in line else result.stdout


INIT = "desk init {} --model model.safetensors --surrogate surrogate.npz --epsilon 0.5 --delta 1e-3 --distance same --planned 3 --force --json"


def test_the_whole_story(folder: Path) -> None:
    assert done(folder, INIT.format("desk"))["policy"]["planned"] == 3
    first = done(folder, "desk request desk --forget f0.npz --json --reference", "case <1>")
    assert first == {"reference": "case <1>", "n_rows": 1, "due": first["due"]}
    assert done(folder, "desk request desk --forget f0.npz --json --reference", "case <1>") == first
    done(folder, "desk request desk --forget f1.npz --reference =2")
    done(folder, "desk request desk --forget f2.npz --reference three")
    assert done(folder, "desk withdraw desk 3 --json")["state"] == "withdrawn"
    assert [row["reference"] for row in done(folder, "desk status desk --json")["waiting"]] == ["case <1>", "=2"]
    assert "case <1>" in done(folder, "desk status desk")
    published = done(folder, "desk run desk --each --sign-key k --test test.npz --quiet --json")
    assert [made["requests"] for made in published["published"]] == [[1], [2]]
    assert published["pending"] == 0
    assert "nothing was pending" in done(folder, "desk run desk --quiet")
    found = done(folder, "desk status desk --json")
    assert (found["models"], found["models_left"], found["done"]) == (2, 1, 2)
    signed = "desk/published/0002/statement.signed.json"
    done(folder, f"verify {signed} --model desk/published/0002/model.safetensors --public-key k.pub")
    kinds = [entry["kind"] for entry in done(folder, "desk history desk --json")["entries"]]
    assert kinds[0] == "created"
    assert kinds[-1] == "published"
    assert "case <1>" in done(folder, "desk history desk --limit 3")
    assert done(folder, "desk head desk --out head.json --json") == found["head"]
    checked = done(folder, "desk verify desk --head head.json --json")
    assert checked["verified"]
    assert checked["models"] == 2
    assert "cut off" in done(folder, "desk verify desk"), "says what it cannot see"
    files = done(folder, "desk report desk --out pages --json")["files"]
    assert sorted(Path(name).name for name in files) == [
        "index.html", "model-0001.html", "model-0002.html", "models.csv", "requests.csv",
    ]  # fmt: skip
    assert "case &lt;1&gt;" in (folder / "pages" / "index.html").read_text()
    assert "'=2" in (folder / "pages" / "requests.csv").read_text()
    for path in (folder / "pages").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_name_of_a_file_is_nowhere(folder: Path) -> None:
    """People's names are in the names of files they send."""
    done(folder, INIT.format("named"))
    (folder / "canary-jane-doe.npz").write_bytes((folder / "f3.npz").read_bytes())
    done(folder, "desk request named --forget canary-jane-doe.npz --reference case-9")
    done(folder, "desk run named --quiet")
    done(folder, "desk report named --out named-pages")
    files = [path for place in ("named", "named-pages") for path in (folder / place).rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        assert b"canary" not in path.read_bytes(), path
        assert b"jane" not in path.read_bytes(), path


def test_retrain_now_is_exit_status_3(folder: Path) -> None:
    done(folder, INIT.format("small").replace("--planned 3", "--planned 1"))
    done(folder, "desk request small --forget f0.npz --reference a")
    done(folder, "desk request small --forget f1.npz --reference b")
    result = run(folder, "desk run small --each --quiet")
    assert result.exit_code == 3
    assert "published model 1" in result.stdout
    assert "retrain now" in result.stderr
    assert "retrain now" in done(folder, "desk status small")
    again = run(folder, "desk run small --quiet --json")
    assert again.exit_code == 3
    assert json.loads(again.stdout)["error"]["kind"] == "RetrainNow"


def test_one_model_for_all_is_the_default(folder: Path) -> None:
    done(folder, INIT.format("batched"))
    for name in ("f0", "f1"):
        done(folder, f"desk request batched --forget {name}.npz --reference {name}")
    published = done(folder, "desk run batched --quiet --json")
    assert [made["requests"] for made in published["published"]] == [[1, 2]]


def test_nobody_learns_what_others_asked_for_and_the_operator_decides(folder: Path) -> None:
    """The same answer for a row that waits, for one that was forgotten and for one that nobody asked for."""
    done(folder, INIT.format("two"))
    done(folder, "desk request two --forget f0.npz --reference alice-17")

    def answers(reference: str, file: str) -> list[str]:
        line = f"desk request two --forget {file} --reference {reference}"
        told = [done(folder, line), json.dumps(done(folder, f"{line} --json"))]
        return [text.replace(reference, "REFERENCE") for text in told]

    nobody = answers("x-1", "f1.npz")
    waiting = answers("x-2", "f0.npz")
    assert waiting == nobody
    assert not any("alice" in text or "aside" in text for text in waiting)
    done(folder, "desk run two --quiet")
    assert answers("x-3", "f0.npz") == nobody, "it is forgotten by now"
    assert answers("x-1", "f1.npz") == nobody, "it was asked before, and is done"
    assert answers("alice-17", "f0.npz") == nobody, "somebody guessed the reference, and has the row"
    (one,) = done(folder, "desk status two --json --reference x-1")["requests"]
    assert one["state"] == "done"
    assert "asked for before" in done(folder, "desk status two --reference x-3")
    text, found = done(folder, "desk status two"), done(folder, "desk status two --json")
    assert "2 set aside" in text
    assert "1 of 1 rows was asked for before (in request 1)" in text
    assert "expunge desk resume --another-person" in text
    assert [row["reference"] for row in found["set_aside"]] == ["x-2", "x-3"]
    assert found["aside"] == 2
    refused = run(folder, "desk resume two 3")
    assert refused.exit_code == 2
    assert "asked for before" in refused.stderr
    assert done(folder, "desk resume two 3 --another-person --json")["state"] == "pending"
    told = done(folder, "desk withdraw two --json --reference x-3")
    assert (told["reference"], told["state"]) == ("x-3", "withdrawn")
    assert done(folder, "desk request two --forget f0.npz --reference x-4 --another-person --json")["n_rows"] == 1
    published = done(folder, "desk run two --quiet --json")
    assert [made["requests"] for made in published["published"]] == [[3, 5]]
    assert published["aside"] == 0
    dossier = json.loads((folder / "two/private/dossiers/0002.json").read_text())
    assert dossier["data"]["sequence"]["another_person"] == 2
    done(folder, "verify two/published/0002/statement.json --model two/published/0002/model.safetensors "
         "--dossier two/private/dossiers/0002.json")  # fmt: skip
    done(folder, "desk verify two")


def test_a_page_for_one_result(folder: Path) -> None:
    line = "unlearn --model model.safetensors --forget f0.npz --surrogate surrogate.npz --epsilon 5 --delta 1e-3 --distance same --quiet"
    done(folder, f"{line} --out result --sign-key k")
    done(folder, "report result --out plain.html")
    done(folder, "report result --out signed.html --public-key k.pub")
    assert (
        "<strong>consistent, not authenticated: nobody has signed this</strong>" in (folder / "plain.html").read_text()
    )
    assert "<strong>authenticated: signed by " in (folder / "signed.html").read_text()
    assert "not signed" not in (folder / "signed.html").read_text()
    assert run(folder, "report result --out plain.html").exit_code == 2
    assert run(folder, "report pages-of-nothing --out x.html").exit_code == 2
    done(folder, INIT.format("for-a-page"))
    refused = run(folder, "report for-a-page --out x.html")
    assert refused.exit_code == 2
    assert "expunge desk report for-a-page" in refused.stderr
    certificate = folder / "result" / "statement.json"
    certificate.write_text(certificate.read_text().replace('"conditional"', '"proven"'))
    refused = run(folder, "report result --out forged.html")
    assert refused.exit_code == 1
    assert not (folder / "forged.html").exists()


def test_plan_prints_a_table_and_writes_a_figure(folder: Path) -> None:
    line = "plan --model model.safetensors --forget f0.npz --surrogate surrogate.npz --delta 1e-3 --quiet"
    text = done(folder, f"{line} --epsilon 1 --epsilon 3 --distance same --figure plan.png")
    assert "same" in text
    assert "noise falls to" in text
    assert (folder / "plan.png").read_bytes().startswith(b"\x89PNG")
    found = done(folder, f"{line} --json")
    assert len(found["outlooks"]) == 28
    assert run(folder, f"{line} --figure plan.png").exit_code == 2
    used = done(
        folder,
        "unlearn --model model.safetensors --forget f0.npz --surrogate surrogate.npz --epsilon 1 --delta 1e-3 --distance same --quiet --json --force --out used",
    )
    (foreseen,) = [o for o in found["outlooks"] if o["epsilon"] == 1.0 and o["distance"] == "same"]
    assert f"{foreseen['sigma']:.10g}" == f"{used['statement']['sigma']:.10g}"


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("desk status nowhere", 2),
        ("desk run nowhere --quiet", 2),
        ("desk request desk --forget nothing.npz", 2),
        ("desk withdraw desk 77", 2),
        ("desk withdraw desk three", 2),
        ("desk withdraw desk", 2),
        ("desk withdraw desk 1 --reference a", 2),
        ("desk withdraw desk --reference nobody", 2),
        ("desk resume desk 77", 2),
        ("desk status desk --reference nobody", 2),
        ("desk run desk --batch --quiet", 2),
        ("desk history nowhere", 2),
        ("desk verify nowhere", 2),
        ("desk head nowhere", 2),
        ("desk report nowhere --out pages-of-nowhere", 2),
        ("init another", 2),
        ("run desk", 2),
        ("desk verify desk --head f0.npz", 2),
        (INIT.format("desk"), 2),
    ],
)
def test_mistakes(line: str, status: int, folder: Path) -> None:
    (folder / "desk").mkdir(exist_ok=True)
    result = run(folder, line)
    assert result.exit_code == status, result.stderr
    assert "Traceback" not in result.stderr
