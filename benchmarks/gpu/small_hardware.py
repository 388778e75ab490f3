"""What is for small hardware, on a GPU: weights of 4 bits, AdamW of 8 bits, a teacher's divergence, QLoRA's speed.

The checks compare with a plain forward pass of the restored weights in float32, and with the CPU. The rows are updates
of benchmarks.gpu.update with adapters on a 7B model of 4 bits, with its plan.
"""

import gc
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu.correctness import LIMITS, check, plain_logprobs
from benchmarks.gpu.update import add_row, folder_for, measure, update_params
from benchmarks.gpu.workload import config, free, random_groups, run_params, write_model
from mathrl.algorithms.divergences import teacher_divergence
from mathrl.core.errors import UserError
from mathrl.learners.distributed import Ranks
from mathrl.learners.eight_bit import EightBitAdamW
from mathrl.learners.torch_learner import TorchLearner
from mathrl.models.load import load_model
from mathrl.models.logprobs import response_logprobs
from mathrl.models.lora import add_lora, frozen_weights
from mathrl.models.transformers_import import AutoModelForCausalLM
from mathrl.models.weights import with_head

ADAPTERS = ("rl.lora.r=16", "rl.lora.alpha=32", "rl.lora.frozen=nf4", "rl.optimizer.lr=1e-4")
EIGHT_BIT_LIMIT = 1e-2  # relative: on a CPU bitsandbytes takes a code beside the nearest, here and there
DIVERGENCE_LIMIT = 1e-5  # nats, and relative of gradients


def main(
    device: torch.device, toy: bool, note: Callable[[dict[str, Any]], None] = lambda result: None
) -> dict[str, Any]:
    """`note` is given the result after the checks and after every row."""
    checks = [*eight_bit(device), *divergences(device)]
    with tempfile.TemporaryDirectory() as folder:
        checks += coded_forward(Path(folder), device, toy)
    result = {
        "checks": checks,
        "failed": [row["name"] for row in checks if not row["value"] <= row["limit"]],
        "rows": [],
    }
    print(result, flush=True)
    note(result)
    shape = "toy" if toy else "7B"
    with tempfile.TemporaryDirectory(dir=folder_for(shape, config(shape).num_hidden_layers)) as folder:
        source = write_model(Path(folder) / "model", shape, device)
        params = run_params(source, *ADAPTERS)
        model = load_model(source, params.model, device)
    add_lora(model, params.rl.lora, 0)
    gc.collect()
    free(device)
    policy = TorchLearner(model, params.rl.optimizer, 100, Ranks(device, params.training))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for length in (512,) if toy else (2048, 8192):
        row: dict[str, Any] = {"shape": shape, "row": length, "frozen": "nf4", "checkpointing": True}
        try:
            sized = update_params(source, length, True, toy)
            adapters = {"lora": params.rl.lora, "optimizer": params.rl.optimizer}
            row |= measure(policy, sized.model_copy(update={"rl": sized.rl.model_copy(update=adapters)}), length)
        except (torch.OutOfMemoryError, UserError) as error:
            row["refused"] = str(error).splitlines()[0][:200]
        add_row(result, row, note, device)
    return result


def coded_forward(folder: Path, device: torch.device, toy: bool) -> list[dict[str, Any]]:
    """The log-probs of a model of 4 bits with fresh adapters against transformers' with the restored weights."""
    source = write_model(folder / "model", "toy" if toy else "0.5B", device, layers=None if toy else 6)
    rows = []
    for precision in ("float32", "bfloat16"):
        params = run_params(source, f"model.precision={precision}", *ADAPTERS)
        model = load_model(source, params.model, device)
        add_lora(model, params.rl.lora, 0)
        plain = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        weights = {name: weight.float().cpu() for name, weight in with_head(frozen_weights(model))}
        plain.load_state_dict(weights, strict=False)
        plain.save_pretrained(folder / precision)
        groups = [group.group for group in random_groups(2, 3, 64, 160, model.config.vocab_size)]
        expected, _ = plain_logprobs(folder / precision, device, groups)
        with torch.no_grad():
            found, _ = response_logprobs(model, groups)
        gap = (found.float() - expected).abs().max()
        rows.append(check(f"{precision}: nf4 against its restored weights, largest difference", gap, LIMITS[precision]))
        del model, plain, weights
        free(device)
    return rows


def eight_bit(device: torch.device) -> list[dict[str, Any]]:
    """Twenty updates of AdamW with moments of 8 bits, on the GPU against the CPU."""
    torch.manual_seed(0)
    start = torch.randn(256, 128)
    gradients = [torch.randn(256, 128) for _ in range(20)]
    ends = [_updated(start, gradients, place) for place in (device, torch.device("cpu"))]
    apart = (ends[0] - ends[1]).norm() / (ends[1] - start).norm()
    return [check("adamw_8bit: weights after 20 updates, GPU against CPU, relative", apart, EIGHT_BIT_LIMIT)]


def _updated(start: Tensor, gradients: list[Tensor], device: torch.device) -> Tensor:
    weight = nn.Parameter(start.clone().to(device))
    optimizer = EightBitAdamW([weight], lr=1e-2)
    for gradient in gradients:
        weight.grad = gradient.to(device)
        optimizer.step()
    return weight.detach().cpu()


def divergences(device: torch.device) -> list[dict[str, Any]]:
    """Values and gradients of the divergences from 64 candidates, on the GPU against the CPU."""
    torch.manual_seed(1)
    logits, rows = torch.randn(2, 512, 4096) * 3, []
    policy, teacher = torch.log_softmax(logits, -1)[..., :64]
    for kind in ("forward_kl", "reverse_kl", "jsd"):
        found = [_value_and_gradient(kind, policy.to(place), teacher.to(place)) for place in (device, "cpu")]
        apart = max(float((a - b).norm() / b.norm()) for a, b in zip(*found, strict=True))
        rows.append(check(f"{kind}: values and gradients, GPU against CPU, relative", apart, DIVERGENCE_LIMIT))
    return rows


def _value_and_gradient(kind: Any, policy: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    policy = policy.detach().clone().requires_grad_()
    values = teacher_divergence(kind, policy, teacher)
    (gradient,) = torch.autograd.grad(values.sum(), policy)
    return values.detach().cpu(), gradient.cpu()
