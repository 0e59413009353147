"""Whole weights, read straight from a model in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch


class FullWeights:
    """All weights of ``model`` as they are when ``tensors`` is read; nothing is copied."""

    kind: Literal["full", "adapter"] = "full"

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and tensor of everything in the state dict; tied weights once, under their first name."""
        seen: set[int] = set()
        # keep_vars gives the parameter objects themselves, whose identity says what is tied
        for name, tensor in self._model.state_dict(keep_vars=True).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield name, tensor.detach()
