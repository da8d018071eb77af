"""From images to features: the same whatever the batch, continued after a stop, refused where they would not be features."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from encoders import Trunk, examples, net, wanted
from expunge import DataError, FileError, ModelError, OptionError, read_data, read_model
from expunge.cli import main
from expunge.networks import split_head, with_head
from expunge.networks.encoders import Encoder, Normalisation, embed, module_encoder
from expunge.rows.images import Examples
from expunge.rows.output import open_run


def test_a_stopped_run_continues(tmp_path: Path) -> None:
    given, calls = examples(), []
    whole = module_encoder(Trunk(net()))

    def failing(part: Tensor) -> Tensor:
        calls.append(len(part))
        if len(calls) == 3 + 40:
            raise KeyboardInterrupt
        return whole.run(part)

    with pytest.raises(KeyboardInterrupt):
        embed(given, Encoder(failing, whole.digest, "it", whole.device), batch=2, partial=tmp_path / "p")
    assert len(list((tmp_path / "p").glob("*.npy"))) == 2
    calls.clear()
    counting = Encoder(lambda part: (calls.append(len(part)), whole.run(part))[1], whole.digest, "it", whole.device)
    found = embed(given, counting, batch=2, partial=tmp_path / "p")
    assert len(calls) == 3 + 45 - 32, "finished parts are not made again"
    np.testing.assert_allclose(found.features, wanted(given).numpy(), atol=1e-6)
    with pytest.raises(FileError, match="another setting"):
        embed(examples(), whole, batch=2, partial=tmp_path / "p")


def test_a_run_of_another_setting_is_refused_and_keeps_the_folder_of_the_one_under_way(tmp_path: Path) -> None:
    out, folder = tmp_path / "f.npz", tmp_path / "f.npz.partial"
    np.savez(tmp_path / "images.npz", X=examples().inputs, y=examples().labels)
    open_run(folder, {"of": "a run that has finished nothing yet"})
    line = ["embed", "--data", tmp_path / "images.npz", "--encoder", f"{__name__}:net", "--head", "fc", "--out", out]
    result = CliRunner().invoke(main, [*map(str, line)])
    assert "another setting" in result.output
    assert (folder / "setting.json").exists()


def test_preparation_changes_features_and_digest() -> None:
    given, encoder = examples(), module_encoder(Trunk(net()))
    found = embed(given, encoder, preparation=Normalisation((0.5,), (0.25,)))
    image = (torch.from_numpy(given.inputs).float() / 255 - 0.5) / 0.25
    np.testing.assert_allclose(found.features, Trunk(net())(image).detach().numpy(), atol=1e-5)
    assert found.encoder != encoder.digest
    with pytest.raises(DataError, match="channels"):
        embed(given, encoder, preparation=Normalisation((0.5,) * 3, (0.25,) * 3))
    for mean, std in (((0.5,), ()), ((0.5,), (0.0,)), ((float("nan"),), (1.0,))):
        with pytest.raises(OptionError):
            Normalisation(mean, std)


def test_what_is_not_features() -> None:
    with pytest.raises(ModelError, match="one row of real features"):
        embed(examples(), module_encoder(nn.Identity()))
    with pytest.raises(DataError, match="Convert whole numbers to floats"):
        embed(Examples(examples().inputs.astype(np.int64), examples().labels, "it"), module_encoder(Trunk(net())))
    infinite = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    nn.init.constant_(infinite[1].weight, 3e38)
    with pytest.raises(DataError, match="every feature must be finite"):
        embed(examples(), module_encoder(infinite))


def command(*line: object) -> dict[str, object]:
    result = CliRunner().invoke(main, [*map(str, line), "--json", "--quiet"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("end", [".npz", ".safetensors"])
def test_embed_train_unlearn_and_put_back(tmp_path: Path, end: str) -> None:
    given = {name: examples(count) for name, count in (("source", 200), ("surrogate", 150), ("forget", 0))}
    given["forget"] = Examples(given["source"].inputs[:4], given["source"].labels[:4], "it")
    for name, part in given.items():
        np.savez(tmp_path / f"{name}-images.npz", X=part.inputs, y=part.labels)
        where = tmp_path / f"{name}{end}"
        encoder = ("--encoder", f"{__name__}:net", "--head", "fc")
        found = command("embed", "--data", tmp_path / f"{name}-images.npz", *encoder, "--out", where)
        assert found["encoder"] == split_head(net()).digest == read_data(where).encoder
        assert not list(tmp_path.glob("*.partial"))
    model = tmp_path / "model.safetensors"
    command("train", "--data", tmp_path / f"source{end}", "--l2", 0.5, "--max-norm", 1, "--bias", "--out", model)
    line = ("unlearn", "--model", model, "--surrogate", tmp_path / f"surrogate{end}", "--epsilon", 50, "--delta", 1e-3)
    line = (*line, "--distance", "same", "--force")
    done = command(*line, "--forget", tmp_path / f"forget{end}", "--out", tmp_path / "result")
    dossier = json.loads(Path(done["dossier_file"]).read_text())
    assert dossier["model"]["encoder"] == split_head(net()).digest
    assert not [note for note in dossier["notes"] if "encoder" in note]
    head, _ = read_model(tmp_path / "result" / "model.safetensors")
    whole = with_head(net(), head)
    image = torch.from_numpy(given["surrogate"].inputs).float() / 255
    rows = torch.from_numpy(read_data(tmp_path / f"surrogate{end}").features.copy()).double()
    rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(
        whole(image).double(), rows @ head.weight.T + head.bias, atol=1e-6, rtol=1e-6, check_dtype=False
    )
    other = tmp_path / f"other{end}"
    encoder = ("--encoder", f"{__name__}:net", "--head", "fc", "--mean", "0.5", "--std", "0.5")
    command("embed", "--data", tmp_path / "forget-images.npz", *encoder, "--out", other)
    result = CliRunner().invoke(
        main, [*map(str, line), "--forget", str(other), "--out", str(tmp_path / "new"), "--quiet"]
    )
    assert result.exit_code == 2
    assert "features of encoder" in result.stderr
