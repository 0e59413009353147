"""Recipes: every option there is, overrides, checks with readable errors, and the way back to TOML."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steprl.config import build, options, override, put, read_toml, to_toml
from steprl.errors import ConfigError
from steprl.trainers.recipe import Recipe

OPTIONS = {
    "env.id": "str",
    "env.train": "str",
    "env.eval": "str | None",
    "env.args": "dict[str, typing.Any]",
    "env.cassette": "str | None",
    "env.cassette_mode": "typing.Literal['auto', 'record', 'replay']",
    "name": "str",
    "runs": "str",
    "seed": "int",
    "threads": "int | None",
    "deterministic": "bool",
    "model.path": "str",
    "model.format": "str",
    "model.format_args": "dict[str, typing.Any]",
    "model.chat_template": "str | None",
    "model.allow_control_tokens": "bool",
    "context.id": "str",
    "context.args": "dict[str, typing.Any]",
    "engine.id": "str",
    "engine.slots": "int",
    "engine.max_context": "int | None",
    "engine.prefill_tokens": "int",
    "engine.dtype": "typing.Literal['float32', 'bfloat16']",
    "engine.args": "dict[str, typing.Any]",
    "rollout.groups": "int",
    "rollout.group_size": "int",
    "rollout.concurrency": "int",
    "rollout.max_steps": "int",
    "rollout.rewards": "dict[str, float]",
    "rollout.temperature": "float",
    "rollout.top_p": "float",
    "rollout.top_k": "int",
    "rollout.max_tokens": "int",
    "rollout.stop": "tuple[str, ...]",
    "rollout.failures.fail_fast": "bool",
    "rollout.failures.retries": "int",
    "rollout.failures.backoff": "float",
    "rollout.failures.minimum_group": "int",
    "rollout.deadlines.step": "float",
    "rollout.deadlines.episode": "float",
    "rollout.deadlines.score": "float",
    "rollout.deadlines.report": "float",
    "rollout.horizon.start": "int",
    "rollout.horizon.iterations": "int",
    "rollout.horizon.every": "int",
    "filter.keep": "dict[str, bool | dict[str, typing.Any]]",
    "filter.max_rounds": "int",
    "filter.in_statistics": "bool",
    "curriculum.id": "str | None",
    "curriculum.args": "dict[str, typing.Any]",
    "algorithm.estimator": "str",
    "algorithm.args": "dict[str, typing.Any]",
    "algorithm.aggregation.rule": "str",
    "algorithm.aggregation.max_tokens": "int | None",
    "algorithm.epochs": "int",
    "algorithm.minibatches": "int",
    "algorithm.merge": "bool",
    "algorithm.summaries": "float",
    "learner.lr": "float",
    "learner.betas": "tuple[float, float]",
    "learner.weight_decay": "float",
    "learner.max_grad_norm": "float",
    "learner.warmup_steps": "int",
    "learner.decay_steps": "int",
    "learner.final_lr": "float",
    "learner.clip_low": "float",
    "learner.clip_high": "float",
    "learner.dual_clip": "float | None",
    "learner.loss.kind": "str",
    "learner.loss.ratio_max": "float",
    "learner.loss.importance": "str",
    "learner.loss.importance_unit": "str",
    "learner.loss.importance_low": "float",
    "learner.loss.importance_high": "float",
    "learner.loss.beta": "float",
    "learner.loss.kl": "str",
    "learner.loss.kl_unbiased": "bool",
    "learner.loss.entropy_bonus": "float",
    "learner.token_budget": "int",
    "learner.dtype": "typing.Literal['float32', 'bfloat16', 'float64']",
    "learner.gradient_checkpointing": "bool",
    "critic.kind": "str",
    "critic.detach": "bool",
    "critic.coefficient": "float",
    "critic.value_clip": "float | None",
    "critic.warmup_iterations": "int",
    "critic.aggregation.rule": "str",
    "critic.aggregation.max_tokens": "int | None",
    "critic.learner.lr": "float",
    "critic.learner.betas": "tuple[float, float]",
    "critic.learner.weight_decay": "float",
    "critic.learner.max_grad_norm": "float",
    "critic.learner.warmup_steps": "int",
    "critic.learner.decay_steps": "int",
    "critic.learner.final_lr": "float",
    "critic.learner.clip_low": "float",
    "critic.learner.clip_high": "float",
    "critic.learner.dual_clip": "float | None",
    "critic.learner.loss.kind": "str",
    "critic.learner.loss.ratio_max": "float",
    "critic.learner.loss.importance": "str",
    "critic.learner.loss.importance_unit": "str",
    "critic.learner.loss.importance_low": "float",
    "critic.learner.loss.importance_high": "float",
    "critic.learner.loss.beta": "float",
    "critic.learner.loss.kl": "str",
    "critic.learner.loss.kl_unbiased": "bool",
    "critic.learner.loss.entropy_bonus": "float",
    "critic.learner.token_budget": "int",
    "critic.learner.dtype": "typing.Literal['float32', 'bfloat16', 'float64']",
    "critic.learner.gradient_checkpointing": "bool",
    "train.iterations": "int",
    "train.checkpoint_every": "int",
    "train.show_every": "int",
    "evaluation.tasks": "int",
    "evaluation.temperature": "float",
    "evaluation.greedy": "bool",
    "evaluation.every": "int",
    "watch.repeated_actions": "float",
    "watch.without_calls": "float",
    "watch.entropy_floor": "float",
    "watch.zero_variance": "float",
    "watch.missing_groups": "float",
    "watch.engine_gap": "float",
    "watch.failed_episodes": "float",
    "watch.skipped_steps": "float",
    "watch.patience": "int",
    "watch.action": "typing.Literal['warn', 'stop', 'rollback']",
    "watch.rollbacks": "int",
}
"""Adding an option is a line here; renaming or removing one breaks recipes that people keep."""

TABLE: dict[str, Any] = {"env": {"id": "courier"}}


def refused(table: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        build(Recipe, table)
    return str(caught.value)


def test_the_list_of_options_is_frozen() -> None:
    assert options(Recipe) == OPTIONS


# --- building -----------------------------------------------------------------------------------------


def test_by_default_a_batch_is_one_step_and_every_trajectory_counts_the_same() -> None:
    default = build(Recipe, {"env": {"id": "any"}}).algorithm
    assert (default.epochs, default.minibatches) == (1, 1)
    assert (default.aggregation.rule, default.aggregation.max_tokens) == ("traj_mean_token_mean", None)


def test_only_the_environment_has_no_default() -> None:
    assert build(Recipe, TABLE).env.id == "courier"
    assert refused({}) == "the recipe does not fit: env: Field required"
    assert refused({"env": {}}) == "the recipe does not fit: env.id: Field required"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"lerner": {}}, "unknown option 'lerner'. Did you mean 'learner'?"),
        ({"learner": {"learning_rate": 1}}, "unknown option 'learner.learning_rate'."),
        ({"learner": {"l": 1}}, "unknown option 'learner.l'. Did you mean 'learner.lr'?"),
        (
            {"algorithm": {"aggregation": {"rul": "token_mean"}}},
            "unknown option 'algorithm.aggregation.rul'. Did you mean 'algorithm.aggregation.rule'?",
        ),
    ],
)
def test_an_unknown_option_is_refused_at_any_depth_with_the_closest(
    table: dict[str, Any], message: str
) -> None:
    assert refused({**TABLE, **table}).startswith(message)


def test_the_options_that_exist_are_listed() -> None:
    listed = ", ".join(sorted(key for key in OPTIONS if key.startswith("model.")))
    assert refused({**TABLE, "model": {"weights": 1}}).endswith(f"Known: {listed}.")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"seed": "0"}, "seed: Input should be a valid integer, got '0'"),
        ({"seed": 0.5}, "seed: Input should be a valid integer, got 0.5"),
        ({"seed": True}, "seed: Input should be a valid integer, got True"),
        ({"name": 7}, "name: Input should be a valid string, got 7"),
        ({"learner": {"lr": "1e-4"}}, "learner.lr: Input should be a valid number, got '1e-4'"),
        ({"engine": {"dtype": "int8"}}, "engine.dtype: Input should be 'float32' or 'bfloat16', got 'int8'"),
        ({"rollout": {"rewards": {"x": "y"}}}, "rollout.rewards.x: Input should be a valid number, got 'y'"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_and_never_converted(table: dict[str, Any], message: str) -> None:
    assert refused({**TABLE, **table}) == f"the recipe does not fit: {message}"


def test_every_wrong_value_is_named_at_once() -> None:
    message = refused({**TABLE, "seed": "a", "learner": {"lr": "b"}})
    assert "seed: " in message and "; learner.lr: " in message


def test_a_whole_number_is_a_number_and_a_list_a_tuple() -> None:
    recipe = build(Recipe, {**TABLE, "rollout": {"temperature": 1, "stop": ["a", "b"]}})
    assert type(recipe.rollout.temperature) is float and recipe.rollout.stop == ("a", "b")


def test_a_value_where_a_table_belongs_is_refused() -> None:
    assert refused({"env": "courier"}) == "'env' is a table of options, got 'courier'. Set env.<option>."


def test_what_no_option_can_be_is_refused() -> None:
    message = refused({**TABLE, "runs": Path("runs")})
    assert "PosixPath is not JSON serializable. Options are text, numbers" in message


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("rollout.group_size=0", "rollout.group_size must be at least 1, got 0"),
        ("rollout.temperature=-1", "rollout: temperature must be 0 (greedy) or above, got -1.0"),
        ("train.iterations=0", "train.iterations must be at least 1, got 0"),
        ("train.checkpoint_every=-1", "train.checkpoint_every must be 0 (never) or above, got -1"),
        ("algorithm.epochs=0", "algorithm.epochs must be at least 1, got 0"),
        ("evaluation.every=-1", "must be 0 or above, got 200 and -1"),
        ("evaluation.temperature=0", "evaluation.temperature must be a number above 0, got 0.0"),
        ("evaluation.temperature=nan", "evaluation.temperature must be a number above 0, got nan"),
        ("threads=0", "threads must be at least 1, got 0"),
        ("watch.patience=0", "watch.patience must be at least 1 iteration, got 0"),
        ("watch.action=halt", "watch.action: Input should be 'warn', 'stop' or 'rollback'"),
        (
            "rollout.failures.minimum_group=9",
            "minimum_group = 9 is more than rollout.group_size = 8: every group would be dropped",
        ),
        ("name=a/b", "not beginning with '.'; got 'a/b'"),
        ("name=..", "not beginning with '.'; got '..'"),
        ("name=", "not beginning with '.'; got ''"),
    ],
)
def test_a_value_out_of_range_says_what_is_allowed(assignment: str, message: str) -> None:
    assert message in refused(override(TABLE, [assignment]))


def test_deterministic_leaves_one_thread() -> None:
    assert build(Recipe, override(TABLE, ["deterministic=true", "threads=1"])).deterministic
    assert build(Recipe, override(TABLE, ["deterministic=true"])).threads is None
    message = refused(override(TABLE, ["deterministic=true", "threads=2"]))
    assert message.startswith("deterministic = true computes with one thread, and threads = 2:")


# --- overrides ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("key=1", 1),
        ("key = 1e-4", 1e-4),
        ("key=true", True),
        ('key=["a", "b"]', ["a", "b"]),
        ("key={a = 1}", {"a": 1}),
        ('key="7"', "7"),
        ("key=inf", float("inf")),
        ("key=plain words", "plain words"),
        ("key=module:Class", "module:Class"),
        ("key=a=b", "a=b"),
        ("key=", ""),
        ("key=007", "007"),
        ("key=2025-06-01", "2025-06-01"),
    ],
)
def test_values_are_toml_and_anything_else_is_text(assignment: str, value: Any) -> None:
    assert override({}, [assignment]) == {"key": value}


def test_overrides_reach_any_depth_in_order_and_leave_the_table_alone() -> None:
    table = {"a": {"b": {"c": 1, "d": 2}}}
    assert override(table, ["a.b.c=3", "a.b.c=4", "x.y=z"]) == {
        "a": {"b": {"c": 4, "d": 2}},
        "x": {"y": "z"},
    }
    assert table == {"a": {"b": {"c": 1, "d": 2}}}


@pytest.mark.parametrize("assignment", ["learner.lr", "", "=1", ".lr=1", "learner..lr=1", "--fast"])
def test_what_is_no_assignment_is_refused(assignment: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override(TABLE, [assignment])
    assert str(caught.value) == (
        f"'{assignment}' is not an override. Write key=value, for example learner.lr=1e-4."
    )


def test_a_path_through_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="'env.id.x': 'env.id' is a value, not a table of options"):
        override(TABLE, ["env.id.x=1"])
    with pytest.raises(ConfigError, match="'a.b': 'a' is a value"):
        put({"a": 1}, "a.b", 2)


# --- files --------------------------------------------------------------------------------------------


def test_a_recipe_that_is_not_there_or_not_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no recipe '.*absent.toml'. Recipes are TOML files"):
        read_toml(tmp_path / "absent.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("a = 1\nb = = 2\n")
    with pytest.raises(ConfigError, match=r"broken.toml: .*line 2, column 5"):
        read_toml(broken)
    broken.write_bytes(b'a = "\xff"\n')
    with pytest.raises(ConfigError, match=r"broken.toml: 'utf-8'"):
        read_toml(broken)


def test_a_date_in_a_recipe_is_refused_where_no_option_is_one(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text('seed = 2025-06-01\n[env]\nid = "courier"\n')
    with pytest.raises(ConfigError, match="date is not JSON serializable"):
        build(Recipe, override(read_toml(file), ["name=x"]))


@given(
    seed=st.integers(-(2**62), 2**62),
    weights=st.dictionaries(
        st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False), max_size=3
    ),
    stop=st.lists(st.text(min_size=1, max_size=5), max_size=3),
    threads=st.none() | st.integers(1, 64),
    lr=st.floats(1e-9, 1.0),
    args=st.dictionaries(
        st.text(max_size=4), st.integers() | st.booleans() | st.text(max_size=9), max_size=3
    ),
)
def test_a_recipe_written_and_read_back_is_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    weights: dict[str, float],
    stop: list[str],
    threads: int | None,
    lr: float,
    args: dict[str, Any],
) -> None:
    table: dict[str, Any] = {
        "env": {"id": "courier", "args": args},
        "seed": seed,
        "rollout": {"rewards": weights, "stop": stop},
        "learner": {"lr": lr, "max_grad_norm": float("inf")},
    }
    if threads is not None:
        table["threads"] = threads
    recipe = build(Recipe, table)
    file = tmp_path_factory.getbasetemp() / "round-trip.toml"
    file.write_text(to_toml(recipe), encoding="utf-8")
    assert build(Recipe, read_toml(file)) == recipe


def test_everything_is_written_but_what_is_none() -> None:
    recipe = build(Recipe, TABLE)
    written = to_toml(recipe)
    assert "threads" not in written and "chat_template" not in written
    assert "lr = 1e-05" in written and "[algorithm.aggregation]" in written
    assert "threads = 2" in to_toml(replace(recipe, threads=2))


@pytest.mark.parametrize(
    "file", sorted((Path(__file__).parents[1] / "recipes").glob("*.toml")), ids=lambda p: p.stem
)
def test_every_recipe_that_comes_along_is_valid(file: Path) -> None:
    assert build(Recipe, read_toml(file)).name == file.stem
