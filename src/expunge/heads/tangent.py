"""Networks linearised at their weights.

Ridge regression on Jacobian features, without ever forming the Jacobian of a set.

With weights theta_0 and Jacobian J(x) (K x P, of the outputs by the chosen parameters) the model is

    z(x) = s(x) (f(x; theta_0) + J(x) v),       s(x) = min(1, max_norm / ||J(x)||_F)

in the tangent weights v (length P). Loss, with targets t(y) of -1 and +1: `||z - t||^2 / 2`, mean over rows, plus
`(l2/2) ||v||^2`. It is quadratic, so a Newton step is exact, and

    gradient of one row     s J^T (s f + s J v - t)
    Hessian of one row      s^2 J^T J
    change of gradient      phi_u(x) = s^2 J^T J u        neither label, nor f, nor v is in it
    its size                ||phi_u(x)|| <= ||s J||_2^2 ||u|| <= max_norm^2 ||u||

An example is one row whatever K is: what is scaled, and what the row bound bounds, is the Frobenius norm of its whole
Jacobian. The outputs f are scaled with it, as they are when the features of a linear head are. Products with J and J^T
are torch.func's jvp and vjp, a block of examples at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from expunge.errors import DataError, ModelError, OptionError
from expunge.heads.linear import UNIT_ROUNDOFF, Ridge, SpreadSums
from expunge.heads.network import FAILED, MatrixFree, NetworkHead, class_scores, require_real
from expunge.heads.rows import Block, Scaling, WholeSet, scaling_of
from expunge.record import TANGENT, Loss
from expunge.runtime.arrays import Array, LazyTorch, put
from expunge.runtime.values import SMALLEST

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
else:
    torch = LazyTorch("a network")

SAME = 1e-9  # of all outputs of a block: what another batch may change by rounding
ACCURATE = 1e-10  # relative residual of one run of conjugate gradients
NETWORK_ROUNDOFFS = 4096  # unit roundoffs, relative, that a pass through the network is taken to lose at most


@dataclass(frozen=True)
class TangentRows(WholeSet):
    """Examples and what is kept of each: scaled outputs s f at theta_0, the scale s, and the norm of s J after scaling.

    Inputs stay as they were given, in their dtype and where they are; a block at a time is converted when it is used.
    """

    inputs: Tensor
    labels: Tensor
    offsets: Tensor
    scales: Tensor
    lengths: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def n_scaled(self) -> int:  # type: ignore[override]
        return int((self.scales < 1.0).sum())

    @property
    def scaling(self) -> Scaling:  # type: ignore[override]
        longest = float(self.lengths.max())  # the norm bound, where an example was scaled to it
        return scaling_of(self.lengths / self.scales, longest if self.n_scaled else math.inf)

    def __getitem__(self, chosen: Tensor | slice) -> TangentRows:
        return TangentRows(
            *(part[chosen] for part in (self.inputs, self.labels, self.offsets, self.scales, self.lengths))
        )


class Tangent(NetworkHead):
    """The objective. Works on a copy of the network, in float64 and evaluation mode.

    `names` are the parameters to train.

    A parameter that is used in several places counts once, with the derivative of all its uses.
    """

    about = TANGENT

    def __init__(
        self,
        module: nn.Module,
        *,
        l2: float,
        max_norm: float,
        names: Sequence[str] | None = None,
        block: int = 64,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(module, l2, block, device)
        self.max_norm = max_norm
        known = dict(self.module.named_parameters())
        self.names = tuple(known if names is None else names)
        odd = [name for name in self.names if name not in known]
        if odd or not self.names or len(set(self.names)) != len(self.names):
            raise OptionError(
                f"parameters {', '.join(odd) or 'named twice, or none'}",
                "different names of the network's own parameters are needed",
                f"The last ones are: {', '.join(list(known)[-6:])}.",
            )
        self.at = {name: known[name].detach() for name in self.names}
        self.n_parameters = self.n_directions = sum(value.numel() for value in self.at.values())

    # Products -----------------------------------------------------------------------------------------------------

    def outputs(self, inputs: Tensor) -> Tensor:
        """`f(x; theta_0)`, rows x K."""
        return self._forward(self.at, inputs)

    def push(self, inputs: Tensor, direction: Tensor) -> Tensor:
        """`J d` for each example, rows x K."""
        pushed: Tensor = torch.func.jvp(lambda at: self._forward(at, inputs), (self.at,), (self._split(direction),))[1]
        return pushed

    def pull(self, inputs: Tensor, cotangents: Tensor) -> Tensor:
        """`sum of J^T r` over the examples, length P."""
        if len(inputs) == 1:  # torch 2.13 gets derivatives of some layers wrong for a lone example
            inputs, cotangents = inputs.repeat_interleave(2, dim=0), cotangents.repeat_interleave(2, dim=0) / 2
        back = torch.func.vjp(lambda at: self._forward(at, inputs), self.at)[1]
        return self._join(back(cotangents)[0])

    def pull_each(self, inputs: Tensor, cotangents: Tensor) -> Tensor:
        """`J^T r` of each example, rows x P."""

        def one(example: Tensor, cotangent: Tensor) -> dict[str, Tensor]:
            back = torch.func.vjp(lambda at: self._forward(at, example[None])[0], self.at)[1]
            gradients: dict[str, Tensor] = back(cotangent)[0]
            return gradients

        parts = torch.func.vmap(one)(inputs, cotangents)
        return torch.cat([parts[name].reshape(len(inputs), -1) for name in self.names], dim=1)

    def _forward(self, at: dict[str, Tensor], inputs: Tensor) -> Tensor:
        outputs: Tensor = torch.func.functional_call(self.module, at, (inputs,))
        return outputs

    def _split(self, flat: Tensor) -> dict[str, Tensor]:
        pieces = torch.split(flat, [value.numel() for value in self.at.values()])
        return {name: piece.reshape(self.at[name].shape) for name, piece in zip(self.names, pieces, strict=True)}

    def _join(self, parts: dict[str, Tensor]) -> Tensor:
        return torch.cat([parts[name].reshape(-1) for name in self.names])

    # Rows ---------------------------------------------------------------------------------------------------------

    def rows(self, inputs: Tensor, labels: Array) -> TangentRows:
        """Examples made ready: outputs and scales, one pass of K + 1 products (two more of the first block).

        `labels` are class indices.
        """
        require_real(inputs)
        if inputs.ndim < 2 or len(inputs) == 0 or len(labels) != len(inputs):
            raise DataError(
                f"inputs of shape {tuple(inputs.shape)}, {len(labels)} labels",
                "one or more examples are needed, rows first, and a label each",
                "Check that inputs and labels belong together.",
            )
        if inputs.dtype not in (torch.float32, torch.float64):
            inputs = inputs.float()
        offsets: list[Tensor] = []
        norms: list[Tensor] = []
        for part in self._blocks(len(inputs)):
            values = self._converted(inputs[part])
            scores = class_scores(self.outputs, values)
            try:
                if not offsets:
                    self._require_rows_apart(values, scores)
                norms.append(self._norms(values, scores))
            except FAILED as error:
                raise ModelError(
                    f"the network cannot be differentiated example by example ({str(error).splitlines()[0]})",
                    "torch.func's vmap, vjp and jvp must know all its layers, and nothing in it may be drawn at random",
                    "Switch off dropout that is hard-wired; replace the layer named; for want of memory, use a "
                    "smaller block.",
                ) from error
            offsets.append(scores)
        norm = torch.cat(norms)
        if not bool(torch.isfinite(norm).all()) or not all(bool(torch.isfinite(part).all()) for part in offsets):
            raise DataError("outputs or derivatives that are not finite", "numbers are needed", "Check the inputs.")
        if bool(((norm > 0.0) & (norm < SMALLEST)).any()):
            raise DataError(
                f"an example whose derivatives have norm {float(norm[norm > 0.0].min()):.3g}",
                f"they are zero or at least {SMALLEST:g}: of less float64 loses squares",
                "Check the inputs and the network's weights.",
            )
        # a hair below the bound: J is computed again in every product
        scales = (self.max_norm * (1.0 - NETWORK_ROUNDOFFS * UNIT_ROUNDOFF) / norm.clamp(min=1e-300)).clamp(max=1.0)
        scaled = torch.cat(offsets) * scales[:, None]
        return TangentRows(inputs, torch.as_tensor(labels, device=self.device), scaled, scales, norm * scales)

    def _norms(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """`||J||_F` of each example, which has these outputs."""
        squares = torch.zeros(len(outputs), dtype=torch.float64, device=self.device)
        for output in range(outputs.shape[1]):
            chosen = torch.zeros_like(outputs)
            chosen[:, output] = 1.0
            squares += self.pull_each(inputs, chosen).square().sum(dim=1)
        return squares.sqrt()

    def _require_rows_apart(self, inputs: Tensor, outputs: Tensor) -> None:
        """Refuse outputs that change with the other rows of a batch: one example's Jacobian would not be its own."""
        along = self.push(inputs, torch.zeros(self.n_parameters, dtype=torch.float64, device=self.device))
        alone = torch.func.vmap(lambda example: self._forward(self.at, example[None])[0])(inputs)
        finite = torch.isfinite(outputs) & torch.isfinite(along)  # what is not is refused under its own name
        if not torch.allclose(alone[finite], outputs[finite], rtol=0.0, atol=SAME * float(outputs[finite].abs().sum())):
            raise ModelError(
                "an example's outputs differ when it is alone in its batch",
                "they must not depend on other rows",
                "Batch normalisation must use its stored statistics; use another normalisation where it is hard-wired.",
            )

    def each(self, cotangents: Tensor, rows: TangentRows) -> Iterator[Tensor]:
        """`s J^T r` of each example, rows x P, a block at a time."""
        for part in self._blocks(len(rows)):
            yield self.pull_each(self._converted(rows.inputs[part]), cotangents[part] * rows.scales[part, None])

    def jacobians(self, rows: TangentRows) -> Iterator[Tensor]:
        """`s J` of each example, examples x K x P, a block at a time."""
        for part in self._blocks(len(rows)):
            inputs, scales = self._converted(rows.inputs[part]), rows.scales[part, None]
            chosen = torch.eye(rows.offsets.shape[1], dtype=torch.float64, device=self.device)
            yield torch.stack([self.pull_each(inputs, scales * output) for output in chosen], dim=1)

    def _converted(self, inputs: Tensor) -> Tensor:
        return inputs.to(self.device, torch.float64)

    # The objective ------------------------------------------------------------------------------------------------

    def targets(self, rows: TangentRows, part: slice) -> Tensor:
        return torch.nn.functional.one_hot(rows.labels[part], rows.offsets.shape[1]).double() * 2 - 1

    def predictions(self, weights: Tensor, rows: TangentRows) -> Tensor:
        """`z(x)`, rows x K."""
        return rows.offsets + self.features_times(weights, rows)

    def features_times(self, direction: Tensor, rows: TangentRows) -> Tensor:
        """`s J d` for each example."""
        parts = [self.push(self._converted(rows.inputs[part]), direction) for part in self._blocks(len(rows))]
        return torch.cat(parts) * rows.scales[:, None]

    def back(self, cotangents: Tensor, rows: TangentRows) -> Tensor:
        """`sum of s J^T r` over the rows."""
        total = torch.zeros(self.n_parameters, dtype=torch.float64, device=self.device)
        for part in self._blocks(len(rows)):
            total += self.pull(self._converted(rows.inputs[part]), cotangents[part] * rows.scales[part, None])
        return total

    def gradient(self, weights: Tensor, rows: TangentRows) -> Tensor:
        """Gradient of the regularised mean loss."""
        residuals = self.predictions(weights, rows) - self.targets(rows, slice(None))
        return self.back(residuals, rows) / len(rows) + self.l2 * weights

    def change_mean(self, weights: Tensor, update: Tensor, rows: TangentRows) -> Tensor:
        """Mean of `phi_u` over the rows, wherever it starts from."""
        return self.back(self.features_times(update, rows), rows) / len(rows)

    def product(self, direction: Tensor, rows: TangentRows) -> Tensor:
        """`H d`, regulariser included."""
        return self.change_mean(direction, direction, rows) + self.l2 * direction

    def curvature(self, weights: Tensor, rows: TangentRows) -> MatrixFree:
        """The Hessian, which is the same at all weights."""
        return MatrixFree(lambda direction: self.product(direction, rows))

    def spread(self, weights: Tensor, update: Tensor, rows: TangentRows) -> TangentSpread:
        """How `phi_u` spreads over these rows."""
        return TangentSpread(self, update, rows)

    def accurate(self, dtype: torch.dtype) -> float:
        """Relative residual of one run of conjugate gradients."""
        return ACCURATE

    def change_sup(self, update: Tensor) -> float:
        """Upper bound on `||phi_u(x)||` over all admissible rows."""
        return self.max_norm**2 * float(update.norm())

    def rounding(self, weights: Tensor, rows: TangentRows) -> float:
        """What float64 may hide of a mean gradient's norm.

        Summing follows the rule of the linear heads. How much a pass through an arbitrary network loses is not derived:
        `NETWORK_ROUNDOFFS` is taken for it, and whoever uses this number must say that it is declared.
        """
        largest = float((self.predictions(weights, rows) - self.targets(rows, slice(None))).norm(dim=1).max())
        size = float(weights.norm())
        lost = (len(rows) + NETWORK_ROUNDOFFS) * (largest + self.max_norm * size)
        return UNIT_ROUNDOFF * (self.max_norm * lost + 4 * self.l2 * size)


