"""Whether the GPU computes what the CPU path does: each check has a value and the limit that it must stay below.

Everything is compared with a plain padded forward pass in float32 without TF32, on the same weights, by transformers'
own functions.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.workload import config, free, random_groups, run_params, write_model
from mathrl.learners.checkpoint import CheckpointFolder, save_checkpoint
from mathrl.learners.distributed import Ranks
from mathrl.learners.torch_learner import TorchLearner
from mathrl.models.device import exact_float32
from mathrl.models.load import load_model, load_tokenizer
from mathrl.models.logprobs import prepare_language_model, response_logprobs
from mathrl.models.packing import Group
from mathrl.models.transformers_import import AutoModelForCausalLM
from mathrl.rollout.engine import Sampling
from mathrl.rollout.open_engine import training_engine
from mathrl.trainers.batch import make_batch
from mathrl.trainers.policy_update import update_gradient
from mathrl.trainers.scores import score

# Nats. Random weights give log-probs near -12, so bfloat16 (8 bits of mantissa) is within some hundredths.
LIMITS = {"float32": 2e-3, "bfloat16": 0.1}
GRADIENT_LIMITS = {"float32": 5e-3, "bfloat16": 0.06}  # relative, of the norm
TWICE = 1e-2  # relative: atomic additions in another order
Expected = tuple[int, int, Tensor, Tensor]  # tokens of prompt and response, log-probs, gradient


def main(device: torch.device, toy: bool) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        source = write_model(Path(folder) / "model", "toy" if toy else "0.5B", device, layers=None if toy else 6)
        vocabulary = config("toy" if toy else "0.5B").vocab_size
        lengths = ((48, 24), (64, 160)) if toy else ((128, 256), (512, 2048))
        # First: loading a model exchanges functions of transformers in this process.
        expected = [(*pair, *plain_logprobs(source, device, _groups(*pair, vocabulary))) for pair in lengths]
        for case in expected:
            rows += packed_against_plain(source, device, case)
        rows += sampler_against_forward(source, device, 16 if toy else 128)
        rows += training_twice(source, device)
        rows += resumed(source, device, Path(folder) / "state")
        rows += tf32_state(source, device)
    return {"checks": rows, "failed": [row["name"] for row in rows if not row["value"] <= row["limit"]]}


def check(name: str, value: float, limit: float) -> dict[str, Any]:
    return {"name": name, "value": float(value), "limit": limit}


def _groups(prompt: int, response: int, vocabulary: int) -> list[Any]:
    return random_groups(2, 3, prompt, response, vocabulary)


def plain_logprobs(source: Path, device: torch.device, groups: Any) -> tuple[Tensor, Tensor]:
    """Log-probs of the response tokens by transformers alone, and the gradient of their mean, all in float32."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager").to(device)
    rows, count = [], sum(len(response) for group in groups for response in group.responses)
    with exact_float32():
        for group in groups:
            for response in group.responses:
                ids = torch.tensor([*group.prompt, *response], device=device)[None]
                logits = model(input_ids=ids, use_cache=False).logits[0, len(group.prompt) - 1 : -1]
                logprobs = torch.log_softmax(logits.float(), -1).gather(1, ids[0, len(group.prompt) :, None])[:, 0]
                (logprobs.sum() / count).backward()
                rows.append(logprobs.detach())
    return torch.cat(rows), _gradient(model.parameters())


def _gradient(parameters: Any) -> Tensor:
    return torch.cat([parameter.grad.float().flatten() for parameter in parameters])


def packed_against_plain(source: Path, device: torch.device, expected: Expected) -> list[dict[str, Any]]:
    """mathrl's packed forward and backward pass, in float32 and bfloat16, against transformers' plain one."""
    prompt, response, expected_logprobs, expected_gradient = expected
    rows = []
    for precision in ("float32", "bfloat16"):
        params = run_params(source, f"model.precision={precision}")
        model = load_model(source, params.model, device)
        groups = _groups(prompt, response, model.config.vocab_size)
        name = f"{precision}, {prompt} + {response} tokens"
        with exact_float32():
            logprobs, _ = response_logprobs(model, [group.group for group in groups])
            logprobs.mean().backward()
        gap = (logprobs.detach() - expected_logprobs).abs().max()
        rows += [
            check(f"{name}: packing refused (1 is yes)", float(not prepare_language_model(model).packed), 0.0),
            check(f"{name}: log-probs, largest difference", gap, LIMITS[precision]),
            check(
                f"{name}: gradient, relative distance",
                _distance(_gradient(model.parameters()), expected_gradient),
                GRADIENT_LIMITS[precision],
            ),
        ]
        del model, logprobs, gap
        free(device)
    return rows


