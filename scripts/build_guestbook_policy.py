"""Build the policy that context rules are compared with on the Guestbook environment: warmed up under two of
them, to be made good under one by reinforcement learning.

    python scripts/build_guestbook_policy.py --out policies/guestbook

Takes some five minutes on one core. The same seed and thread count give the same weights.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from steprl.envs.guestbook_demos import Reader
from steprl.learner.small_policy import PolicySize
from steprl.trainers.api import load_recipe
from steprl.trainers.imitation.build import build_policy
from steprl.trainers.imitation.config import PolicyConfig
from steprl.trainers.imitation.warm_start import WarmStart

RECIPE = load_recipe(Path(__file__).parents[1] / "recipes" / "context.toml")
DEMONSTRATOR = Reader(seed=0, forgetful=0.05, careless=0.15)
"""Loses each thief in one summary of twenty and answers one name of seven wrong; so will the policy."""

CONFIG = PolicyConfig(
    size=PolicySize(max_context=2944),  # whole books: the recipe's context holds short ones
    warm_start=WarmStart(steps=800),
    context="mixture",
    context_args={
        "rules": [{"id": "append_only"}, {"id": RECIPE.context.id, "args": dict(RECIPE.context.args)}]
    },
    vocabulary=896,
    vocabulary_demos=200,
    evaluation_tasks=120,
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write the policy to")
    parser.add_argument("--overwrite", action="store_true", help="replace the policy there")
    args = parser.parse_args()
    report = build_policy(
        "guestbook",
        demos=DEMONSTRATOR,
        out=args.out,
        tasks="primer",
        eval_tasks="eval",
        config=CONFIG,
        overwrite=args.overwrite,
    )
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
