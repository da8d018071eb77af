"""Third derivatives of a mean loss at the anchor, for narrow tables: rows leave them as they leave the Hessian.

A row's is `c (x) x (x) x (x) x`, with c the third cumulants of its predicted classes: of a sigmoid `s''`, one number a
weight vector; of softmax a number for every three classes. Everything is symmetric, so of three features and of three
classes only `i >= j >= k` are kept. With them what is unknown of the gradient at `w + u` is of third order in u, and a
region is smaller by about a third of the largest range of `u x`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from expunge.deposit.blocks import UNIT_ROUNDOFF, Blocks
from expunge.heads import LinearHead, Logistic, OneVsRest, RowSet, Softmax

MOST_NUMBERS = 2**23  # that are summed over every row
AT_ONCE = 2**23  # products of three features that are in memory at one time
# For a loss: by how much it enters at most (in the root of the sum of squares over its classes), and its own derivative
SIGMOID_SIZES = (1.0 / (6.0 * math.sqrt(3.0)), 0.125)
SOFTMAX_SIZES = (2.0 * math.sqrt(2.0), 7.0)


def has_third(head: LinearHead) -> bool:
    """Whether the third derivatives of this head are kept: of softmax and sigmoids with few features."""
    if isinstance(head, Softmax):
        lines = folded_size(head.n_classes)
    elif isinstance(head, Logistic | OneVsRest):
        lines = n_lines(head, 1 if isinstance(head, Logistic) else head.n_classes)
    else:
        return False
    return lines * folded_size(head.n_features) <= MOST_NUMBERS


def n_lines(head: LinearHead, vectors: int) -> int:
    """Rows of the table of numbers that are kept: three classes each, or a weight vector."""
    return folded_size(vectors) if isinstance(head, Softmax) else vectors


def sizes_of(head: LinearHead) -> tuple[float, float]:
    """Upper bounds on a row's c and on how fast it changes with the outputs."""
    return SOFTMAX_SIZES if isinstance(head, Softmax) else SIGMOID_SIZES


