"""What is to be evaluated, from what a person names: a recipe, a run, or one of its checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from steprl.config import build, override, put, read_toml
from steprl.errors import ConfigError
from steprl.trainers.recipe import Recipe
from steprl.trainers.storage.run_folder import RunFolder


def recipe_of(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe to evaluate, with ``key=value`` overrides.

    Args:
        path: a recipe file; a run folder, whose newest checkpoint is meant, or the model it starts from where
            it has none; or the folder of a checkpoint.

    Raises:
        ConfigError: it is none of these, or a run that was started with what its recipe cannot name.
        CheckpointError: the checkpoint is damaged.
    """
    path = Path(path)
    if not path.is_dir():
        return build(Recipe, override(read_toml(path), overrides))
    run, checkpoint = _run_of(path)
    folder, _ = RunFolder.open(run)
    if given := folder.given():
        raise ConfigError(
            f"'{run}' was started from Python with what its config.toml cannot name: {', '.join(given)}. "
            f"Evaluate it from Python: steprl.trainers.api.evaluate_attempts(recipe, given=Given(…))"
        )
    table = read_toml(run / "config.toml")
    if checkpoint is None and (saved := folder.checkpoints()):
        checkpoint = saved[-1]
    if checkpoint is not None:
        folder.state(checkpoint)
        put(table, "model.path", str(checkpoint))
    return build(Recipe, override(table, overrides))


def _run_of(path: Path) -> tuple[Path, Path | None]:
    """A run folder, and the checkpoint in it if this is one."""
    if (path / "config.toml").is_file():
        return path, None
    whole = path.resolve()
    if whole.parent.name == "checkpoints" and (whole.parent.parent / "config.toml").is_file():
        return whole.parent.parent, path
    raise ConfigError(
        f"'{path}' is neither a run (no config.toml in it) nor one of its checkpoints. To evaluate a model "
        f"by itself, name a recipe and the model: steprl eval RECIPE model.path={path}"
    )
