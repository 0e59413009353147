"""What policies that were trained on short books are worth on whole ones.

    python benchmarks/whole_books.py comparisons/context --tasks 120 --json whole_books.json

Reads the runs of a comparison on ``recipes/context.toml`` and plays evaluation tasks of Guestbook, books of
19 to 28 pages in a context of 2,944 tokens, with the last checkpoint of each, under the context rule that it
was trained with, sampled at temperature 1 and greedily. Rules that hold a number of rounds or tokens hold as
many more. Prints a line per variant: success over the seeds, and prompt tokens per episode, also as a share
of append-only's when a perfect reader plays (benchmarks/context_calibration.py).
"""

from __future__ import annotations

import argparse
import json
import platform
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from context_calibration import SCALES, Prompts, make_renderer, measure, read

from steprl.context import AppendOnly
from steprl.envs.guestbook import guestbook_tasks
from steprl.errors import ConfigError
from steprl.trainers.api import evaluate_recipe, load_recipe
from steprl.trainers.comparison.statistics import estimate
from steprl.trainers.recipe import Recipe

LENGTHS, MAX_CONTEXT = SCALES["whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One run on whole books. Tokens are those of all prompts of an episode, summaries included."""

    variant: str
    seed: int
    tasks: int
    success: float
    greedy: float
    prompt_tokens: float
    steps: float


def whole(recipe: Recipe, checkpoint: Path, tasks: int) -> Recipe:
    """The recipe of a run, as it stands for whole books."""
    wider: dict[str, dict[str, Any]] = {
        "sliding_window": {"rounds": 20},
        "token_budget": {"tokens": MAX_CONTEXT - recipe.rollout.max_tokens},
    }
    args = {**recipe.context.args, **wider.get(recipe.context.id, {})}
    return replace(
        recipe,
        model=replace(recipe.model, path=str(checkpoint)),
        env=replace(recipe.env, eval="eval"),
        context=replace(recipe.context, args=args),
        engine=replace(recipe.engine, max_context=MAX_CONTEXT),
        evaluation=replace(recipe.evaluation, tasks=tasks),
    )


def last_checkpoint(run: Path) -> Path:
    """The newest checkpoint of a run."""
    found = sorted((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name.split("-")[1]))
    if not found:
        raise ConfigError(f"'{run}' has no checkpoint")
    return found[-1]


def play(run: Path, tasks: int) -> Played:
    """Evaluate one run."""
    variant, seed = run.name.rsplit("-", 1)
    recipe = whole(load_recipe(run / "config.toml"), last_checkpoint(run), tasks)
    found, greedy = (evaluate_recipe(recipe, greedy=mode) for mode in (False, True))
    return Played(
        variant=variant,
        seed=int(seed),
        tasks=found.tasks,
        success=found.success or 0.0,
        greedy=greedy.success or 0.0,
        prompt_tokens=found.statistics["episode/prompt_tokens"],
        steps=found.statistics["episode/steps"],
    )


def table(played: Sequence[Played], append_only: float) -> str:
    """A line per variant."""
    by_variant: dict[str, list[Played]] = defaultdict(list)
    for one in played:
        by_variant[one.variant].append(one)
    lines = [f"{'variant':22}  {'sampled':15}  {'greedy':15}  {'by seed':25}  prompt tokens  of append-only"]
    for variant, runs in by_variant.items():
        runs.sort(key=lambda one: one.seed)
        sampled, greedy = (_over([getattr(one, mode) for one in runs]) for mode in ("success", "greedy"))
        tokens = sum(one.prompt_tokens for one in runs) / len(runs)
        seeds = " ".join(f"{one.success:.3f}" for one in runs)
        share = f"{tokens / append_only:.1%}"
        lines.append(f"{variant:22}  {sampled:15}  {greedy:15}  {seeds:25}  {tokens:13.0f}  {share:>14}")
    return "\n".join(lines)


def _over(values: Sequence[float]) -> str:
    """Mean and half of the interval over seeds."""
    found = estimate(values)
    assert found is not None  # of one run at least
    return f"{found.mean:.3f}" + (f" ± {found.margin:.3f}" if found.margin is not None else "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("comparison", type=Path, help="folder that steprl compare context wrote")
    parser.add_argument("--variants", nargs="*", help="only these")
    parser.add_argument("--tasks", type=int, default=120)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    books = read(guestbook_tasks("eval", count=240, lengths=LENGTHS))
    prompts = Prompts(make_renderer(read(guestbook_tasks("train", count=50))))
    append_only = measure(AppendOnly(), books, prompts, MAX_CONTEXT)["prompt_tokens"]
    played = []
    for run in sorted((args.comparison / "runs").iterdir()):
        if not args.variants or run.name.rsplit("-", 1)[0] in args.variants:
            played.append(play(run, args.tasks))
            print(played[-1], flush=True)
    print(table(played, append_only))
    print(f"append-only, a perfect reader: {append_only:.0f} prompt tokens per episode")
    print(f"{platform.machine()}, steprl {version('steprl')}")
    if args.json is not None:
        figures = {"append_only_prompt_tokens": append_only, "runs": [asdict(one) for one in played]}
        args.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
