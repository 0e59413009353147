"""Build the policy that ships with steprl: a tokenizer, a chat template, a small Llama, warm-started on
imperfect demonstrations of the Courier environment. Weak on purpose: reinforcement learning does the rest.

    python scripts/build_quickstart_policy.py --out src/steprl/policies/quickstart

Takes a few minutes on two cores. The same seed and thread count give the same weights.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from steprl.batch import rows
from steprl.context.append_only import AppendOnly
from steprl.engines.torch_engine import TorchEngine
from steprl.envs.courier import Courier, courier_tasks
from steprl.envs.courier_demos import Apprentice
from steprl.learner.config import LearnerConfig
from steprl.learner.loading import load_model
from steprl.learner.supervised import imitate
from steprl.learner.torch_learner import TorchLearner
from steprl.renderers import ChatRenderer, load_tokenizer
from steprl.rewards.compose import RewardComposer
from steprl.rollout import EnvWorkflow, Pool
from steprl.trainers.demonstrate import demonstrate
from steprl.trainers.evaluate import evaluate
from steprl.types import Row, Sampling
from steprl.weights.source import FullWeights

# ChatML with tools. They are listed in short, since a prompt is read by every step of every episode.
CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n' }}{%- endif %}
    {{- '<tools>\\n' }}
    {%- for tool in tools %}
        {%- set about = tool.function %}
        {{- about.name + '(' + about.parameters.properties | join(', ') + '): ' + about.description + '\\n' }}
    {%- endfor %}
    {{- '</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role != 'system' or not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """The demonstrations, and how the policy imitates them.

    Depths 1 to 4 only: evaluation has depth 5 as well, which no demonstration shows. The demonstrator
    slips in one action of seven and gives up after two look-ups more often than not, and so will the policy.
    """

    seed: int = 0
    demos: int = 4000
    depths: tuple[int, ...] = (1, 2, 3, 4)
    careless: float = 0.14
    impatience: float = 0.65
    steps: int = 900
    batch: int = 16
    lr: float = 2e-3
    final_lr: float = 5e-4
    """From 60 % of the steps on."""


WARM_START = WarmStart()
VOCABULARY = 768


def build_tokenizer(texts: Sequence[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: any text can be written; words are one token wherever they stand."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # Words, single digits, and runs of everything else, so that a name is the same token after a
            # space and after a quote: a small model copies what it has read.
            pre_tokenizers.Split(Regex(r"[A-Za-z_]+|\d|[^A-Za-z_\d]+"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # As in other tokenizers with tool calls, the tags are one token each but no control tokens.
    tags = ("<tool_call>", "</tool_call>", "<tools>", "</tools>")
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(vocabulary: int, seed: int) -> LlamaForCausalLM:
    """A Llama of about half a million parameters, freshly initialised.

    Two layers, and weights larger than usual at the start: a model this narrow learns to copy names from
    its context several times sooner so.
    """
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=128,
            intermediate_size=352,
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=32,
            max_position_embeddings=1024,
            initializer_range=0.09,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    )


def demonstrate_courier(renderer: ChatRenderer, config: WarmStart) -> list[Row]:
    """The demonstrated episodes as rows, from tasks of the training split."""
    tasks = courier_tasks("train", count=config.demos, seed=config.seed, depths=config.depths)
    policy = Apprentice(seed=config.seed, careless=config.careless, impatience=config.impatience)
    groups = demonstrate(Courier, policy, tasks, renderer=renderer, context=AppendOnly())
    return rows([trajectory for group in groups for trajectory in group.trajectories])


def learner_for(model: PreTrainedModel, lr: float) -> TorchLearner:
    """A learner for imitation."""
    config = LearnerConfig(lr=lr, betas=(0.9, 0.99), warmup_steps=30, token_budget=4096)
    return TorchLearner(model, config, source=FullWeights(model))


def warm_up(model: PreTrainedModel, demos: Sequence[Row], config: WarmStart) -> None:
    """Supervised steps over the demonstrations, in a new order every epoch."""
    rng = np.random.default_rng(config.seed)
    started = time.perf_counter()
    turn = config.steps * 6 // 10
    for lr, steps in ((config.lr, turn), (config.final_lr, config.steps - turn)):
        learner = learner_for(model, lr)
        order: list[int] = []
        for step in range(1, steps + 1):
            if len(order) < config.batch:
                order += rng.permutation(len(demos)).tolist()
            chosen, order = order[: config.batch], order[config.batch :]
            metrics = imitate(learner, [demos[index] for index in chosen])
            if step % 40 == 0:
                seconds = time.perf_counter() - started
                print(f"lr {lr}: step {step}, loss {metrics['loss']:.4f}, {seconds:.0f} s", flush=True)


def success(
    model: PreTrainedModel, renderer: ChatRenderer, temperature: float, *, seed: int = 0
) -> dict[str, float]:
    """Share of the evaluation tasks solved: "all", and by depth."""
    tasks = Courier.tasks("eval")
    pool = Pool(
        workflow=EnvWorkflow(Courier, AppendOnly()),
        engine=TorchEngine(copy.deepcopy(model), slots=64, max_context=512),
        renderer=renderer,
        rewards=RewardComposer({}),
        concurrency=64,
    )
    sampling = Sampling(temperature=temperature, max_tokens=48, stop_ids=renderer.stop_ids)
    result = asyncio.run(evaluate(pool, tasks, label="eval", seed=seed, sampling=sampling, max_steps=9))
    by_depth: dict[int, list[float]] = {}
    for task, group in zip(tasks, result.groups, strict=True):
        by_depth.setdefault(task.data["depth"], []).append(group.trajectories[0].reward or 0.0)
    shares = {f"depth {depth}": float(np.mean(values)) for depth, values in sorted(by_depth.items())}
    return {"all": result.success or 0.0, **shares}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write the policy to")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    # The tokenizer is trained on demonstrations that were written with one that knows bytes only.
    draft = ChatRenderer(build_tokenizer([], 300))
    texts = [
        draft.decode(row.ids.tolist()) for row in demonstrate_courier(draft, replace(WARM_START, demos=1000))
    ]
    build_tokenizer(texts, VOCABULARY).save_pretrained(args.out)
    renderer = ChatRenderer(load_tokenizer(str(args.out)))

    demos = demonstrate_courier(renderer, WARM_START)
    model = build_model(len(load_tokenizer(str(args.out))), WARM_START.seed)
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(demos)} demonstrations, {np.mean([len(row.ids) for row in demos]):.0f} tokens each")
    print(f"{size:,} parameters")
    warm_up(model, demos, WARM_START)
    model.save_pretrained(args.out)
    for temperature in (1.0, 0.0):
        shares = success(load_model(str(args.out)), renderer, temperature)
        print(f"temperature {temperature}: {json.dumps({k: round(v, 3) for k, v in shares.items()})}")


if __name__ == "__main__":
    main()
