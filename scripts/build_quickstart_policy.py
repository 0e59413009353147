"""Build the policy that ships with steprl, warmed up on imperfect demonstrations of the Courier environment.
Weak on purpose: reinforcement learning does the rest.

    python scripts/build_quickstart_policy.py --out src/steprl/policies/quickstart --overwrite

Takes a few minutes on one core. The same seed and thread count give the same weights.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from steprl.envs.courier import courier_tasks
from steprl.envs.courier_demos import Apprentice
from steprl.trainers.imitation.build import build_policy
from steprl.trainers.imitation.config import PolicyConfig
from steprl.types import Task

DEMONSTRATOR = Apprentice(seed=0, careless=0.14, impatience=0.65)
"""Slips in one action of seven and gives up after two look-ups more often than not; so will the policy."""

CONFIG = PolicyConfig(vocabulary=768, evaluation_tasks=240)


def demonstrated_tasks() -> Sequence[Task]:
    """Tasks of the training split. Depths 1 to 4 only: evaluation has depth 5 as well, which no demonstration
    shows."""
    return courier_tasks("train", count=4000, depths=(1, 2, 3, 4))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write the policy to")
    parser.add_argument("--overwrite", action="store_true", help="replace the policy there")
    args = parser.parse_args()
    report = build_policy(
        "courier",
        demos=DEMONSTRATOR,
        out=args.out,
        tasks=demonstrated_tasks(),
        eval_tasks="eval",
        config=CONFIG,
        overwrite=args.overwrite,
    )
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