class TangentSpread:
    """`f - c` of each row, `f = phi_u = s J^T e` with `e = s J u`. Neither f of all rows nor a covariance is formed.

    The inner product of f with any d is that of e with `s J d`, and sums of f are products with J^T. Only the norms of
    f need `J^T e` example by example, a block at a time.
    """

    knows_fourth = False  # products with the fourth moment would cost as much again

    def __init__(self, head: Tangent, update: Tensor, rows: TangentRows) -> None:
        self.head, self.rows = head, rows
        self.images = head.features_times(update, rows)
        self.mean = head.back(self.images, rows) / len(rows)
        self.cancellation = (NETWORK_ROUNDOFFS + 64) * 2.0**-52

    def sums(self) -> SpreadSums:
        sizes = torch.cat([each.square().sum(dim=1) for each in self.head.each(self.images, self.rows)])
        centre = self.mean.square().sum()
        along = (self.images * self.head.features_times(self.mean, self.rows)).sum(dim=1)
        squares = (sizes - 2 * along + centre + self.cancellation * (sizes + centre)).clamp(min=0.0)
        trace, largest = float(squares.mean()), math.sqrt(float(squares.max()))
        longest = math.sqrt(float(sizes.max()) * (1.0 + self.cancellation))
        row = float(self.rows.lengths.max())
        return SpreadSums(trace, float(squares.square().mean()), largest, longest, row, trace, largest)

    def covariance_product(self, direction: Tensor, power: int, fourth: bool) -> Tensor:
        """Mean over rows of `(f - c) <f - c, direction>`; rows have no weights here."""
        inner = (self.images * self.head.features_times(direction, self.rows)).sum(dim=1) - (self.mean @ direction)
        total = self.head.back(self.images * inner[:, None], self.rows)
        return (total - self.mean * inner.sum()) / len(self.rows)


