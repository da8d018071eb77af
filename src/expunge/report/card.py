"""A published model's card, made from the statement alone: front matter as the Hugging Face Hub reads it, and a text.

The front matter is YAML of the plainest kind: strings in double quotes as JSON writes them, numbers that YAML 1.1 and
1.2 both take for numbers. Text that comes from the file is shown as text, whatever Markdown would make of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from expunge import __version__
from expunge.certificate.derive import bound_named
from expunge.certificate.verify import verdict_sentence
from expunge.certificate.wording import next_to_nothing, outside
from expunge.errors import one_line
from expunge.report.page import showing, status_words
from expunge.runtime.values import up

TAGS = ("machine-unlearning", "certified-unlearning", "expunge")
MARKDOWN = re.compile(r"([\\`*_\[\]<>|~&$]|^[#+-])")


@showing("the statement")
def model_card(statement: Mapping[str, Any], link: str, keyid: str | None = None) -> str:
    """The card of one published model; `link` is where its statement is to be found, beside the card."""
    about = {
        "status": statement["status"],
        "epsilon": statement["epsilon"],
        "delta": statement["delta"],
        "removed": "rows of the training data; which and how many is not said",
        "model_sha256": statement["model"]["sha256"],
        "base_model_keyed_digest": statement["model"]["before"],
        "statement": link,
        "statement_digest": statement["digest"],
        "signed_by": keyid,
        "verdict": verdict_sentence(keyid),
        "created": statement["created"],
    }
    front = ["---", "tags:", *(f"- {tag}" for tag in TAGS), "expunge:"]
    front += [f"  {name}: {yaml_value(value)}" for name, value in about.items()]
    return "\n".join([*front, "---", "", *_text(statement, link, keyid)]) + "\n"


def yaml_value(value: str | float | None) -> str:
    """A value that every reader of YAML takes for what it is.

    >>> yaml_value(1e-05), yaml_value(2.0), yaml_value("yes"), yaml_value(None)
    ('1.0e-05', '2.0', '"yes"', 'null')
    """
    if value is None:
        return "null"
    if isinstance(value, str):
        return json.dumps(one_line(value), ensure_ascii=False)
    return re.sub(r"^(-?\d+)e", r"\1.0e", repr(float(value)))  # YAML 1.1 takes 1e-05 for text


def as_text(sentence: object) -> str:
    r"""A sentence on one line in which nothing is Markdown.

    >>> as_text("see [here](x) <b>")
    'see \\[here\\](x) \\<b\\>'
    """
    return MARKDOWN.sub(r"\\\1", one_line(str(sentence)))


def _text(statement: Mapping[str, Any], link: str, keyid: str | None) -> list[str]:
    kept = bound_named(statement["bound"]["kind"]).kept
    how = "from what had been kept of the source" if kept else "with stand-in data in the place of the source"
    key = " --public-key KEY.pub" if keyid else ""
    assumed = [f"- {as_text(sentence)}" for sentence in statement["assumptions"]] or ["Nothing."]
    beyond = outside(statement["model"].get("preparation"))
    noted = [f"- {as_text(sentence)}" for sentence in statement["notes"]]
    return [
        "# A model that data was removed from",
        "",
        "Rows were removed from this model after training, when the training data was not available any more. Which "
        "rows, how many, and of which kind is not said: anybody may read this.",
        "",
        f"The change that retraining would have made was computed {how}. Noise, drawn in secret, was added to every "
        f"weight, enough for epsilon {up(statement['epsilon'])} and delta {up(statement['delta'])}: so much, at most, "
        "can be learnt from this model beyond what one learns from a model retrained without these rows.",
        "",
        *([f"**{as_text(little)}**", ""] if (little := next_to_nothing(statement["epsilon"])) else []),
        f"**{as_text(status_words(statement['status']))}**",
        "",
        f"Check of the statement when this card was written: {verdict_sentence(keyid)}.",
        "",
        *([f"**This is of the weights. {as_text(beyond)}**", ""] if beyond else []),
        "## Assumed",
        "",
        *assumed,
        "",
        *(["## Noted", "", *noted, ""] if noted else []),
        "## Not said",
        "",
        *(f"- {as_text(sentence)}" for sentence in statement["limits"]),
        "",
        "## To check it",
        "",
        f"The [statement]({link}) is what counts; this card repeats a part of it. Anybody can check it offline:",
        "",
        "```sh",
        f"expunge verify {link} --model model.safetensors{key}",
        "```",
        "",
        f"Issued {as_text(statement['created'])}; card written by Expunge {__version__}.",
    ]
