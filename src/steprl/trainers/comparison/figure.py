"""The curves of a comparison as a picture, each with its spread: which four depends on what is compared."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from steprl.trainers.comparison.aggregation import Band, Result

_AXES = {
    "success": "share of training episodes",
    "reward": "mean over training episodes",
    "response length": "sampled tokens per episode",
    "KL": "KL(old ‖ new) per token, within an iteration",
    "prompt tokens": "given to the policy, per episode",
    "seconds": "rollout and update of an iteration",
}

OF_ALGORITHMS = ("success", "reward", "response length", "KL")
OF_CONTEXT = ("success", "reward", "prompt tokens", "seconds")
"""What is drawn: the curves of Agent-R1's figures 7 and 8 (arXiv:2511.14460), and what they cost."""

_FEW = 12
"""Fewer points than this are marked as well as joined."""


def picture(results: Sequence[Result], curves: Sequence[str], *, title: str) -> bytes:
    """A PNG with a panel for each of four ``curves``: the mean over seeds, one standard deviation aside."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(11, 7.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for axis, name in zip(figure.subplots(2, 2, sharex=True).flat, curves, strict=True):
        for index, result in enumerate(results):
            colour = f"C{index % 10}"
            if name in result.curves:
                _draw(axis, result.curves[name], colour)
            if name in result.evaluated:
                _mark(axis, result.evaluated[name], colour, aside=index - (len(results) - 1) / 2)
        axis.set_title(name, fontsize=10)
        axis.set_ylabel(_AXES[name], fontsize=8)
        axis.set_xlabel("iteration", fontsize=8)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.tick_params(labelsize=8, labelbottom=True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
        if name == "success":
            axis.set_ylim(-0.03, 1.03)
        elif name != "reward":
            axis.set_ylim(bottom=0)
    _legend(figure, results)
    drawn = BytesIO()
    figure.savefig(drawn, format="png")
    return drawn.getvalue()


def _draw(axis: Any, band: Band, colour: str) -> None:
    marker = "o" if len(band.iterations) < _FEW else ""
    axis.plot(band.iterations, band.mean, color=colour, marker=marker, markersize=3, linewidth=1.4)
    low = [mean - std for mean, std in zip(band.mean, band.std, strict=True)]
    high = [mean + std for mean, std in zip(band.mean, band.std, strict=True)]
    axis.fill_between(band.iterations, low, high, color=colour, alpha=0.15, linewidth=0)


def _mark(axis: Any, evaluated: Band, colour: str, *, aside: float) -> None:
    """Evaluations, each variant's a little aside, so that bars of one iteration do not hide each other."""
    width = 0.012 * max(evaluated.iterations)
    axis.errorbar(
        [iteration + aside * width for iteration in evaluated.iterations],
        evaluated.mean,
        evaluated.std,
        fmt="D",
        color=colour,
        markersize=5,
        capsize=3,
        markeredgecolor="white",
        zorder=3,
    )


def _legend(figure: Any, results: Sequence[Result]) -> None:
    """One for all panels, below them: what has which colour, and what the marks are."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=f"C{index % 10}", label=f"{result.variant} ({_seeds(result)})")
        for index, result in enumerate(results)
    ]
    if any(result.evaluated for result in results):
        label = "evaluation"
        handles.append(Line2D([], [], color="grey", marker="D", markersize=5, linestyle="", label=label))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(5, len(handles)), fontsize=8)


def _seeds(result: Result) -> str:
    return "1 seed" if len(result.runs) == 1 else f"{len(result.runs)} seeds"
