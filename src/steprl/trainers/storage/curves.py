"""Learning curves of a run as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from steprl.trainers.storage.durable import write_whole

_COLUMNS = 3

Panel = tuple[str, tuple[tuple[str, str], ...]]
"""A title, and its lines: name of a figure, label."""

PANELS: tuple[Panel, ...] = (
    ("success", (("reward/success_share", "training"), ("eval/success", "evaluation"))),
    ("reward", (("reward/mean", "training"), ("eval/reward", "evaluation"))),
    ("steps per episode", (("episode/steps", "mean"),)),
    ("tokens per action", (("step/action_tokens", "mean"),)),
    (
        "shares",
        (
            ("groups/zero_variance_share", "zero-variance groups"),
            ("calls/malformed_share", "malformed calls"),
            ("stop/truncated_share", "truncated episodes"),
            ("learner/clip_share", "clipped tokens"),
        ),
    ),
    ("learner", (("learner/grad_norm", "gradient norm"), ("learner/entropy", "entropy"))),
    ("KL", (("learner/approx_kl", "from the policy before"), ("learner/ref_kl", "to the reference"))),
    ("largest |ratio - 1|", (("learner/max_ratio_deviation", "largest"),)),
    (
        "mean |advantage| by step",
        tuple((f"credit/abs_advantage_step_{index}", str(index)) for index in range(8)),
    ),
)
CRITIC_PANELS: tuple[Panel, ...] = (
    ("value loss", (("critic/value_loss", "mean"),)),
    ("explained variance", (("critic/explained_variance", "before the update"),)),
    ("values", (("critic/value_mean", "value"), ("critic/return_mean", "return"))),
)
"""One more row, in runs with a critic."""


def draw(metrics: Sequence[Mapping[str, Any]], path: Path, *, title: str) -> str | None:
    """Write a PNG with one panel per figure, against iterations.

    Returns:
        Why there is no picture, if drawing failed: that is no reason to end a run.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        picture = _picture(metrics, title)
    except Exception as error:
        return f"{path.name} could not be drawn: {type(error).__name__}: {error}"
    write_whole(path, picture)
    return None


def _picture(metrics: Sequence[Mapping[str, Any]], title: str) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    panels = PANELS + (CRITIC_PANELS if any("critic/updates" in line for line in metrics) else ())
    height = len(panels) // _COLUMNS
    figure = Figure(figsize=(11, 3 * height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    # one range of iterations for all, so that what happens at one time stands at one place
    axes = figure.subplots(height, _COLUMNS, sharex=True)
    for axis, (name, lines) in zip(axes.flat, panels, strict=True):
        drawn = 0
        for key, label in lines:
            points = [(line["iteration"], line[key]) for line in metrics if line.get(key) is not None]
            if points:
                marker = "o" if len(points) < 12 else ""
                axis.plot(*zip(*points, strict=True), marker=marker, markersize=4, label=label)
                drawn += 1
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("iteration", fontsize=8)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.tick_params(labelsize=8, labelbottom=True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
        if name in ("success", "shares"):
            axis.set_ylim(-0.03, 1.03)
        if drawn > 1:
            axis.legend(fontsize=8 if drawn < 5 else 6, framealpha=0.6, ncols=1 if drawn < 5 else 2)
    picture = BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()
