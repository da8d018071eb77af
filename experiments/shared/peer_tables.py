"""Tables of peers beside Expunge, from the records alone: what is behind is named here, not by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.protocol.experiment import Config, Record, Table, grouped, percent, spread
from experiments.shared.checks import tally
from experiments.shared.ours import DEPOSIT, OURS, RIDGE, SURROGATE
from experiments.shared.rivals import CHOSEN, DESCENT, LANGEVIN, REMOVAL, RETRAIN, RETRAIN_RIDGE, TUNING, USUAL
from expunge.bounds import TERMS

PUBLISHED = "published"
PEERS = (REMOVAL, DESCENT, LANGEVIN, TUNING)
NEEDS = {
    **dict.fromkeys((RETRAIN, RETRAIN_RIDGE, *PEERS), "retained rows"),
    SURROGATE: "surrogate",
    DEPOSIT: "deposit",
    RIDGE: "deposit",
}
ALL_OURS = (*OURS, RIDGE)
SMALL = 1.0  # epsilons up to this are counted below the tables
SHARE, AT = 0.01, 1.0  # of the table of losses: one row in a hundred, epsilon 1
ALLOWED = 0.5  # points
TIE = 0.05  # points: tables do not show less
REFUSED = "refused"
Key = tuple[str, float, bool]  # task, forgotten, one by one
Line = tuple[str, int | None, str]  # method, budget, whose l2
Cells = dict[tuple[str, int | None, str, float | None], list[Mapping[str, Any]]]


def said(count: float, sequence: bool) -> str:
    """How many leave, in words.

    >>> said(0.01, False), said(100, True)
    ('1 %', '100 in sequence')
    """
    text = f"{count:g}" if count >= 1 else f"{100.0 * count:g} %"
    return f"{text} in sequence" if sequence else text


def tables(config: Config, records: Sequence[Record]) -> list[Table]:
    """The check against published figures, losses of accuracy at C = 1, where a deposit is behind, then every task."""
    groups = by_task(config, records)
    first = [_published(config, one) for one in records if one["options"]["task"] == PUBLISHED]
    if groups:
        first += [_losses(config, groups), _standing(config, groups), _named(config, groups)]
    return first + [_task(config, key, group) for key, group in groups.items()]


def by_task(config: Config, records: Sequence[Record]) -> dict[Key, list[Record]]:
    """Records by task, number of removals and whether one by one, in the order of the config.

    Those of a ridge head stand with the others, and not alone.
    """
    found = grouped([one for one in records if one["options"]["task"] != PUBLISHED], "task", "forget", "sequence")
    found = {key: group for key, group in found.items() if any("head" not in one["options"] for one in group)}
    order = [
        (name, count, sequence)
        for name, wanted in config["run"]["tasks"].items()
        for sequence, counts in ((False, wanted["forget"]), (True, wanted["sequence"]))
        for count in counts
    ]
    return {key: found[key] for key in order if key in found}


def cells_of(group: Sequence[Record]) -> Cells:
    """Cells of all seeds by method, budget, whose l2, and epsilon; each says where it was computed."""
    found: Cells = {}
    for record in group:
        for cell in record["result"]["cells"]:
            key = (cell["method"], cell["budget"], cell["chosen"], cell["epsilon"])
            found.setdefault(key, []).append({"device": record["result"]["device"], **cell})
    return found


def _place(cells: Cells) -> str:
    """Where most cells were computed: seconds of a table are of one device alone."""
    return Counter(str(cell["device"]) for some in cells.values() for cell in some).most_common(1)[0][0]


def lines_of(wanted: Mapping[str, Any], cells: Cells) -> list[Line]:
    """Methods, budgets and whose l2 in the order of the tables."""
    made: list[Line] = [(RETRAIN, None, USUAL), (RETRAIN, None, CHOSEN), (REMOVAL, None, CHOSEN)]
    made += [(name, budget, CHOSEN) for name in PEERS[1:] for budget in wanted["budgets"]]
    made += [(name, None, chosen) for name in (*OURS, RETRAIN_RIDGE, RIDGE) for chosen in (USUAL, CHOSEN)]
    known = {key[:3] for key in cells}
    return [line for line in made if line in known]


def mean(cells: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean accuracy; None where any of them was refused."""
    values = [cell["accuracy"] for cell in cells]
    return None if None in values else float(np.mean(values))


def _cell(cells: Sequence[Mapping[str, Any]]) -> str:
    refused = sum(cell["accuracy"] is None for cell in cells)
    if refused:
        return REFUSED if refused == len(cells) else f"{REFUSED} {refused} of {len(cells)}"
    return percent([cell["accuracy"] for cell in cells])


