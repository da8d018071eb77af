"""Encoders: modules by import path, with their weights; their features, embedded."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file
from torch import Tensor, nn

from encoders import Net, Trunk, examples, net, wanted
from expunge import DataError, FileError, ModelError, OptionError, read_data, read_model
from expunge.cli import main
from expunge.networks import split_head, with_head
from expunge.networks.encoders import EncoderInputs, Normalisation, embed, load_encoder, module_encoder
from expunge.runtime.arrays import double, put, to_numpy


def test_preparation_changes_features_and_digest() -> None:
    given, encoder = examples(), module_encoder(Trunk(net()))
    found = embed(given, encoder, preparation=Normalisation((0.5,), (0.25,)))
    image = (torch.from_numpy(given.inputs).float() / 255 - 0.5) / 0.25
    np.testing.assert_allclose(found.features, to_numpy(Trunk(net())(image).detach()), atol=1e-5)
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
        embed(EncoderInputs(examples().inputs.astype(np.int64), examples().labels, "it"), module_encoder(Trunk(net())))
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
    given = {name: examples(count) for name, count in (("source", 200), ("surrogate", 150))}
    given["forget"] = EncoderInputs(given["source"].inputs[:4], given["source"].labels[:4], "it")
    for name, part in given.items():
        np.savez(tmp_path / f"{name}-images.npz", X=part.inputs, y=part.labels)
        where = tmp_path / f"{name}{end}"
        encoder = ("--encoder", f"{__name__}:net", "--head", "fc")
        found = command("embed", "--data", tmp_path / f"{name}-images.npz", *encoder, "--out", where)
        assert found["encoder"] == split_head(net()).digest == read_data(where).encoder
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
    rows = double(torch.from_numpy(read_data(tmp_path / f"surrogate{end}").features.copy()))
    rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(
        double(whole(image)),
        rows @ put(head.weight, rows).T + put(head.bias, rows),
        atol=1e-6,
        rtol=1e-6,
        check_dtype=False,
    )
    other = tmp_path / f"other{end}"
    encoder = ("--encoder", f"{__name__}:net", "--head", "fc", "--mean", "0.5", "--std", "0.5")
    command("embed", "--data", tmp_path / "forget-images.npz", *encoder, "--out", other)
    result = CliRunner().invoke(
        main, [*map(str, line), "--forget", str(other), "--out", str(tmp_path / "new"), "--quiet"]
    )
    assert result.exit_code == 2
    assert "features of encoder" in result.stderr


# Encoders as people keep them: Python modules with weights, and files that are none.


def test_every_kind_of_encoder_gives_the_same_features() -> None:
    given = examples()
    kinds = module_encoder(Trunk(net())), module_encoder(net(), head="fc"), load_encoder(f"{__name__}:net", head="fc")
    for encoder in kinds:
        for batch in (7, 256):
            found = embed(given, encoder, batch=batch)
            np.testing.assert_allclose(found.features, to_numpy(wanted(given)), atol=1e-6)
            np.testing.assert_array_equal(found.labels, given.labels)
            assert found.encoder == encoder.digest


class Dropping(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x.flatten(1), 0.5, training=True)


class Normalising(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.batch_norm(x.flatten(1), None, None, training=True)


@pytest.mark.parametrize("kind", [Dropping, Normalising])
def test_training_mode_is_noticed_in_a_traced_program_too(kind: type[nn.Module], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="evaluation mode"):
        embed(examples(), module_encoder(kind()))


def test_encoders_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"1")
    with pytest.raises(ModelError, match="onnx"):
        load_encoder(str(tmp_path / "x.onnx"))
    for name in ("no_such_module:x", f"{__name__}:nothing", f"{__name__}:RANDOM"):
        with pytest.raises(ModelError, match="torch module is needed"):
            load_encoder(name)
    with pytest.raises(OptionError, match="module:function"):
        load_encoder("resnet")
    with pytest.raises(OptionError, match="Leave both out"):
        load_encoder(str(tmp_path / "x.onnx"), head="fc")


class Runs:
    """What loading a file should never do."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("made-by-a-pickle",)


@pytest.mark.parametrize("end", [".pt", ".pth", ".pt2", ".PT2"])
def test_a_program_of_somebody_else_is_not_loaded(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("images.npz", X=examples().inputs, y=examples().labels)
    Path(f"encoder{end}").write_bytes(pickle.dumps(Runs()))
    line = ["embed", "--data", "images.npz", "--encoder", f"encoder{end}", "--out", "new.npz"]
    refused = CliRunner().invoke(main, line)
    assert refused.exit_code == 2
    for words in ("hold programs", "--weights", ".onnx"):
        assert words in refused.stderr
    assert not Path("made-by-a-pickle").exists()
    assert not Path("new.npz").exists()


def untrained() -> Net:
    torch.manual_seed(99)
    return Net()


def test_a_module_with_weights_from_safetensors_is_the_trained_one(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    save_file(net().state_dict(), path)
    given, encoder = examples(), load_encoder(f"{__name__}:untrained", weights=path, head="fc")
    np.testing.assert_allclose(embed(given, encoder).features, to_numpy(wanted(given)), atol=1e-6)
    assert encoder.digest == load_encoder(f"{__name__}:net", head="fc").digest
    assert encoder.digest != load_encoder(f"{__name__}:untrained", head="fc").digest


def test_weights_of_another_module_are_refused(tmp_path: Path) -> None:
    path, state = tmp_path / "net.safetensors", net().state_dict()
    for wrong in (
        {**state, "more": torch.zeros(1)},
        {name: value for name, value in state.items() if name != "fc.bias"},
        {**state, "fc.bias": torch.zeros(3)},
    ):
        save_file(wrong, path)
        with pytest.raises(ModelError, match="state_dict"):
            load_encoder(f"{__name__}:untrained", weights=path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileError, match=r"net\.safetensors"):
        load_encoder(f"{__name__}:untrained", weights=path)
