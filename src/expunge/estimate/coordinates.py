"""Coordinates in which two sets of rows differ most plainly, and what two Gaussians would say of them there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from expunge.estimate.two_samples import TwoSamples


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

    def seen(self, rows: TwoSamples) -> TwoSamples:
        return TwoSamples(self(rows.nu), rows.weights, self(rows.rho))

    def gaussian(self, seen: TwoSamples) -> Tensor:
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
