"""What of mathrl works with a family: each cell trains or samples a tiny model of it, and checks a number.

A cell returns what the table of docs/reference/models.md says of it. What mathrl refuses raises UserError, whose
sentence the table has; anything else that fails is a failure.
"""

import copy
import importlib.util
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.grading import Verdict
from mathrl.learners.distributed import Ranks
from mathrl.learners.sharding import load_to_train
from mathrl.models.export import export_model
from mathrl.models.load import load_model, load_tokenizer
from mathrl.models.logprobs import prepare_language_model, response_logprobs
from mathrl.models.packing import Group
from mathrl.models.scores import load_scorer, make_scorer, token_scores
from mathrl.models.tool_messages import turn_end
from mathrl.models.transformers_import import GenerationConfig
from mathrl.params.advantage import Critic, Gae
from mathrl.params.optimizer import AdamW, Lora
from mathrl.params.rollout import Rollout
from mathrl.params.run import Model, Prompt, Reward
from mathrl.params.train import RewardModel, Rl
from mathrl.params.training import DeepSpeed, Training
from mathrl.reports.alignment import load_plain, plain_logprobs
from mathrl.rewards.compose import RewardFunction, RewardInput, RewardResult
from mathrl.rollout.engine import Sampling
from mathrl.rollout.open_engine import training_engine
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import TorchEngine
from mathrl.trainers.open_rl import Helpers
from mathrl.trainers.preference import tokenize_pairs
from mathrl.trainers.reward_model import train_reward_model
from mathrl.trainers.rl import train_rl
from tests.conftest import scratch
from tests.models.families import make_family
from tests.rollout.no_engine import NO_ENGINE
from tests.trainers.small import short_rl, training_run

FLOAT32 = Model(precision="float32")
PROMPT = Prompt(template="chat", max_tokens=200)
PROBLEMS = [Problem(f"p{n}", f"What is {n}+{n}?", (str(2 * n),), "s", "rl") for n in range(1, 4)]
ADAM = AdamW(lr=0.01, warmup_steps=0, schedule="constant")
SIZES = {"steps": 1, "prompts_per_step": 2, "group_size": 3, "max_tokens": 6, "dev": {"every": 0}}
STEP = short_rl(**SIZES, temperature=0.7, lr=1e-3, optimizer=ADAM, loss="clip")
TOLERANCE = 1e-3  # nats in float32; sums in another order differ by 1e-5


class Uneven(RewardFunction):
    """A reward that differs between any two texts."""

    def __init__(self) -> None:
        super().__init__(Reward())

    def score(self, items: Sequence[RewardInput]) -> list[RewardResult]:
        values = [zlib.crc32(item.response.encode()) / 2**32 for item in items]
        return [RewardResult(value, value > 0.5, {}, Verdict(False, None, "none", "", 0.0)) for value in values]


@cache
def folder_of(family: str) -> Path:
    return make_family(family, scratch() / family)


@cache
def tokenizer_of(family: str) -> Any:
    return load_tokenizer(folder_of(family))


def opened(family: str) -> tuple[Any, Sampler]:
    model = load_model(folder_of(family), FLOAT32, "cpu")
    return model, Sampler(TorchEngine(model, tokenizer_of(family), Rollout()), tokenizer_of(family), PROMPT)


def trained(family: str, model: Any, sampler: Sampler, params: Rl, training: Training | None = None) -> Any:
    run = training_run(scratch(), training=training)
    train_rl(model, sampler, PROBLEMS, (), Uneven(), params, run, Helpers())
    return model


def groups_of(sampler: Sampler, sampling: Sampling) -> tuple[list[Group], Tensor]:
    """Sampled groups and the sampler's log-probs [N]."""
    prompts = [sampler.prompt_tokens(problem) or [] for problem in PROBLEMS]
    completions = sampler.engine.generate(prompts, sampling, seed=1)
    groups = [
        Group(tuple(prompt), tuple(completion.tokens for completion in row))
        for prompt, row in zip(prompts, completions, strict=True)
    ]
    return groups, torch.cat([torch.from_numpy(completion.logprobs) for row in completions for completion in row])


@torch.no_grad()
def check(first_N: Tensor, second_N: Tensor) -> None:
    assert first_N.std() > 0.1 and torch.allclose(first_N, second_N, atol=TOLERANCE)


