"""Networks: an encoder in front of a linear head, and networks linearised at their weights."""

from __future__ import annotations

from expunge.networks.encoders import BoundedLinear, SplitModel, module_digest, split_head, with_head

__all__ = ["BoundedLinear", "SplitModel", "module_digest", "split_head", "with_head"]
