"""Learning curves of a run as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PANELS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("success", (("reward/success_share", "training"), ("eval/success", "evaluation"))),
    ("reward", (("reward/mean", "training"),)),
    ("steps per episode", (("episode/steps", "mean"),)),
    ("tokens per action", (("step/action_tokens", "mean"),)),
    (
        "share",
        (
            ("groups/zero_variance_share", "zero-variance groups"),
            ("calls/malformed_share", "malformed calls"),
        ),
    ),
    ("learner", (("learner/grad_norm", "gradient norm"), ("learner/entropy", "entropy"))),
)


def draw(metrics: Sequence[Mapping[str, Any]], path: Path, *, title: str) -> None:
    """Write a PNG with one panel per figure, against iterations."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for axis, (name, lines) in zip(figure.subplots(2, 3).flat, PANELS, strict=True):
        drawn = 0
        for key, label in lines:
            points = [(line["iteration"], line[key]) for line in metrics if line.get(key) is not None]
            if points:
                marker = "o" if len(points) < 12 else ""
                axis.plot(*zip(*points, strict=True), marker=marker, markersize=4, label=label)
                drawn += 1
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("iteration", fontsize=8)
        axis.grid(alpha=0.3)
        if name in ("success", "share"):
            axis.set_ylim(-0.03, 1.03)
        if drawn > 1:
            axis.legend(fontsize=8)
    figure.savefig(path)