def state(model: Any) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


@torch.no_grad()
def logprobs(family: str) -> str:
    """Sampler, trainer and transformers' own forward pass give the same log-probs after the family's chat prompt."""
    model, sampler = opened(family)
    groups, sampled_N = groups_of(sampler, Sampling(2, 0.7, 8))
    plain_N = plain_logprobs(load_plain(folder_of(family), FLOAT32, torch.device("cpu")), groups, 0.7)
    check(sampled_N, plain_N)
    check(response_logprobs(model, groups, 0.7, entropy=False)[0], plain_N)
    return "packed" if prepare_language_model(model).packed else "padded"


def lora(family: str) -> str:
    """A step moves the adapters alone, and the exported model, into which they are merged, computes the same."""
    model, sampler = opened(family)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    trained(family, model, sampler, STEP.model_copy(update={"lora": Lora(r=4), "lr": 0.05}))
    moved = {name.rpartition(".")[2] for name, weight in model.state_dict().items() if "lora" in name and weight.any()}
    assert len(moved) > 0 and all(
        torch.equal(weight, before[name.replace(".base_layer.", ".")])
        for name, weight in model.state_dict().items()
        if "lora" not in name
    )
    return exported(family, model)


def export(family: str) -> str:
    """The exported folder of a trained model has its weights, the tokens of its prompts, and every end token."""
    model, sampler = opened(family)
    return exported(family, trained(family, model, sampler, STEP.model_copy(update={"lr": 0.01})))


def exported(family: str, model: Any) -> str:
    folder, tokenizer = scratch() / "export", tokenizer_of(family)
    export_model(model, tokenizer, folder, "")
    groups, _ = groups_of(opened(family)[1], Sampling(2, 0.7, 8))
    with torch.no_grad():
        trained_N = response_logprobs(model, groups, entropy=False)[0]
        check(plain_logprobs(load_plain(folder, FLOAT32, torch.device("cpu")), groups, 1.0), trained_N)
        before_N = response_logprobs(opened(family)[0], groups, entropy=False)[0]
    assert (trained_N - before_N).abs().max() > 10 * TOLERANCE, "the weights are not the first ones"
    again = Sampler(NO_ENGINE, load_tokenizer(folder), PROMPT)
    assert [tuple(again.prompt_tokens(problem) or ()) for problem in PROBLEMS] == [group.prompt for group in groups]
    ends = GenerationConfig.from_pretrained(folder).eos_token_id
    assert {tokenizer.eos_token_id, turn_end(tokenizer)} <= set(ends if isinstance(ends, list) else [ends])
    return "yes"


def ema(family: str) -> str:
    """After one step the weights are the mean of the first ones and those of a run without an average."""
    first = state(opened(family)[0])
    last = state(trained(family, *opened(family), STEP))
    averaged = state(trained(family, *opened(family), STEP.model_copy(update={"ema": 0.5})))
    assert (last - first).abs().max() > 1e-4
    assert torch.allclose(averaged, (first + last) / 2, atol=1e-6)
    return "yes"


def critic(family: str) -> str:
    """A step of PPO moves policy and critic; the critic's packed values are those of transformers' own class."""
    model, sampler = opened(family)
    first = state(model)
    scorer = make_scorer(model)
    scorer.score.weight.data.normal_(0, 0.1, generator=torch.Generator().manual_seed(1))
    check_scores(scorer, copy.deepcopy(scorer), groups_of(sampler, Sampling(2, 0.7, 8))[0])
    before = state(scorer)
    run = training_run(scratch())
    params = STEP.model_copy(update={"advantage": Gae(critic=Critic(optimizer=ADAM))})
    train_rl(model, sampler, PROBLEMS, (), Uneven(), params, run, Helpers(critic=scorer))
    assert not torch.equal(state(model), first) and not torch.equal(state(scorer), before)
    return "yes"


@torch.no_grad()
def check_scores(scorer: Any, plain: Any, groups: Sequence[Group]) -> None:
    """`token_scores` against a forward pass per response; the score of a token is of the row before it."""
    rows = []
    for group in groups:
        for response in group.responses:
            ids = torch.tensor([[*group.prompt, *response]])
            rows.append(plain(input_ids=ids, use_cache=False).logits[0, len(group.prompt) - 1 : -1, 0])
    expected_N = torch.cat(rows)
    assert expected_N.std() > 0.01 and torch.allclose(token_scores(scorer, groups), expected_N, atol=TOLERANCE)


