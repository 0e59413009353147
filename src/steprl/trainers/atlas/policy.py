"""A policy that is a table of logits, and the true gradient of what it earns.

Shapes: N episodes; E events, an event being one option of one cell; D logits, of which there are as many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from steprl.trainers.atlas.play import Cell, Episode, Token
from steprl.types import Doubles

Event = tuple[Cell, str]


class TablePolicy:
    """π(option | cell) = softmax of the cell's logits, one for each event; ``events`` are their order.

    The logits are arbitrary, the same in every run, and within 1 of 0; those of the ``stale`` policy, which
    samples in stale worlds, are others, within 2.
    """

    def __init__(self, episodes: Sequence[Episode]) -> None:
        cells = dict.fromkeys((token.cell, token.options) for e in episodes for token in e.tokens)
        assert len({cell for cell, _ in cells}) == len(cells), "a cell has always the same options"
        self.events: list[Event] = [(cell, option) for cell, options in cells for option in options]
        self._index = {event: index for index, event in enumerate(self.events)}
        self._cell_E = np.repeat(np.arange(len(cells)), [len(options) for _, options in cells])
        self.logits_D = np.array([arbitrary(f"{event}") for event in self.events])
        self.stale_logits_D = 2 * np.array([arbitrary(f"old {event}") for event in self.events])

    def event(self, token: Token) -> int:
        """Number of the event that a token is."""
        return self._index[token.cell, token.options[token.option]]

    def logprobs(self, logits_D: NDArray[np.inexact]) -> NDArray[np.inexact]:
        """log π of every event, [E]; the logits may be complex."""
        sums = np.zeros(self._cell_E.max() + 1, dtype=logits_D.dtype)
        np.add.at(sums, self._cell_E, np.exp(logits_D))
        return logits_D - np.log(sums)[self._cell_E]

    def scores(self) -> Doubles:
        """∇ log π of every event, f64[E, D]."""
        same_ED = self._cell_E[:, None] == self._cell_E[None, :]
        scores_ED: Doubles = (
            np.eye(len(self.events)) - same_ED * np.exp(self.logprobs(self.logits_D))[None, :]
        )
        return scores_ED


def gradient(
    policy: TablePolicy, counts_NE: NDArray[np.int_], chances_N: Doubles, earned_N: Doubles
) -> Doubles:
    """∇ Σ_n P(n)·earned_n, f64[D], P(n) = chance_n · Π π: the true policy gradient.

    It is computed by complex steps on the objective itself, exact to the last bits (Squire and Trapp 1998,
    doi:10.1137/S003614459631241X), so that no score function is in it, which is what estimators use.
    """
    step = 1e-30
    found_D = np.zeros(len(policy.logits_D))
    for d in range(len(found_D)):
        logits_D = policy.logits_D.astype(complex)
        logits_D[d] += 1j * step
        probabilities_N = chances_N * np.exp(counts_NE @ policy.logprobs(logits_D))
        found_D[d] = (probabilities_N @ earned_N).imag / step
    return found_D


def arbitrary(name: str) -> float:
    """A number in [-1, 1], always the same for a name."""
    return math.sin(crc32(name.encode()) % 100_000)
