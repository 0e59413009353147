"""What a person sees while a run goes on: a bar, the last figures, now and then an episode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from steprl.rollout import Progress as OnEpisode
from steprl.trajectory.tokens import Decode
from steprl.trajectory.view import summary_lines
from steprl.types import Trajectory


class Display:
    """Progress on a terminal; plain lines where the output is a file or a pipe."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )

    @contextmanager
    def phase(self, name: str, total: int, done: int = 0) -> Iterator[Phase]:
        """A stretch of work with a bar of its own."""
        self._bar.start()
        task = self._bar.add_task(name, total=total, completed=done, figures="")
        try:
            yield Phase(self._bar, task)
        finally:
            self._bar.remove_task(task)
            if not self._bar.tasks:
                self._bar.stop()

    def say(self, text: str | Text) -> None:
        """A line that stays."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def iteration(self, number: int, metrics: Mapping[str, float]) -> None:
        """The figures of an iteration, on one line."""
        self.say(f"iteration {number:>4}  {figures(metrics)}")
        if metrics.get("credit/abs_advantage") == 0.0:
            self.say("                every advantage is 0: there was nothing to learn from")
        elif metrics.get("critic/updates") and not metrics.get("learner/updates"):
            self.say("                warm-up: only the critic learned")

    def episode(self, trajectory: Trajectory, decode: Decode) -> None:
        """A sample episode, a line per step."""
        for line in summary_lines(trajectory, decode, width=self.console.width):
            self.console.print(line)


class Phase:
    """One bar of a display."""

    def __init__(self, bar: Progress, task: object) -> None:
        self._bar = bar
        self._task = task

    def advance(self, text: str = "") -> None:
        """One unit is done."""
        self._bar.update(self._task, advance=1, figures=text)  # type: ignore[arg-type]

    @property
    def on_episode(self) -> OnEpisode:
        """Advances with every finished episode."""
        return lambda _: self.advance()


def figures(metrics: Mapping[str, float]) -> str:
    """Reward, success, speed, filters and curriculum, and the signs of trouble, as far as they are known."""
    parts = []
    for key, label, form in (
        ("reward/mean", "reward", "{:.3f}"),
        ("reward/success_share", "success", "{:.3f}"),
        ("episode/steps", "steps", "{:.1f}"),
        ("groups/zero_variance_share", "zero-variance", "{:.2f}"),
        ("filter/kept_groups", "kept", "{:.0f}"),
        ("filter/rounds", "more rounds", "{:.0f}"),
        ("curriculum/seen_share", "seen", "{:.2f}"),
        ("curriculum/tasks_share", "tasks in", "{:.2f}"),
        ("horizon/max_steps", "horizon", "{:.0f}"),
        ("calls/malformed_share", "malformed", "{:.3f}"),
        ("learner/grad_norm", "grad", "{:.2f}"),
        ("speed/tokens_per_second", "tok/s", "{:.0f}"),
        ("time/iteration", "s", "{:.1f}"),
    ):
        if key in metrics:
            parts.append(f"{label} {form.format(metrics[key])}")
    return "  ".join(parts)