def reward_model(family: str) -> str:
    """Steps on pairs lower their loss, and the exported scorer gives the same scores."""
    scorer, tokenizer = make_scorer(opened(family)[0]), tokenizer_of(family)
    rows = [
        {"problem": problem.to_row(), "problem_id": problem.id, "chosen": "The answer is 7.", "rejected": "clips May"}
        for problem in PROBLEMS
    ]
    items = tokenize_pairs(rows, PROMPT, tokenizer)
    params = RewardModel(
        steps=4, batch=3, optimizer=ADAM.model_copy(update={"lr": 3e-3}), eval_every=0, checkpoint_every=9
    )
    figures = train_reward_model(scorer, items, [], params, tokenizer.eos_token_id, training_run(scratch()))
    assert figures["loss"] < 0.69, "ln 2 = 0.693 at first, when every score is 0"
    folder = scratch() / "scorer"
    export_model(scorer, tokenizer, folder, "")
    check_scores(load_scorer(folder, FLOAT32, "cpu"), scorer, [item.group for item in items])
    return "yes"


def deepspeed(family: str) -> str:
    """A step under ZeRO 3 gives the log-probs of a step without it, which are not the first ones."""
    if importlib.util.find_spec("deepspeed") is None:
        return ""
    training = Training(backend="deepspeed", deepspeed=DeepSpeed(stage=3))
    # An eps of 1e-3: AdamW's first step does not turn a rounding error into a full step.
    params = STEP.model_copy(update={"optimizer": ADAM.model_copy(update={"eps": 1e-3}), "lr": 0.05})
    network = load_to_train(load_model, folder_of(family), FLOAT32, Ranks(torch.device("cpu"), training))
    divided = Sampler(TorchEngine(network, tokenizer_of(family), Rollout()), tokenizer_of(family), PROMPT)
    model, sampler = opened(family)
    groups, first_N = groups_of(sampler, Sampling(2, 0.7, 8))
    trained(family, network, divided, params, training)
    whole = trained(family, model, sampler, params)
    folder = scratch() / "divided"
    export_model(network, tokenizer_of(family), folder, "")
    with torch.no_grad():
        whole_N = response_logprobs(whole, groups, 0.7)[0]
    check(plain_logprobs(load_plain(folder, FLOAT32, torch.device("cpu")), groups, 0.7), whole_N)
    assert (whole_N - first_N).abs().max() > 10 * TOLERANCE
    return "yes"


def vllm(family: str) -> str:
    """vLLM in this process gives the trainer's log-probs before and after a step, from the same prompts' ids."""
    if importlib.util.find_spec("vllm") is None:
        return ""
    model, _ = opened(family)
    tokenizer = tokenizer_of(family)
    rollout = Rollout(engine="vllm", max_sequences=8)
    engine: Any = training_engine(model, folder_of(family), tokenizer, FLOAT32, rollout, False)
    sampler = Sampler(engine, tokenizer, PROMPT)
    prompts = [sampler.prompt_tokens(problem) or [] for problem in PROBLEMS]
    requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    outputs = engine.llm.generate(requests, use_tqdm=False)
    assert [list(output.prompt_token_ids) for output in outputs] == prompts
    for _ in range(2):
        groups, sampled_N = groups_of(sampler, Sampling(2, 0.7, 8))
        with torch.no_grad():
            check(sampled_N, response_logprobs(model, groups, 0.7, entropy=False)[0])
        trained(family, model, sampler, STEP.model_copy(update={"lr": 0.01}))
    return "yes"


CELLS: dict[str, Callable[[str], str]] = {
    "log-probs": logprobs,
    "LoRA": lora,
    "EMA": ema,
    "critic": critic,
    "reward model": reward_model,
    "export": export,
    "DeepSpeed": deepspeed,
    "vLLM": vllm,
}


def result(cell: str, family: str) -> str:
    """What the table says: "yes", how log-probs are computed, the reason of a refusal; "" where not installed."""
    try:
        return CELLS[cell](family)
    except UserError as error:
        return f"refused: {error}"