def _published(config: Config, record: Record) -> Table:
    result = record["result"]
    theirs = {
        (method, steps, epsilon): value
        for method, lines in config["paper"][PUBLISHED].items()
        for steps, epsilon, value in lines
    }
    rows = [
        (
            cell["method"],
            str(cell["steps"]),
            f"{cell['epsilon']:g}",
            f"{theirs[cell['method'], cell['steps'], cell['epsilon']]:g}",
            percent(cell["accuracies"]),
        )
        for cell in sorted(result["cells"], key=lambda one: (one["method"], one["steps"], one["epsilon"]))
    ]
    return Table(
        "MNIST 3 v 8, one removal: our implementations in the setting of the published figures",
        ("method", "steps", "epsilon", "published, accuracy %", "ours, accuracy %"),
        tuple(rows),
        (
            f"All {result['n_source']:,} training rows of the two digits, delta = 1/n, the papers' own noise, l2 and "
            f"steps of the published runs; ± is over draws. Without noise the accuracy is "
            f"{percent([result['before']])} %.",
            "Of certified removal and noisy fine-tuning no figure at these epsilons is at hand for this task.",
            *config["paper"]["more"],
        ),
    )


def _losses(config: Config, groups: Mapping[Key, list[Record]]) -> Table:
    """At C = 1, epsilon 1 and one row in a hundred forgotten: points below retraining, and what limits it."""
    rows, within, total = [], 0, 0
    for (name, count, sequence), group in groups.items():
        if (count, sequence) != (SHARE, False):
            continue
        cells = cells_of(group)
        before = mean(cells[RETRAIN, None, USUAL, None])
        assert before is not None  # retraining is never refused
        own = {kind: cells[kind, None, USUAL, AT] for kind in OURS}
        losses = {
            kind: None if (value := mean(some)) is None else 100.0 * (before - value) for kind, some in own.items()
        }
        best = losses[DEPOSIT]
        total += 1
        within += best is not None and best <= ALLOWED
        result = group[0]["result"]
        rows.append(
            (
                config["paper"]["titles"][name],
                f"{result['n_source']:,}",
                f"{result['weights']:,}",
                percent([before]),
                *(_points(losses[kind]) for kind in OURS),
                _limit(own[DEPOSIT]),
                _cell(cells[RIDGE, None, USUAL, AT]) if (RIDGE, None, USUAL, AT) in cells else "--",
            )
        )
    note = (
        f"Points of test accuracy below retraining with the same l2; with a deposit at most {ALLOWED:g} in "
        f"{within} of {total} tasks. What limits it: the length of the noise over that of the weights, and the term of "
        f"the region that is largest, with its share ({_words(groups)}). Beside it the accuracy of a ridge head with a "
        "deposit, at RidgeClassifier's alpha = 1."
    )
    columns = ("task", "n", "weights", "retrained, accuracy %", *(f"loss, {kind}" for kind in OURS))
    columns += ("what limits it", f"{RIDGE}, accuracy %")
    return Table("Loss of accuracy at C = 1, epsilon 1, one row in a hundred forgotten", columns, tuple(rows), (note,))


def _words(groups: Mapping[Key, list[Record]]) -> str:
    """What the terms are that are largest somewhere."""
    found = [one for group in groups.values() for one in cells_of(group).get((DEPOSIT, None, USUAL, AT), ())]
    largest = {max(one["terms"], key=one["terms"].__getitem__) for one in found if one["accuracy"] is not None}
    return "; ".join(f"{name}: {TERMS[name].words}" for name in sorted(largest) if name in TERMS)


def _points(value: float | None) -> str:
    """Points with one decimal.

    >>> _points(-0.04), _points(1.26), _points(None)
    ('0.0', '1.3', 'refused')
    """
    return REFUSED if value is None else f"{round(value, 1) + 0.0:.1f}"


def _limit(cells: Sequence[Mapping[str, Any]]) -> str:
    """Noise over weights, and the largest term of the region."""
    refused = [cell["refused"] for cell in cells if cell["accuracy"] is None]
    if refused:
        return f"no region that a deposit's radii cover ({', '.join(dict.fromkeys(refused))})"
    terms = {name: sum(cell["terms"].get(name, 0.0) for cell in cells) for name in cells[0]["terms"]}
    largest = max(terms, key=terms.__getitem__)
    share = terms[largest] / sum(terms.values()) if sum(terms.values()) > 0.0 else 0.0
    return f"noise {spread([cell['noise'] for cell in cells], '.2g')}; {largest} {100.0 * share:.0f} %"


