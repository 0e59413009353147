"""What the atlas measures: estimators with the critics they are given, aggregation rules, and losses; and for
each what is claimed of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from steprl.batch import RULES, Aggregation
from steprl.credit import DrGrpo, Gae, Gigpo, Grpo, ReinforcePp, ReinforcePpBaseline, Rloo
from steprl.learner.config import LearnerConfig
from steprl.learner.loss_config import LossConfig
from steprl.trainers.atlas import claims
from steprl.trainers.atlas.claims import LONGEST, Claim
from steprl.trainers.atlas.critics import Kind
from steprl.trainers.atlas.play import World
from steprl.types import Estimator, Need

AGGREGATIONS: Mapping[str, Aggregation] = {
    rule: Aggregation(rule=rule, max_tokens=LONGEST if rule == "constant" else None) for rule in RULES
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An estimator. ``critic`` is what values are, if it needs any; ``claim`` the constant under
    ``traj_mean_token_sum``, for those worlds where it is known."""

    name: str
    estimator: Estimator
    critic: Kind = "exact"
    claim: Claim = claims.nothing

    @property
    def has_values(self) -> bool:
        """True when it reads values, and so looks beyond a limit of the run."""
        return bool(self.estimator.requires & {Need.CRITIC, Need.SNAPSHOTS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A loss and what it is told.

    Args:
        name: what it is called.
        config: its options.
        old: the policy that its ratio compares with: the ``proximal`` one, which learns, as it was before
            the update, or the one whose ``behaviour`` was recorded.
        corrects: what it makes up for where the two differ: nothing, each ``token`` by itself, or the whole
            ``step``.
        by_step: each token of a step gets the gradient of all of them.
    """

    name: str
    config: LearnerConfig = field(default_factory=LearnerConfig)
    old: Literal["proximal", "behaviour"] = "proximal"
    corrects: Literal["nothing", "token", "step"] = "nothing"
    by_step: bool = False


def claimed(subject: Subject, rule: str, loss: Loss, world: World) -> float | None:
    """The constant c of E[gradient] = c · ∇J, or None where none is claimed."""
    if not world.fair:
        return None
    if world.stale and not (
        world.steps == 1 and (loss.corrects == "step" or (loss.corrects == "token" and world.tokens == 1))
    ):
        return None
    of_estimator = subject.claim(world)
    of_rule = (claims.step_weight if loss.by_step else claims.weight)(rule, world)
    return None if of_estimator is None or of_rule is None else of_estimator * of_rule


SUBJECTS: tuple[Subject, ...] = (
    Subject(name="reinforce_pp, plain", estimator=ReinforcePp(whiten=False), claim=claims.returns),
    Subject(
        name="reinforce_pp step, plain",
        estimator=ReinforcePp(credit="step", whiten=False),
        claim=claims.returns,
    ),
    Subject(
        name="reinforce_pp step, plain, gamma 0.9",
        estimator=ReinforcePp(credit="step", whiten=False, gamma=0.9),
        claim=claims.discounted,
    ),
    Subject(name="reinforce_pp", estimator=ReinforcePp(), claim=claims.whitened_tokens),
    Subject(name="reinforce_pp step", estimator=ReinforcePp(credit="step"), claim=claims.whitened_steps),
    Subject(
        name="reinforce_pp_baseline, plain",
        estimator=ReinforcePpBaseline(whiten=False),
        claim=claims.mean_of_all,
    ),
    Subject(name="reinforce_pp_baseline", estimator=ReinforcePpBaseline(), claim=claims.whitened_tokens),
    Subject(name="rloo", estimator=Rloo(), claim=claims.others),
    Subject(name="dr_grpo", estimator=DrGrpo(), claim=claims.mean_of_all),
    Subject(name="grpo", estimator=Grpo(), claim=claims.spread),
    Subject(name="gigpo, omega 0", estimator=Gigpo(omega=0.0), claim=claims.mean_of_all),
    Subject(name="gigpo", estimator=Gigpo(), claim=claims.states),
    Subject(name="gigpo mean_std_norm", estimator=Gigpo(mode="mean_std_norm"), claim=claims.spread_of_states),
    Subject(
        name="gae, plain, wrong critic", estimator=Gae(whiten=False), critic="wrong", claim=claims.returns
    ),
    Subject(name="gae, plain, exact critic", estimator=Gae(whiten=False), claim=claims.returns),
    Subject(
        name="gae, plain, lam 0.9, wrong critic",
        estimator=Gae(whiten=False, lam=0.9),
        critic="wrong",
        claim=claims.one_token,
    ),
    Subject(
        name="gae, plain, lam 0.9, exact critic", estimator=Gae(whiten=False, lam=0.9), claim=claims.markov
    ),
    Subject(name="gae, exact critic", estimator=Gae()),
    Subject(
        name="gae step, plain, wrong critic",
        estimator=Gae(credit="step", whiten=False),
        critic="wrong",
        claim=claims.returns,
    ),
    Subject(
        name="gae step, plain, lam 0, wrong critic",
        estimator=Gae(credit="step", whiten=False, lam=0.0),
        critic="wrong",
        claim=claims.one_step,
    ),
    Subject(
        name="gae step, plain, lam 0, exact critic",
        estimator=Gae(credit="step", whiten=False, lam=0.0),
        claim=claims.markov,
    ),
    Subject(
        name="gae step, plain, lam 0, continuations (VinePPO)",
        estimator=Gae(credit="step", whiten=False, lam=0.0, values="rollout"),
        critic="continuations",
        claim=claims.returns,
    ),
    Subject(name="gae step, exact critic", estimator=Gae(credit="step")),
)
""""plain" is without whitening."""

ON_POLICY = Loss(name="ppo_clip")
"""Where the policy that learns is the one that sampled: ρ = 1, and every loss by token is this one."""


def _behind(name: str, **options: Any) -> Loss:
    """A loss whose ratio is that to the policy that sampled."""
    mine = {key: options.pop(key) for key in ("corrects", "by_step") if key in options}
    clips = {"clip_low": 1.0, "clip_high": 1e9} if mine.get("corrects") else {}
    config = LearnerConfig(loss=LossConfig(**options), **clips)  # type: ignore[arg-type]
    return Loss(name=name, config=config, old="behaviour", **mine)


def _weighed(name: str, corrects: Literal["nothing", "token", "step"] = "nothing", **options: Any) -> Loss:
    """PPO with importance weights."""
    return Loss(name=name, config=LearnerConfig(loss=LossConfig(**options)), corrects=corrects)


LOSSES: tuple[Loss, ...] = (
    ON_POLICY,
    _behind("ppo_clip to μ"),
    _behind("ppo_clip to μ, never clipped", corrects="token"),
    _behind("cispo to μ", kind="cispo"),
    _behind("gspo to μ", kind="gspo"),
    _behind("step_product to μ", kind="step_product", by_step=True),
    _behind("step_product to μ, never clipped", kind="step_product", by_step=True, corrects="step"),
    _weighed("ppo_clip, full by token (decoupled PPO)", "token", importance="full"),
    _weighed("ppo_clip, full by step", "step", importance="full", importance_unit="step_product"),
    _weighed("ppo_clip, truncated by token", importance="truncate"),
    _weighed("ppo_clip, masked by token", importance="mask"),
)
""""to μ": the ratio is that to the policy that sampled; elsewhere it is 1 in the first update."""
