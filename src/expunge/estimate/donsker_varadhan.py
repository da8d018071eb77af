"""The relative entropy of two sets of rows, nu and rho, by Donsker and Varadhan's form, fitted on their rows.

    KL(nu || rho) = max over T of  E_nu[T] - log E_rho[exp T]

T is a small network on coordinates in which the two sets differ most plainly, started at what two Gaussians would say.
Rows are cut in five: four parts train and stop T, and the fifth, which T never saw, gives the value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from expunge.errors import DataError, OptionError
from expunge.heads import Rows
from expunge.runtime.arrays import Array
from expunge.runtime.progress import Progress, silent

FEWEST = 60  # rows a side: twelve in each fold, below which a standard error means nothing
FOLDS = 5
STOPPING = 10  # one row in so many of the other folds decides when to stop
OWN = 0.05  # share of rows from which on a value counts as having a probability of its own
FEWEST_STEPS = 20  # in an epoch: few rows are passed over several times, or 500 epochs would be 500 steps
MEMORY = 0.99  # of the moving average of the denominator
SPREAD = 0.15  # of the first weights, in units of He's: large ones are noise in directions that tell nothing apart
KINKS = 6.0  # first biases are up to this many SPREADs: without them T starts as a cone, and curvature comes too late
GUARD = 0.001  # share of nu mixed into rho while training
CAPS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)  # below the logarithm of the rows of rho
NEAR = 0.5  # of the ceiling


# Estimates are computed by torch: rows and weights of either engine become tensors where they come in ----------------


def tensor(values: Array) -> Tensor:
    """A tensor of these values, which shares their memory where it can; itself where it is one."""
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def rows_as_tensors(rows: Rows) -> Rows:
    """The rows with features, labels and weights as tensors; themselves where they are."""
    if isinstance(rows.features, Tensor):
        return rows
    weights = None if rows.weights is None else tensor(rows.weights)
    return replace(rows, features=tensor(rows.features), labels=tensor(rows.labels), weights=weights)


@dataclass(frozen=True)
class TwoSamples:
    """Rows of both distributions, and the weights of those of nu."""

    nu: Tensor
    weights: Tensor
    rho: Tensor

    def select(self, nu_rows: Tensor, rho_rows: Tensor) -> TwoSamples:
        return TwoSamples(self.nu[nu_rows], self.weights[nu_rows], self.rho[rho_rows])


def _prepare(nu: Tensor, rho: Tensor, weights: Tensor | None) -> tuple[TwoSamples, int]:
    """The rows that count, standardised, in float32; and how many features were left out.

    A row of weight zero is no row. A column of one and the same value in both sets, but for rounding, says nothing. One
    that is constant in a single set, at a value that is rare in the other, makes the distance infinite unless that
    value has a probability of its own there, which so few rows cannot show; it is left out and counted. Leaving columns
    out can only lower a relative entropy.
    """
    nu, rho = nu.detach().double(), rho.detach().double()
    if nu.ndim != 2 or rho.ndim != 2 or nu.shape[1] != rho.shape[1]:
        raise DataError(
            f"rows of shape {tuple(nu.shape)} and {tuple(rho.shape)}",
            "both must be rows x features, with the same features",
            "Prepare both sets in the same way.",
        )
    each = torch.ones_like(nu[:, 0]) if weights is None else weights.detach().double()
    nu, each = nu[each > 0], each[each > 0]
    if min(len(nu), len(rho)) < FEWEST:
        raise DataError(
            f"{len(nu)} rows that count and {len(rho)} rows",
            f"each side needs at least {FEWEST}: the rows are cut in {FOLDS}, and fewer than 12 give no standard error",
            "Use more rows of the surrogate, and draw more samples of the source.",
        )
    if not all(bool(torch.isfinite(values).all()) for values in (nu, rho, each)):
        raise DataError("values that are not finite", "every feature must be finite", "Remove or repair those rows.")
    # first by the largest: squares of huge values would overflow
    top = torch.maximum(nu.abs().amax(dim=0), rho.abs().amax(dim=0)).clamp(min=1e-300)
    nu, rho = nu / top, rho / top
    pooled = torch.cat([nu, rho])
    spread = pooled.std(dim=0)
    tells = spread > 1e-12  # differences smaller than that are rounding
    nu_still, rho_still = (nu == nu[0]).all(dim=0), (rho == rho[0]).all(dim=0)
    in_rho, in_nu = (rho == nu[0]).double().mean(dim=0), (nu == rho[0]).double().mean(dim=0)
    shared = torch.where(nu_still, in_rho, in_nu)  # the constant's share in the other set
    odd = tells & (nu_still | rho_still) & (shared < OWN)
    varies = tells & ~odd
    if not bool(varies.any()):
        raise DataError(
            f"no feature varies in both sets, and {int(odd.sum())} vary in one of them alone",
            "the distance is infinite unless a constant is as usual in the other set",
            "Use a surrogate, and a support of the sampler, in which features vary.",
        )
    scaled = ((pooled - pooled.mean(dim=0)) / spread)[:, varies].float()
    return TwoSamples(scaled[: len(nu)], each / each.max(), scaled[len(nu) :]), int(odd.sum())


@dataclass(frozen=True)
class Coordinates:
    """What the network sees of a row: coordinates in which the two covariances are diagonal, and some of their squares.

    With P the mean of both covariances, the rows are whitened by P and turned so that `P^-1/2 (C_nu - C_rho) P^-1/2` is
    diagonal. Where one distribution alone made both samples, its entries fill a semicircle of radius
    `2 sqrt(d (1/n + 1/k))`. Coordinates outside of it tell the sets apart, and their squares are handed over, since a
    logarithm of a ratio of densities is often near a quadratic; those inside hand over the sum of their squares.
    Computed on training rows alone.
    """

    centre: Tensor
    turn: Tensor
    telling: Tensor

    @classmethod
    def of(cls, rows: TwoSamples) -> Coordinates:
        share = rows.weights / rows.weights.sum()
        nu, rho = rows.nu.double(), rows.rho.double()
        centre = 0.5 * ((share[:, None] * nu).sum(dim=0) + rho.mean(dim=0))
        nu_moment = ((nu - centre) * share[:, None]).T @ (nu - centre)
        rho_moment = (rho - centre).T @ (rho - centre) / len(rho)
        values, vectors = torch.linalg.eigh(0.5 * (nu_moment + rho_moment))
        usable = values > 1e-10 * values[-1]
        whiten = vectors[:, usable] / values[usable].sqrt()
        differences, turn = torch.linalg.eigh(whiten.T @ (nu_moment - rho_moment) @ whiten)
        counted = 1.0 / float(share.square().sum())
        radius = 2.0 * math.sqrt(len(differences) * (1.0 / counted + 1.0 / len(rho)))
        return cls(centre.float(), (whiten @ turn).float(), differences.abs() > radius)

    def __call__(self, rows: Tensor) -> Tensor:
        places = (rows - self.centre) @ self.turn
        squares = places.square() - 1.0
        rest = squares[:, ~self.telling]
        together = rest.sum(dim=1, keepdim=True) / math.sqrt(2.0 * max(1, rest.shape[1]))
        return torch.cat([places, squares[:, self.telling], together], dim=1)

    def seen(self, rows: TwoSamples) -> TwoSamples:
        return TwoSamples(self(rows.nu), rows.weights, self(rows.rho))

    def gaussian(self, seen: TwoSamples) -> Tensor:
        """Coefficients of what the network sees, constant apart: the logarithm of the ratio of two Gaussians.

        Telling coordinates have a mean and a variance each, `-(z - m)^2/(2v)` for nu less that for rho; the others
        have mean 0 and one variance together. `seen` are rows in these coordinates.
        """
        d, n_rest = self.turn.shape[1], int((~self.telling).sum())
        scale = math.sqrt(2.0 * max(1, n_rest))

        def moments(side: Tensor, share: Tensor | float) -> tuple[Tensor, Tensor, float]:
            values = side[:, :d].double()
            mean = (share * values).sum(dim=0)
            rest = 1.0 + scale / max(1, n_rest) * float((share * side[:, -1:].double()).sum())
            return mean, (share * (values - mean).square()).sum(dim=0).clamp(min=1e-3), max(1e-3, rest)

        nu_mean, nu_variance, nu_rest = moments(seen.nu, (seen.weights / seen.weights.sum())[:, None])
        rho_mean, rho_variance, rho_rest = moments(seen.rho, 1.0 / len(seen.rho))
        linear = torch.where(self.telling, nu_mean / nu_variance - rho_mean / rho_variance, torch.zeros_like(nu_mean))
        quadratic = 0.5 * (1.0 / rho_variance - 1.0 / nu_variance)[self.telling]
        together = torch.full_like(linear[:1], 0.5 * scale * (1.0 / rho_rest - 1.0 / nu_rest) if n_rest else 0.0)
        return torch.cat([linear, quadratic, together]).float()


@dataclass(frozen=True)
class Critic:
    """T: three linear layers, ReLU between, one output, added to fixed multiples of the inputs."""

    parameters: tuple[Tensor, ...]
    fixed: Tensor

    @classmethod
    def start(cls, fixed: Tensor, width: int, generator: torch.Generator) -> Critic:
        """The last layer is zero: T starts as the fixed part, and must earn whatever it says beyond that."""
        layers: list[Tensor] = []
        for n_in in (len(fixed), width):
            layers.append(torch.randn(width, n_in, generator=generator) * (SPREAD * math.sqrt(2.0 / n_in)))
            layers.append((2.0 * torch.rand(width, generator=generator) - 1.0) * (SPREAD * KINKS))
        layers += [torch.zeros(1, width), torch.zeros(1)]
        return cls(tuple(layer.to(fixed.device).requires_grad_() for layer in layers), fixed)

    def __call__(self, rows: Tensor) -> Tensor:
        w1, b1, w2, b2, w3, b3 = self.parameters
        hidden = torch.relu(torch.addmm(b1, rows, w1.T))
        hidden = torch.relu(torch.addmm(b2, hidden, w2.T))
        return torch.addmm(b3, hidden, w3.T).squeeze(1) + rows @ self.fixed

    def copy(self) -> Critic:
        return Critic(tuple(parameter.detach().clone() for parameter in self.parameters), self.fixed)


@dataclass(frozen=True)
class FittedCritic:
    """`min(T, cap)`, fixed before the reporting rows are looked at.

    The cap lies `log k` above `log E_rho[exp T]`, for k rows of rho in training: no one of them may count for more
    than all.
    """

    coordinates: Coordinates
    network: Critic
    cap: float
    epochs: int
    best_epoch: int

    def value(self, seen: TwoSamples) -> tuple[float, float]:
        """The value on rows in the network's own coordinates, and the square of its standard error."""
        with torch.no_grad():
            on_nu, on_rho = (self.network(side).double().clamp(max=self.cap) for side in (seen.nu, seen.rho))
        mean, log_mean = _weighted_mean(on_nu, seen.weights), _log_mean_exp(on_rho)
        nu_part = (seen.weights * (on_nu - mean)).square().sum() / seen.weights.sum().square()
        rho_part = torch.exp(on_rho - log_mean).var() / len(on_rho)
        return float(mean - log_mean), float(nu_part + rho_part)


