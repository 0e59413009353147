"""The quickstart's claim, measured: GRPO against the same time spent on more imitation.

    python benchmarks/quickstart.py --seeds 0 1 2 --json quickstart.json

For every seed: the recipe as it stands (success before and after, sampled at temperature 1 and greedy),
and a control that starts from the same policy and goes on imitating the same demonstrations for as many
seconds as the reinforcement learning took. Prints one line per seed and the gaps.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from build_quickstart_policy import WARM_START, demonstrate_courier, learner_for, success

from steprl.learner.loading import load_model
from steprl.learner.supervised import imitate
from steprl.renderers import ChatRenderer, load_tokenizer
from steprl.trainers import api
from steprl.trainers.parts import model_path

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart.toml"


def control(seconds: float, seed: int, threads: int) -> dict[str, float]:
    """Imitate the same demonstrations for ``seconds`` more; success afterwards."""
    torch.set_num_threads(threads)
    path = model_path("quickstart")
    renderer = ChatRenderer(load_tokenizer(path))
    demos = demonstrate_courier(renderer, WARM_START)
    learner = learner_for(load_model(path), WARM_START.final_lr)
    rng = np.random.default_rng(seed)
    steps, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        chosen = rng.choice(len(demos), WARM_START.batch, replace=False)
        imitate(learner, [demos[index] for index in chosen])
        steps += 1
    sampled = success(learner.model, renderer, 1.0, seed=seed)["all"]
    greedy = success(learner.model, renderer, 0.0, seed=seed)["all"]
    return {"control_success": sampled, "control_greedy": greedy, "control_steps": float(steps)}


def one_seed(seed: int, threads: int, runs: str) -> dict[str, Any]:
    """Train the recipe with this seed, then run the control for as long."""
    recipe = replace(
        api.load_recipe(RECIPE), seed=seed, threads=threads, runs=runs, name=f"quickstart-{seed}"
    )
    summary = api.run(recipe, overwrite=True)
    return {**summary, **control(summary["train_seconds"], seed, threads)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", help="keep the run folders here")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = [one_seed(seed, args.threads, args.runs or scratch) for seed in args.seeds]
    columns = ("seed", "success_before", "success_after", "greedy_before", "greedy_after", "iterations")
    columns += ("train_seconds", "control_success", "control_greedy", "control_steps")
    print("  ".join(columns))
    for figures in found:
        print("  ".join(f"{figures[name]:{len(name)}.4g}" for name in columns))
    print(f"{platform.machine()}, {args.threads} threads, torch {torch.__version__}")
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
