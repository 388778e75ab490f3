"""Whether the GPU computes what the CPU path does: each check has a value and the limit that it must stay below.

Everything is compared with a plain padded forward pass in float32 without TF32, on the same weights.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.workload import free, random_groups, run_params, write_model
from mathrl.learners.distributed import Ranks
from mathrl.learners.torch_learner import TorchLearner
from mathrl.models.load import load_model, load_tokenizer
from mathrl.models.logprobs import response_logprobs, takes_packed
from mathrl.models.packing import Group
from mathrl.models.transformers_import import AutoModelForCausalLM
from mathrl.rollout.engine import Sampling
from mathrl.rollout.open_engine import training_engine
from mathrl.trainers.batch import make_batch
from mathrl.trainers.policy_update import update_gradient

# Nats. Random weights give log-probs near -12, so bfloat16 (8 bits of mantissa) is within some hundredths.
LIMITS = {"float32": 2e-3, "bfloat16": 0.1}
GRADIENT_LIMITS = {"float32": 5e-3, "bfloat16": 0.06}  # relative, of the norm


def main(device: torch.device, toy: bool) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        source = write_model(Path(folder) / "model", "toy" if toy else "0.5B", device, layers=None if toy else 6)
        lengths = ((48, 24), (64, 160)) if toy else ((128, 256), (512, 2048))
        for prompt, response in lengths:
            rows += packed_against_plain(source, device, prompt, response)
        rows += sampler_against_forward(source, device, 16 if toy else 128)
        rows += training_twice(source, device)
    rows += global_state(device)
    return {"checks": rows, "failed": [row["name"] for row in rows if row["value"] > row["limit"]]}


def check(name: str, value: float, limit: float) -> dict[str, Any]:
    return {"name": name, "value": float(value), "limit": limit}


def plain_logprobs(source: Path, device: torch.device, groups: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of the response tokens by transformers alone, and the gradient of their mean, all in float32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager").to(device)
    rows, count = [], sum(len(response) for group in groups for response in group.responses)
    for group in groups:
        for response in group.responses:
            ids = torch.tensor([*group.prompt, *response], device=device)[None]
            logits = model(input_ids=ids, use_cache=False).logits[0, len(group.prompt) - 1 : -1]
            logprobs = torch.log_softmax(logits.float(), -1).gather(1, ids[0, len(group.prompt) :, None])[:, 0]
            (logprobs.sum() / count).backward()
            rows.append(logprobs.detach())
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    return torch.cat(rows), gradient


def packed_against_plain(source: Path, device: torch.device, prompt: int, response: int) -> list[dict[str, Any]]:
    """mathrl's packed forward and backward pass, in float32 and bfloat16, against transformers' plain one."""
    rows = []
    for precision in ("float32", "bfloat16"):
        params = run_params(source, f"model.precision={precision}")
        model = load_model(source, params.model, device)
        torch.backends.cuda.matmul.allow_tf32 = False
        groups = random_groups(2, 3, prompt, response, model.config.vocab_size)
        expected, expected_gradient = plain_logprobs(source, device, groups)
        name = f"{precision}, {prompt} + {response} tokens"
        logprobs, _ = response_logprobs(model, [group.group for group in groups])
        logprobs.mean().backward()
        gradient = torch.cat([parameter.grad.float().flatten() for parameter in model.parameters()])
        distance = (gradient - expected_gradient).norm() / expected_gradient.norm()
        rows += [
            check(f"{name}: packing refused (1 is yes)", float(not takes_packed(model)), 0.0),
            check(f"{name}: log-probs, largest difference", (logprobs - expected).abs().max(), LIMITS[precision]),
            check(f"{name}: gradient, relative distance", distance, GRADIENT_LIMITS[precision]),
        ]
        del model, gradient, expected_gradient
        free(device)
    return rows


def sampler_against_forward(source: Path, device: torch.device, tokens: int) -> list[dict[str, Any]]:
    """Log-probs that the torch engine reports while it samples, against the trainer's forward pass."""
    rows = []
    for precision in ("float32", "bfloat16"):
        params = run_params(source, f"model.precision={precision}", "rollout.engine=torch", "rollout.max_sequences=32")
        model, tokenizer = load_model(source, params.model, device), load_tokenizer(source)
        engine = training_engine(model, source, tokenizer, params.model, params.rollout, False)
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


def training_twice(source: Path, device: torch.device) -> list[dict[str, Any]]:
    """The same update twice from the same weights: how far two runs, or a run and its resumption, may drift."""
    params = run_params(source)
    gradients = []
    for _ in range(2):
        model = load_model(source, params.model, device)
        groups = random_groups(2, 4, 64, 64, model.config.vocab_size)
        ranks = Ranks(device, params.training)
        policy = TorchLearner(model, params.rl.optimizer, params.rl.lr, 10, ranks)
        batch, _ = make_batch(groups, params.rl, ranks, model)
        update_gradient(policy, params.rl, batch, 0.0)
        gradients.append(policy.flat.gradients.clone())
        del model, policy
        free(device)
    distance = (gradients[0] - gradients[1]).norm() / gradients[0].norm()
    return [check("the same update twice: gradient, relative distance", distance, 1e-2)]


def global_state(device: torch.device) -> list[dict[str, Any]]:
    """TF32 is on for what the trainer still computes in float32, once a bfloat16 model is loaded."""
    if device.type != "cuda":
        return []
    with tempfile.TemporaryDirectory() as folder:
        source = write_model(Path(folder), "toy", device)
        torch.backends.cuda.matmul.allow_tf32 = False
        load_model(source, run_params(source).model, device)
    return [check("TF32 is off after loading (1 is yes)", float(not torch.backends.cuda.matmul.allow_tf32), 0.0)]