def _standing(config: Config, groups: Mapping[Key, list[Record]]) -> Table:
    """For each task how many cells with a small epsilon are at or above every peer's; regions against the truth."""
    lines: list[Line] = [(kind, None, chosen) for kind in ALL_OURS for chosen in (USUAL, CHOSEN)]
    rows, sums = [], dict.fromkeys(lines, (0, 0))
    for (name, count, sequence), group in groups.items():
        wanted, cells, counted = config["run"]["tasks"][name], cells_of(group), []
        for line in lines:
            total = len(_small(wanted)) * len(_peers(wanted, cells)) if (*line, AT) in cells else 0
            ahead = total - len(list(_behind(wanted, cells, line)))
            sums[line] = (sums[line][0] + ahead, sums[line][1] + total)
            counted.append(f"{ahead} of {total}" if total else "--")
        rows.append((config["paper"]["titles"][name], said(count, sequence), *counted, _regions(group)))
    every = [record for group in groups.values() for record in group]
    rows.append(("all", "--", *(f"{ahead} of {total}" for ahead, total in sums.values()), _regions(every)))
    note = (
        f"Cells (a peer with its budget at an epsilon up to {SMALL:g}) where Expunge is at or above the peer, or less "
        f"than {TIE:g} points below; the others are named below each task's table. The last column: retrained weights "
        "inside the region, and the smallest radius over true distance."
    )
    kinds = [f"{kind.removeprefix('Expunge, ')}, {chosen}" for kind in ALL_OURS for chosen in (USUAL, CHOSEN)]
    columns = ("task", "forgotten", *kinds, "regions that hold, smallest ratio")
    return Table("Where Expunge stands", columns, tuple(rows), (note,))


def _named(config: Config, groups: Mapping[Key, list[Record]]) -> Table:
    """Every cell with a small epsilon where a deposit, with the l2 that is chosen, is behind."""
    rows, neither, total = [], 0, 0
    for (name, count, sequence), group in groups.items():
        wanted, cells = config["run"]["tasks"][name], cells_of(group)
        lines = [(kind, None, CHOSEN) for kind in (DEPOSIT, RIDGE)]
        if (RIDGE, None, CHOSEN, AT) in cells:
            both = ({one[:2] for one in _behind(wanted, cells, (kind, None, CHOSEN))} for kind in (DEPOSIT, RIDGE))
            neither, total = (
                neither + len(set.intersection(*both)),
                total + len(_small(wanted)) * len(_peers(wanted, cells)),
            )
        behind = [_words_behind(_behind(wanted, cells, line)) for line in lines]
        shown = [one or ("none" if (*line, AT) in cells else "--") for one, line in zip(behind, lines, strict=True)]
        if any(behind):
            rows.append((config["paper"]["titles"][name], said(count, sequence), *shown))
    note = "By points of test accuracy, passes in brackets; requests that are not here have no such cell."
    if total:
        note += (
            f" In {neither} of {total} cells both heads with a deposit (the task's own, the ridge head) are behind "
            "the same peer."
        )
    title = f"Where Expunge with a deposit and the chosen l2 is behind a peer at epsilon up to {SMALL:g}"
    columns = ("task", "forgotten", "deposit", "ridge head, deposit")
    return Table(title, columns, tuple(rows), (note,))


def _words_behind(behind: Iterable[tuple[Line, float, float | None]]) -> str:
    """Peers that are ahead, by epsilon; empty where none is."""
    found: dict[float, list[str]] = {}
    for (method, budget, _), epsilon, gap in behind:
        passes = "" if budget is None else f" ({budget})"
        found.setdefault(epsilon, []).append(f"{method}{passes}" + ("" if gap is None else f" by {gap:.1f}"))
    return "; ".join(f"at epsilon {epsilon:g} {', '.join(names)}" for epsilon, names in found.items())


def _regions(records: Sequence[Record]) -> str:
    """How many hold the retrained weights, and the smallest radius over true distance."""
    held = tally(records)
    ratio = "--" if held.smallest_ratio is None else f"{held.smallest_ratio:.2f}"
    return f"{held.runs - held.violations} of {held.runs}, {ratio}"


def _small(wanted: Mapping[str, Any]) -> list[float]:
    return [epsilon for epsilon in wanted["epsilons"] if epsilon <= SMALL]


def _peers(wanted: Mapping[str, Any], cells: Cells) -> list[Line]:
    return [line for line in lines_of(wanted, cells) if line[0] in PEERS]


