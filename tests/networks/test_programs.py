"""Encoders as people keep them: TorchScript, exported programs, Python modules; ONNX is in test_onnx.py."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from encoders import Net, Trunk, examples, net, wanted
from expunge import FileError, ModelError, OptionError
from expunge.networks import embedding as module_under_test
from expunge.networks import module_digest
from expunge.networks.embedding import Preparation, embed
from expunge.networks.programs import load_encoder, module_encoder


def test_every_kind_of_encoder_gives_the_same_features(script: Path, tmp_path: Path) -> None:
    program = torch.export.export(
        Trunk(net()).eval(), (torch.zeros(4, 1, 4, 4),), dynamic_shapes=({0: torch.export.Dim("n", min=1)},)
    )
    torch.export.save(program, tmp_path / "encoder.pt2")
    given = examples()
    for encoder in (
        load_encoder(str(script)),
        load_encoder(str(tmp_path / "encoder.pt2")),
        module_encoder(Trunk(net())),
        module_encoder(net(), head="fc"),
        load_encoder(f"{__name__}:net", head="fc"),
    ):
        for batch in (7, 256):
            found = embed(given, encoder, batch=batch)
            np.testing.assert_allclose(found.features, wanted(given).numpy(), atol=1e-6)
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


def test_encoders_that_cannot_be_loaded(tmp_path: Path, script: Path) -> None:
    torch.save(Trunk(net()), tmp_path / "pickled.pt")
    (tmp_path / "cut.pt").write_bytes(script.read_bytes()[:200])
    (tmp_path / "x.onnx").write_bytes(b"1")
    for name in ("pickled.pt", "cut.pt"):
        with pytest.raises(ModelError, match="cannot be loaded"):
            load_encoder(str(tmp_path / name))
    if "onnxruntime" not in sys.modules:
        with pytest.raises(ModelError, match="onnx"):
            load_encoder(str(tmp_path / "x.onnx"))
    with pytest.raises(FileError, match="does not exist"):
        load_encoder(str(tmp_path / "nothing.pt"))
    for name in ("no_such_module:x", f"{__name__}:nothing", f"{__name__}:RANDOM"):
        with pytest.raises(ModelError, match="torch module is needed"):
            load_encoder(name)
    with pytest.raises(OptionError):
        load_encoder("resnet")
    with pytest.raises(OptionError, match="Leave --head out"):
        load_encoder(str(script), head="fc")


def test_the_digest_of_a_file_is_that_of_its_bytes(script: Path) -> None:
    before = load_encoder(str(script)).digest
    torch.manual_seed(6)
    torch.jit.save(torch.jit.trace(Trunk(Net()).eval(), torch.zeros(2, 1, 4, 4)), str(script))
    assert load_encoder(str(script)).digest != before
    assert module_under_test.pipeline_digest(before, Preparation()) == before
    assert len(module_digest(net())) == 64
