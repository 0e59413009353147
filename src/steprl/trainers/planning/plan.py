"""From a calibration to what a run will cost: tokens, time, memory, what dominates, what to do about it.

Pure arithmetic on measured figures; the rules stand in ``RULES`` and are printed with every plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from steprl.trainers.planning.calibrate import Calibration, RolloutFigures
from steprl.trainers.recipe import Recipe

RULES = (
    "Rollout and evaluation: seconds per episode as measured, times the episodes. A calibration narrower "
    "than the run overestimates, since more episodes at once share forward passes.",
    "Learner: seconds per row token as measured with every row training, times the tokens, the epochs, and "
    "the share of row tokens that had something to learn from. Scoring, of reference and critic too, and the "
    "critic's own updates run over all of them. Iterations in which it learns alone count in full.",
    "Memory: the measured peak; keys and values grown to engine.max_context; activations in proportion to "
    "the widest forward pass that learner.token_budget allows.",
    "Episodes stay as long, and as often without a difference in reward, as those of the calibration: a "
    "policy that learns to work in more steps costs more.",
    "Left out: writing checkpoints, curves and trajectories.",
)
"""How the figures of a run follow from those of the calibration."""

FILTERED = (
    "Filters: the share of groups that they keep stays what it was in the calibration, and a further round "
    "plays as many tasks as groups are missing. Learner: the kept groups, as long as all are on average."
)
DEALT = (
    "Curriculum: the tasks stay as they are at its beginning; what comes later is harder, or better chosen, "
    "and takes longer."
)
GROWING = (
    "Horizon: every iteration as if it had rollout.max_steps; those before the horizon has grown take less."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Tokens of prompts and of actions; ``row`` are those the learner runs over."""

    prompt: float
    sampled: float
    row: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a recipe will cost.

    ``rollout``, ``learner`` and ``memory`` are the parts that add up to one iteration's rollout seconds, its
    learner seconds, and the peak in bytes, by name. ``most_seconds`` is an iteration in which every group has
    something to learn from. The run is all iterations and evaluations.
    """

    recipe: Recipe
    calibration: Calibration
    tokens: Tokens
    rollout: Mapping[str, float]
    learner: Mapping[str, float]
    memory: Mapping[str, float]
    most_seconds: float
    evaluation_seconds: float
    evaluations: int

    @property
    def iteration_seconds(self) -> float:
        """One iteration: rollout and learner."""
        return sum(self.rollout.values()) + sum(self.learner.values())

    @property
    def training_seconds(self) -> float:
        """All iterations."""
        return self.iteration_seconds * self.recipe.train.iterations

    @property
    def run_seconds(self) -> float:
        """All iterations and all evaluations."""
        return self.training_seconds + self.evaluation_seconds * self.evaluations

    @property
    def peak(self) -> float:
        """Bytes of resident memory at the worst moment."""
        return sum(self.memory.values())

    @property
    def advice(self) -> tuple[str, ...]:
        """What stands out, and what to do about it."""
        return tuple(_advice(self))


def rules_of(recipe: Recipe) -> tuple[str, ...]:
    """The rules behind a plan of this recipe."""
    more = (
        (FILTERED, bool(recipe.filter.named)),
        (DEALT, recipe.curriculum.id is not None),
        (GROWING, recipe.rollout.horizon.start > 0),
    )
    return (*RULES, *(rule for rule, holds in more if holds))


def plan_of(recipe: Recipe, calibration: Calibration) -> Plan:
    """Extrapolate a calibration of this recipe to the run."""
    scale = recipe.rollout.groups / calibration.groups
    rollout, learner = calibration.rollout, calibration.learner
    played, kept = _rounds(recipe, calibration)
    learned = scale * kept
    scoring, forward = learner.scoring_seconds * learned, learner.forward_seconds * learned
    critic = learner.critic_seconds * learned * recipe.algorithm.epochs
    updates = learner.update_seconds * learned * recipe.algorithm.epochs
    passes = forward * recipe.algorithm.epochs  # the forward half of an update is a pass like that of scoring
    share = learner.training_share
    parts = {
        "scoring": scoring,
        "forward": min(passes, updates) * share,
        "backward": max(0.0, updates - passes) * share,
        **({"critic": critic} if critic else {}),
        "weights to the engine": learner.sync_seconds,
    }
    modes = 2 if recipe.evaluation.greedy else 1
    seconds, evaluations = 0.0, 0
    if calibration.evaluation is not None:
        per_task = calibration.evaluation.seconds / calibration.evaluation.episodes
        seconds, evaluations = per_task * calibration.eval_tasks * modes, 2 + _during(recipe)
    return Plan(
        recipe=recipe,
        calibration=calibration,
        tokens=Tokens(
            prompt=rollout.prompt_tokens * scale * played,
            sampled=rollout.sampled_tokens * scale * played,
            row=learner.row_tokens * learned,
        ),
        rollout=_rollout_parts(rollout, scale * played),
        learner=parts,
        memory=_memory_parts(recipe, calibration, scale),
        most_seconds=rollout.seconds * scale * played + scoring + updates + critic + learner.sync_seconds,
        evaluation_seconds=seconds,
        evaluations=evaluations,
    )


def _rounds(recipe: Recipe, calibration: Calibration) -> tuple[float, float]:
    """Groups played and groups kept in an iteration, as multiples of ``rollout.groups``, on average: each
    round plays what the rounds before have left missing."""
    share = calibration.kept_share
    if share is None:
        return 1.0, 1.0
    missing = [(1 - share) ** rounds for rounds in range(recipe.filter.max_rounds + 2)]
    return sum(missing[:-1]), 1 - missing[-1]


def dominant(parts: Mapping[str, float]) -> tuple[str, float]:
    """The largest part and its share of the sum."""
    name = max(parts, key=lambda part: parts[part])
    total = sum(parts.values())
    return name, parts[name] / total if total else 0.0


def _during(recipe: Recipe) -> int:
    """Evaluations while training goes on; the ones before and after are apart."""
    every = recipe.evaluation.every
    return (recipe.train.iterations - 1) // every if every else 0


def _rollout_parts(rollout: RolloutFigures, scale: float) -> dict[str, float]:
    seconds = rollout.seconds * scale
    engine = seconds * rollout.engine_share
    environment = {"environment": seconds - engine}
    if rollout.prefill_seconds is None:
        return {"engine": engine, **environment}
    prefill = rollout.prefill_seconds * scale
    return {"prefill": prefill, "decode": engine - prefill, **environment}


def _memory_parts(recipe: Recipe, calibration: Calibration, scale: float) -> dict[str, float]:
    memory, learner = calibration.memory, calibration.learner
    others = {"reference": memory.reference, "critic": memory.critic}
    held = {
        "program": memory.program,
        "weights": memory.weights,
        "gradients": memory.weights,
        "optimiser": memory.optimiser,
        **{name: size for name, size in others.items() if size},
        "engine weights": memory.engine_weights,
    }
    rest = max(0, memory.peak - sum(held.values()) - memory.keys_values)
    widest = max(learner.widest_pass, min(recipe.learner.token_budget, learner.widest_pass * scale))
    growth = memory.max_context / memory.capacity if memory.capacity else 1.0
    return {
        **held,
        "keys and values": memory.keys_values * growth,
        "activations": rest * widest / learner.widest_pass,
    }


def _advice(plan: Plan) -> Iterator[str]:
    yield from _about_rollout(plan)
    yield from _about_memory(plan)
    found, rollout = plan.calibration.rollout.statistics, plan.recipe.rollout
    if plan.calibration.kept_share is not None:
        played, kept = _rounds(plan.recipe, plan.calibration)
        yield (
            f"Filters keep {plan.calibration.kept_share:.0%} of the groups: an iteration plays {played:.1f} "
            f"times rollout.groups ({rollout.groups}) and trains on {kept:.0%} of that number."
        )
    flat = found.get("groups/zero_variance_share", 0.0)
    if flat >= 0.75:
        yield (
            f"In {flat:.0%} of the groups all rewards are equal, and such a group teaches nothing: use tasks "
            f"that this policy solves now and then, raise rollout.group_size "
            f"({rollout.group_size}) or rollout.temperature ({rollout.temperature:g})."
        )
    cut = found.get("step/length_share", 0.0)
    if cut >= 0.2:
        yield (
            f"{cut:.0%} of the actions are cut at rollout.max_tokens = {rollout.max_tokens}: "
            f"raise it, or teach the policy to be shorter."
        )
    limited = found.get("stop/max_steps", 0.0) + found.get("stop/context_full", 0.0)
    if limited >= 0.5:
        yield (
            f"{limited:.0%} of the episodes end at a limit of the run: rollout.max_steps "
            f"({rollout.max_steps}) or engine.max_context may be too small."
        )
    if failed := found.get("errors/total", 0.0):
        yield (
            f"{failed:.0f} of {found['batch/trajectories']:.0f} episodes broke; before a long run: "
            f"steprl env check {plan.recipe.env.id}"
        )
    evaluating = plan.evaluation_seconds * plan.evaluations
    if plan.run_seconds and evaluating / plan.run_seconds >= 0.5:
        yield (
            f"Evaluation takes {evaluating / plan.run_seconds:.0%} of the run: lower evaluation.tasks "
            f"({plan.calibration.eval_tasks}), evaluate less often, or set evaluation.greedy = false."
        )


def _about_rollout(plan: Plan) -> Iterator[str]:
    config, engine = plan.recipe.rollout, plan.recipe.engine
    episodes = config.groups * config.group_size
    seconds = sum(plan.rollout.values())
    waited = plan.rollout["environment"] / seconds if seconds else 0.0
    if waited >= 0.5:
        more = (
            f"raise rollout.concurrency ({config.concurrency})"
            if config.concurrency < episodes
            else f"all {episodes} episodes run at once already, so only faster tools or more groups help"
        )
        yield f"Episodes spend {waited:.0%} of their time in environment, tools and rendering: {more}."
    prefill = plan.rollout.get("prefill", 0.0)
    if seconds and prefill / seconds >= 0.5:
        figures = plan.calibration.rollout
        assert figures.prefilled_tokens is not None
        reused = 1 - figures.prefilled_tokens / figures.prompt_tokens
        yield (
            f"Computing prompts takes {prefill / seconds:.0%} of the rollout, with {reused:.0%} of prompt "
            f"tokens reused: a context rule that keeps the beginning of the prompt saves most."
        )
    at_once = min(config.concurrency, episodes)
    if engine.id == "torch" and engine.slots < at_once:
        yield (
            f"{at_once} episodes run at once and engine.slots = {engine.slots}: the others wait for a slot "
            f"and lose their keys and values. Raise engine.slots if memory allows."
        )


def _about_memory(plan: Plan) -> Iterator[str]:
    memory, peak = plan.memory, plan.peak
    config, available = plan.recipe, plan.calibration.memory.available
    grown = {name: size for name, size in memory.items() if name != "program"}
    name, share = dominant(grown)
    if sum(grown.values()) < available / 10:
        share = 0.0  # memory is no matter here
    if share >= 0.4 and name == "keys and values":
        yield (
            f"Keys and values are {share:.0%} of what the run adds to memory: lower engine.slots "
            f"({config.engine.slots}) or engine.max_context ({plan.calibration.memory.max_context})."
        )
    if share >= 0.6 and name == "activations":
        yield (
            f"Activations are {share:.0%} of what the run adds to memory: lower learner.token_budget "
            f"({config.learner.token_budget}) or set learner.gradient_checkpointing = true; neither changes "
            f"the result."
        )
    if peak > 0.9 * available:
        yield (
            f"The run needs up to {peak / 1e9:.1f} GB and this machine has {available / 1e9:.1f} GB for it: "
            f"lower learner.token_budget, engine.slots or engine.max_context first."
        )
