"""Later, without the source: `expunge unlearn`, and `expunge plan` before it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from expunge.cli.console import out, percent, progress, table_of
from expunge.cli.files import Sets, read_rows, write_result
from expunge.cli.options import command, options_of, output_option
from expunge.request.promise import Declared, Execution, Promise
from expunge.runtime.values import option, words_of

ESTIMATE = re.compile(r"(?P<file>.+\.npz)(?::(?P<route>.*))?", re.IGNORECASE)
MATCH_CLASSES = "Weight surrogate rows to the source's class counts; see expunge unlearn."


def parse_stated(text: str, *, between: str = "populations", sampling: str = "strict") -> Any:
    """`chi2:0.1` as a Distance; `estimate.npz` or `estimate.npz:kl`, which `expunge distance` wrote, as an estimate.

    An estimate is looked at before a certificate rests on it, so none is made here on the way.
    """
    from expunge.distance import parse_distance, parse_route
    from expunge.errors import OptionError

    route = parse_route(text)
    if route is not None:
        raise OptionError(
            f"--distance {text.strip()} names no estimate",
            "a certificate rests on an estimate that was made and looked at before",
            "Run expunge distance --out estimate.npz first, then give --distance estimate.npz"
            + (":kl." if route == "kl" else "."),
        )
    saved = ESTIMATE.fullmatch(text.strip())
    if saved is None:
        return parse_distance(text, between=between, sampling=sampling)
    if between != "populations":
        raise OptionError(
            f"--between {between} with an estimated distance", "estimates are between populations", "Leave it out."
        )
    from expunge.estimate.source import read_estimate

    estimate = read_estimate(Path(saved["file"]))
    route = estimate.wanted.route if saved["route"] is None else saved["route"]
    return replace(estimate, wanted=replace(estimate.wanted, route=route, sampling=sampling, matched=False))


@dataclass(frozen=True)
class StatedDistance:
    """How far the surrogate is from the source, as somebody declares it or had it estimated."""

    distance: str | None = option(words_of(Promise, "distance"), None, section="Guarantee")
    match_classes: bool = option(
        "Weight surrogate rows so that its class proportions are the source's; --distance is then the source's from "
        "that.",
        False,
    )
    between: str = option(
        "What the distance is between: populations (both sets are samples; adds a sampling term) or samples (the two "
        "sets themselves).",
        "populations",
    )
    sampling: str = option(
        "What is taken for retained rows unlike any surrogate row: strict (they are counted and charged the worst), "
        "within:2 (they are counted and charged twice the largest change seen; refused where the rows at hand speak "
        "against it) or seen (the surrogate shows all there is: less noise, but false for categorical rows).",
        "strict",
    )

    def read(self) -> Any:
        """A distance or an estimate; None where nothing is stated."""
        from expunge.errors import OptionError

        if self.distance is None:
            if (self.between, self.sampling) != ("populations", "strict"):
                raise OptionError(
                    "--between or --sampling without --distance",
                    "they say what the distance is between, and what a surrogate shows of it",
                    "Give --distance and a surrogate, or leave them out.",
                )
            return None
        return parse_stated(self.distance, between=self.between, sampling=self.sampling)


@command(quiet=True)
def unlearn(
    sets: Sets = options_of(Sets),
    promise: dict[str, Any] = options_of(Promise, leave="distance", build=dict),
    stated: StatedDistance = options_of(StatedDistance),
    declared: Declared = options_of(Declared),
    execution: Execution = options_of(Execution),
    target: Path = output_option(
        "The folder to write model.safetensors, statement.json and private/dossier.json in, with a deposit also "
        "private/model.deposit; it must not exist yet."
    ),
    sign_key: Path | None = option("An Ed25519 private key (expunge keygen): also write statement.signed.json."),
) -> Any:
    """Forget rows of a source that is gone, with a certificate: a public statement and a private dossier.

    Needs the model, the rows to forget, and what is known of the source: a deposit that was kept of it, or a surrogate
    (rows that resemble it) with a distance. Facts about the training come from the model's record, or from options that
    the certificate then marks as declared.

    With a deposit each row must have been in the source. The certificate is proven, the deposit of what is retained
    lies in private/, written together with the rest, and the one that was given is to be destroyed.

    \b
    expunge unlearn --model model.safetensors --deposit model.deposit --forget forget.npz
                    --epsilon 0.1 --delta 1e-6 --out result/
    expunge unlearn --model model.safetensors --forget forget.npz --surrogate surrogate.npz
                    --epsilon 1 --delta 1e-5 --distance chi2:0.1 --out result/
    """
    from expunge.certificate.sign import read_private_key
    from expunge.deposit.file import read_deposit
    from expunge.door import ask
    from expunge.mechanism import carry_out
    from expunge.model import read_model
    from expunge.runtime.group import joined_group, local_device

    key = None if sign_key is None else read_private_key(sign_key)
    wanted = Promise(**promise, distance=stated.read(), match_classes=stated.match_classes)
    deposit = None if sets.deposit is None else read_deposit(sets.deposit)
    model, digest = read_model(sets.model)
    rows = sets.read(execution.memory, model)
    place = local_device(execution.device)
    with joined_group(place) as group:
        with progress(group.first) as advance:
            here = replace(execution, device=place, group=group, progress=advance)
            options: dict[str, Any] = {"declared": declared, "model_sha256": digest}
            request = ask(model, *rows, wanted, deposit=deposit, execution=here, **options)
            result = carry_out(request, group=group, progress=advance)
        if result is None:
            raise SystemExit(0)  # the first process of the group writes
        return write_result(target, result, key, deposit=sets.deposit)


@command(quiet=True)
def plan(
    sets: Sets = options_of(Sets),
    test: Path | None = option("With a deposit: labelled rows to measure accuracy on.", section="Sets"),
    delta: float = option("Probability that the guarantee fails; at most 1/n.", section="Guarantee"),
    epsilons: tuple[float, ...] = option("May be repeated (default: 0.1 to 10).", (), names=("--epsilon",)),
    distances: tuple[str, ...] = option(
        "Without a deposit, as for expunge unlearn; may be repeated (default: same, chi2:0.01, chi2:0.1, chi2:1).",
        (),
        names=("--distance",),
    ),
    match_classes: bool = option(MATCH_CLASSES),
    step: str | None = option("converged (the default), newton or balanced."),
    curvature: str | None = option(words_of(Promise, "curvature")),
    declared: Declared = options_of(Declared),
    execution: Execution = options_of(Execution, "memory"),
) -> Any:
    """Before you act: noise and predicted accuracy at several epsilons and distances; nothing is published.

    The noise foreseen is what `expunge unlearn` then uses if the request chooses it; --noise is what to set it to
    before anybody asks. Accuracy is measured on the surrogate's labels. With a deposit: what the rows would need of
    it, how much of its reach that is, and what the noise would do to outputs.

    \b
    expunge plan --model model.safetensors --deposit model.deposit --forget forget.npz --delta 1e-6
    expunge plan --model model.safetensors --forget forget.npz --surrogate surrogate.npz
                 --delta 1e-5 --distance same --distance chi2:0.1
    """
    from expunge.deposit.file import read_deposit
    from expunge.errors import OptionError
    from expunge.evaluate.plan import DISTANCES, EPSILONS, plan_deposit
    from expunge.evaluate.plan import plan as foresee
    from expunge.model import read_model
    from expunge.request.promise import require_none_with_deposit

    if sets.deposit is None and (sets.surrogate is None or test is not None):
        raise OptionError(
            "no --surrogate, or --test without --deposit",
            "a plan needs a deposit of the source, or rows that resemble it, on which accuracy is measured too",
            "Give one of the two.",
        )
    wanted: dict[str, Any] = {"delta": delta, "epsilons": epsilons or EPSILONS}
    if sets.deposit is not None:
        besides = {"surrogate": sets.surrogate, "distance": distances or None, "step": step, "curvature": curvature}
        require_none_with_deposit({**besides, "match_classes": match_classes, **vars(declared)})
        model, _ = read_model(sets.model)
        forget, _ = sets.read(execution.memory, model)
        rows = None if test is None else read_rows(test, sets.label, model)
        with progress() as advance:
            wanted |= {"test": rows, "model": model, "execution": execution}
            of_deposit = plan_deposit(read_deposit(sets.deposit), forget, **wanted, progress=advance)
        _print_deposit_plan(of_deposit)
        return of_deposit.to_json()
    stated = [parse_stated(text) for text in distances or DISTANCES]
    model, _ = read_model(sets.model)
    both = sets.read(execution.memory, model)
    wanted |= {"distances": stated, "match_classes": match_classes, "step": step, "declared": declared}
    wanted["curvature"] = curvature
    with progress() as advance:
        planned = foresee(model, *both, **wanted, execution=execution, progress=advance)
    _print_plan(planned)
    return planned.to_json()


def _print_deposit_plan(planned: Any) -> None:
    cells = [
        (
            f"{each.epsilon:g}",
            "-" if each.sigma is None else f"{each.sigma:.4g}",
            percent(each.output_share),
            percent(each.accuracy),
            "does it" if each.refused is None else f"refuses: {each.refused}",
        )
        for each in planned.outlooks
    ]
    title = f"Forgetting {planned.n_forget:,} of the {planned.n_rows:,} rows that are left, delta {planned.delta:g}"
    out.table(("epsilon", "sigma", "noise / outputs", "accuracy", "unlearn"), cells, title, ("unlearn",))
    if planned.accuracy_before is not None:
        out.print(f"accuracy on the test rows before: {percent(planned.accuracy_before)}")
    else:
        out.print("accuracy: give labelled rows with --test")
    if planned.reach is not None:
        before = f" after {planned.forgotten:,} rows before them" if planned.forgotten else ""
        out.print(f"these rows{before} need {100 * planned.reach:.3g} % of the deposit's reach")
    out.listing(planned.notes, "note: ")


def _print_plan(planned: Any) -> None:
    cells = [
        (
            outlook.distance,
            f"{outlook.epsilon:g}",
            f"{outlook.total:.4g}",
            f"{outlook.sigma:.4g}",
            percent(outlook.noise_share, 0),
            percent(outlook.accuracy),
            "refused" if outlook.refused else str(outlook.deletions),
            "" if outlook.noise is None else f"{outlook.noise:.12g}",
        )
        for outlook in planned.outlooks
    ]
    title = f"Forgetting {planned.n_forget:,} of {planned.n_source:,} rows, delta {planned.outlooks[0].delta:g}"
    headings = ("distance", "epsilon", "bound", "sigma", "noise / weights", "accuracy", "that fit", "--noise")
    table = table_of(headings, cells, title, ("distance",))
    if out.measure(table, options=out.options.update(max_width=1000)).maximum > out.width:
        table.padding = 0
    out.print(table)
    if planned.accuracy_before is not None:
        out.print(f"accuracy on the surrogate before: {percent(planned.accuracy_before)}")
    out.listing(planned.notes, "note: ")
    whoever = "1 row, whoever it is" if planned.n_forget == 1 else f"{planned.n_forget:,} rows, whoever they are"
    out.print(f"--noise: as for {whoever}, rehearsed on surrogate rows; to be set before anybody asks")
    out.print("that fit: deletions like this one, each published, before the noise swamps the weights")
