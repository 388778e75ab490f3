"""verl 0.9.1 takes the lines of docs/how_to/verifier.md: configuration, data set class, reward manager, on a CPU."""

import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models

from mathrl.core.types import Problem
from mathrl.data.export import export
from mathrl.data.templates import render
from mathrl.models.transformers_import import PreTrainedTokenizerFast
from mathrl.params.run import Prompt

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "verifier.md"
# Beside the page's lines: what verl has no default of, for GRPO on one GPU.
OTHERS = ("algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.name=vllm", "trainer.n_gpus_per_node=1",
          "actor_rollout_ref.rollout.tensor_model_parallel_size=1", "actor_rollout_ref.actor.use_dynamic_bsz=true",
          "data.max_prompt_length=40")  # fmt: skip
PROBLEMS = (
    Problem(id="halves", question="What is 1/2 + 1/2?", answers=("1",), source="sums", split="rl"),
    Problem(id="root", question="Name a root of x^2 = 4.", answers=("2", "-2"), source="roots", split="rl"),
)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """verl's configuration with the settings of the page, checked by verl, and our rows where it names files."""
    from hydra import compose, initialize_config_module
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    folder = tmp_path_factory.mktemp("rows")
    section = PAGE.read_text().partition("## In verl")[2].partition("```\n")[0]
    settings = re.findall(r"(?<= )[\w.]+=\S+", section)
    names = {name for name, _, _ in (setting.partition("=") for setting in settings)}
    assert len(names) == 4 and {"data.train_files", "reward.custom_reward_function.path"} <= names
    assert export(PROBLEMS, "verl", folder / "train.parquet") == 2
    overrides = [setting.replace("_files=", f"_files={folder}/") for setting in settings]
    with initialize_config_module("verl.trainer.config", version_base=None):
        made = compose("ppo_trainer", overrides=[*overrides, *OTHERS])
    validate_config(config=made, use_reference_policy=need_reference_policy(made), use_critic=need_critic(made))
    return made


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Of characters, with a chat template."""
    vocabulary = {chr(code): number for number, code in enumerate([10, *range(32, 127)])} | {"<|end|>": 96}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.decoder = decoders.Fuse()
    made.add_special_tokens(["<|end|>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>", pad_token="<|end|>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    return tokenizer


def test_verls_data_set_has_our_prompts(config: Any, tokenizer: Any) -> None:
    from verl.utils.dataset.rl_dataset import RLHFDataset

    rows = RLHFDataset([config.data.train_files], tokenizer, config.data)
    assert len(rows) == 2
    for problem, row in zip(PROBLEMS, (rows[0], rows[1]), strict=True):
        theirs = tokenizer.apply_chat_template(row["raw_prompt"], add_generation_prompt=True, return_dict=False)
        assert theirs == render(problem, Prompt(template="chat"), tokenizer)


@pytest.mark.parametrize(
    ("number", "response", "score"),
    [(0, "so \\boxed{2/2}", 1.0), (0, "so \\boxed{2}", 0.0), (1, "\\boxed{2}", 1.0), (1, "\\boxed{-2}", 1.0),
     (1, "\\boxed{4}", 0.0)],
)  # fmt: skip
def test_verls_reward_manager_asks_our_verifier(
    config: Any, tokenizer: Any, number: int, response: str, score: float
) -> None:
    """A batch of one as the agent loop makes it: the response padded, and the columns of its row."""
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager.registry import get_reward_manager_cls
    from verl.trainer.ppo.reward import get_custom_reward_fn
    from verl.utils.dataset.rl_dataset import RLHFDataset

    row = RLHFDataset([config.data.train_files], tokenizer, config.data)[number]
    prompt = tokenizer.apply_chat_template(row["raw_prompt"], add_generation_prompt=True, return_dict=False)
    tokens = [*tokenizer.encode(response), tokenizer.eos_token_id]
    batch = DataProto.from_dict(
        tensors={
            "prompts": torch.tensor([prompt]),
            "responses": torch.tensor([[*tokens, 96, 96]]),
            "attention_mask": torch.tensor([[1] * (len(prompt) + len(tokens)) + [0, 0]]),
        },
        non_tensors={name: np.array([row[name]], object) for name in ("data_source", "reward_model", "extra_info")},
    )

    async def graded() -> Any:
        manager = get_reward_manager_cls(config.reward.reward_manager.name)
        return await manager(config, tokenizer, get_custom_reward_fn(config)).run_single(batch)

    assert asyncio.run(graded())["reward_score"] == score