def _behind(wanted: Mapping[str, Any], cells: Cells, line: Line) -> Iterator[tuple[Line, float, float | None]]:
    """Peers and epsilons where this line is behind, by how many points; None where it was refused."""
    for epsilon in _small(wanted):
        if (*line, epsilon) not in cells:
            continue
        own = mean(cells[(*line, epsilon)])
        for peer in _peers(wanted, cells):
            theirs = mean(cells[(*peer, epsilon)])
            assert theirs is not None  # a peer always answers
            gap = None if own is None else 100.0 * (theirs - own)
            if gap is None or gap > TIE:
                yield peer, epsilon, gap


def _task(config: Config, key: Key, group: Sequence[Record]) -> Table:
    name, count, sequence = key
    wanted, cells = config["run"]["tasks"][name], cells_of(group)
    place, rows = _place(cells), []
    for method, budget, chosen in lines_of(wanted, cells):
        keys = [None if method in (RETRAIN, RETRAIN_RIDGE) else epsilon for epsilon in wanted["epsilons"]]
        own = [cells[method, budget, chosen, epsilon] for epsilon in keys]
        known = [cell for some in own for cell in some if cell["seconds"] is not None]
        seconds = [cell["seconds"] for cell in known if cell["device"] == place]
        rows.append(
            (
                method,
                NEEDS[method],
                "--" if budget is None else str(budget),
                chosen,
                *(_cell(some) for some in own),
                spread([float(np.median(seconds))], ".2g") if seconds else "--",
            )
        )
    columns = ("method", "needs at deletion", "passes", "l2", *(f"eps {epsilon:g}" for epsilon in wanted["epsilons"]))
    title = f"{config['paper']['titles'][name]}, {said(count, sequence)} forgotten"
    return Table(title, (*columns, "seconds"), tuple(rows), tuple(_notes(wanted, cells, group, sequence)))


def _notes(wanted: Mapping[str, Any], cells: Cells, group: Sequence[Record], sequence: bool) -> Iterator[str]:
    results = [record["result"] for record in group]
    sizes = ", ".join(f"{size:,}" for size in sorted({result["n_source"] for result in results}))
    gone = ", ".join(f"{size:,}" for size in sorted({result["n_forget"] for result in results}))
    usual = ", ".join(f"{l2:.3g}" for l2 in sorted({one["l2"] for one in cells[RETRAIN, None, USUAL, None]}))
    place = _place(cells) or "one core"
    yield (
        f"n = {sizes}, {gone} rows forgotten, delta = 1/n; C = 1 is l2 {usual}. Test accuracy in percent, mean over "
        f"{wanted['draws']} draws and {_seeds(group)} seed(s). Seconds are of one request, on {place}, the median "
        "over epsilons."
    )
    if sequence:
        yield "One row a request: a model is published after each, and the table has the last."
    if (RIDGE, None, USUAL, AT) in cells:
        yield (
            "Ridge head: least squares with targets -1 and 1 on the same rows, of which a deposit knows everything. "
            "C = 1 stands for RidgeClassifier's alpha = 1. Certified removal would be exact there too, from the "
            "retained rows; it was not run."
        )
    for name in ALL_OURS:
        for chosen in (USUAL, CHOSEN):
            yield from _ahead(wanted, cells, (name, None, chosen))
    tuned = [cell for (method, *_), some in cells.items() if method == TUNING for cell in some]
    least = min(wanted["radii"])
    small = sum(cell["radius"] == least for cell in tuned)
    if small:
        yield (
            f"In {small} of {len(tuned)} of its cells the best for noisy fine-tuning was to clip to {least:g}: it then "
            "trains anew from almost nothing within its passes."
        )
    redrawn = sum(cell.get("redrawn", 0) for some in cells.values() for cell in some)
    if redrawn:
        drawn = wanted["draws"] * len(wanted["epsilons"]) * _seeds(group)
        yield f"Certified removal had to train anew {redrawn} times in {drawn} draws."


def _seeds(group: Sequence[Record]) -> int:
    return len({record["seed"] for record in group})


def _ahead(wanted: Mapping[str, Any], cells: Cells, line: Line) -> Iterator[str]:
    """How often this line is ahead of every peer, and the cells where it is not, by name."""
    total = len(_small(wanted)) * len(_peers(wanted, cells))
    if (*line, _small(wanted)[0]) not in cells:
        return
    behind = list(_behind(wanted, cells, line))
    words = (
        f"{line[0]}, {line[2]}: at or above the peer in {total - len(behind)} of {total} cells with epsilon up to "
        f"{SMALL:g}"
    )
    yield f"{words}; behind {_words_behind(behind)}." if behind else f"{words}."
