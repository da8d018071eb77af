"""Other people's ways to forget with a guarantee, written from their papers, each with its own accounting.

    certified_removal     Guo et al. 2020: a Newton step from a perturbed objective
    descent_to_delete     Neel, Roth and Sharifi-Malvajerdi 2021: a few steps of descent, then noise
    langevin              Chien et al. 2024: noisy descent at training and at deletion
    noisy_fine_tuning     Koloskova et al. 2025: noisy descent from a clipped model, whatever the loss

All of them need the retained rows at deletion time. Every noise is a pure function of plain numbers; where a paper's
formula charges more than its proof needs, both are here, and comparisons use the smaller one.
"""

from __future__ import annotations

from experiments.other_methods.certified_removal import CertifiedRemoval
from experiments.other_methods.descent_to_delete import DescentToDelete
from experiments.other_methods.langevin import Langevin
from experiments.other_methods.models import Forgotten
from experiments.other_methods.noisy_fine_tuning import GradientClipping, ModelClipping

__all__ = ["CertifiedRemoval", "DescentToDelete", "Forgotten", "GradientClipping", "Langevin", "ModelClipping"]
