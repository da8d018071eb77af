"""Before a linear head: `expunge embed`, and networks linearised at their weights, `expunge tangent`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import out, progress
from expunge.cli.files import private_name, read_prepared, write_result
from expunge.cli.options import CommandGroup, command, options_of, output_option
from expunge.cli.train import tell_deposit, with_outlook, write_deposit
from expunge.request.promise import Execution, Promise
from expunge.runtime.values import option

NETWORK = (
    "module:function for a torch module that Python can import, with the weights it is linearised at. It is run: use "
    "only one you trust."
)
TANGENT = "The tangent weights that expunge tangent train wrote."
AT_A_TIME = "Examples at a time."


@command(quiet=True)
def embed(
    data: Path = option(
        "Examples with labels: .npz with X and y, or a folder of class/name.png.",
        section="Examples",
    ),
    size: int | None = option(
        "Of pictures in folders: scale the shorter side to it and cut out the middle square, in colour, e.g. 224.",
        kind=click.IntRange(1, 4096),
    ),
    encoder: str = option(
        "module:function for a torch module that Python can import, with its state in --weights; or an ONNX file "
        "(.onnx; needs expunge[onnx]).",
        section="Encoder",
    ),
    weights: Path | None = option("For module:function: a .safetensors file with its state_dict()."),
    head: str | None = option(
        "For module:function: take what enters the linear module of this name (fc, classifier.6)."
    ),
    mean: str | None = option("Subtracted from each channel after bytes became 0 to 1, e.g. 0.49,0.48,0.45."),
    std: str | None = option("Divided by, each channel, e.g. 0.25,0.24,0.26."),
    trained_on_source: str = option(
        "Whether the encoder was trained on rows of the source. What it learnt from them is not forgotten with the "
        "head; every certificate of a head says which it is.",
        "unknown",
        kind=click.Choice(["yes", "no", "unknown"]),
    ),
    batch: int = option(AT_A_TIME, 256, section="Speed"),
    execution: Execution = options_of(Execution, "device"),
    target: Path = output_option(
        "The feature file to write, .npz or .safetensors; it must not exist yet.", ".npz", ".safetensors"
    ),
) -> Any:
    """Make features of images or other tensors with an encoder.

    Writes a file that train, unlearn, distance, plan and the desk take, with the encoder's digest in it: the model
    keeps that digest, and features of another encoder are refused later.

    \b
    expunge embed --data images.npz --encoder encoder.onnx --out features.npz
    expunge embed --data photos/ --encoder mypackage.models:resnet --weights resnet.safetensors --head fc --out f.npz
    """
    from expunge.networks.encoders import Normalisation, channel_numbers, feature_bytes, load_encoder, read_examples
    from expunge.networks.encoders import embed as run
    from expunge.rows.output import write_file

    preparation = Normalisation(channel_numbers(mean), channel_numbers(std))
    place = execution.place
    loaded = load_encoder(encoder, head=head, weights=weights, device=place)
    examples = read_examples(data, size=size)
    with progress() as advance:
        embedded = run(examples, loaded, preparation=preparation, batch=batch, progress=advance)
    write_file(target, feature_bytes(target, embedded.features, embedded.labels, embedded.encoder, trained_on_source))
    rows, width = embedded.features.shape
    out.print(f"embedded {rows:,} examples, {width} features each, by encoder {embedded.encoder[:16]}...")
    out.print(f"written: {target}")
    content = {"features": str(target), "rows": rows, "width": width, "encoder": embedded.encoder}
    return content | {"encoder_trained_on_source": trained_on_source}


@click.group(
    cls=CommandGroup,
    listing={
        "Commands": {
            "train": ("networks", "Train tangent weights to the optimum, while their source exists."),
            "deposit": ("networks", "Keep what later deletions need of the source, before it goes."),
            "unlearn": ("networks", "Forget examples without the source, with a certificate."),
        }
    },
)
def tangent() -> None:
    """Mixed-linear networks: linearise a pretrained network, train its tangent weights, forget rows of them.

    Data are examples before the network, as expunge embed reads them; bytes become floats from 0 to 1, and anything
    else is taken as it is.

    Where the tangent weights are a few thousand, a deposit can be kept of the source before it goes: no surrogate is
    needed then, and any number of examples can be forgotten.
    """


@command(quiet=True)
def train(
    data: Path = option("The source, labelled.", section="Sets"),
    network: str = option(NETWORK),
    last: int | None = option(
        "Train the tangent weights of the last so many parameters alone.", kind=click.IntRange(1), section="Model"
    ),
    l2: float = option("The lambda of (lambda/2)||v||^2 beside the mean loss."),
    max_norm: float = option("Longer Jacobians are scaled down to this norm."),
    block: int = option(AT_A_TIME, 64, section="Speed", kind=click.IntRange(1)),
    execution: Execution = options_of(Execution, "device"),
    target: Path = output_option("The model to write, .safetensors; it must not exist yet."),
) -> Any:
    """Train tangent weights to the optimum while the source still exists.

    \b
    expunge tangent train --data images.npz --network mynets:pretrained
                          --l2 1e-3 --max-norm 1 --out model.safetensors
    """
    from expunge.heads.tangent import last_parameters
    from expunge.networks.encoders import import_module
    from expunge.networks.tangent import train_tangent
    from expunge.rows.output import write_file

    module = import_module(network)
    source = read_prepared(data)
    names = None if last is None else last_parameters(module, last)
    settings: dict[str, Any] = {"l2": l2, "max_norm": max_norm, "names": names, "block": block}
    with progress() as advance:
        model = train_tangent(module, *source, **settings, device=execution.device, progress=advance)
    write_file(target, model.to_bytes())
    out.print(f"trained {len(model.weights):,} tangent weights on {model.record.n_source:,} examples")
    out.print(f"gradient norm at the stored weights: {model.record.residual:.3g}")
    out.print(f"written: {target}")
    content = {"model": str(target), "sha256": model.sha256(), "parameters": list(model.names)}
    return content | {"record": model.record.facts()}


@command(quiet=True)
def deposit(
    model: Path = option(TANGENT, section="Sets"),
    network: str = option(NETWORK),
    data: Path = option("The source: the examples they were trained on."),
    block: int = option(AT_A_TIME, 64, section="Speed", kind=click.IntRange(1)),
    execution: Execution = options_of(Execution, "device"),
    target: Path = output_option(
        "The deposit to write, such as model.deposit; a file that is there is never written over.", text=private_name
    ),
) -> Any:
    """Keep a deposit of the source before it goes: of tangent weights that are a few thousand. It is PRIVATE.

    It holds a matrix of as many rows and columns as there are weights, and no example; more than 12,000 are refused
    (--last of expunge tangent train). Whether an example is in it, expunge member says.

    \b
    expunge tangent deposit --model model.safetensors --network mynets:pretrained --data images.npz
                            --out model.deposit
    """
    from expunge.networks.encoders import import_module
    from expunge.networks.tangent import make_tangent_deposit, read_tangent

    given, module, source = read_tangent(model), import_module(network), read_prepared(data)
    with progress() as advance:
        settings: dict[str, Any] = {"block": block, "device": execution.device, "progress": advance}
        new, known = with_outlook(lambda: make_tangent_deposit(module, given, *source, **settings), advance)
    content = write_deposit(target, new.deposit, known)
    return tell_deposit(new.deposit, content, content)


@command(quiet=True)
def unlearn(
    model: Path = option(TANGENT, section="Sets"),
    network: str = option(NETWORK),
    forget: Path = option("The examples to forget, labelled."),
    deposit: Path | None = option("What was kept of the source (expunge tangent deposit): the examples leave it."),
    surrogate: Path | None = option("Without a deposit: examples that resemble the source, labelled."),
    promise: dict[str, Any] = options_of(Promise, "epsilon", "delta", "noise", "force", build=dict),
    distance: str | None = option(
        "Without a deposit: same, tv:0.2, chi2:0.1, kl:0.5 or source; see expunge unlearn.", section="Guarantee"
    ),
    block: int = option(AT_A_TIME, 64, section="Speed", kind=click.IntRange(1)),
    execution: Execution = options_of(Execution, "device"),
    target: Path = output_option("A new folder for model, statement and, private, the dossier."),
) -> Any:
    """Forget examples of a source that is gone, with a certificate; a whole class by giving all its rows.

    \b
    expunge tangent unlearn --model model.safetensors --network mynets:pretrained
                            --forget forget.npz --surrogate surrogate.npz
                            --epsilon 1 --delta 1e-5 --distance chi2:0.1 --out result/
    expunge tangent unlearn --model model.safetensors --network mynets:pretrained --forget forget.npz
                            --deposit model.deposit --epsilon 0.1 --delta 1e-6 --out result/
    """
    from expunge.deposit.file import read_deposit
    from expunge.networks.encoders import import_module
    from expunge.networks.tangent import read_tangent, unlearn_tangent

    given, module = read_tangent(model), import_module(network)
    examples, others = read_prepared(forget), None if surrogate is None else read_prepared(surrogate)
    known = None if deposit is None else read_deposit(deposit)
    settings: dict[str, Any] = {"block": block, "device": execution.device, "deposit": known, "distance": distance}
    with progress() as advance:
        result = unlearn_tangent(module, given, examples, others, **promise, **settings, progress=advance)
    return write_result(target, result, deposit=deposit)
