"""A learner's state on disk: the model as Hugging Face writes it, and the optimiser beside it.

Whole or absent is the caller's part: it gives a fresh folder and renames it when all is written.
"""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel

from steprl.errors import CheckpointError, ConfigError
from steprl.learner.config import Dtype
from steprl.learner.loading import load_model
from steprl.learner.optimiser import Optimiser

OPTIMISER_FILE = "optimiser.pt"


def save(folder: str, model: PreTrainedModel, optimiser: Optimiser) -> None:
    """Write weights (safetensors), model config and optimiser state into ``folder``.

    Raises:
        OSError, SafetensorError: something cannot be written; the folder is partial then.
    """
    model.save_pretrained(folder)
    # through a Python file: torch's own does not say why it failed
    with (Path(folder) / OPTIMISER_FILE).open("wb") as file:
        try:
            torch.save(optimiser.state(), file)
        except RuntimeError as error:
            # raised when torch closes what it could not write; the cause is the error before
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


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
    difference = _first_difference(dict(model.state_dict()), dict(saved))
    if difference:
        raise CheckpointError(
            f"checkpoint '{folder}' belongs to another model: {difference}. "
            f"Resume with the model that the run was started with."
        )
    try:
        optimiser.restore(torch.load(state_file, map_location=model.device, weights_only=True))
    except (OSError, EOFError, RuntimeError, UnpicklingError, ValueError, TypeError, KeyError) as error:
        # whatever torch makes of bytes that it has not written
        raise CheckpointError(f"{state_file} cannot be read: {error}") from error
    model.load_state_dict(saved)


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
