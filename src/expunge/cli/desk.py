"""`expunge desk`: requests over time, a command each."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from expunge.bounds.calibration import publishable
from expunge.cli.console import out, progress
from expunge.cli.files import LABEL, read_rows
from expunge.cli.options import CommandGroup, argument, command, options_of, output_option
from expunge.cli.verify import SIGN_KEY
from expunge.desk.policy import DEPOSIT, Policy
from expunge.request.promise import Declared
from expunge.runtime.values import option, words_of

if TYPE_CHECKING:
    from expunge.desk import Outcome, RequestRow

MOST_LISTED = 20
FACTS = ("request", "requests", "reference", "model", "due", "reason")  # of an entry, in its line
ANOTHER_PERSON = (
    "Declare that rows asked for before are somebody else's with equal values; the certificate carries that. A desk "
    "with a deposit needs no such word: the source's own counts decide."
)


TIMEOUT = option(
    "Seconds to wait while another command writes in this desk; 0: not at all.",
    600.0,
    kind=click.FloatRange(min=0.0, max=1e9),
)
HEADS = option(
    "A head saved earlier, outside the desk (expunge desk head, or a published statement.json): a ledger that is older "
    "or was changed is refused with exit status 1. May be given several times.",
    (),
    names=("--head",),
)


@command()
def init(
    desk: Path = argument(),
    model: Path | None = option(
        "The trained model with its record (expunge train). The desk keeps its own private copy. With a deposit it "
        "may be left out: the deposit has one.",
        section="Sets",
    ),
    deposit: Path | None = option(
        "What was kept of the source (expunge deposit): requests are looked up in it, rows leave it with every run. "
        "The desk keeps its own private copy."
    ),
    surrogate: Path | None = option(
        "Without a deposit: rows that resemble the source. The desk keeps its own private copy."
    ),
    label: str | None = option(LABEL),
    terms: dict[str, Any] = options_of(Policy, leave="distance", build=dict),
    distance: str | None = option(words_of(Policy, "distance"), section="Guarantee of each model"),
    noise: Any = option(
        "Of every model, set now, before anybody asks: a standard deviation, or as for so many rows a model (rows:10, "
        "rehearsed on surrogate rows for all planned models). A request that needs more is refused: retrain. request: "
        "each chooses a power of two, which says something of who left. expunge plan recommends a number. With a "
        "deposit, unless it is a number: what moves outputs by at most a hundredth, with an epsilon below 1 in "
        "proportion more, up to 16 times.",
        "rows:1",
        text=publishable,
    ),
    declared: Declared = options_of(Declared),
) -> Any:
    """Open a deletion desk: a new folder with a ledger, private state and published models.

    What it promises is fixed now: epsilon and delta of each model, how many are planned, what all of them together may
    say. With a deposit of the source no surrogate is needed and certificates are proven; without one, a surrogate and
    its distance are.

    \b
    expunge desk init desk/ --deposit model.deposit --epsilon 0.1 --delta 1e-6
    expunge desk init desk/ --model model.safetensors --surrogate surrogate.npz
                      --epsilon 1 --delta 1e-5 --distance chi2:0.1
    """
    from expunge.deposit.file import read_deposit
    from expunge.desk import create_desk
    from expunge.errors import OptionError
    from expunge.model import read_model
    from expunge.request.promise import require_none_with_deposit

    if deposit is not None:
        require_none_with_deposit({"surrogate": surrogate, "distance": distance})
        distance = DEPOSIT
    elif model is None or surrogate is None or distance is None:
        raise OptionError(
            "no --model, no --surrogate or no --distance",
            "a desk needs a deposit of the source, or a model and rows that resemble the source, and how much they do",
            "Give --deposit if one was kept (expunge deposit), or all three.",
        )
    policy = Policy(**terms, distance=distance)
    policy.check()
    given, digest = (None, None) if model is None else read_model(model)
    rows = None if surrogate is None else read_rows(surrogate, label, given)
    stored = None if deposit is None else read_deposit(deposit)
    notes: list[str] = []
    opened = create_desk(desk, given, rows, policy, digest, declared, notes.append, noise=noise, deposit=stored)
    policy = opened.policy
    out.listing(notes, "note: ")
    if policy.noise is not None:
        rehearsed = "" if policy.noise_rows is None else f", rehearsed with {policy.noise_rows:,} surrogate rows"
        out.print(f"noise of every model: {policy.noise:g}{rehearsed}")
    out.print(f"opened: {desk}; {desk / 'private'} must never be handed out")
    others = "the deposit, and the model as it was trained," if deposit is not None else "the model that was given,"
    out.print(f"the desk has its own copy: remove {others} since what is forgotten from now on is still in there")
    return {"desk": str(desk), "policy": policy.to_json(), "notes": notes}


@command()
def request(
    desk: Path = argument(),
    forget: Path = option(
        "The rows to forget, with their labels. The desk keeps a private copy until they are forgotten."
    ),
    label: str | None = option(LABEL),
    reference: str | None = option(
        "Your name for the request, such as a case number; never a person's name, nor one that somebody who asks "
        "could choose (default: the desk makes one that cannot be guessed)."
    ),
    another_person: bool = option(ANOTHER_PERSON),
    due: str | None = option("Day by which it must be done, such as 2026-01-31 (default: the desk's number of days)."),
    timeout: float = TIMEOUT,
) -> Any:
    """Ask a desk to forget rows. When this returns, the request is on disk; asking twice is one request.

    Who asks is checked before: the desk takes anybody's word. The answer may be passed on, and is the same whatever
    others asked for; what becomes of the request, and where a person has to decide first, `expunge desk status` says.

    \b
    expunge desk request desk/ --forget forget.npz
    expunge desk request desk/ --forget forget.npz --reference case-17
    """
    from expunge.desk import accept, open_desk
    from expunge.desk.state import load_state

    opened = open_desk(desk, timeout)
    with opened.writing() as ledger:  # a run may be giving the state its name
        model = load_state(opened, ledger).model
    rows = read_rows(forget, label, model)
    known = {"encoder": rows.encoder, "feature_names": rows.feature_names}
    accepted = accept(opened, rows[0], rows[1], reference, due, another_person=another_person, **known)
    answer = accepted.answer
    out.print(f"accepted: {answer.reference}, {answer.n_rows} rows, due {answer.due}")
    return asdict(answer)


@command()
def withdraw(
    desk: Path = argument(),
    number: int | None = argument(),
    reference: str | None = option("The request's reference, in the place of its number."),
    reason: str = option("Why, for the ledger.", "withdrawn"),
    timeout: float = TIMEOUT,
) -> Any:
    """Take back the request of this NUMBER, or of a reference, that waits or is set aside.

    The ledger keeps that it was asked and why it was not done.

    \b
    expunge desk withdraw desk/ 3 --reason "asked by mistake"
    expunge desk withdraw desk/ --reference case-17
    """
    from expunge.desk import open_desk
    from expunge.desk import withdraw as take_back
    from expunge.errors import OptionError

    names = [given for given in (number, reference) if given is not None]
    if len(names) != 1:
        given = "a number and a reference" if names else "neither a number nor a reference"
        raise OptionError(given, "one of the two names the request", "Give one.")
    withdrawn = take_back(open_desk(desk, timeout), names[0], reason)
    out.print(f"withdrawn: {withdrawn.reference}")
    return asdict(withdrawn)


@command()
def resume(
    desk: Path = argument(),
    number: int = argument(),
    another_person: bool = option(ANOTHER_PERSON),
    timeout: float = TIMEOUT,
) -> Any:
    """Take up the request of this NUMBER, which was set aside: it waits again for the next run.

    `expunge desk status` lists what is set aside and why. What was set aside for good is withdrawn.

    \b
    expunge desk resume desk/ 3 --another-person
    """
    from expunge.desk import open_desk
    from expunge.desk import resume as take_up

    taken = take_up(open_desk(desk, timeout), number, another_person=another_person)
    out.print(f"taken up: request {taken.id}")
    return asdict(taken)


@command(quiet=True)
def run(
    desk: Path = argument(),
    each: bool = option("One model a request: more models, which say more together than one model for all."),
    sign_key: Path | None = option(f"{SIGN_KEY}."),
    heads: tuple[Path, ...] = HEADS,
    timeout: float = TIMEOUT,
) -> Any:
    """Forget the rows of all pending requests and publish one model for all of them, with certificate and report.

    Killed half-way, it is enough to run it again. A request that cannot be served is set aside with its reason, and the
    others go on (`expunge desk status` lists them). Exit status 3 means: retrain now, with the reason; models that were
    published stay published.

    \b
    expunge desk run desk/ --sign-key desk.key --head saved-head.json
    """
    from expunge.certificate.sign import read_private_key
    from expunge.desk import open_desk
    from expunge.desk import run as process
    from expunge.desk.ledger import saved_head

    opened = open_desk(desk, timeout)
    saved = [saved_head(path) for path in heads]
    key = None if sign_key is None else read_private_key(sign_key)
    with progress() as advance:
        outcome: Outcome = process(opened, each=each, sign_key=key, heads=saved, progress=advance)
    for model in outcome.published:
        answered = ", ".join(str(number) for number in model.requests)
        out.print(
            f"published model {model.number} for request {answered}: {model.certificate.status}, "
            f"sigma {model.certificate.sigma:.4g}; all models together: epsilon {model.composition.epsilon:.4g}"
        )
    if not outcome.published and outcome.refused is None:
        out.print("nothing was pending")
    if outcome.aside:
        out.print(f"{outcome.aside:,} set aside: see expunge desk status")
    if outcome.refused is not None:
        raise outcome.refused
    published = [
        {
            "model": model.number,
            "requests": list(model.requests),
            "sigma": model.certificate.sigma,
            "status": model.certificate.status,
            "composition": model.composition.to_json(),
        }
        for model in outcome.published
    ]
    return {"published": published, "pending": outcome.pending, "aside": outcome.aside}


@command()
def status(
    desk: Path = argument(),
    reference: str | None = option("Only the requests with this reference."),
) -> Any:
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
        rows = requests(opened, reference=reference)
        out.listing([_line(row) for row in rows], "")
        return {"requests": [asdict(row) for row in rows]}
    state = standing_of(opened)
    asked = f"{state.pending:,} pending, {state.aside:,} set aside ({state.overdue:,} overdue)"
    out.print(f"requests: {asked}, {state.done:,} done")
    left = f"epsilon allows {state.models_left:,} more, one a run"
    out.print(f"models: {state.models} published of {state.planned} planned; {left}")
    out.print(f"all models together: epsilon {state.epsilon:.4g} of {state.limit:g}, delta {state.delta:g}")
    if state.reach is not None:
        used = f"{100 * state.reach:.3g} % used, {state.forgotten:,} rows forgotten"
        out.print(f"reach of the deposit: {used}; at 100 % a model must be retrained")
    if state.deletions_left is not None:
        more = "" if state.rows_left is None else f"{state.rows_left:,} more rows like those so far, which is "
        what = "the noise" if state.reach is None else "the deposit"
        out.print(
            f"{what} reaches for about {more}{state.deletions_left:,} runs like those so far; somebody very "
            "influential may be beyond it at any time"
        )
    if state.retrain:
        out.print(state.retrain, style="bold red")
    listed = {}
    for kind, name, words in (
        ("pending", "waiting", "Pending"),
        ("aside", "set_aside", "Set aside, for a person to decide"),
    ):
        found = requests(opened, kind, limit=MOST_LISTED)
        listed[name] = [asdict(row) for row in found]
        if found:
            out.print(f"{words} (first {len(found)}):")
            out.listing([_line(row) for row in found], "  ")
    return state.to_json() | listed


def _line(row: RequestRow) -> str:
    why = f"{row.aside.reason}. {row.aside.remedy}" if row.aside is not None else row.state
    return f"request {row.id}, {row.reference}, {row.n_rows} rows, due {row.due}: {why}"


@command()
def history(
    desk: Path = argument(),
    after: int = option("Only entries after this number.", 0),
    limit: int = option("At most so many.", 1000),
) -> Any:
    """The ledger's entries, oldest first.

    \b
    expunge desk history desk/ --after 100
    """
    from expunge.desk import history as entries_of
    from expunge.desk import open_desk

    entries = entries_of(open_desk(desk), after=after, limit=limit)
    for entry in entries:
        body = entry.body.to_json()
        facts = ", ".join(f"{name} {body[name]}" for name in FACTS if name in body)
        out.print(f"{entry.number:>6}  {entry.time}  {entry.kind:<10} {facts}")
    return {"entries": [entry.to_json() for entry in entries]}


@command()
def report(
    desk: Path = argument(),
    target: Path = output_option("A new folder; private, for it shows references."),
) -> Any:
    """Pages about a desk, with all its requests and models, that people can read.

    Each page is one file without scripts that opens offline and prints well; the tables come as CSV too.

    \b
    expunge desk report desk/ --out desk-report/
    """
    from expunge.desk import desk_report, open_desk
    from expunge.rows.output import write_folder
    from expunge.runtime.files import PRIVATE_FOLDER

    files = desk_report(open_desk(desk))
    write_folder(target, files, mode=PRIVATE_FOLDER)
    written = [str(target / name) for name in sorted(files)]
    out.print("written: " + ", ".join(written))
    return {"files": written}


@command()
def head(
    desk: Path = argument(),
    target: Path | None = option("A new file to save it in (else: printed).", names=("--out",)),
) -> Any:
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
    out.print(f"{present.size} {present.hash}" if target is None else f"written: {target}")
    return present.to_json()


@command()
def verify(
    desk: Path = argument(),
    heads: tuple[Path, ...] = HEADS,
) -> Any:
    """Check every entry, the chain, every published file and every dossier, offline; exit status 1 if not.

    The folder may be anybody's: only plain files inside it are read, none larger than it should be. A file that the
    ledger does not know fails the check too.

    \b
    expunge desk verify desk/ --head saved-head.json
    """
    from expunge.desk import verify_desk
    from expunge.desk.ledger import saved_head
    from expunge.desk.policy import Layout

    saved = [saved_head(path) for path in heads]
    checked = verify_desk(Layout(desk), saved)
    models = "1 published model" if checked.models == 1 else f"{checked.models:,} published models"
    out.print(f"verified: {checked.head.size:,} entries, {models}")
    if not saved:
        out.print(
            "no saved head was given: that entries were cut off at the end could not be seen; see expunge desk head"
        )
    if not checked.sealed:
        out.print("the file is newer than its seal (a command was killed): entries were checked, unused bytes were not")
    if len(checked.dossiers) < checked.models:
        out.print(f"dossiers at hand: {len(checked.dossiers):,}; statements without theirs were checked by themselves")
    if checked.absent:
        out.print("folders taken away: " + ", ".join(f"{number:04d}" for number in checked.absent))
    return {"verified": True, "saved_heads": len(saved)} | asdict(checked)


@click.group(
    cls=CommandGroup,
    listing={
        "Work": {
            "init": ("desk", "Open a desk: a new folder, with what it promises."),
            "request": ("desk", "Ask a desk to forget rows."),
            "withdraw": ("desk", "Take back a pending request."),
            "resume": ("desk", "Take up a request that was set aside."),
            "run": ("desk", "Forget what is pending, publish, certify."),
        },
        "Look": {
            "status": ("desk", "Show what waits, what was published and what is left."),
            "history": ("desk", "List the ledger's entries: what the desk did."),
            "report": ("desk", "Write pages about all requests and models that people can read."),
        },
        "The ledger": {
            "head": ("desk", "The ledger's head: number of entries and hash of the last one."),
            "verify": ("desk", "Check the ledger and every published file, offline."),
        },
    },
)
def desk() -> None:
    """A deletion desk: a folder that takes requests, forgets, publishes and keeps a ledger.

    \b
    expunge desk init    desk/ --model model.safetensors --surrogate surrogate.npz
                         --epsilon 1 --delta 1e-5 --distance chi2:0.1
    expunge desk request desk/ --forget forget.npz --reference case-17
    expunge desk run     desk/
    expunge desk head    desk/ --out saved-head.json
    """
