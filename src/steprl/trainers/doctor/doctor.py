"""The examination: every scripted conversation played, its boundaries named, its traces compared, and the
step trace checked token by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from steprl.batch import rows
from steprl.errors import ConfigError
from steprl.registry import make
from steprl.renderers import ChatRenderer, load_tokenizer
from steprl.trainers.doctor.compare import Scorer, TraceReport, compare
from steprl.trainers.doctor.conversations import Conversation, conversations, tool_of
from steprl.trainers.doctor.drift import Boundary, boundaries
from steprl.trainers.doctor.exact import changed, exposed, misplaced
from steprl.trainers.doctor.play import Play, play
from steprl.trainers.doctor.scoring import has_weights, scorer_of
from steprl.trainers.doctor.traces import Trace, message_trace, sampled_actions, token_trace
from steprl.trainers.parts import model_path, read_template
from steprl.trainers.progress import Display
from steprl.types import ContextRule, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """One conversation.

    ``refused`` says why it could not be played: the template, the format or the rule does not take it. Its
    ``steps`` are trained in ``rows`` rows; ``wrong`` is what would be trained otherwise than it was sampled;
    ``exposed`` control tokens in prompts were only spelled.
    """

    name: str
    refused: str | None = None
    steps: int = 0
    rows: int = 0
    boundaries: tuple[Boundary, ...] = ()
    exposed: int = 0
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What was found.

    Of the tokens in prompts, ``control`` are control tokens and ``ordinary`` other tokens of their own
    (``<tool_call>``), which any text can spell. ``turns_end_in_control``: a text cannot end a turn.
    """

    stop: tuple[str, ...]
    control: tuple[str, ...]
    ordinary: tuple[str, ...]
    turns_end_in_control: bool
    conversations: tuple[Examined, ...]
    traces: tuple[TraceReport, ...]

    @property
    def wrong(self) -> tuple[str, ...]:
        """What would be trained wrongly, with the conversation's name; nothing, or there is a bug."""
        return tuple(f"{found.name}: {line}" for found in self.conversations for line in found.wrong)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was examined, and what was found. ``unscored`` says why there are no log-probabilities."""

    model: str
    format: str
    context: str
    allow_control_tokens: bool
    unscored: str | None
    found: Findings


def examine(
    model: str,
    *,
    format: str = "hermes",
    format_args: Mapping[str, Any] | None = None,
    context: str = "append_only",
    context_args: Mapping[str, Any] | None = None,
    chat_template: str | Path | None = None,
    template_options: Mapping[str, Any] | None = None,
    allow_control_tokens: bool = False,
    scores: bool = True,
    display: Display | None = None,
) -> Diagnosis:
    """Examine a tokenizer with its chat template, a tool-call format and a context rule.

    Args:
        model: a folder with a tokenizer, with weights or without, or what a recipe takes as model.path.
        chat_template: a Jinja file in place of the tokenizer's own template.
        template_options: variables of the template.
        scores: compute log-probabilities, where there are weights in the folder.

    Raises:
        ConfigError: a name, path or combination that cannot work.
    """
    path = model_path(model)
    tokenizer = load_tokenizer(path)
    if chat_template is not None:
        tokenizer.chat_template = read_template("chat_template", str(chat_template))
    scorer: Scorer | None = None
    unscored: str | None = "they were not asked for"
    if scores and has_weights(path):
        scorer, unscored = scorer_of(path), None
    elif scores:
        unscored = f"'{model}' is no folder with weights"
    renderer = ChatRenderer(
        tokenizer,
        make("format", format, dict(format_args or {})),
        template_options=template_options,
        allow_control_tokens=allow_control_tokens,
    )
    return Diagnosis(
        model=model,
        format=format,
        context=context,
        allow_control_tokens=allow_control_tokens,
        unscored=unscored,
        found=diagnose(renderer, make("context", context, dict(context_args or {})), scorer, display),
    )


def diagnose(
    renderer: ChatRenderer, rule: ContextRule, scorer: Scorer | None = None, display: Display | None = None
) -> Findings:
    """What a renderer and a context rule make of every scripted conversation.

    Raises:
        ConfigError: the format cannot call any of the tools that are offered.
    """
    called = tool_of(renderer)
    examined: list[Examined] = []
    plays: list[Play] = []
    scripts = conversations(renderer)
    with (display or Display()).phase("conversations", len(scripts)) as bar:
        for script in scripts:
            try:
                played = play(script, renderer, rule, called)
            except ConfigError as error:
                examined.append(Examined(name=script.name, refused=str(error)))
            else:
                examined.append(_examined(script, played, renderer))
                plays.append(played)
            bar.advance()
    prompts = [step.prompt_ids.tolist() for played in plays for step in played.trajectory.steps]
    used = {i for prompt in prompts for i in prompt}
    return Findings(
        stop=tuple(renderer.decode([i]) for i in renderer.stop_ids),
        control=tuple(spelled for spelled, i in renderer.control_ids.items() if i in used),
        ordinary=tuple(spelled for spelled, i in renderer.ordinary_ids.items() if i in used),
        turns_end_in_control=_turns_end_in_control(renderer),
        conversations=tuple(examined),
        traces=_traces(plays, sum(one.exposed for one in examined), renderer, scorer),
    )


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """All of it as plain values, and whether it is ``exact``."""
    return {"exact": not diagnosis.found.wrong, **asdict(diagnosis)}


def _examined(script: Conversation, played: Play, renderer: ChatRenderer) -> Examined:
    merged = rows([played.trajectory])
    spelled = exposed(played, renderer)
    return Examined(
        name=script.name,
        steps=len(played.trajectory.steps),
        rows=len(merged),
        boundaries=boundaries(played, renderer),
        exposed=spelled,
        wrong=(*misplaced(played.trajectory, merged), *changed(played), *_forged(spelled, renderer)),
    )


def _forged(spelled: int, renderer: ChatRenderer) -> tuple[str, ...]:
    if not spelled or renderer.allow_control_tokens:
        return ()
    return (f"{spelled} control tokens that a text only spelled are control tokens in prompts",)


def _turns_end_in_control(renderer: ChatRenderer) -> bool:
    """Whether the template writes a control token between a user's message and the answer."""
    mark = "@@steprl-doctor@@"
    after = renderer.text((Message(role="user", content=mark),)).partition(mark)[2]
    return bool({*renderer.encode(after)} & {*renderer.control_ids.values()})


def _traces(
    plays: Sequence[Play], spelled: int, renderer: ChatRenderer, scorer: Scorer | None
) -> tuple[TraceReport, ...]:
    """Messages, token strings and steps, over all conversations. In the steps' prompts, ``spelled`` control
    tokens stand that only a text spelled."""
    sampled = [sampled_actions(played) for played in plays]
    steps = [Trace(actions=actions) for actions in sampled]
    return (
        compare("message", sampled, [message_trace(played, renderer) for played in plays], scorer),
        compare("token", sampled, [token_trace(played, renderer) for played in plays], scorer),
        replace(compare("step", sampled, steps, scorer), forged=spelled),
    )
