"""The quickstart's claim, measured: GRPO against the same time spent on more imitation.

    python benchmarks/quickstart.py --seeds 0 1 2 --json quickstart.json

For every seed: the recipe as it stands (success before and after, sampled at temperature 1 and greedy),
and a control that starts from the same policy and goes on imitating the same demonstrations for as many
seconds as the reinforcement learning took. Prints one line per seed and the gaps.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from build_quickstart_policy import CONFIG, DEMONSTRATOR, demonstrated_tasks

from steprl.batch import rows
from steprl.context import AppendOnly
from steprl.engines.torch_engine import TorchEngine
from steprl.envs.courier import Courier
from steprl.learner.loading import load_model
from steprl.learner.supervised import imitate
from steprl.renderers import ChatRenderer, load_tokenizer
from steprl.rewards.compose import RewardComposer
from steprl.rollout import EnvWorkflow, Pool
from steprl.trainers import api
from steprl.trainers.evaluate import evaluate
from steprl.trainers.imitation.demonstrate import demonstrate
from steprl.trainers.imitation.warm_start import imitator
from steprl.trainers.parts import model_path
from steprl.types import Row, Sampling

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart.toml"


def demonstrations(renderer: ChatRenderer) -> Sequence[Row]:
    """What the policy was warmed up on, as rows."""
    groups = demonstrate(
        Courier, lambda _: DEMONSTRATOR, demonstrated_tasks(), renderer=renderer, context=AppendOnly()
    )
    return rows(trajectory for group in groups for trajectory in group.trajectories)


def success(model: PreTrainedModel, renderer: ChatRenderer, temperature: float, *, seed: int) -> float:
    """Share of the evaluation tasks solved."""
    pool = Pool(
        workflow=EnvWorkflow(Courier, AppendOnly()),
        engine=TorchEngine(copy.deepcopy(model), slots=64, max_context=512),
        renderer=renderer,
        rewards=RewardComposer({}),
        concurrency=64,
    )
    sampling = Sampling(temperature=temperature, max_tokens=48, stop_ids=renderer.stop_ids)
    result = asyncio.run(
        evaluate(pool, Courier.tasks("eval"), label="eval", seed=seed, sampling=sampling, max_steps=9)
    )
    return result.success or 0.0


def control(seconds: float, seed: int, threads: int) -> dict[str, float]:
    """Imitate the same demonstrations for ``seconds`` more; success afterwards."""
    torch.set_num_threads(threads)
    path = model_path("quickstart")
    renderer = ChatRenderer(load_tokenizer(path))
    demos = demonstrations(renderer)
    learner = imitator(load_model(path), CONFIG.warm_start.final_lr)
    rng = np.random.default_rng(seed)
    steps, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        chosen = rng.choice(len(demos), CONFIG.warm_start.batch, replace=False)
        imitate(learner, [demos[index] for index in chosen])
        steps += 1
    sampled = success(learner.model, renderer, 1.0, seed=seed)
    greedy = success(learner.model, renderer, 0.0, seed=seed)
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
    columns = ["seed", "success_before", "success_after", "greedy_before", "greedy_after", "iterations"]
    columns += ["train_seconds", "control_success", "control_greedy", "control_steps"]
    print("  ".join(columns))
    for figures in found:
        print("  ".join(f"{figures[name]:{len(name)}.4g}" for name in columns))
    print(f"{platform.machine()}, {args.threads} threads, torch {torch.__version__}")
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
