"""`expunge embed`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, on_device, out, progress, quiet, reporting, written_to
from expunge.cli.sections import Command, section
from expunge.cli.sets import FILE


@click.command(cls=Command, short_help="Images through an encoder into features.")
@section(
    "Examples",
    click.option(
        "--data",
        required=True,
        type=FILE,
        help="Examples with labels: .npz with X and y, a folder of class/name.png, MNIST's images-idx3-ubyte file (.gz "
        "or not; labels beside it), CIFAR-10's python batches or the folder of them.",
    ),
    click.option("--split", default="train", show_default=True, help="Of a CIFAR-10 folder: train or test."),
    click.option(
        "--size",
        type=click.IntRange(1, 4096),
        help="Of pictures in folders: scale the shorter side to it and cut out the middle square, in colour, e.g. 224.",
    ),
)
@section(
    "Encoder",
    click.option(
        "--encoder",
        required=True,
        help="module:function for a torch module that Python can import, with its state in --weights; or an ONNX file "
        "(.onnx; needs expunge[onnx]). TorchScript (.pt) and exported torch programs (.pt2) only with --trust-encoder.",
    ),
    click.option("--weights", type=FILE, help="For module:function: a .safetensors file with its state_dict()."),
    click.option(
        "--trust-encoder",
        is_flag=True,
        help="Load a .pt or .pt2 file. That runs code of whoever made it, with your rights: a .pt2 is unpickled and "
        "can do anything, TorchScript can read your files. Say so only of a file you made, or whose author may use "
        "your machine.",
    ),
    click.option(
        "--head", help="For module:function: take what enters the linear module of this name (fc, classifier.6)."
    ),
    click.option("--mean", help="Subtracted from each channel after bytes became 0 to 1, e.g. 0.49,0.48,0.45."),
    click.option("--std", help="Divided by, each channel, e.g. 0.25,0.24,0.26."),
    click.option(
        "--trained-on-source",
        type=click.Choice(["yes", "no", "unknown"]),
        default="unknown",
        show_default=True,
        help="Whether the encoder was trained on rows of the source. What it learnt from them is not forgotten with "
        "the head; every certificate of a head says which it is.",
    ),
)
@section("Speed", click.option("--batch", default=256, show_default=True, type=int, help="Examples at a time."))
@on_device
@written_to("The feature file to write, .npz or .safetensors; it must not exist yet.")
@quiet
@as_json
@reporting
def embed(
    data: Path,
    split: str,
    size: int | None,
    encoder: str,
    weights: Path | None,
    trust_encoder: bool,
    head: str | None,
    mean: str | None,
    std: str | None,
    trained_on_source: str,
    batch: int,
    device: str,
    target: Path,
    quiet: bool,
    json_output: bool,
) -> dict[str, Any]:
    """Make features of images or other tensors with an encoder.

    Writes a file that train, unlearn, distance, plan and the desk take, with the encoder's digest in it: the model
    keeps that digest, and features of another encoder are refused later. A run that was stopped continues when it is
    started again with the same options; until then its parts are in a folder beside the target, with .partial at the
    end.

    \b
    expunge embed --data images.npz --encoder encoder.onnx --out features.npz
    expunge embed --data photos/ --encoder mypackage.models:resnet --weights resnet.safetensors --head fc --out f.npz
    """
    from expunge.networks.encoders import Preparation, channel_numbers, load_encoder
    from expunge.networks.encoders import embed as run
    from expunge.request.execution import computing_device
    from expunge.rows.features import feature_bytes, require_feature_file
    from expunge.rows.images import read_examples
    from expunge.rows.output import require_absent, write_file
    from expunge.rows.partial import Partial

    require_feature_file(target)
    require_absent(target)
    preparation = Preparation(channel_numbers(mean), channel_numbers(std))
    loaded = load_encoder(
        encoder, head=head, weights=weights, trust_encoder=trust_encoder, device=computing_device(device)
    )
    examples = read_examples(data, split=split, size=size)
    unfinished = Partial(target.with_name(target.name + ".partial"))
    with progress(not quiet) as advance:
        kept = unfinished.folder
        embedded = run(examples, loaded, preparation=preparation, batch=batch, partial=kept, progress=advance)
    write_file(target, feature_bytes(target, embedded.features, embedded.labels, embedded.encoder, trained_on_source))
    unfinished.remove()
    rows, width = embedded.features.shape
    if not json_output:
        out.print(f"embedded {rows:,} examples, {width} features each, by encoder {embedded.encoder[:16]}...")
        out.print(f"written: {target}", markup=False)
    made = {"features": str(target), "rows": rows, "width": width}
    return {**made, "encoder": embedded.encoder, "encoder_trained_on_source": trained_on_source}