@dataclass(frozen=True)
class DonskerVaradhanLower:
    """Estimate of KL(nu || rho) on rows that trained nothing and stopped nothing.

    A lower bound in the limit of many rows.

    `raw` is as computed; `value` lies between 0 and `ceiling`. `standard_error` is by the delta method, each row of
    nu and rho counted once: `sum w^2 (T - mean)^2 / (sum w)^2` over nu, plus `var(exp T) / mean(exp T)^2 / k` over rho.
    It does not know what no row shows: where exp T has heavy tails under rho it is too small. `ceiling` is the
    logarithm of the rows of rho in the smallest fold. `epochs` and `best_epoch` are those of the fold that ran longest.
    `left_out` features are constant in one set and not in the other, and may make the distance infinite.
    """

    value: float
    raw: float
    standard_error: float
    ceiling: float
    epochs: int
    best_epoch: int
    n_nu: int
    n_rho: int
    left_out: int = 0

    @property
    def saturated(self) -> bool:
        """Features were left out, or value and two standard errors reach half the ceiling: KL may be infinite."""
        return self.left_out > 0 or self.value + 2.0 * self.standard_error >= NEAR * self.ceiling


def donsker_varadhan(
    nu: Array,
    rho: Array,
    *,
    weights: Array | None = None,
    epochs: int = 500,
    learning_rate: float = 1e-4,
    width: int = 128,
    batch: int = 500,
    patience: int = 30,
    seed: int = 0,
    folds: list[float] | None = None,
    progress: Progress = silent,
) -> DonskerVaradhanLower:
    """Estimate KL of the distribution of the rows `nu` (the surrogate) relative to that of the rows `rho` (the source).

    Rows are tensors or arrays of numpy; torch computes. `weights` are non-negative, one a row of nu, and count in every
    mean over nu; only their proportions matter. `patience` is how many epochs may pass without a better value on the
    stopping rows. The value of each fold is appended to `folds`. The seed only shapes an estimate.
    """
    if min(epochs, width, batch, patience) < 1 or not 0.0 < learning_rate < math.inf:
        raise OptionError(
            f"{epochs} epochs at learning rate {learning_rate}, width {width}, batch {batch}, patience {patience}",
            "each must be above 0, and the learning rate finite",
            "The paper uses 500 epochs at 1e-4.",
        )
    rows, left_out = _prepare(tensor(nu), tensor(rho), None if weights is None else tensor(weights))
    generator = torch.Generator().manual_seed(seed)
    cuts = [
        torch.randperm(len(side), generator=generator).to(side.device).tensor_split(FOLDS)
        for side in (rows.nu, rows.rho)
    ]
    ceiling = math.log(min(len(fold) for fold in cuts[1]))
    reports: list[tuple[float, float]] = []
    lengths: list[tuple[int, int]] = []
    for i in range(FOLDS):
        others = [torch.cat([cut[(i + j) % FOLDS] for j in range(1, FOLDS)]) for cut in cuts]
        # rows come shuffled, fold after fold, so each fold gives its share of the rows to stop by
        stops = [torch.arange(len(other), device=other.device) % STOPPING == 0 for other in others]
        train = rows.select(others[0][~stops[0]], others[1][~stops[1]])
        stop = rows.select(others[0][stops[0]], others[1][stops[1]])

        def told(stage: str, done: int, _total: int | None, before: int = i * epochs) -> None:
            progress(stage, before + done, FOLDS * epochs)

        fitted = fit_critic(train, stop, width, (epochs, learning_rate, batch, patience), generator, told)
        reports.append(fitted.value(fitted.coordinates.seen(rows.select(cuts[0][i], cuts[1][i]))))
        lengths.append((fitted.epochs, fitted.best_epoch))
    raw = sum(value for value, _ in reports) / FOLDS
    if folds is not None:
        folds += [value for value, _ in reports]
    error = math.sqrt(sum(variance for _, variance in reports)) / FOLDS
    return DonskerVaradhanLower(
        min(max(0.0, raw), ceiling), raw, error, ceiling, *max(lengths), len(rows.nu), len(rows.rho), left_out
    )