def third_of(head: LinearHead, weights: Tensor, rows: RowSet) -> Tensor:
    """The mean over these rows: a line for every three classes or weight vector, a column for every three features."""
    vectors, width = weights.shape
    lines = n_lines(head, vectors)
    total = torch.zeros((lines, folded_size(width)), dtype=torch.float64, device=weights.device)
    one, other = torch.tril_indices(width, width, device=weights.device)
    some = max(1, AT_ONCE // len(one))
    for block in rows.blocks():
        features = block.features.double()
        outputs = features @ weights.T
        shares = block.weighted(_cumulants(outputs) if isinstance(head, Softmax) else _second_slopes(outputs), 0)
        for start in range(0, len(features), some):
            part, own = features[start : start + some], shares[start : start + some]
            pairs, begin = part[:, one] * part[:, other], 0
            for index in range(width):  # those of three whose first is this one go with all pairs up to it
                size = (index + 1) * (index + 2) // 2
                total[:, begin : begin + size].addmm_((own * part[:, index, None]).T, pairs[:, :size])
                begin += size
    return rows.total(total).div_(len(rows))


def _second_slopes(outputs: Tensor) -> Tensor:
    """`s'' = s (1 - s)(1 - 2 s)`, each factor to full relative accuracy."""
    upper, lower = torch.sigmoid(outputs), torch.sigmoid(-outputs)
    return upper * lower * -torch.tanh(outputs / 2.0)


def _cumulants(outputs: Tensor) -> Tensor:
    """`E[(e_j - p_j)(e_k - p_k)(e_l - p_l)]` for one class drawn by p, j >= k >= l."""
    chances = torch.softmax(outputs, dim=1)
    others = chances.sum(dim=1, keepdim=True) - chances
    first, second, third = (part.to(outputs.device) for part in threes(outputs.shape[1]))
    p, q, r = chances[:, first], chances[:, second], chances[:, third]
    all_same, upper, lower = (first == second) & (second == third), first == second, second == third
    twice = torch.where(all_same, others[:, first] * (1.0 - 2.0 * p), 2.0 * q * r)
    pair_up = r * (2.0 * p - 1.0)  # the first two are one class
    pair_low = q * (2.0 * q - 1.0)  # the last two are
    value = torch.where(upper & ~all_same, pair_up, torch.where(lower & ~all_same, pair_low, twice))
    return p * value


def third_error(head: LinearHead, weights: Tensor, rows: RowSet) -> float:
    """Upper bound on what float64 makes of it, as a form: |T[a, u, u]| for a and u of length 1.

    As for the Hessian: a sum of k terms in any order is off by at most (k + 1) units times the mean of their sizes,
    outputs by `(d + 1) u ||W|| ||x||`, and c by at most so much times that.
    """
    size, change = sizes_of(head)
    of_sum = (len(rows) + 64) * size
    of_link = 8.0 * change * math.sqrt(len(weights)) * (weights.shape[1] + 64)
    of_link *= 1.0 + float(weights.norm()) * head.row_bound
    return UNIT_ROUNDOFF * _mean_cube(rows) * rows.largest_weight * (of_sum + of_link)


def _mean_cube(rows: RowSet) -> float:
    """Mean of `||x||^3`."""
    total = torch.zeros((), dtype=torch.float64, device=rows.device)
    for block in rows.blocks():
        total += block.features.double().norm(dim=1).pow(3).sum()
    return float(rows.total(total)) / len(rows)


def copy_error(head: LinearHead, weights: Tensor) -> float:
    """By how much a row's third derivatives change for each unit that a copy of it is away."""
    (size, change), bound = sizes_of(head), head.row_bound
    return change * float(torch.linalg.matrix_norm(weights, 2)) * bound**3 + 3.0 * size * bound**2


def pull(third: Tensor, update: Tensor, *, joint: bool) -> Tensor:
    """`T[u, u]/2`, K x d: of every weight vector by itself, or of all classes together."""
    one, other, own, pairs, parts = _served(len(update), joint)
    one, other, own, pairs = (each.to(update.device) for each in (one, other, own, pairs))
    places, first, second = (part.to(update.device) for part in _places(update.shape[1]))
    halves = _products(update[one], update[other], first, second)
    halves = (halves * torch.where(one == other, 1.0, 2.0)[:, None])[pairs]
    made = update.new_empty((len(own), len(places)))
    for form, part in _forms(third, places, parts):
        torch.mm(halves[part], form.T, out=made[part])
    return torch.zeros_like(update).index_put_((own,), made, accumulate=True)


def along(third: Tensor, update: Tensor, *, joint: bool) -> Blocks:
    """`T[u]`, the matrix by which the Hessian changes along u but for what is of second order in u."""
    (classes, width), (one, other, own, pairs, parts) = update.shape, _served(len(update), joint)
    one, other, own, pairs = (each.to(update.device) for each in (one, other, own, pairs))
    places, first, second = (part.to(update.device) for part in _places(width))
    vectors, made = update[own], update.new_empty((len(own), len(first)))
    for form, part in _forms(third, places, parts):
        torch.mm(vectors[part], form, out=made[part])
    folded = update.new_zeros((len(one), len(first))).index_put_((pairs,), made, accumulate=True)
    blocks = update.new_zeros((len(one), width, width))
    blocks[:, first, second] = folded
    blocks[:, second, first] = folded
    if not joint:
        return Blocks(blocks, joint=False)
    whole = update.new_zeros((classes, classes, width, width))
    whole[one, other] = whole[other, one] = blocks
    return Blocks(whole.transpose(1, 2).reshape(1, classes * width, classes * width), joint=True)


def _forms(third: Tensor, places: Tensor, parts: list[slice]) -> Iterator[tuple[Tensor, slice]]:
    """Each line as d x d(d + 1)/2, a feature by a pair, with the part it has; the next takes the place of the last."""
    form, where = third.new_empty(places.shape), places.reshape(-1)
    for line, part in zip(third, parts, strict=True):
        torch.index_select(line, 0, where, out=form.view(-1))
        yield form, part


def _products(left: Tensor, right: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """`(u_j v_k + u_k v_j)/2` for every pair j >= k, the diagonal once: what half of a symmetric form is summed by."""
    both = left[:, first] * right[:, second] + left[:, second] * right[:, first]
    return both * torch.where(first == second, 0.25, 0.5).to(left)


def pull_error(third: Tensor, update: Tensor, error: float) -> float:
    """Upper bound on the error of a pull, in length: of the third derivatives, and of the product."""
    terms = update.numel() ** 2 + 32
    return 0.5 * (error + terms * UNIT_ROUNDOFF * whole_size(third)) * float(update.norm()) ** 2


def whole_size(third: Tensor) -> float:
    """At least the root of the sum of squares of all entries: none is there more than six times six."""
    return 6.0 * float(third.norm())


def folded_size(width: int) -> int:
    """How many of three are kept."""
    return width * (width + 1) * (width + 2) // 6


@lru_cache(maxsize=8)
def threes(width: int) -> tuple[Tensor, Tensor, Tensor]:
    """`i >= j >= k`, in the order of i, j and k."""
    first, second = torch.tril_indices(width, width)
    third = torch.cat([torch.arange(int(j) + 1) for j in second])
    counts = second + 1
    return first.repeat_interleave(counts), second.repeat_interleave(counts), third


@lru_cache(maxsize=8)
def _places(width: int) -> tuple[Tensor, Tensor, Tensor]:
    """For i and the pair `j >= k`, d x d(d + 1)/2: where the three are among those kept; and the pairs."""
    first, second = torch.tril_indices(width, width)
    third = torch.arange(width)[:, None].expand(width, len(first))
    low, middle, high = torch.stack([third, first.expand_as(third), second.expand_as(third)]).sort(dim=0).values
    return high * (high + 1) * (high + 2) // 6 + middle * (middle + 1) // 2 + low, first, second


@lru_cache(maxsize=8)
def _served(classes: int, joint: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, list[slice]]:
    """Pairs of classes; then, line by line, the classes a line is of, each with the number of the pair that is left."""
    if not joint:
        alone = torch.arange(classes)
        return alone, alone, alone, alone, [slice(index, index + 1) for index in range(classes)]
    lines, one, other = _places(classes)
    order = lines.reshape(-1).argsort(stable=True)
    ends = lines.reshape(-1).bincount().cumsum(0).tolist()
    parts = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    return one, other, order // len(one), order % len(one), parts
