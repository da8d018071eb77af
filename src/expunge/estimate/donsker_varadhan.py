"""Donsker and Varadhan's form of a relative entropy, fitted on rows.

`KL(nu || rho) = sup_T E_nu[T] - log E_rho[exp T]`.

Any function T gives a lower bound, so a fitted T gives a lower bound in the limit of many rows; on k rows it is an
estimate, and none from k rows of rho can be trusted near `log k` (McAllester and Stratos): what rho does less often
than once in k rows is not seen.

T has three linear layers with ReLU between, trained by Adam. It sees a row in coordinates in which the covariances of
both sets are diagonal, with some of their squares, and starts as the logarithm of the ratio of two Gaussians where that
is better than starting at 0; all of this is worked out on training rows. Trained on rho alone, T grows without limit
where the rows show nu and not rho, and one later row of rho there ruins the value. So training tells nu from `q = (1 -
a) rho + a nu` with a small a: if `T = log dnu/drho`, then `T_a = T - log(1 - a + a exp T)` is `log dnu/dq`, and never
above `-log a`. The value reported is that of T, on rho itself. The gradient of `log E_q[exp T_a]` on a minibatch is
biased, so its denominator is a moving average over minibatches, kept as a logarithm.

The rows are cut into five folds; each reports once, on a network that was trained on nine tenths of the others and
stopped on the last tenth. Features are first standardised by the mean and standard deviation of both sets together,
which changes no relative entropy.

The estimate is low where rho seldom shows what nu often does; `experiments/donsker_varadhan.py` measures by how much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from expunge.errors import DataError, OptionError
from expunge.runtime.progress import Progress, silent

FEWEST = 60  # rows a side: twelve in each fold, below which a standard error means nothing
FOLDS = 5
STOPPING = 0.1  # share of the other folds that decides when to stop
FEWEST_STEPS = 20  # in an epoch: few rows are passed over several times, or 500 epochs would be 500 steps
MEMORY = 0.99  # of the moving average of the denominator
SPREAD = 0.15  # of the first weights, in units of He's: large ones are noise in directions that tell nothing apart
KINKS = 6.0  # first biases are up to this many SPREADs: without them T starts as a cone, and curvature comes too late
GUARD = 0.001  # share of nu mixed into rho while training
CAPS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)  # below the logarithm of the rows of rho
NEAR = 0.5  # of the ceiling
OWN = 0.05  # share of rows from which on a value counts as having a probability of its own


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
    nu: Tensor,
    rho: Tensor,
    *,
    weights: Tensor | None = None,
    epochs: int = 500,
    learning_rate: float = 1e-4,
    width: int = 128,
    batch: int = 500,
    patience: int = 30,
    seed: int = 0,
    progress: Progress = silent,
) -> DonskerVaradhanLower:
    """Estimate KL of the distribution of the rows `nu` (the surrogate) relative to that of the rows `rho` (the source).

    `weights` are non-negative, one a row of nu, and count in every mean over nu; only their proportions matter.
    `patience` is how many epochs may pass without a better value on the stopping rows. The seed only shapes an
    estimate.
    """
    _require_options(epochs, learning_rate, width, batch, patience)
    nu, weights = _weighted(nu, weights)
    nu, rho, left_out = _telling(*_checked(nu, rho))
    nu, rho = _standardised(nu, rho)
    generator = torch.Generator().manual_seed(seed)
    nu_folds = torch.randperm(len(nu), generator=generator).to(nu.device).tensor_split(FOLDS)
    rho_folds = torch.randperm(len(rho), generator=generator).to(rho.device).tensor_split(FOLDS)
    ceiling = math.log(min(len(fold) for fold in rho_folds))
    reports: list[tuple[float, float]] = []
    lengths: list[tuple[int, int]] = []
    for i in range(FOLDS):

        def advance(stage: str, done: int, _total: int | None, before: int = i * epochs) -> None:
            progress(stage, before + done, FOLDS * epochs)

        others = [(i + j) % FOLDS for j in range(1, FOLDS)]
        nu_stop, nu_train = _split(torch.cat([nu_folds[j] for j in others]))
        rho_stop, rho_train = _split(torch.cat([rho_folds[j] for j in others]))
        fitted = _fit(
            _Rows(nu[nu_train], weights[nu_train], rho[rho_train]),
            _Rows(nu[nu_stop], weights[nu_stop], rho[rho_stop]),
            width,
            (epochs, learning_rate, batch, patience),
            generator,
            advance,
        )
        reports.append(fitted.report(_Rows(nu[nu_folds[i]], weights[nu_folds[i]], rho[rho_folds[i]])))
        lengths.append((fitted.epochs, fitted.best_epoch))
    raw = sum(value for value, _ in reports) / FOLDS
    error = math.sqrt(sum(variance for _, variance in reports)) / FOLDS
    return DonskerVaradhanLower(
        min(max(0.0, raw), ceiling), raw, error, ceiling, *max(lengths), len(nu), len(rho), left_out
    )


@dataclass(frozen=True)
class _Rows:
    """Rows of both distributions, and the weights of those of nu."""

    nu: Tensor
    weights: Tensor
    rho: Tensor


@dataclass(frozen=True)
class _Network:
    """Three linear layers, ReLU between, one output, added to fixed multiples of the inputs."""

    parameters: tuple[Tensor, ...]
    fixed: Tensor

    @classmethod
    def start(cls, fixed: Tensor, width: int, generator: torch.Generator) -> _Network:
        """The last layer is zero: T starts as the fixed part, and must earn whatever it says beyond that."""
        d, device = len(fixed), fixed.device
        layers: list[Tensor] = []
        for n_in in (d, width):
            layers.append(torch.randn(width, n_in, generator=generator) * (SPREAD * math.sqrt(2.0 / n_in)))
            layers.append((2.0 * torch.rand(width, generator=generator) - 1.0) * (SPREAD * KINKS))
        layers += [torch.zeros(1, width), torch.zeros(1)]
        return cls(tuple(layer.to(device).requires_grad_() for layer in layers), fixed)

    def __call__(self, rows: Tensor) -> Tensor:
        w1, b1, w2, b2, w3, b3 = self.parameters
        hidden = torch.relu(torch.addmm(b1, rows, w1.T))
        hidden = torch.relu(torch.addmm(b2, hidden, w2.T))
        return torch.addmm(b3, hidden, w3.T).squeeze(1) + rows @ self.fixed

    def copy(self) -> _Network:
        return _Network(tuple(parameter.detach().clone() for parameter in self.parameters), self.fixed)


@dataclass(frozen=True)
class _Coordinates:
    """What the network sees of a row: coordinates in which the two covariances are diagonal, and some of their squares.

    With P the mean of both covariances, the rows are whitened by P and turned so that `P^-1/2 (C_nu - C_rho) P^-1/2` is
    diagonal. Where one distribution alone made both samples, its entries fill a semicircle of radius `2 sqrt(d (1/n +
    1/k))`. Coordinates outside of it tell the sets apart, and their squares are handed over, since a logarithm of a
    ratio of densities is often near a quadratic; those inside hand over the sum of their squares. Computed on training
    rows alone.
    """

    centre: Tensor
    turn: Tensor
    telling: Tensor

    @classmethod
    def of(cls, rows: _Rows) -> _Coordinates:
        share = rows.weights / rows.weights.sum()
        nu, rho = rows.nu.double(), rows.rho.double()
        centre = 0.5 * ((share[:, None] * nu).sum(dim=0) + rho.mean(dim=0))
        nu_moment = ((nu - centre) * share[:, None]).T @ (nu - centre)
        rho_moment = (rho - centre).T @ (rho - centre) / len(rho)
        values, vectors = torch.linalg.eigh(0.5 * (nu_moment + rho_moment))
        kept = values > 1e-10 * values[-1]
        whiten = vectors[:, kept] / values[kept].sqrt()
        differences, turn = torch.linalg.eigh(whiten.T @ (nu_moment - rho_moment) @ whiten)
        counted = 1.0 / float(share.square().sum())
        radius = 2.0 * math.sqrt(len(differences) * (1.0 / counted + 1.0 / len(rho)))
        return cls(centre.float(), (whiten @ turn).float(), differences.abs() > radius)

    @property
    def width(self) -> int:
        return int(self.turn.shape[1] + self.telling.sum() + 1)

    def __call__(self, rows: Tensor) -> Tensor:
        places = (rows - self.centre) @ self.turn
        squares = places.square() - 1.0
        rest = squares[:, ~self.telling]
        together = rest.sum(dim=1, keepdim=True) / math.sqrt(2.0 * max(1, rest.shape[1]))
        return torch.cat([places, squares[:, self.telling], together], dim=1)

    def seen(self, rows: _Rows) -> _Rows:
        return _Rows(self(rows.nu), rows.weights, self(rows.rho))

    def gaussian(self, seen: _Rows) -> Tensor:
        """Coefficients of what the network sees, constant apart: the logarithm of the ratio of two Gaussians.

        Telling coordinates have a mean and a variance each, `-(z - m)^2/(2v)` for nu less the same for rho; the others
        have mean 0 and one variance together. `seen` are rows in these coordinates.
        """
        d, telling = self.turn.shape[1], self.telling
        share = (seen.weights / seen.weights.sum())[:, None]

        def moments(values: Tensor, each: Tensor | float) -> tuple[Tensor, Tensor]:
            mean = (each * values).sum(dim=0)
            return mean, (each * (values - mean).square()).sum(dim=0).clamp(min=1e-3)

        (nu_mean, nu_variance), (rho_mean, rho_variance) = (
            moments(side[:, :d].double(), each) for side, each in ((seen.nu, share), (seen.rho, 1.0 / len(seen.rho)))
        )
        n_rest = int((~telling).sum())
        scale = math.sqrt(2.0 * max(1, n_rest))
        nu_rest, rho_rest = (
            max(1e-3, 1.0 + scale / max(1, n_rest) * float((each * side[:, -1:].double()).sum()))
            for side, each in ((seen.nu, share), (seen.rho, 1.0 / len(seen.rho)))
        )
        linear = torch.where(telling, nu_mean / nu_variance - rho_mean / rho_variance, torch.zeros_like(nu_mean))
        quadratic = 0.5 * (1.0 / rho_variance - 1.0 / nu_variance)[telling]
        together = torch.full_like(linear[:1], 0.5 * scale * (1.0 / rho_rest - 1.0 / nu_rest) if n_rest else 0.0)
        return torch.cat([linear, quadratic, together]).float()


@dataclass(frozen=True)
class _Fitted:
    """`min(T, cap)`, fixed before the reporting rows are looked at; the cap lies `log k` above
    `log E_rho[exp T]`, for k rows of rho in training: no one of them may count for more than all."""

    coordinates: _Coordinates
    network: _Network
    cap: float
    epochs: int
    best_epoch: int

    def outputs(self, seen: _Rows) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            on_nu, on_rho = (self.network(side).double().clamp(max=self.cap) for side in (seen.nu, seen.rho))
        return on_nu, on_rho

    def value(self, seen: _Rows) -> float:
        """On rows in the network's own coordinates."""
        on_nu, on_rho = self.outputs(seen)
        return float(_weighted_mean(on_nu, seen.weights) - _log_mean_exp(on_rho))

    def report(self, rows: _Rows) -> tuple[float, float]:
        """The value, and the square of its standard error."""
        on_nu, on_rho = self.outputs(self.coordinates.seen(rows))
        mean, log_mean = _weighted_mean(on_nu, rows.weights), _log_mean_exp(on_rho)
        nu_part = (rows.weights * (on_nu - mean)).square().sum() / rows.weights.sum().square()
        rho_part = torch.exp(on_rho - log_mean).var() / len(on_rho)
        return float(mean - log_mean), float(nu_part + rho_part)