def last_parameters(module: nn.Module, count: int) -> tuple[str, ...]:
    """Names of the last `count` parameters, in the order the network registers them.

    >>> from torch import nn
    >>> last_parameters(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), 2)
    ('2.weight', '2.bias')
    """
    names = [name for name, _ in module.named_parameters()]
    if not 1 <= count <= len(names):
        raise OptionError(f"the last {count} parameters", f"from 1 to {len(names)} can be chosen", "Choose fewer.")
    return tuple(names[-count:])


# The same weights as a linear head, one row of them, least squares on the rows of Jacobians ---------------------------
#
# An example with K outputs is K rows `s J_k` of length P with targets `t_k - s f_k`, counted as one: a mean is over
# examples. Forming them, a block of examples at a time, only pays where P is a few thousand.

LOST_TWICE = 4 * NETWORK_ROUNDOFFS  # of a product of two factors, in each of which J or f and s are off
KEPT_BYTES = 1 << 28  # Jacobians of a set up to this size are formed once and kept


@dataclass(frozen=True)
class JacobianRidge(Ridge):
    """Weights are 1 x P; a row's label is its target itself.

    `outputs` is K, `longest_target` the largest `||t|| + ||s f||` of an example, `row_bound` bounds `||s J||_F`. How
    much a pass through the network loses is not derived: NETWORK_ROUNDOFFS is declared, of J and f, and as much of the
    scale s, which is made from J.
    """

    outputs: int = 1
    longest_target: float = 0.0

    about: ClassVar[Loss] = TANGENT

    def targets(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        return labels.to(dtype)[:, None]

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return 0.5 * (outputs - self.targets(labels, outputs.dtype)).square().sum(dim=1)

    def residual_sup(self, weights: Tensor) -> float:
        return float(weights.norm()) * self.row_bound + self.longest_target

    def rounding(self, weights: Tensor, rows: Sized) -> float:
        """Bound on what float64 loses of a mean gradient: in summing K terms an example, and by the network in J, f."""
        size = float(weights.norm())
        terms = len(rows) * self.outputs + self.n_features + LOST_TWICE + 64
        lost = self.row_bound * terms * (self.residual_sup(weights) + self.row_bound * size)
        return UNIT_ROUNDOFF * (lost + 4 * self.l2 * size)

    def moment_roundoffs(self, n_rows: int) -> int:
        return n_rows * self.outputs + LOST_TWICE + 64


@dataclass(frozen=True)
class JacobianRows(WholeSet):
    """Examples, whose blocks are the rows of their Jacobians: K rows an example, one after another."""

    objective: Tangent
    examples: TangentRows

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def labels(self) -> Tensor:
        """Class indices, one an example."""
        return self.examples.labels

    @property
    def outputs(self) -> int:
        return int(self.examples.offsets.shape[1])

    @property
    def n_scaled(self) -> int:  # type: ignore[override]
        return self.examples.n_scaled

    @property
    def scaling(self) -> Scaling:  # type: ignore[override]
        return self.examples.scaling

    @property
    def n_features(self) -> int:
        return self.objective.n_parameters

    @property
    def device(self) -> torch.device:
        return self.objective.device

    def taken(self, chosen: Array) -> JacobianRows:
        """Some of the examples, by number."""
        return JacobianRows(self.objective, self.examples[put(chosen, self.examples.inputs)])

    @property
    def longest_target(self) -> float:
        """The largest `||t|| + ||s f||`, rounded up."""
        return (math.sqrt(self.outputs) + float(self.examples.offsets.norm(dim=1).max())) * (1.0 + 2.0**-30)

    def predictions(self, weights: Array) -> Tensor:
        """Outputs of the linearised network at weights 1 x P, rows x K."""
        return self.objective.predictions(put(weights, self.examples.offsets).reshape(-1), self.examples)

    @property
    def _targets(self) -> Tensor:
        return self.objective.targets(self.examples, slice(None)) - self.examples.offsets

    def blocks(self) -> Iterator[Block]:
        yield from self._kept if 8 * len(self) * self.outputs * self.n_features <= KEPT_BYTES else self._formed()

    @cached_property
    def _kept(self) -> tuple[Block, ...]:
        return tuple(self._formed())

    def _formed(self) -> Iterator[Block]:
        start, targets = 0, self._targets
        for jacobians in self.objective.jacobians(self.examples):
            part = slice(start, start + len(jacobians))
            yield Block(jacobians.flatten(0, 1), targets[part].flatten(), None, start)
            start += len(jacobians)
