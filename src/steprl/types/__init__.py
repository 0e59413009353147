"""The values that pass between rooms, frozen and checked at construction, and the protocols they need."""

from steprl.types._arrays import Bools, Doubles, Floats, Ints
from steprl.types.interaction import Action, Finish, History, Observation, Round, Transition
from steprl.types.messages import MalformedCall, Message, Role, Span, Task, ToolCall, ToolSpec, finite
from steprl.types.protocols import (
    Actor,
    ContextRule,
    Engine,
    Estimator,
    Learner,
    Renderer,
    Session,
    WeightSource,
    Workflow,
)
from steprl.types.records import (
    EpisodeError,
    Step,
    StepKey,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    equal_rewards,
)
from steprl.types.tokens import Completion, Prompt, Sampling
from steprl.types.training import Credits, MiniBatch, Need, Row, Sample, Scores

__all__ = [
    "Action",
    "Actor",
    "Bools",
    "Completion",
    "ContextRule",
    "Credits",
    "Doubles",
    "Engine",
    "EpisodeError",
    "Estimator",
    "Finish",
    "Floats",
    "History",
    "Ints",
    "Learner",
    "MalformedCall",
    "Message",
    "MiniBatch",
    "Need",
    "Observation",
    "Prompt",
    "Renderer",
    "Role",
    "Round",
    "Row",
    "Sample",
    "Sampling",
    "Scores",
    "Session",
    "Span",
    "Step",
    "StepKey",
    "StopReason",
    "Task",
    "ToolCall",
    "ToolSpec",
    "Trajectory",
    "TrajectoryGroup",
    "Transition",
    "WeightSource",
    "Workflow",
    "equal_rewards",
    "finite",
]
