"""A learner's state on disk: the model as Hugging Face writes it, its optimiser beside it, and a critic's.

Whole or absent is the caller's part: it gives a fresh folder and renames it when all is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from steprl.errors import CheckpointError, ConfigError
from steprl.learner.config import Dtype
from steprl.learner.loading import load_model
from steprl.learner.optimiser import Optimiser

OPTIMISER_FILE = "optimiser.pt"
CRITIC_FILE = "critic.safetensors"
CRITIC_OPTIMISER_FILE = "critic_optimiser.pt"


def save(folder: str, model: PreTrainedModel, optimiser: Optimiser) -> None:
    """Write weights (safetensors), model config and optimiser state into ``folder``.

    Raises:
        OSError, SafetensorError: something cannot be written; the folder is partial then.
    """
    model.save_pretrained(folder)
    _write(Path(folder) / OPTIMISER_FILE, optimiser.state())


def save_critic(folder: str, modules: Mapping[str, torch.nn.Module], optimiser: Optimiser) -> None:
    """Write a critic's weights and optimiser state into ``folder``, beside the policy's if it is there.

    Raises:
        OSError, SafetensorError: something cannot be written; the folder is partial then.
    """
    tensors = {name: tensor.contiguous() for name, tensor in _tensors(modules).items()}
    save_file(tensors, Path(folder) / CRITIC_FILE)
    _write(Path(folder) / CRITIC_OPTIMISER_FILE, optimiser.state())


def load_critic(folder: str, modules: Mapping[str, torch.nn.Module], optimiser: Optimiser) -> None:
    """Read back what `save_critic` wrote, into modules of the same shapes.

    Raises:
        CheckpointError: a file is missing, cut short or not what its name says, or the tensors are not those
            of ``modules``; nothing is touched then.
    """
    weights_file, state_file = Path(folder) / CRITIC_FILE, Path(folder) / CRITIC_OPTIMISER_FILE
    for file in (weights_file, state_file):
        if not file.is_file():
            raise CheckpointError(
                f"'{folder}' has no critic to continue with: there is no {file.name}. Resume a run that was "
                f"started with a critic, or start afresh."
            )
    try:
        saved = load_file(weights_file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{weights_file} cannot be read: {error}") from error
    _refuse_other(folder, _tensors(modules), saved, "critic")
    _restore(state_file, optimiser, next(iter(_tensors(modules).values())).device)
    for prefix, module in modules.items():
        inner = f"{prefix}."
        module.load_state_dict(
            {name.removeprefix(inner): tensor for name, tensor in saved.items() if name.startswith(inner)}
        )


def load(folder: str, model: PreTrainedModel, optimiser: Optimiser) -> None:
    """Read ``folder`` back into a model of the same architecture and its optimiser.

    Raises:
        CheckpointError: a file is missing, cut short or not what its name says, or the tensors are not those
            of ``model``; neither model nor optimiser is touched then.
    """
    state_file = Path(folder) / OPTIMISER_FILE
    if not state_file.is_file():
        raise CheckpointError(
            f"'{folder}' is not a learner checkpoint: it has no {OPTIMISER_FILE}. "
            f"Use a folder that a run has written under checkpoints/, or start afresh."
        )
    dtype: Dtype = "float64" if model.dtype == torch.float64 else "float32"
    try:
        saved = load_model(str(Path(folder).absolute()), dtype).state_dict()
    except (ConfigError, SafetensorError) as error:
        raise CheckpointError(f"the weights in checkpoint '{folder}' cannot be read: {error}") from error
    _refuse_other(folder, dict(model.state_dict()), dict(saved), "model")
    _restore(state_file, optimiser, model.device)
    model.load_state_dict(saved)


def _tensors(modules: Mapping[str, torch.nn.Module]) -> dict[str, torch.Tensor]:
    return {
        f"{prefix}.{name}": tensor
        for prefix, module in modules.items()
        for name, tensor in module.state_dict().items()
    }


def _write(path: Path, state: Mapping[str, Any]) -> None:
    # through a Python file: torch's own does not say why it failed
    with path.open("wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            # raised when torch closes what it could not write; the cause is the error before
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def _restore(path: Path, optimiser: Optimiser, device: torch.device) -> None:
    try:
        optimiser.restore(torch.load(path, map_location=device, weights_only=True))
    except (OSError, EOFError, RuntimeError, UnpicklingError, ValueError, TypeError, KeyError) as error:
        # whatever torch makes of bytes that it has not written
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _refuse_other(
    folder: str, ours: dict[str, torch.Tensor], saved: dict[str, torch.Tensor], what: str
) -> None:
    difference = _first_difference(ours, saved)
    if difference:
        raise CheckpointError(
            f"checkpoint '{folder}' belongs to another {what}: {difference}. "
            f"Resume with the model that the run was started with."
        )


def _first_difference(ours: dict[str, torch.Tensor], saved: dict[str, torch.Tensor]) -> str | None:
    for name, tensor in ours.items():
        if name not in saved:
            return f"it has no tensor '{name}'"
        if saved[name].shape != tensor.shape:
            return f"'{name}' has shape {tuple(saved[name].shape)} there and {tuple(tensor.shape)} here"
    for name in saved:
        if name not in ours:
            return f"it has a tensor '{name}' that the model has not"
    return None
