"""The atlas as tables in Markdown, as a picture, and as plain values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from steprl.trainers.atlas.measure import Measured, atlas
from steprl.trainers.atlas.play import World
from steprl.trainers.atlas.subjects import AGGREGATIONS, ON_POLICY, Loss, Subject, claimed

EXACT = 1e-9
"""Relative error below which a mean gradient is the truth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One measurement, and the constant that was claimed for it, if any."""

    measured: Measured
    claim: float | None

    @property
    def broken(self) -> bool:
        """True where the claim does not hold."""
        return self.claim is not None and not self.measured.error(self.claim) < EXACT

    @property
    def bias(self) -> str:
        """As a table shows it: **0** as claimed, 0 as it happens, else two digits."""
        if self.broken:
            return "broken claim"
        if self.measured.bias < EXACT:
            return "0" if self.claim is None else "**0**"
        return _digits(self.measured.bias)

    @property
    def noise(self) -> str:
        """In two digits."""
        return _digits(self.measured.noise)

    @property
    def constant(self) -> str:
        """The multiple of the truth that the mean is: the size of the step."""
        return f"{self.measured.constant:.3f}"

    def as_json(self) -> dict[str, Any]:
        """Plain values; an infinite bias or noise is None."""
        found = self.measured
        return {
            "world": found.world,
            "estimator": found.subject,
            "rule": found.rule,
            "loss": found.loss,
            "claimed_constant": self.claim,
            "constant": found.constant,
            "bias": found.bias if math.isfinite(found.bias) else None,
            "noise": found.noise if math.isfinite(found.noise) else None,
            "mean": found.mean.tolist(),
            "truth": found.truth.tolist(),
        }


def entries(
    subject: Subject,
    worlds: Sequence[World],
    *,
    rules: Sequence[str] = tuple(AGGREGATIONS),
    losses: Sequence[Loss] = (ON_POLICY,),
) -> list[Entry]:
    """Everything there is to measure of an estimator."""
    by_name = {loss.name: loss for loss in losses}
    chosen = {rule: AGGREGATIONS[rule] for rule in rules}
    return [
        Entry(measured=found, claim=claimed(subject, found.rule, by_name[found.loss], world))
        for world in worlds
        for found in atlas(world).measure(subject, rules=chosen, losses=losses)
    ]


def table(
    corner: str, rows: Sequence[str], columns: Sequence[str], cell: Callable[[str, str], str]
) -> list[str]:
    """Lines of a Markdown table."""
    return [
        f"| {corner} | {' | '.join(columns)} |",
        "|---" * (len(columns) + 1) + "|",
        *(f"| {row} | {' | '.join(cell(row, column) for column in columns)} |" for row in rows),
    ]


def by_world(found: Iterable[Entry], shown: Callable[[Entry], str], *, rule: str) -> list[str]:
    """A row for each estimator, a column for each world, under one rule."""
    cells = {(e.measured.subject, e.measured.world): shown(e) for e in found if e.measured.rule == rule}
    subjects, worlds = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    return table("", subjects, worlds, lambda subject, world: cells[subject, world])


def by_loss(found: Iterable[Entry], *, rule: str) -> list[str]:
    """The same with a row for each loss."""
    cells = {(e.measured.loss, e.measured.world): e.bias for e in found if e.measured.rule == rule}
    losses, worlds = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    return table("", losses, worlds, lambda loss, world: cells[loss, world])


def by_rule(found: Sequence[Entry]) -> list[str]:
    """In how many worlds each estimator is exact under each rule, and its worst bias in the others."""
    grouped: dict[tuple[str, str], list[Entry]] = {}
    for entry in found:
        grouped.setdefault((entry.measured.subject, entry.measured.rule), []).append(entry)
    subjects, rules = (list(dict.fromkeys(names)) for names in zip(*grouped, strict=True))
    return table("", subjects, [f"`{rule}`" for rule in rules], lambda s, r: _worst(grouped[s, r.strip("`")]))


def picture(found: Sequence[Entry], rules: Sequence[str]) -> bytes:
    """A PNG: the bias of every estimator in every world as a colour, under each of a few rules."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    subjects = list(dict.fromkeys(e.measured.subject for e in found))
    worlds = list(dict.fromkeys(e.measured.world for e in found))
    figure = Figure(figsize=(5.2 * len(rules) + 3.2, 7), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    shown = None
    for axis, rule in zip(
        figure.subplots(1, len(rules), sharey=True, squeeze=False).flat, rules, strict=True
    ):
        cells = {
            (e.measured.subject, e.measured.world): e.measured.bias for e in found if e.measured.rule == rule
        }
        bias = np.array([[cells[subject, world] for world in worlds] for subject in subjects])
        exact = bias < EXACT
        shown = axis.imshow(
            np.where(exact, np.nan, np.minimum(bias, 2)), norm=LogNorm(1e-2, 2), cmap="YlOrRd", aspect="auto"
        )
        rows, columns = np.nonzero(exact)
        axis.scatter(columns, rows, s=9, color="#2a7f62", marker="o")
        axis.set_title(rule, fontsize=10)
        axis.set_xticks(range(len(worlds)), worlds, rotation=60, ha="right", fontsize=8)
        axis.set_yticks(range(len(subjects)), subjects, fontsize=8)
        axis.spines[:].set_visible(False)
    assert shown is not None
    figure.colorbar(shown, label="bias: tangent of the angle to the true gradient (a dot: none)", shrink=0.7)
    drawn = BytesIO()
    figure.savefig(drawn, format="png")
    return drawn.getvalue()


def placed(page: str, parts: Mapping[str, Sequence[str]]) -> str:
    """A page with each part put between its two marks, ``<!-- name -->`` and ``<!-- end name -->``.

    Raises:
        ValueError: the page has no such marks.
    """
    for name, lines in parts.items():
        begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        if page.count(begin) != 1 or page.count(end) != 1:
            raise ValueError(f"the page needs one '{begin}' and one '{end}'")
        before, _, rest = page.partition(begin)
        after = rest.partition(end)[2]
        page = "\n".join([before + begin, *lines, end + after])
    return page


def _worst(of_subject: Sequence[Entry]) -> str:
    exact = sum(entry.measured.bias < EXACT for entry in of_subject)
    worst = max(entry.measured.bias for entry in of_subject)
    return f"{exact}/{len(of_subject)}" + ("" if worst < EXACT else f", {_digits(worst)}")


def _digits(number: float) -> str:
    if math.isinf(number):
        return "∞"
    return f"{number:.2f}" if number >= 0.095 else f"{number:.2g}"
