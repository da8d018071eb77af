"""What is unlearned from."""

import pytest

import expunge
from expunge.train import train


def test_a_noised_model_is_not_unlearned_again(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0, force=True)
    asked = {"epsilon": 1.0, "delta": 1e-3, "distance": "same", "force": True}
    published = expunge.unlearn(model, parts["forget"], parts["surrogate"], **asked).model
    with pytest.raises(expunge.ModelError, match="noised"):
        expunge.unlearn(published, parts["forget"], parts["surrogate"], **asked)
