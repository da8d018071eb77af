"""A classifier taken apart at its head, put together again, and known by its digest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from expunge import DataError, ModelError, train, unlearn
from expunge.networks import module_digest, split_head, with_head
from expunge.runtime.arrays import copy, double, equal, put, to_numpy
from small_networks import Small, images

# A model taken apart and put together says what it said before; what cannot be taken apart is refused.


class Answer(dict):
    """What Hugging Face models return."""


class Named(nn.Module):
    """A Hugging Face-like classifier: inputs by name, a nested head, an answer that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.classifier = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Answer:
        mask = attention_mask[..., None].float()
        return Answer(logits=self.classifier((self.embed(input_ids) * mask).sum(1)))


def test_features_and_head_give_what_the_model_gives(small: Small) -> None:
    split = split_head(small, "fc")
    found = split.features(images(30), batch=7)
    outputs = found @ split.head.weight.T + split.head.bias
    assert small.training, "the caller's model is not touched"
    torch.testing.assert_close(outputs, small.eval()(images(30)), atol=1e-6, rtol=0)


@pytest.mark.parametrize("store", ["float64", "float32"])
def test_the_unlearned_head_put_back_predicts_what_the_head_predicts(small: Small, store: str) -> None:
    split = split_head(small)
    labels = np.arange(200) % 3
    source = to_numpy(split.features(images(200)))
    model = train(source, labels, l2=0.5, max_norm=1.5, bias=True, store=store, force=True)
    assert (np.linalg.norm(source, axis=1) > 1.5).any(), "some rows must be scaled for this test to mean anything"
    forgotten = unlearn(
        model, (source[:2], labels[:2]), (source, labels), epsilon=50, delta=1e-3, distance="same", force=True
    )
    before = {name: copy(tensor) for name, tensor in small.state_dict().items()}
    whole = with_head(small, forgotten.model)
    fresh = images(40, seed=1)
    rows = double(split.features(fresh))
    rows = rows * (1.5 / rows.norm(dim=1, keepdim=True).clamp(min=1.5))
    wanted = rows @ put(forgotten.model.weight, rows, "float64").T + put(forgotten.model.bias, rows, "float64")
    torch.testing.assert_close(double(whole(fresh)), wanted, atol=1e-6, rtol=1e-6)
    np.testing.assert_array_equal(to_numpy(whole(fresh).argmax(1)), forgotten.model.predict(split.features(fresh)))
    assert all(equal(tensor, before[name]) for name, tensor in small.state_dict().items())
    assert split_head(whole).digest == split.digest, "the encoder is the same one"


def test_a_nested_head_with_inputs_by_name() -> None:
    model = Named().eval()
    inputs = {"input_ids": torch.arange(40).reshape(8, 5) % 10, "attention_mask": torch.ones(8, 5, dtype=torch.int64)}
    split = split_head(model, "classifier.2")
    outputs = split.features(inputs, batch=3) @ split.head.weight.T + split.head.bias
    torch.testing.assert_close(outputs, model(**inputs)["logits"], atol=1e-6, rtol=0)
    whole = with_head(model, split.head, "classifier.2")
    torch.testing.assert_close(whole(**inputs)["logits"], model(**inputs)["logits"], atol=1e-6, rtol=0)


def test_what_is_no_head_of_this_model(small: Small) -> None:
    with pytest.raises(ModelError, match=r"no module 'classifier'.*are: fc"):
        split_head(small, "classifier")
    with pytest.raises(ModelError, match="is a Conv2d"):
        split_head(small, "conv")
    with pytest.raises(ModelError, match="takes 16"):
        with_head(small, split_head(nn.Sequential(nn.Linear(4, 2)), "0").head)
    with pytest.raises(ModelError, match="running statistics"):
        split_head(nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)), "1")


def test_tied_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.fc = nn.Linear(4, 4), nn.Linear(4, 4)
            self.fc.weight = self.first.weight

    with pytest.raises(ModelError, match=r"shares its weights with first\.weight"):
        split_head(Tied())


def test_a_head_that_is_used_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.fc(x))

    with pytest.raises(ModelError, match="used 2 times"):
        split_head(Twice()).features(torch.ones(3, 4))


def test_a_head_on_every_position() -> None:
    model = nn.Sequential()
    model.add_module("fc", nn.Linear(4, 2))
    with pytest.raises(DataError, match="Pool over positions"):
        split_head(model).features(torch.ones(3, 5, 4))


class AlwaysDropping(nn.Module):
    """Dropout that evaluation mode does not turn off."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(nn.functional.dropout(x, 0.5, training=True))


class AlwaysNormalising(AlwaysDropping):
    """Batch normalisation that evaluation mode does not turn to stored statistics."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(nn.functional.batch_norm(x, None, None, training=True))


@pytest.mark.parametrize("kind", [AlwaysDropping, AlwaysNormalising])
def test_features_that_change_from_run_to_run_or_with_the_batch(kind: type[nn.Module]) -> None:
    with pytest.raises(ModelError, match="evaluation mode"):
        split_head(kind()).features(images(9).flatten(1))


def test_a_state_dict_of_a_bounded_head_does_not_load_where_nothing_would_scale(small: Small) -> None:
    split = split_head(small)
    source, labels = to_numpy(split.features(images(60))), np.arange(60) % 3
    bounded = with_head(small, train(source, labels, l2=0.5, max_norm=1.5, bias=True, force=True))
    state = bounded.state_dict()
    with pytest.raises(RuntimeError, match=r"Unexpected key.*fc\.max_norm"):
        type(small)().load_state_dict(state)
    other = with_head(small, train(source, labels, l2=0.5, max_norm=9.0, bias=True, force=True))
    other.load_state_dict(state)
    fresh = images(20, seed=1)
    torch.testing.assert_close(other(fresh), bounded(fresh))
    assert "max_norm=1.5" in repr(other)
    torch.testing.assert_close(bounded.double()(double(fresh)).float(), bounded.float()(fresh), atol=1e-4, rtol=1e-4)


def test_a_head_of_one_weight_vector_names_both_classes_in_a_layer_of_two(small: Small) -> None:
    """Of one output the largest is always the first: every row would be of the first class."""
    small.fc = nn.Linear(small.fc.in_features, 2)
    split = split_head(small)
    source, labels = to_numpy(split.features(images(90))), np.arange(90) % 2
    model = train(source, labels, l2=0.01, max_norm=9.0, bias=True, loss="logistic")
    fresh, rows = images(40, seed=1), split.features(images(40, seed=1))
    outputs = with_head(small, model)(fresh)
    np.testing.assert_array_equal(to_numpy(outputs.argmax(1)), model.predict(rows))
    np.testing.assert_allclose(to_numpy(outputs.softmax(1).detach()), model.predict_proba(rows), atol=1e-6)


# Which encoder made these features.


def test_the_digest_is_of_the_encoder_alone(small: Small) -> None:
    digest = split_head(small).digest
    with torch.no_grad():
        small.fc.weight.add_(1)
    assert split_head(small).digest == digest
    with torch.no_grad():
        small.norm.running_mean.add_(1e-3)
    assert split_head(small).digest != digest
    assert module_digest(nn.Linear(2, 2)) != module_digest(nn.Linear(2, 2))
    relu, gelu = nn.Sequential(nn.ReLU()), nn.Sequential(nn.GELU())
    assert module_digest(relu) != module_digest(gelu)
