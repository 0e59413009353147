"""Demonstrations in tokens: those that are stored keep theirs, those that are played get a tokenizer that is
trained on them. Either way the tokenizer is in the policy's folder afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from steprl.envs.base import Env
from steprl.envs.policy import ScriptedPolicy
from steprl.errors import ConfigError
from steprl.learner.tokenizer import train_tokenizer
from steprl.registry import make
from steprl.renderers import ChatRenderer, ToolCallFormat, load_tokenizer
from steprl.rollout import derive_seed
from steprl.trainers.imitation.config import PolicyConfig
from steprl.trainers.imitation.demonstrate import UNLIMITED, demonstrate
from steprl.trainers.imitation.demonstrations import Demonstrations, Reason, Scripted, Stored, select
from steprl.trainers.parts import model_path
from steprl.trainers.progress import Display
from steprl.types import ContextRule, Task

CHAT_TEMPLATE = files("steprl") / "policies" / "chatml.jinja"
"""ChatML with tools. They are listed in short, since a prompt is read by every step of every episode."""


def recorded(source: Stored, folder: Path, config: PolicyConfig) -> Demonstrations:
    """Stored demonstrations, with the tokenizer and the chat template that they were recorded with.

    Raises:
        ConfigError: nothing is left, or the tokenizer cannot be theirs.
    """
    if config.chat_template is not None:
        raise ConfigError("chat_template is not for stored trajectories: they have the template of their run")
    tokenizer = load_tokenizer(model_path(source.model.path))
    if source.model.chat_template is not None:
        tokenizer.chat_template = _read(source.model.chat_template)
    found = select(
        source.trajectories,
        min_reward=config.min_reward,
        max_context=config.size.max_context,
        format=source.model.format,
        format_args=source.model.format_args,
    )
    greatest = max(int(row.ids.max()) for row in found.rows)
    if greatest >= len(tokenizer):
        raise ConfigError(
            f"'{source.name}' holds the token id {greatest}, but the tokenizer of '{source.model.path}' has "
            f"{len(tokenizer)} tokens: it is another one. Name the right model."
        )
    format: ToolCallFormat = make("format", source.model.format, source.model.format_args)
    ChatRenderer(tokenizer, format).save(str(folder))
    return found


def played(
    source: Scripted,
    env: type[Env],
    tasks: Sequence[Task],
    folder: Path,
    config: PolicyConfig,
    display: Display,
) -> Demonstrations:
    """Demonstrations of the tasks. Those that the tokenizer is trained on are played twice, the first time
    with one that knows bytes only.

    Raises:
        ConfigError: nothing is left, or a name or option that cannot work.
        EnvError: every episode broke.
    """
    format: ToolCallFormat = make("format", config.format, config.format_args)
    template = _read(config.chat_template) if config.chat_template else CHAT_TEMPLATE.read_text("utf-8")
    able = [task for task in tasks if source.policy_for(task) is not None]
    if not able:
        raise ConfigError(
            f"{env.__name__} has no oracle for any of its {len(tasks)} tasks. Override "
            f"{env.__name__}.oracle, or name other demonstrations: module:attribute, a run folder or a "
            f".parquet file."
        )
    stage = _Stage(
        source=source,
        env=env,
        context=make("context", config.context, config.context_args),
        config=config,
        display=display,
        dropped={"no_oracle": len(tasks) - len(able)},
    )
    draft = ChatRenderer(train_tokenizer((), config.vocabulary, template=template, tags=format.tags), format)
    sample = stage.play("vocabulary", able[: config.vocabulary_demos], draft, UNLIMITED)
    texts = [draft.decode(row.ids.tolist()) for row in sample.rows]
    train_tokenizer(texts, config.vocabulary, template=template, tags=format.tags).save_pretrained(folder)
    renderer = ChatRenderer(load_tokenizer(folder), format)
    return stage.play("demonstrations", able, renderer, config.size.max_context)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """Where demonstrations are played, with one tokenizer or another."""

    source: Scripted
    env: type[Env]
    context: ContextRule
    config: PolicyConfig
    display: Display
    dropped: Mapping[Reason, int]

    def play(
        self, name: str, tasks: Sequence[Task], renderer: ChatRenderer, max_context: int
    ) -> Demonstrations:
        config = self.config
        with self.display.phase(name, len(tasks)) as bar:
            groups = demonstrate(
                lambda: self.env(**config.args),
                self._policy,
                tasks,
                renderer=renderer,
                context=self.context,
                max_steps=config.max_steps,
                max_context=max_context,
                seed=derive_seed(config.seed, "demonstrations"),
                progress=bar.on_episode,
            )
        return select(
            (trajectory for group in groups for trajectory in group.trajectories),
            min_reward=config.min_reward,
            max_context=max_context,
            format=config.format,
            format_args=config.format_args,
            dropped=self.dropped,
        )

    def _policy(self, task: Task) -> ScriptedPolicy:
        policy = self.source.policy_for(task)
        assert policy is not None  # tasks without one were left out
        return policy


def _read(path: str) -> str:
    if not Path(path).is_file():
        raise ConfigError(f"chat_template: there is no file '{path}'")
    return Path(path).read_text(encoding="utf-8")