def _fit(
    train: _Rows,
    stop: _Rows,
    width: int,
    options: tuple[int, float, int, int],
    generator: torch.Generator,
    progress: Progress,
) -> _Fitted:
    """The network with the best value on the stopping rows, the untrained one included."""
    epochs, learning_rate, batch, patience = options
    coordinates = _Coordinates.of(train)
    train, stop = coordinates.seen(train), coordinates.seen(stop)
    fixed = coordinates.gaussian(train)
    starts = [_Network.start(part, width, generator) for part in (fixed, torch.zeros_like(fixed))]
    network = max(starts, key=lambda tried: _guarded_value(tried, stop))
    optimiser = torch.optim.Adam(network.parameters, lr=learning_rate, fused=True)
    weights = (train.weights / train.weights.mean()).float()
    sizes = min(batch, len(train.nu)), min(batch, len(train.rho))
    n_steps = max(FEWEST_STEPS, len(train.nu) // sizes[0], len(train.rho) // sizes[1])
    log_average: Tensor | None = None
    best, best_value, best_epoch, done = network.copy(), _guarded_value(network, stop), 0, 0
    for done in range(1, epochs + 1):
        nu_order = _order(len(train.nu), n_steps * sizes[0], generator, train.nu.device)
        rho_order = _order(len(train.rho), n_steps * sizes[1], generator, train.rho.device)
        for nu_rows, rho_rows in zip(nu_order.view(n_steps, -1), rho_order.view(n_steps, -1), strict=True):
            share = weights[nu_rows]
            with torch.enable_grad():
                outputs = _guarded(network(torch.cat([train.nu[nu_rows], train.rho[rho_rows]])))
                on_nu, on_rho = outputs[: sizes[0]], outputs[sizes[0] :]
                log_average = _moved(log_average, _log_denominator(on_nu.detach(), share, on_rho.detach()))
                # its gradient is that of log E_q[exp T_a], with the average in place of E_q[exp T_a]
                denominator = (1.0 - GUARD) * torch.exp(on_rho - log_average).mean()
                denominator = denominator + GUARD * (share * torch.exp(on_nu - log_average)).mean()
                loss = denominator - (share * on_nu).mean()
                optimiser.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        value = _guarded_value(network, stop)
        if value > best_value:
            best, best_value, best_epoch = network.copy(), value, done
        progress("Donsker-Varadhan epochs", done, epochs)
        if done - best_epoch >= patience:
            break
    fitted = _Fitted(coordinates, best, _cap(best, train, stop), done, best_epoch)
    if fitted.value(stop) > 0.0:
        return fitted
    # what only the guard made look useful is worth less than saying nothing
    nothing = [torch.zeros_like(parameter) for parameter in best.parameters]
    return _Fitted(coordinates, _Network(tuple(nothing), torch.zeros_like(fixed)), math.inf, done, best_epoch)


def _cap(network: _Network, train: _Rows, stop: _Rows) -> float:
    """The highest value T may take: of those tried, the one with the best value on all rows but the reporting ones.

    One later row of rho where T is high would outweigh all others; a cap limits what it can do, and costs where nu is.
    """
    rows = _Rows(
        *(torch.cat(pair) for pair in ((train.nu, stop.nu), (train.weights, stop.weights), (train.rho, stop.rho)))
    )
    with torch.no_grad():
        on_nu, on_rho = (network(side).double() for side in (rows.nu, rows.rho))
    top = float(_log_mean_exp(on_rho)) + math.log(len(on_rho))

    def value(cap: float) -> float:
        mean = _weighted_mean(on_nu.clamp(max=cap), rows.weights)
        return float(mean - _log_mean_exp(on_rho.clamp(max=cap)))

    return max((top - drop for drop in CAPS), key=value)


def _guarded_value(network: _Network, rows: _Rows) -> float:
    """`E_nu[T_a] - log E_q[exp T_a]`; 0 for a T of 0."""
    weights = rows.weights / rows.weights.mean()
    with torch.no_grad():
        on_nu, on_rho = (_guarded(network(side).double()) for side in (rows.nu, rows.rho))
        return float((weights * on_nu).mean() - _log_denominator(on_nu, weights, on_rho))


def _guarded(outputs: Tensor) -> Tensor:
    """`T_a = T - log(1 - a + a exp T)`."""
    return outputs - torch.logaddexp(torch.full_like(outputs, math.log1p(-GUARD)), outputs + math.log(GUARD))


def _log_denominator(on_nu: Tensor, weights: Tensor, on_rho: Tensor) -> Tensor:
    """`log E_q[exp T_a]`, with weights of mean 1 for the rows of nu."""
    rho_part = _log_mean_exp(on_rho) + math.log1p(-GUARD)
    return torch.logaddexp(rho_part, _log_mean_exp(on_nu + weights.log()) + math.log(GUARD))


def _moved(log_average: Tensor | None, log_mean: Tensor) -> Tensor:
    """Logarithm of the moving average, one minibatch later."""
    if log_average is None:
        return log_mean
    return torch.logaddexp(log_average + math.log(MEMORY), log_mean + math.log1p(-MEMORY))


def _order(n: int, needed: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Indices of `needed` rows of n: as many shuffled passes as it takes."""
    passes = [torch.randperm(n, generator=generator) for _ in range(-(-needed // n))]
    return torch.cat(passes)[:needed].to(device)


def _split(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows to stop by, rows to train on; they come shuffled, fold after fold, so each fold gives its share."""
    every = round(1.0 / STOPPING)
    stopping = torch.arange(len(rows), device=rows.device) % every == 0
    return rows[stopping], rows[~stopping]


def _log_mean_exp(values: Tensor) -> Tensor:
    return torch.logsumexp(values, dim=0) - math.log(len(values))


def _weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    return (weights * values).sum() / weights.sum()


def _require_options(epochs: int, learning_rate: float, width: int, batch: int, patience: int) -> None:
    if min(epochs, width, batch, patience) < 1 or not 0.0 < learning_rate < math.inf:
        raise OptionError(
            f"{epochs} epochs at learning rate {learning_rate}, width {width}, batch {batch}, patience {patience}",
            "each must be above 0, and the learning rate finite",
            "The paper uses 500 epochs at 1e-4.",
        )


def _weighted(nu: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Rows of nu that count, and their weights: a row of weight zero is no row."""
    if weights is None:
        return nu, torch.ones(len(nu), dtype=torch.float64, device=nu.device)
    if weights.shape != nu.shape[:1] or not bool(torch.isfinite(weights).all()) or not bool((weights >= 0).all()):
        raise DataError(
            f"weights of shape {tuple(weights.shape)} for {len(nu)} rows, or some not finite or below 0",
            "each row of nu needs one finite weight of at least 0",
            "Check how the weights were made.",
        )
    counts = weights > 0
    kept = weights[counts].detach().double()
    return nu[counts], kept / kept.max() if len(kept) else kept


def _checked(nu: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    if nu.ndim != 2 or rho.ndim != 2 or nu.shape[1] != rho.shape[1]:
        raise DataError(
            f"rows of shape {tuple(nu.shape)} and {tuple(rho.shape)}",
            "both must be rows x features, with the same features",
            "Prepare both sets in the same way.",
        )
    if min(len(nu), len(rho)) < FEWEST:
        raise DataError(
            f"{len(nu)} rows that count and {len(rho)} rows",
            f"each side needs at least {FEWEST}: the rows are cut in {FOLDS}, and fewer than 12 give no standard error",
            "Use more rows of the surrogate, and draw more samples of the source.",
        )
    if not (bool(torch.isfinite(nu).all()) and bool(torch.isfinite(rho).all())):
        raise DataError("values that are not finite", "every feature must be finite", "Remove or repair those rows.")
    return nu.detach().double(), rho.detach().double()


def _telling(nu: Tensor, rho: Tensor) -> tuple[Tensor, Tensor, int]:
    """The columns that a network can tell the sets apart by, and how many others may make the distance infinite.

    A column of one and the same value in both sets says nothing. One that is constant in a single set, at a value that
    is rare in the other, makes the distance infinite unless that value has a probability of its own there, which so few
    rows cannot show; it is left out and counted. Leaving columns out can only lower a relative entropy.
    """
    nu_still, rho_still = (nu == nu[0]).all(dim=0), (rho == rho[0]).all(dim=0)
    same = nu_still & rho_still & (nu[0] == rho[0])
    if bool(same.all()):
        raise DataError(
            "every feature has one and the same value in both sets",
            "there is nothing to tell the sets apart by, and nothing to call them equal by",
            "Use features that vary.",
        )
    in_rho, in_nu = (rho == nu[0]).double().mean(dim=0), (nu == rho[0]).double().mean(dim=0)
    shared = torch.where(nu_still, in_rho, in_nu)  # the constant's share in the other set
    odd = (nu_still | rho_still) & ~same & (shared < OWN)
    kept = ~same & ~odd
    if not bool(kept.any()):
        raise DataError(
            f"all {int(odd.sum())} features that vary are constant in one of the sets",
            "the distance is infinite unless that value is as usual in the other",
            "Use a surrogate, and a support of the sampler, in which they vary.",
        )
    return nu[:, kept], rho[:, kept], int(odd.sum())


def _standardised(nu: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """Both sets by the mean and standard deviation of both together, in float32."""
    top = torch.maximum(nu.abs().amax(dim=0), rho.abs().amax(dim=0))  # first: squares of huge values would overflow
    pooled = torch.cat([nu / top, rho / top])
    spread = pooled.std(dim=0)
    still = torch.nonzero(spread <= 1e-12).squeeze(1).tolist()
    if still:
        raise DataError(
            f"a feature varies by less than a part in 10^12 of its size (column {still[0]} of those that vary)",
            "differences that small are rounding",
            "Drop the feature, or subtract its mean before.",
        )
    scaled = ((pooled - pooled.mean(dim=0)) / spread).float()
    return scaled[: len(nu)], scaled[len(nu) :]
