"""T of Donsker and Varadhan's form: a network that tells the rows of nu from those of rho, and how it is fitted.

It has three linear layers with ReLU between, trained by Adam, and starts as the logarithm of the ratio of two Gaussians
where that is better than starting at 0. Trained on rho alone, T grows without limit where the rows show nu and not rho,
and one later row of rho there ruins the value. So training tells nu from `q = (1 - a) rho + a nu` with a small a: if
`T = log dnu/drho`, then `T_a = T - log(1 - a + a exp T)` is `log dnu/dq`, and never above `-log a`. The gradient of
`log E_q[exp T_a]` on a minibatch is biased, so its denominator is a moving average over minibatches, kept as a
logarithm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from expunge.estimate.coordinates import Coordinates
from expunge.estimate.two_samples import TwoSamples
from expunge.runtime.budget import NO_LIMIT, Budget
from expunge.runtime.progress import Progress

FEWEST_STEPS = 20  # in an epoch: few rows are passed over several times, or 500 epochs would be 500 steps
MEMORY = 0.99  # of the moving average of the denominator
SPREAD = 0.15  # of the first weights, in units of He's: large ones are noise in directions that tell nothing apart
KINKS = 6.0  # first biases are up to this many SPREADs: without them T starts as a cone, and curvature comes too late
GUARD = 0.001  # share of nu mixed into rho while training
CAPS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)  # below the logarithm of the rows of rho


@dataclass(frozen=True)
class Critic:
    """Three linear layers, ReLU between, one output, added to fixed multiples of the inputs."""

    parameters: tuple[Tensor, ...]
    fixed: Tensor

    @classmethod
    def start(cls, fixed: Tensor, width: int, generator: torch.Generator) -> Critic:
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

    def copy(self) -> Critic:
        return Critic(tuple(parameter.detach().clone() for parameter in self.parameters), self.fixed)


@dataclass(frozen=True)
class FittedCritic:
    """`min(T, cap)`, fixed before the reporting rows are looked at; the cap lies `log k` above
    `log E_rho[exp T]`, for k rows of rho in training: no one of them may count for more than all."""

    coordinates: Coordinates
    network: Critic
    cap: float
    epochs: int
    best_epoch: int

    def outputs(self, seen: TwoSamples) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            on_nu, on_rho = (self.network(side).double().clamp(max=self.cap) for side in (seen.nu, seen.rho))
        return on_nu, on_rho

    def value(self, seen: TwoSamples) -> float:
        """On rows in the network's own coordinates."""
        on_nu, on_rho = self.outputs(seen)
        return float(_weighted_mean(on_nu, seen.weights) - _log_mean_exp(on_rho))

    def report(self, rows: TwoSamples) -> tuple[float, float]:
        """The value, and the square of its standard error."""
        on_nu, on_rho = self.outputs(self.coordinates.seen(rows))
        mean, log_mean = _weighted_mean(on_nu, rows.weights), _log_mean_exp(on_rho)
        nu_part = (rows.weights * (on_nu - mean)).square().sum() / rows.weights.sum().square()
        rho_part = torch.exp(on_rho - log_mean).var() / len(on_rho)
        return float(mean - log_mean), float(nu_part + rho_part)


def fit_critic(
    train: TwoSamples,
    stop: TwoSamples,
    width: int,
    options: tuple[int, float, int, int],
    generator: torch.Generator,
    progress: Progress,
    budget: Budget = NO_LIMIT,
) -> FittedCritic:
    """The network with the best value on the stopping rows, the untrained one included; the budget may end it early."""
    epochs, learning_rate, batch, patience = options
    coordinates = Coordinates.of(train)
    train, stop = coordinates.seen(train), coordinates.seen(stop)
    fixed = coordinates.gaussian(train)
    starts = [Critic.start(part, width, generator) for part in (fixed, torch.zeros_like(fixed))]
    network = max(starts, key=lambda tried: guarded_value(tried, stop))
    optimiser = torch.optim.Adam(network.parameters, lr=learning_rate, fused=True)
    weights = (train.weights / train.weights.mean()).float()
    sizes = min(batch, len(train.nu)), min(batch, len(train.rho))
    n_steps = max(FEWEST_STEPS, len(train.nu) // sizes[0], len(train.rho) // sizes[1])
    log_average: Tensor | None = None
    best, best_value, best_epoch, done = network.copy(), guarded_value(network, stop), 0, 0
    for done in range(1, epochs + 1):
        nu_order = _order(len(train.nu), n_steps * sizes[0], generator, train.nu.device)
        rho_order = _order(len(train.rho), n_steps * sizes[1], generator, train.rho.device)
        for nu_rows, rho_rows in zip(nu_order.view(n_steps, -1), rho_order.view(n_steps, -1), strict=True):
            share = weights[nu_rows]
            with torch.enable_grad():
                outputs = guarded(network(torch.cat([train.nu[nu_rows], train.rho[rho_rows]])))
                on_nu, on_rho = outputs[: sizes[0]], outputs[sizes[0] :]
                log_average = _moved(log_average, log_denominator(on_nu.detach(), share, on_rho.detach()))
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
        if done - best_epoch >= patience or budget.spent:
            break
    fitted = FittedCritic(coordinates, best, best_cap(best, train, stop), done, best_epoch)
    if fitted.value(stop) > 0.0:
        return fitted
    # what only the guard made look useful is worth less than saying nothing
    nothing = [torch.zeros_like(parameter) for parameter in best.parameters]
    return FittedCritic(coordinates, Critic(tuple(nothing), torch.zeros_like(fixed)), math.inf, done, best_epoch)


def best_cap(network: Critic, train: TwoSamples, stop: TwoSamples) -> float:
    """The highest value T may take: of those tried, the one with the best value on all rows but the reporting ones.

    One later row of rho where T is high would outweigh all others; a cap limits what it can do, and costs where nu is.
    """
    rows = TwoSamples(
        *(torch.cat(pair) for pair in ((train.nu, stop.nu), (train.weights, stop.weights), (train.rho, stop.rho)))
    )
    with torch.no_grad():
        on_nu, on_rho = (network(side).double() for side in (rows.nu, rows.rho))
    top = float(_log_mean_exp(on_rho)) + math.log(len(on_rho))

    def value(cap: float) -> float:
        mean = _weighted_mean(on_nu.clamp(max=cap), rows.weights)
        return float(mean - _log_mean_exp(on_rho.clamp(max=cap)))

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


def _moved(log_average: Tensor | None, log_mean: Tensor) -> Tensor:
    """Logarithm of the moving average, one minibatch later."""
    if log_average is None:
        return log_mean
    return torch.logaddexp(log_average + math.log(MEMORY), log_mean + math.log1p(-MEMORY))


def _order(n: int, needed: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Indices of `needed` rows of n: as many shuffled passes as it takes."""
    passes = [torch.randperm(n, generator=generator) for _ in range(-(-needed // n))]
    return torch.cat(passes)[:needed].to(device)


def _log_mean_exp(values: Tensor) -> Tensor:
    return torch.logsumexp(values, dim=0) - math.log(len(values))


def _weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    return (weights * values).sum() / weights.sum()