def _distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def sampler_against_forward(source: Path, device: torch.device, tokens: int) -> list[dict[str, Any]]:
    """Log-probs that the torch engine reports while it samples, against the trainer's forward pass."""
    rows = []
    for precision in ("float32", "bfloat16"):
        params = run_params(source, f"model.precision={precision}", "rollout.engine=torch", "rollout.max_sequences=32")
        model, tokenizer = load_model(source, params.model, device), load_tokenizer(source)
        engine = training_engine(model, source, tokenizer, params.model, params.rollout, False)
        torch.backends.cuda.matmul.allow_tf32 = precision == "bfloat16"  # as in a process that loads one model
        torch.manual_seed(0)
        prompts = [[token % 90 + 5 for token in range(start, start + 24)] for start in range(8)]
        completions = engine.generate(prompts, Sampling(4, 1.0, tokens), seed=0)
        groups = [
            Group(prompt, tuple(completion.tokens for completion in row))
            for prompt, row in zip(prompts, completions, strict=True)
        ]
        sampled = torch.tensor([value for row in completions for completion in row for value in completion.logprobs])
        with torch.no_grad():
            trained, _ = response_logprobs(model, groups)
        gap = (trained.cpu() - sampled).abs().max()
        rows.append(check(f"{precision}: torch engine against forward, largest difference", gap, LIMITS[precision]))
        del model, engine
        free(device)
    return rows


def _learner(source: Path, device: torch.device) -> tuple[TorchLearner, Any, Any]:
    """A learner of the folder's model, the parameters, and a batch."""
    params = run_params(source)
    model, ranks = load_model(source, params.model, device), Ranks(device, params.training)
    policy = TorchLearner(model, params.rl.optimizer, 10, ranks)
    groups = random_groups(2, 4, 64, 64, model.config.vocab_size)
    return policy, params, make_batch(groups, params.rl, score(groups, params.rl, ranks, model), 0.0)[0]


def _step(policy: TorchLearner, params: Any, batch: Any) -> Tensor:
    """One update; the gradient that it was made with, before it is clipped."""
    figures = update_gradient(policy, params.rl, batch, 0.0)
    gradient = policy.flat.gradients.clone()
    policy.update(figures.loss)
    return gradient


def training_twice(source: Path, device: torch.device) -> list[dict[str, Any]]:
    """The same update twice from the same weights: how far two runs may drift."""
    gradients = []
    for _ in range(2):
        policy, params, batch = _learner(source, device)
        gradients.append(_step(policy, params, batch))
        del policy
        free(device)
    return [check("the same update twice: gradient, relative distance", _distance(*gradients), TWICE)]


def resumed(source: Path, device: torch.device, state: Path) -> list[dict[str, Any]]:
    """A learner that is loaded from a checkpoint on the disk against the one that wrote it, and its next update."""
    whole, params, batch = _learner(source, device)
    _step(whole, params, batch)
    folder = CheckpointFolder(state)
    save_checkpoint(folder, 1, [whole], {}, rank=0)
    other, _, _ = _learner(source, device)
    saved = folder.latest()
    assert saved is not None
    other.load(saved, whole.counts)
    apart = sum(not torch.equal(a, b) for a, b in _pairs(whole.tensors(), other.tensors()))
    apart += sum(not torch.equal(a, b) for a, b in zip(whole.model.parameters(), other.model.parameters(), strict=True))
    gradients = [_step(policy, params, batch) for policy in (whole, other)]
    return [
        check("resumed: tensors of weights and optimizer that differ", apart, 0.0),
        check("resumed: gradient of the next update, relative distance", _distance(*gradients), TWICE),
    ]


def _pairs(first: dict[str, Tensor], second: dict[str, Tensor]) -> Sequence[tuple[Tensor, Tensor]]:
    assert first.keys() == second.keys()
    return [(first[name], second[name]) for name in first]


def tf32_state(source: Path, device: torch.device) -> list[dict[str, Any]]:
    """TF32 is on for what the trainer still computes in float32, once a bfloat16 model is loaded."""
    if device.type != "cuda":
        return []
    torch.backends.cuda.matmul.allow_tf32 = False
    load_model(source, run_params(source).model, device)
    return [check("TF32 is off after loading (1 is yes)", float(not torch.backends.cuda.matmul.allow_tf32), 0.0)]
