"""The desk from the command line: the same story as from Python, and nothing but that."""

from __future__ import annotations

import contextlib
import json
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from command_line import done, refused, run

pytestmark = pytest.mark.usefixtures("one_thread", "folder")
INIT = "desk init {} --model model.safetensors --surrogate surrogate.npz --epsilon 0.5 --delta 1e-3 --distance same --planned 3 --force --json"
UNLEARN = (
    "unlearn --model model.safetensors --forget f0.npz --surrogate surrogate.npz --delta 1e-3 --distance same --quiet"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with contextlib.chdir(tmp_path_factory.mktemp("cli")):
        for name, count, seed in (("source", 300, 1), ("surrogate", 400, 2), ("test", 100, 3)):
            labels = np.arange(count) % 3
            features = 2.0 * np.eye(3, 4)[labels] + 0.3 * np.random.default_rng(seed).normal(size=(count, 4))
            features /= np.linalg.norm(features, axis=1, keepdims=True)
            np.savez(f"{name}.npz", X=features, y=labels)
            for number in range(4 if name == "source" else 0):
                np.savez(f"f{number}.npz", X=features[number : number + 1], y=labels[number : number + 1])
        done("train --data source.npz --l2 0.1 --max-norm 1 --out model.safetensors --quiet")
        done("keygen --out k")
        yield Path.cwd()


def test_the_whole_story() -> None:
    assert done(INIT.format("desk"))["policy"]["planned"] == 3
    first = done("desk request desk --forget f0.npz --json --reference", "case <1>")
    assert first == {"reference": "case <1>", "n_rows": 1, "due": first["due"]}
    assert done("desk request desk --forget f0.npz --json --reference", "case <1>") == first
    done("desk request desk --forget f1.npz --reference =2")
    done("desk request desk --forget f2.npz --reference three")
    assert done("desk withdraw desk 3 --json")["state"] == "withdrawn"
    assert [row["reference"] for row in done("desk status desk --json")["waiting"]] == ["case <1>", "=2"]
    assert "case <1>" in done("desk status desk")
    published = done("desk run desk --each --sign-key k --quiet --json")
    assert [made["requests"] for made in published["published"]] == [[1], [2]]
    assert published["pending"] == 0
    assert "nothing was pending" in done("desk run desk --quiet")
    found = done("desk status desk --json")
    assert (found["models"], found["models_left"], found["done"]) == (2, 1, 2)
    done(
        "verify desk/published/0002/statement.signed.json --model desk/published/0002/model.safetensors --public-key k.pub"
    )
    kinds = [entry["kind"] for entry in done("desk history desk --json")["entries"]]
    assert (kinds[0], kinds[-1]) == ("created", "published")
    assert "case <1>" in done("desk history desk --limit 3")
    assert done("desk head desk --out head.json --json") == found["head"]
    checked = done("desk verify desk --head head.json --json")
    assert (checked["verified"], checked["models"]) == (True, 2)
    assert "cut off" in done("desk verify desk"), "says what it cannot see"
    files = done("desk report desk --out pages --json")["files"]
    expected = ["index.html", "model-0001.html", "model-0002.html", "models.csv", "requests.csv"]
    assert sorted(Path(name).name for name in files) == expected
    assert "case &lt;1&gt;" in Path("pages/index.html").read_text()
    assert "'=2" in Path("pages/requests.csv").read_text()
    assert {stat.S_IMODE(path.stat().st_mode) for path in Path("pages").iterdir()} == {0o600}


def test_the_name_of_a_file_is_nowhere(folder: Path) -> None:
    """People's names are in the names of files they send."""
    done(INIT.format("named"))
    Path("canary-jane-doe.npz").write_bytes(Path("f3.npz").read_bytes())
    done("desk request named --forget canary-jane-doe.npz --reference case-9")
    done("desk run named --quiet")
    done("desk report named --out named-pages")
    files = [path for place in ("named", "named-pages") for path in (folder / place).rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if b"canary" in path.read_bytes() or b"jane" in path.read_bytes()]


def test_one_model_for_all_is_the_default_and_retrain_now_is_exit_status_3() -> None:
    for name, planned in (("batched", 3), ("small", 1)):
        done(INIT.format(name).replace("--planned 3", f"--planned {planned}"))
        done(f"desk request {name} --forget f0.npz --reference a")
        done(f"desk request {name} --forget f1.npz --reference b")
    published = done("desk run batched --quiet --json")
    assert [made["requests"] for made in published["published"]] == [[1, 2]]
    result = run("desk run small --each --quiet")
    assert result.exit_code == 3
    assert "published model 1" in result.stdout
    assert "retrain now" in result.stderr
    assert "retrain now" in done("desk status small")
    again = run("desk run small --quiet --json")
    assert (again.exit_code, json.loads(again.stdout)["error"]["kind"]) == (3, "RetrainNow")


def test_nobody_learns_what_others_asked_for_and_the_operator_decides() -> None:
    """The same answer for a row that waits, for one that was forgotten and for one that nobody asked for."""
    done(INIT.format("two"))
    done("desk request two --forget f0.npz --reference alice-17")

    def answers(reference: str, file: str) -> list[str]:
        line = f"desk request two --forget {file} --reference {reference}"
        return [text.replace(reference, "REFERENCE") for text in (done(line), json.dumps(done(f"{line} --json")))]

    nobody = answers("x-1", "f1.npz")
    waiting = answers("x-2", "f0.npz")
    assert waiting == nobody
    assert not any("alice" in text or "aside" in text for text in waiting)
    done("desk run two --quiet")
    assert answers("x-3", "f0.npz") == nobody, "it is forgotten by now"
    assert answers("x-1", "f1.npz") == nobody, "it was asked before, and is done"
    assert answers("alice-17", "f0.npz") == nobody, "somebody guessed the reference, and has the row"
    (one,) = done("desk status two --json --reference x-1")["requests"]
    assert one["state"] == "done"
    assert "asked for before" in done("desk status two --reference x-3")
    text, found = done("desk status two"), done("desk status two --json")
    for words in (
        "2 set aside",
        "1 of 1 rows was asked for before (in request 1)",
        "expunge desk resume --another-person",
    ):
        assert words in text
    assert [row["reference"] for row in found["set_aside"]] == ["x-2", "x-3"]
    assert found["aside"] == 2
    refused("desk resume two 3", "asked for before")
    assert done("desk resume two 3 --another-person --json")["state"] == "pending"
    told = done("desk withdraw two --json --reference x-3")
    assert (told["reference"], told["state"]) == ("x-3", "withdrawn")
    assert done("desk request two --forget f0.npz --reference x-4 --another-person --json")["n_rows"] == 1
    published = done("desk run two --quiet --json")
    assert [made["requests"] for made in published["published"]] == [[3, 5]]
    assert published["aside"] == 0
    dossier = json.loads(Path("two/private/dossiers/0002.json").read_text())
    assert dossier["data"]["sequence"]["another_person"] == 2
    done("verify two/published/0002/statement.json --model two/published/0002/model.safetensors "
         "--dossier two/private/dossiers/0002.json")  # fmt: skip
    done("desk verify two")


def test_a_page_for_one_result() -> None:
    done(f"{UNLEARN} --epsilon 5 --out result --sign-key k")
    done("report result --out plain.html")
    done("report result --out signed.html --public-key k.pub")
    signed = Path("signed.html").read_text()
    assert "<strong>consistent, not authenticated: nobody has signed this</strong>" in Path("plain.html").read_text()
    assert "<strong>authenticated: signed by " in signed
    assert "not signed" not in signed
    refused("report result --out plain.html")
    refused("report pages-of-nothing --out x.html")
    done(INIT.format("for-a-page"))
    refused("report for-a-page --out x.html", "expunge desk report for-a-page")
    certificate = Path("result/statement.json")
    certificate.write_text(certificate.read_text().replace('"conditional"', '"proven"'))
    refused("report result --out forged.html", status=1)
    assert not Path("forged.html").exists()


def test_plan_foresees_what_unlearn_uses() -> None:
    line = UNLEARN.replace("unlearn", "plan").replace(" --distance same", "")
    text = done(f"{line} --epsilon 1 --epsilon 3 --distance same")
    assert "same" in text
    found = done(f"{line} --json")
    assert len(found["outlooks"]) == 28
    used = done(f"{UNLEARN} --epsilon 1 --json --force --out used")
    (foreseen,) = [o for o in found["outlooks"] if o["epsilon"] == 1.0 and o["distance"] == "same"]
    assert f"{foreseen['sigma']:.10g}" == f"{used['statement']['sigma']:.10g}"


def test_mistakes() -> None:
    Path("desk").mkdir(exist_ok=True)
    for line in (
        *(f"desk {command} nowhere" for command in ("status", "run --quiet", "history", "verify", "head")),
        "desk report nowhere --out pages-of-nowhere",
        "desk request desk --forget nothing.npz",
        *(f"desk withdraw desk {which}" for which in ("77", "three", "", "1 --reference a", "--reference nobody")),
        "desk resume desk 77",
        "desk status desk --reference nobody",
        "desk run desk --batch --quiet",
        "desk verify desk --head f0.npz",
        "init another",
        INIT.format("desk"),
    ):
        refused(line)
