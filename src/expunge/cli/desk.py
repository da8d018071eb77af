"""`expunge desk`: requests over time, a command each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.table import Table

from expunge.cli.console import as_json, out, progress, quiet, reporting, written_to
from expunge.cli.facts import record_facts
from expunge.cli.report import naming
from expunge.cli.sections import Command, Group, section
from expunge.cli.sets import FILE, deposit_option, label_column, model_option, read_rows
from expunge.cli.streams import say_aside

if TYPE_CHECKING:
    from expunge.desk import Desk, Outcome, PublishedModel, RequestRow

Function = TypeVar("Function", bound=Callable[..., Any])

desk_folder = click.argument("desk", type=FILE)
another_person = click.option(
    "--another-person",
    is_flag=True,
    help="Declare that rows asked for before are somebody else's with equal values; the certificate carries that. A "
    "desk with a deposit needs no such word: the source's own counts decide.",
)
waiting = click.option(
    "--timeout",
    default=600.0,
    show_default=True,
    type=click.FloatRange(min=0.0, max=1e9),
    help="Seconds to wait while another command writes in this desk; 0: not at all.",
)


def saved_heads(what: str) -> Callable[[Function], Function]:
    """The option `--head`: files with saved heads, handed over as `heads`."""
    return click.option("--head", "heads", multiple=True, type=FILE, help=f"{what} May be given several times.")


def say_clock(opened: Desk) -> None:
    """Say on standard error what is wrong with the clock, if anything is."""
    from expunge.desk.status import clock_behind

    with opened.reading() as ledger:
        note = clock_behind(ledger)
    if note is not None:
        say_aside(f"note: {note}")


# `expunge desk head`.


@click.command(cls=Command, short_help="The ledger's head: number of entries and hash of the last one.")
@desk_folder
@written_to("A new file to save it in (else: printed).", required=False)
@as_json
@reporting
def head(desk: Path, target: Path | None, json_output: bool) -> dict[str, Any]:
    """The ledger's head: number of entries and hash of the last one. Keep it where the desk cannot reach.

    With a head saved earlier, `expunge desk verify` shows whether entries were cut off or changed since.

    \b
    expunge desk head desk/ --out saved-head.json
    """
    from expunge.desk import open_desk
    from expunge.desk.ledger import head_bytes
    from expunge.rows.output import write_file

    with open_desk(desk).reading() as ledger:
        present = ledger.head()
    if target is not None:
        write_file(target, head_bytes(present))
    if not json_output:
        out.print(f"{present.size} {present.hash}" if target is None else f"written: {target}", markup=False)
    return present.to_json()


# `expunge desk history`.


SHOWN = ("request", "requests", "reference", "model", "due", "reason")


@click.command(cls=Command, short_help="What the desk did: the ledger's entries.")
@desk_folder
@click.option("--after", default=0, show_default=True, help="Only entries after this number.")
@click.option("--limit", default=1000, show_default=True, help="At most so many.")
@as_json
@reporting
def history(desk: Path, after: int, limit: int, json_output: bool) -> dict[str, Any]:
    """The ledger's entries, oldest first.

    \b
    expunge desk history desk/ --after 100
    """
    from expunge.desk import history as entries_of
    from expunge.desk import open_desk

    entries = entries_of(open_desk(desk), after=after, limit=limit)
    if not json_output:
        for entry in entries:
            body = entry.body.to_json()
            shown = {name: body[name] for name in SHOWN if name in body}
            facts = ", ".join(f"{name} {value}" for name, value in shown.items())
            out.print(f"{entry.number:>6}  {entry.time}  {entry.kind:<10} {facts}", markup=False)
    return {"entries": [entry.to_json() for entry in entries]}


# `expunge desk init`.


promise = section(
    "Guarantee of each model",
    click.option("--epsilon", required=True, type=float, help="Of each published model; smaller protects more."),
    click.option("--delta", required=True, type=float, help="Probability that the promise fails; at most 1/n."),
    click.option(
        "--distance",
        help="Without a deposit: how far the surrogate is from the source: same, tv:0.2, chi2:0.1 or kl:0.5.",
    ),
    click.option(
        "--between",
        default="populations",
        show_default=True,
        help="What the distance is between: populations or samples.",
    ),
    click.option("--sampling", default="strict", show_default=True, help="seen or strict; see expunge unlearn."),
    click.option(
        "--match-classes", is_flag=True, help="Weight surrogate rows to the source's class counts; see expunge unlearn."
    ),
    click.option("--step", default="converged", show_default=True, help="converged, newton or balanced."),
    click.option(
        "--noise",
        default="rows:1",
        show_default=True,
        help="Of every model, set now, before anybody asks: a standard deviation, or as for so many rows a model "
        "(rows:10, rehearsed on surrogate rows for all planned models). A request that needs more is refused: retrain. "
        "request: each chooses a power of two, which says something of who left. expunge plan recommends a number. "
        "With a deposit, unless it is a number: what moves outputs by at most a hundredth.",
    ),
    click.option("--force", is_flag=True, help="Publish models of little use too; see expunge unlearn."),
)
over_time = section(
    "Over time",
    click.option(
        "--planned",
        default=50,
        show_default=True,
        help="Models to be published before the next training; they share the probability that a bound fails.",
    ),
    click.option(
        "--total-epsilon",
        type=float,
        help="Of all published models together, at the same delta (default: 10 x epsilon).",
    ),
    click.option("--days", default=30, show_default=True, help="How long a request may wait."),
)


@click.command(cls=Command, short_help="Open a desk: a new folder, with what it promises.")
@desk_folder
@section(
    "Sets",
    model_option(
        "The trained model with its record (expunge train). The desk keeps its own private copy. With a deposit it may "
        "be left out: the deposit has one.",
        required=False,
    ),
    deposit_option(
        "What was kept of the source (expunge deposit): requests are looked up in it, rows leave it with every run. "
        "The desk keeps its own private copy."
    ),
    click.option(
        "--surrogate",
        type=FILE,
        help="Without a deposit: rows that resemble the source. The desk keeps its own private copy.",
    ),
    label_column,
)
@promise
@over_time
@as_json
@reporting
@record_facts
def init(
    desk: Path,
    model_file: Path | None,
    deposit: Path | None,
    surrogate: Path | None,
    label: str | None,
    noise: str,
    declared: Any,
    json_output: bool,
    **policy_options: Any,
) -> dict[str, Any]:
    """Open a deletion desk: a new folder with a ledger, private state and published models.

    What it promises is fixed now: epsilon and delta of each model, how many are planned, what all of them together may
    say. With a deposit of the source no surrogate is needed and certificates are proven; without one, a surrogate and
    its distance are.

    \b
    expunge desk init desk/ --deposit model.deposit --epsilon 0.1 --delta 1e-6
    expunge desk init desk/ --model model.safetensors --surrogate surrogate.npz
                      --epsilon 1 --delta 1e-5 --distance chi2:0.1
    """
    from expunge.bounds.scale import publishable
    from expunge.desk import Policy, create_desk
    from expunge.model import read_model

    if deposit is not None:
        _require_alone(surrogate, policy_options)
    elif model_file is None or surrogate is None or policy_options["distance"] is None:
        raise _too_little()
    policy = Policy(**policy_options)
    policy.check()
    model, digest = (None, None) if model_file is None else read_model(model_file)
    notes: list[str] = []
    opened = create_desk(
        desk,
        model,
        None if surrogate is None else read_rows(surrogate, label, model),
        policy,
        digest,
        declared,
        notes.append,
        noise=publishable(noise),
        deposit=_read_deposit(deposit),
    )
    policy = opened.policy
    if not json_output:
        before = model is not None and (model.record is None or not model.record.noised)
        copied = [deposit, model_file if before else None]  # one that was published may stay
        _print_opened(desk, policy, notes, [str(path) for path in copied if path is not None])
    return {"desk": str(desk), "policy": policy.to_json(), "notes": notes}


def _read_deposit(path: Path | None) -> Any:
    from expunge.deposit.contents import read_deposit

    return None if path is None else read_deposit(path)


def _require_alone(surrogate: Path | None, policy: dict[str, Any]) -> None:
    """Refuse a surrogate and a distance with a deposit; its policy says that it is for one."""
    from expunge.deposit.asking import require_alone
    from expunge.desk.policy import DEPOSIT

    require_alone(surrogate=surrogate, distance=policy["distance"])
    policy["distance"] = DEPOSIT


def _too_little() -> Any:
    from expunge.errors import OptionError

    return OptionError(
        "no --model, no --surrogate or no --distance",
        "a desk needs a deposit of the source, or a model and rows that resemble the source, and how much they do",
        "Give --deposit if one was kept (expunge deposit), or all three.",
    )


def _print_opened(desk: Path, policy: Any, notes: list[str], copied: list[str]) -> None:
    for note in notes:
        out.print(f"note: {note}", markup=False)
    if policy.noise is not None:
        rehearsed = "" if policy.noise_rows is None else f", rehearsed with {policy.noise_rows:,} surrogate rows"
        out.print(f"noise of every model: {policy.noise:g}{rehearsed}")
    out.print(f"opened: {desk}; {desk / 'private'} must never leave", markup=False)
    out.print(
        f"the desk has its own copy of {' and '.join(copied)}: remove {'it' if len(copied) == 1 else 'them'}, since "
        "what is forgotten from now on is still in there",
        markup=False,
    )


# `expunge desk report`.


@click.command(cls=Command, short_help="Pages people can read, of all requests and models.")
@desk_folder
@section("Names", *naming)
@written_to("A new folder; private, for it shows references.")
@as_json
@reporting
def report(
    desk: Path, organisation: str | None, model_name: str | None, target: Path, json_output: bool
) -> dict[str, Any]:
    """Pages people can read, of a desk with all its requests and models.

    Each page is one file without scripts that opens offline and prints well; the tables come as CSV too.

    \b
    expunge desk report desk/ --out desk-report/
    """
    from expunge.desk import desk_report, open_desk
    from expunge.rows.output import require_absent, write_private_folder

    require_absent(target)
    files = desk_report(open_desk(desk), organisation=organisation, model_name=model_name)
    write_private_folder(target, files)
    written = [str(target / name) for name in sorted(files)]
    if not json_output:
        out.print("written: " + ", ".join(written), markup=False)
    return {"files": written}


# `expunge desk request`.


@click.command(cls=Command, short_help="Ask a desk to forget rows.")
@desk_folder
@click.option(
    "--forget",
    required=True,
    type=FILE,
    help="The rows to forget, with their labels. The desk keeps a private copy until they are forgotten.",
)
@label_column
@click.option(
    "--reference",
    help="Your name for the request, such as a case number; never a person's name, nor one that somebody who asks "
    "could choose (default: the desk makes one that cannot be guessed).",
)
@another_person
@click.option("--due", help="Day by which it must be done, such as 2026-01-31 (default: the desk's number of days).")
@waiting
@as_json
@reporting
def request(
    desk: Path,
    forget: Path,
    label: str | None,
    reference: str | None,
    another_person: bool,
    due: str | None,
    timeout: float,
    json_output: bool,
) -> dict[str, Any]:
    """Ask a desk to forget rows. When this returns, the request is on disk; asking twice is one request.

    Who asks is checked before: the desk takes anybody's word. The answer may be passed on, and is the same whatever
    others asked for; what becomes of the request, and where a person has to decide first, `expunge desk status` says.

    \b
    expunge desk request desk/ --forget forget.npz
    expunge desk request desk/ --forget forget.npz --reference case-17
    """
    from expunge.desk import accept, open_desk
    from expunge.desk.state import read_state

    opened = open_desk(desk, timeout)
    rows = read_rows(forget, label, read_state(opened).model)
    accepted = accept(
        opened,
        rows[0],
        rows[1],
        reference,
        due,
        encoder=rows.encoder,
        feature_names=rows.feature_names,
        another_person=another_person,
    )
    say_clock(opened)
    told = accepted.answer
    if not json_output:
        out.print(f"accepted: {told.reference}, {told.n_rows} rows, due {told.due}")
    return asdict(told)


# `expunge desk resume`.


@click.command(cls=Command, short_help="Take up a request that was set aside.")
@desk_folder
@click.argument("number", type=int)
@another_person
@waiting
@as_json
@reporting
def resume(desk: Path, number: int, another_person: bool, timeout: float, json_output: bool) -> dict[str, Any]:
    """Take up the request of this NUMBER, which was set aside: it waits again for the next run.

    `expunge desk status` lists what is set aside and why. What was set aside for good is withdrawn.

    \b
    expunge desk resume desk/ 3 --another-person
    """
    from expunge.desk import open_desk
    from expunge.desk import resume as take_up

    opened = open_desk(desk, timeout)
    taken = take_up(opened, number, another_person=another_person)
    say_clock(opened)
    if not json_output:
        out.print(f"taken up: request {taken.id}")
    return asdict(taken)


# `expunge desk run`.


@click.command(cls=Command, short_help="Forget what is pending, publish, certify.")
@desk_folder
@click.option(
    "--each", is_flag=True, help="One model a request: more models, which say more together than one model for all."
)
@click.option("--sign-key", type=FILE, help="An Ed25519 private key (expunge keygen).")
@click.option(
    "--test",
    type=FILE,
    help="Labelled rows on which to measure accuracy before and after.",
)
@label_column
@saved_heads(
    "A head saved earlier, outside the desk (expunge desk head, or head.json of a published folder): a ledger that is "
    "older is refused (exit status 1), since the desk was put back."
)
@waiting
@quiet
@as_json
@reporting
def run(
    desk: Path,
    each: bool,
    sign_key: Path | None,
    test: Path | None,
    label: str | None,
    heads: tuple[Path, ...],
    timeout: float,
    quiet: bool,
    json_output: bool,
) -> dict[str, Any]:
    """Forget the rows of all pending requests and publish one model for all of them, with certificate and report.

    Killed half-way, it is enough to run it again. A request that cannot be served is set aside with its reason, and the
    others go on (`expunge desk status` lists them). Exit status 3 means: retrain now, with the reason; models that were
    published stay published.

    \b
    expunge desk run desk/ --sign-key desk.key --test test.npz --head saved-head.json
    """
    from expunge.certificate.sign import read_private_key
    from expunge.desk import open_desk
    from expunge.desk import run as process
    from expunge.desk.ledger import saved_head
    from expunge.desk.state import read_state

    opened = open_desk(desk, timeout)
    saved = [saved_head(path) for path in heads]
    key = None if sign_key is None else read_private_key(sign_key)
    rows = None if test is None else read_rows(test, label, read_state(opened).model)
    with progress(not quiet) as advance:
        outcome = process(
            opened,
            each=each,
            sign_key=key,
            test=rows,
            heads=saved,
            progress=advance,
        )
    say_clock(opened)
    if not json_output:
        _print(outcome)
    if outcome.refused is not None:
        raise outcome.refused
    return {
        "published": [_described(made) for made in outcome.published],
        "pending": outcome.pending,
        "aside": outcome.aside,
    }


def _print(outcome: Outcome) -> None:
    for made in outcome.published:
        answered = ", ".join(str(number) for number in made.requests)
        out.print(
            f"published model {made.number} for request {answered}: {made.certificate.status}, "
            f"sigma {made.certificate.sigma:.4g}; all models together: epsilon {made.composition.epsilon:.4g}"
        )
    if not outcome.published and outcome.refused is None:
        out.print("nothing was pending")
    if outcome.aside:
        out.print(f"{outcome.aside:,} set aside: see expunge desk status")


def _described(made: PublishedModel) -> dict[str, Any]:
    return {
        "model": made.number,
        "requests": list(made.requests),
        "sigma": made.certificate.sigma,
        "status": made.certificate.status,
        "composition": made.composition.to_json(),
    }


# `expunge desk status`.


LISTED = 20


@click.command(cls=Command, short_help="What waits, what was published, what is left.")
@desk_folder
@click.option("--reference", help="Only the requests with this reference.")
@as_json
@reporting
def status(desk: Path, reference: str | None, json_output: bool) -> dict[str, Any]:
    """Where a desk stands: what waits, what is set aside, what was published, what all models say, what is left.

    For those who run the desk: what is said of one request depends on what others asked for.

    \b
    expunge desk status desk/
    expunge desk status desk/ --reference case-17
    """
    from expunge.desk import open_desk, requests
    from expunge.desk import status as standing_of

    opened = open_desk(desk)
    if reference is not None:
        found = requests(opened, reference=reference)
        if not json_output:
            for row in found:
                out.print(_line(row))
        return {"requests": [asdict(row) for row in found]}
    state = standing_of(opened)
    waiting, apart = requests(opened, "pending", limit=LISTED), requests(opened, "aside", limit=LISTED)
    if not json_output:
        out.print(
            f"requests: {state.pending:,} pending, {state.aside:,} set aside ({state.overdue:,} overdue), "
            f"{state.done:,} done"
        )
        out.print(
            f"models: {state.models} published of {state.planned} planned; epsilon allows {state.models_left:,} more, "
            "one a run"
        )
        out.print(f"all models together: epsilon {state.epsilon:.4g} of {state.limit:g}, delta {state.delta:g}")
        if state.reach is not None:
            out.print(
                f"reach of the deposit: {100 * state.reach:.3g} % used, {state.forgotten:,} rows forgotten; at 100 % "
                "a model must be retrained"
            )
        if state.rows_left is not None:
            out.print(
                f"the deposit reaches for about {state.rows_left:,} more rows like those so far, which is "
                f"{state.deletions_left:,} runs of that size; somebody very influential may be beyond it at any time"
            )
        elif state.deletions_left is not None:
            out.print(
                f"the noise covers about {state.deletions_left:,} more runs like those so far, then a model must "
                "be retrained"
            )
        if state.deletions_left is not None:
            other = "the noise" if state.reach is None else "the deposit"
            first = "epsilon" if state.models_left <= state.deletions_left else other
            left = min(state.models_left, state.deletions_left)
            out.print(f"of these limits {first} comes first: about {left:,} more runs")
        if state.clock:
            out.print(f"note: {state.clock}", markup=False)
        if state.retrain:
            out.print(state.retrain, markup=False, style="bold red")
        _listed(waiting, apart)
    return state.to_json() | {"waiting": [asdict(row) for row in waiting], "set_aside": [asdict(row) for row in apart]}


def _listed(waiting: list[RequestRow], apart: list[RequestRow]) -> None:
    if waiting:
        table = Table(title=f"Pending (first {len(waiting)})", title_justify="left")
        for heading in ("request", "reference", "accepted", "due", "rows"):
            table.add_column(heading)
        for row in waiting:
            table.add_row(str(row.id), row.reference, row.accepted, row.due, str(row.n_rows))
        out.print(table)
    if apart:
        out.print(f"Set aside (first {len(apart)}), for a person to decide:")
    for row in apart:
        out.print(f"  {_line(row)}")


def _line(row: RequestRow) -> str:
    why = f"{row.aside.reason}. {row.aside.remedy}" if row.aside is not None else row.state
    return f"request {row.id}, {row.reference}, {row.n_rows} rows, due {row.due}: {why}"


# `expunge desk verify`.


@click.command(cls=Command, short_help="Check the ledger and every published file, offline.")
@desk_folder
@saved_heads("A head saved earlier, outside the desk: shows whether entries were cut off.")
@as_json
@reporting
def verify(desk: Path, heads: tuple[Path, ...], json_output: bool) -> dict[str, Any]:
    """Check every entry, the chain, the root, every published file and every dossier, offline; exit status 1 if not.

    Whoever made the folder: only plain files inside it are read, none larger than it should be. A file that the ledger
    does not know of fails, too.

    \b
    expunge desk verify desk/ --head saved-head.json
    """
    from expunge.desk import verify_desk
    from expunge.desk.layout import Layout
    from expunge.desk.ledger import saved_head

    saved = [saved_head(path) for path in heads]
    checked = verify_desk(Layout(desk), saved)
    if not json_output:
        models = "1 published model" if checked.models == 1 else f"{checked.models:,} published models"
        out.print(f"verified: {checked.head.size:,} entries, {models}")
        if not saved:
            out.print(
                "no saved head was given: that entries were cut off at the end could not be seen; see expunge desk head"
            )
        if not checked.sealed:
            out.print(
                "the file is newer than its seal (a command was killed): entries were checked, unused bytes were not"
            )
        if len(checked.dossiers) < checked.models:
            out.print(
                f"dossiers at hand: {len(checked.dossiers):,}; statements without theirs were checked by themselves"
            )
        if checked.absent:
            out.print("folders taken away: " + ", ".join(f"{number:04d}" for number in checked.absent))
    return {
        "verified": True,
        "head": checked.head.to_json(),
        "sealed": checked.sealed,
        "models": checked.models,
        "dossiers": list(checked.dossiers),
        "absent": list(checked.absent),
        "saved_heads": len(saved),
    }


# `expunge desk withdraw`.


@click.command(cls=Command, short_help="Take back a pending request.")
@desk_folder
@click.argument("number", type=int, required=False)
@click.option("--reference", help="The request's reference, in the place of its number.")
@click.option("--reason", default="withdrawn", show_default=True, help="Why, for the ledger.")
@waiting
@as_json
@reporting
def withdraw(
    desk: Path, number: int | None, reference: str | None, reason: str, timeout: float, json_output: bool
) -> dict[str, Any]:
    """Take back the request of this NUMBER, or of a reference, that waits or is set aside.

    The ledger keeps that it was asked and why it was not done.

    \b
    expunge desk withdraw desk/ 3 --reason "asked by mistake"
    expunge desk withdraw desk/ --reference case-17
    """
    from expunge.desk import open_desk
    from expunge.desk import withdraw as take_back
    from expunge.errors import OptionError

    named = [given for given in (number, reference) if given is not None]
    if len(named) != 1:
        given = "a number and a reference" if named else "neither a number nor a reference"
        raise OptionError(given, "one of the two names the request", "Give one.")
    opened = open_desk(desk, timeout)
    withdrawn = take_back(opened, named[0], reason)
    say_clock(opened)
    if not json_output:
        out.print(f"withdrawn: {withdrawn.reference}")
    return asdict(withdrawn)


# `expunge desk`: requests over time, one file a command.


@click.group(cls=Group, short_help="A deletion desk: take requests, forget, publish, keep a ledger.")
def desk() -> None:
    """A deletion desk: a folder that takes requests, forgets, publishes and keeps a ledger.

    \b
    expunge desk init    desk/ --model model.safetensors --surrogate surrogate.npz
                         --epsilon 1 --delta 1e-5 --distance chi2:0.1
    expunge desk request desk/ --forget forget.npz --reference case-17
    expunge desk run     desk/
    expunge desk head    desk/ --out saved-head.json
    """


desk.add_section("Work", init, request, withdraw, resume, run)
desk.add_section("Look", status, history, report)
desk.add_section("The ledger", head, verify)