def fit_critic(
    train: TwoSamples,
    stop: TwoSamples,
    width: int,
    options: tuple[int, float, int, int],
    generator: torch.Generator,
    progress: Progress,
) -> FittedCritic:
    """The network with the best value on the stopping rows, the untrained one included."""
    epochs, learning_rate, batch, patience = options
    coordinates = Coordinates.of(train)
    train, stop = coordinates.seen(train), coordinates.seen(stop)
    fixed = coordinates.gaussian(train)
    starts = [Critic.start(part, width, generator) for part in (fixed, torch.zeros_like(fixed))]
    network = max(starts, key=lambda start: guarded_value(start, stop))
    optimiser = torch.optim.Adam(network.parameters, lr=learning_rate, fused=True)
    weights = (train.weights / train.weights.mean()).float()
    sizes = min(batch, len(train.nu)), min(batch, len(train.rho))
    n_steps = max(FEWEST_STEPS, len(train.nu) // sizes[0], len(train.rho) // sizes[1])
    log_average: Tensor | None = None
    best, best_value, best_epoch, done = network.copy(), guarded_value(network, stop), 0, 0
    for done in range(1, epochs + 1):
        orders = []
        for side, size in zip((train.nu, train.rho), sizes, strict=True):  # as many shuffled passes as it takes
            n_passes = -(-n_steps * size // len(side))
            passes = torch.cat([torch.randperm(len(side), generator=generator) for _ in range(n_passes)])
            orders.append(passes[: n_steps * size].to(side.device).view(n_steps, -1))
        for nu_rows, rho_rows in zip(*orders, strict=True):
            share = weights[nu_rows]
            with torch.enable_grad():
                outputs = guarded(network(torch.cat([train.nu[nu_rows], train.rho[rho_rows]])))
                on_nu, on_rho = outputs[: sizes[0]], outputs[sizes[0] :]
                log_mean = log_denominator(on_nu.detach(), share, on_rho.detach())
                new = log_mean + math.log1p(-MEMORY)
                log_average = log_mean if log_average is None else torch.logaddexp(log_average + math.log(MEMORY), new)
                # its gradient is that of log E_q[exp T_a], with the average in place of E_q[exp T_a]
                denominator = (1.0 - GUARD) * torch.exp(on_rho - log_average).mean()
                denominator = denominator + GUARD * (share * torch.exp(on_nu - log_average)).mean()
                loss = denominator - (share * on_nu).mean()
                optimiser.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        value = guarded_value(network, stop)
        if value > best_value:
            best, best_value, best_epoch = network.copy(), value, done
        progress("Donsker-Varadhan epochs", done, epochs)
        if done - best_epoch >= patience:
            break
    fitted = FittedCritic(coordinates, best, best_cap(best, train, stop), done, best_epoch)
    if fitted.value(stop)[0] > 0.0:
        return fitted
    # what only the guard made look useful is worth less than saying nothing
    nothing = [torch.zeros_like(parameter) for parameter in best.parameters]
    return FittedCritic(coordinates, Critic(tuple(nothing), torch.zeros_like(fixed)), math.inf, done, best_epoch)


def best_cap(network: Critic, train: TwoSamples, stop: TwoSamples) -> float:
    """The highest value T may take: of those tried, the one with the best value on all rows but the reporting ones.

    One later row of rho where T is high would outweigh all others; a cap limits what it can do, and costs where nu is.
    """
    with torch.no_grad():
        on_nu = network(torch.cat([train.nu, stop.nu])).double()
        on_rho = network(torch.cat([train.rho, stop.rho])).double()
    weights = torch.cat([train.weights, stop.weights])
    top = float(_log_mean_exp(on_rho)) + math.log(len(on_rho))

    def value(cap: float) -> float:
        return float(_weighted_mean(on_nu.clamp(max=cap), weights) - _log_mean_exp(on_rho.clamp(max=cap)))

    return max((top - drop for drop in CAPS), key=value)


def guarded_value(network: Critic, rows: TwoSamples) -> float:
    """`E_nu[T_a] - log E_q[exp T_a]`; 0 for a T of 0."""
    weights = rows.weights / rows.weights.mean()
    with torch.no_grad():
        on_nu, on_rho = (guarded(network(side).double()) for side in (rows.nu, rows.rho))
        return float((weights * on_nu).mean() - log_denominator(on_nu, weights, on_rho))


def guarded(outputs: Tensor) -> Tensor:
    """`T_a = T - log(1 - a + a exp T)`."""
    return outputs - torch.logaddexp(torch.full_like(outputs, math.log1p(-GUARD)), outputs + math.log(GUARD))


def log_denominator(on_nu: Tensor, weights: Tensor, on_rho: Tensor) -> Tensor:
    """`log E_q[exp T_a]`, with weights of mean 1 for the rows of nu."""
    rho_part = _log_mean_exp(on_rho) + math.log1p(-GUARD)
    return torch.logaddexp(rho_part, _log_mean_exp(on_nu + weights.log()) + math.log(GUARD))


def _log_mean_exp(values: Tensor) -> Tensor:
    return torch.logsumexp(values, dim=0) - math.log(len(values))


def _weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    return (weights * values).sum() / weights.sum()
