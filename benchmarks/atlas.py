"""The gradient atlas: exact bias and variance of estimators, aggregation rules and losses, in small worlds.

    python benchmarks/atlas.py --json atlas.json          everything, in about a minute
    python benchmarks/atlas.py --page docs/atlas.md       the same, into tables and picture of the page
    python benchmarks/atlas.py --estimator my_package.my_module:Mine

The last checks an estimator of your own: what every estimator must keep to, on every batch of every world,
and then its bias and noise beside those of rloo. It exits with 1 if something is not kept to, as it does
when a claim of steprl.trainers.atlas.claims is not what is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import get_args

from steprl.errors import ConfigError
from steprl.trainers.atlas.conformance import violations
from steprl.trainers.atlas.critics import Kind
from steprl.trainers.atlas.report import Entry, by_loss, by_rule, by_world, entries, picture, placed
from steprl.trainers.atlas.subjects import AGGREGATIONS, LOSSES, SUBJECTS, Subject
from steprl.trainers.atlas.worlds import WORLDS
from steprl.trainers.explaining.apply import made

UNBIASED, DEFAULT = "traj_mean_token_sum", "traj_mean_token_mean"
RLOO = next(subject for subject in SUBJECTS if subject.name == "rloo")
FRESH = [world for world in WORLDS if not world.stale]
FIGURES = {
    "bias": "bias: tangent of the angle to the true gradient; **0** is claimed, 0 is so, ∞ is 90° or more",
    "noise": "noise: standard deviation of one batch, over the mean along the true gradient",
    "constant": "size: the mean along the true gradient, in units of it",
}
STALE = [world for world in WORLDS if world.stale]


def everything() -> tuple[list[Entry], list[Entry]]:
    """Every estimator under every rule in the fresh worlds, and every loss in the stale ones."""
    estimators = []
    for number, subject in enumerate(SUBJECTS, start=1):
        print(f"{number} of {len(SUBJECTS)}: {subject.name}", file=sys.stderr)
        estimators += entries(subject, FRESH)
    print("losses", file=sys.stderr)
    return estimators, entries(RLOO, [*FRESH, *STALE], losses=LOSSES)


def own(address: str, critic: Kind, rules: Sequence[str]) -> int:
    """Print what an estimator does not keep to, and its figures."""
    subject = Subject(name=address, estimator=made(address), critic=critic)
    found = violations(subject)
    for violation in found:
        print(violation)
    print(f"{len(found)} violations in {len(WORLDS)} worlds")
    if not found:
        for rule in rules:
            measured = [*entries(subject, FRESH, rules=[rule]), *entries(RLOO, FRESH, rules=[rule])]
            for figure, title in FIGURES.items():
                print(f"\n{title}, under {rule}\n")
                print(*by_world(measured, attrgetter(figure), rule=rule), sep="\n")
    return 1 if found else 0


def write_page(page: Path, estimators: Sequence[Entry], losses: Sequence[Entry]) -> None:
    """Put the tables into the page, and the picture into ``images`` beside it."""
    fresh = {world.name for world in FRESH}
    parts = {
        "worlds": [f"| {w.name} | {w.about} |" for w in WORLDS],
        "rules": by_rule(estimators),
        "bias": by_world(estimators, lambda e: e.bias, rule=UNBIASED),
        "bias by default": by_world(estimators, lambda e: e.bias, rule=DEFAULT),
        "noise": by_world(estimators, lambda e: e.noise, rule=UNBIASED),
        "stale": by_loss([e for e in losses if e.measured.world not in fresh], rule=UNBIASED),
    }
    parts["worlds"] = ["| world | what it has |", "|---|---|", *parts["worlds"]]
    page.write_text(placed(page.read_text(encoding="utf-8"), parts), encoding="utf-8")
    (page.parent / "images" / "atlas.png").write_bytes(picture(estimators, [UNBIASED, DEFAULT]))


def main() -> int:
    """Parse the options and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--estimator", help="name or module:attribute, with options as in gigpo:omega=0.5")
    parser.add_argument(
        "--critic", choices=get_args(Kind), default="exact", help="its values, if it needs any"
    )
    parser.add_argument("--rules", nargs="+", choices=tuple(AGGREGATIONS), default=[UNBIASED, DEFAULT])
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every number")
    parser.add_argument("--page", type=Path, metavar="PAGE", help="put the tables into this page")
    options = parser.parse_args()
    if options.estimator:
        sys.path.insert(0, "")  # a module of your own stands where you are
        try:
            return own(options.estimator, options.critic, options.rules)
        except ConfigError as error:
            sys.exit(f"error: {error}")
    estimators, losses = everything()
    print(*by_rule(estimators), sep="\n")
    if options.json:
        options.json.write_text(json.dumps([e.as_json() for e in [*estimators, *losses]], indent=1) + "\n")
    if options.page:
        write_page(options.page, estimators, losses)
    claims = [entry for entry in [*estimators, *losses] if entry.claim is not None]
    broken = [entry for entry in claims if entry.broken]
    for entry in broken:
        print(f"claim broken: {entry.measured}")
    print(f"{len(claims)} claims, {len(broken)} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
