"""Build the policy that ships with steprl: a tokenizer, a chat template, a small Llama, warm-started on
imperfect demonstrations of the Courier environment. Weak on purpose: reinforcement learning does the rest.

    python scripts/build_quickstart_policy.py --out src/steprl/policies/quickstart

Takes a few minutes on two cores. The same seed and thread count give the same weights.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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
from steprl.types import Row, Sampling, Task
from steprl.weights.source import FullWeights

CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n' }}{%- endif %}
    {{- '<tools>\\n' }}
    {%- for tool in tools %}{{- (tool | tojson) + '\\n' }}{%- endfor %}
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

DEMONSTRATED_DEPTHS = (1, 2, 3)
"""Evaluation has depths 4 and 5 as well, which no demonstration shows."""


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
    """A Llama of about 0.8 million parameters, freshly initialised."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=128,
            intermediate_size=352,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    )


def demonstrations(count: int, seed: int, careless: float, impatience: float) -> tuple[Any, Sequence[Task]]:
    """The demonstrator and the tasks it is given, from the training split."""
    policy = Apprentice(seed=seed, careless=careless, impatience=impatience)
    return policy, courier_tasks("train", count=count, seed=seed, depths=DEMONSTRATED_DEPTHS)


def warm_up(learner: TorchLearner, demos: Sequence[Row], *, steps: int, batch: int, seed: int) -> None:
    """Supervised steps over the demonstrations, in a new order every epoch."""
    rng = np.random.default_rng(seed)
    order: list[int] = []
    started = time.perf_counter()
    for step in range(1, steps + 1):
        if len(order) < batch:
            order += rng.permutation(len(demos)).tolist()
        chosen, order = order[:batch], order[batch:]
        metrics = imitate(learner, [demos[index] for index in chosen])
        if step % 50 == 0 or step == steps:
            print(
                f"step {step}: loss {metrics['loss']:.4f}, {time.perf_counter() - started:.0f} s", flush=True
            )


def success(
    model: Any, renderer: ChatRenderer, tasks: Sequence[Task], temperature: float
) -> dict[str, float]:
    """Share of tasks solved, overall and by depth."""
    engine = TorchEngine(model, slots=64, max_context=1024)
    pool = Pool(
        workflow=EnvWorkflow(Courier, AppendOnly()),
        engine=engine,
        renderer=renderer,
        rewards=RewardComposer({}),
        concurrency=64,
    )
    sampling = Sampling(temperature=temperature, max_tokens=64, stop_ids=renderer.stop_ids)
    result = asyncio.run(evaluate(pool, tasks, label="eval", seed=1, sampling=sampling, max_steps=9))
    depth_of = {task.id: task.data["depth"] for task in tasks}
    by_depth: dict[int, list[float]] = {}
    for group in result.groups:
        reward = group.trajectories[0].reward or 0.0
        by_depth.setdefault(depth_of[group.task_id], []).append(reward)
    figures = {f"depth {depth}": float(np.mean(values)) for depth, values in sorted(by_depth.items())}
    return {"all": result.success or 0.0, **figures}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write the policy to")
    parser.add_argument("--demos", type=int, default=3000, help="demonstrated episodes")
    parser.add_argument("--steps", type=int, default=600, help="supervised optimiser steps")
    parser.add_argument("--batch", type=int, default=32, help="episodes per step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--careless", type=float, default=0.1)
    parser.add_argument("--impatience", type=float, default=0.5)
    parser.add_argument("--vocabulary", type=int, default=768)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    policy, tasks = demonstrations(args.demos, args.seed, args.careless, args.impatience)
    # The tokenizer is trained on demonstrations written with one that knows bytes only.
    draft = ChatRenderer(build_tokenizer([], 300))
    groups = demonstrate(Courier, policy, tasks[:1000], renderer=draft, context=AppendOnly())
    texts = [
        draft.decode([*s.prompt_ids, *s.action_ids]) for g in groups for s in g.trajectories[0].steps[-1:]
    ]
    build_tokenizer(texts, args.vocabulary).save_pretrained(args.out)
    renderer = ChatRenderer(load_tokenizer(str(args.out)))

    groups = demonstrate(Courier, policy, tasks, renderer=renderer, context=AppendOnly())
    demos = rows([trajectory for group in groups for trajectory in group.trajectories])
    print(
        f"{len(demos)} demonstrations, {np.mean([len(row.ids) for row in demos]):.0f} tokens each, "
        f"{np.mean([group.trajectories[0].reward for group in groups]):.3f} solved"
    )
    model = build_model(len(load_tokenizer(str(args.out))), args.seed)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    learner = TorchLearner(
        model,
        LearnerConfig(lr=args.lr, weight_decay=0.0, warmup_steps=50, token_budget=16384),
        source=FullWeights(model),
    )
    warm_up(learner, demos, steps=args.steps, batch=args.batch, seed=args.seed)
    model.save_pretrained(args.out)
    evaluation = Courier.tasks("eval")
    for temperature in (1.0, 0.0):
        figures = success(load_model(str(args.out)), renderer, evaluation, temperature)
        print(f"temperature {temperature}: {json.dumps({k: round(v, 3) for k, v in figures.items()})}")


if __name__ == "__main__":
    main()
