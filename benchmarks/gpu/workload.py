"""Models of published shapes with random weights, the parameters of their runs, and batches of random rollouts."""

import random
from pathlib import Path
from typing import Any

import torch

from mathrl.compose import load_params
from mathrl.models.base import character_tokenizer
from mathrl.models.shapes import KNOWN, SIZES
from mathrl.models.transformers_import import AutoConfig, AutoModelForCausalLM
from mathrl.params.run import FreshModel
from mathrl.params.schema import Params
from mathrl.trainers.rollouts import RolloutGroup

SHAPES = {"0.5B": "Qwen/Qwen2.5-0.5B-Instruct", "1.5B": "Qwen/Qwen2.5-1.5B-Instruct", "7B": "Qwen/Qwen2-7B-Instruct"}
TOY = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2, "vocab_size": 8192,
       "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
# Dense bfloat16 operations per second, from the manufacturers' data sheets.
NOMINAL = {"H200": 989e12, "H100": 989e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12,
           "RTX 4090": 165e12}  # fmt: skip
GIB = 1 << 30


def config(shape: str, layers: int | None = None) -> Any:
    """The configuration of a shape, `toy` or a key of SHAPES; `layers` in place of its number of layers."""
    kind, sizes = KNOWN[SHAPES["0.5B" if shape == "toy" else shape]]
    chosen = dict(zip(SIZES, sizes, strict=True)) | {"max_position_embeddings": 131072}
    chosen |= TOY if shape == "toy" else {}
    if layers is not None:
        chosen["num_hidden_layers"] = layers
    tokenizer = character_tokenizer(FreshModel())
    return AutoConfig.for_model(
        kind, **chosen, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )


def write_model(folder: Path, shape: str, device: torch.device, layers: int | None = None) -> Path:
    """A Hugging Face folder of the shape with random weights (bfloat16) and a character tokenizer."""
    if not (folder / "config.json").is_file():
        torch.manual_seed(0)
        with device:
            model = AutoModelForCausalLM.from_config(config(shape, layers), dtype=torch.bfloat16)
        model.save_pretrained(folder)
        character_tokenizer(FreshModel()).save_pretrained(folder)
        del model
        free(device)
    return folder


def run_params(folder: Path, *overrides: str) -> Params:
    """Parameters of a GRPO run from the folder: bfloat16, AdamW, no KL, every group trained on."""
    return load_params(overrides=[
        f"model.base={{type: pretrained, path: {folder}}}", "model.precision=bfloat16", "run.processes=1",
        "rl.optimizer.type=adamw", "rl.optimizer.lr=1e-6", "rl.ema=null", "rl.kl=null",
        "rl.loss.skip_zero_variance=false", "rl.dev.every=0", "rl.checkpoint_every=1000000", *overrides,
    ])  # fmt: skip


def preset_params(preset: str, folder: Path, *overrides: str) -> Params:
    """The preset's parameters with the model of the folder, whose tokenizer has no chat template."""
    return load_params(preset=preset, overrides=[
        f"model.base={{type: pretrained, path: {folder}}}", "run.processes=1", "prompt.template=plain",
        "prompt.system=null", "rl.loss.skip_zero_variance=false", "rl.dev.every=0", "rl.checkpoint_every=1000000",
        *overrides,
    ])  # fmt: skip


def random_groups(prompts: int, samples: int, prompt: int, response: int, vocabulary: int) -> list[RolloutGroup]:
    """Groups of random token ids with random rewards and the log-probs of a uniform sampler.

    `prompt` and `response` are lengths in tokens; the seed is fixed.
    """
    draw = random.Random(0)
    ids = [draw.randrange(vocabulary) for _ in range(65536)]

    def tokens(count: int) -> tuple[int, ...]:
        start = draw.randrange(len(ids))
        return tuple((ids[start:] + ids * (1 + count // len(ids)))[:count])

    return [
        RolloutGroup(
            problem=number,
            prompt=tokens(prompt),
            responses=tuple(tokens(response) for _ in range(samples)),
            logprobs=tuple((-10.0,) * response for _ in range(samples)),
            rewards=tuple(draw.random() for _ in range(samples)),
            correct=(False,) * samples,
            truncated=(True,) * samples,
            parts=tuple({} for _ in range(samples)),
        )
        for number in range(prompts)
    ]


def free(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def gpu_peak(device: torch.device) -> float:
    """Bytes of torch's peak since the last `free`, and of what is on the GPU outside torch's count.

    Outside are CUDA's context and vLLM's pool.
    """
    if device.type != "cuda":
        return 0.0
    available, total = torch.cuda.mem_get_info(device)
    outside = max(total - available - torch.cuda.memory_reserved(device), 0)
    return float(outside + torch.cuda.max_memory_allocated(device))


def nominal_flops(device: torch.device) -> float | None:
    """The manufacturer's rate of dense bfloat16 products, where the GPU's name is known."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((rate for kind, rate in NOMINAL.items() if kind in name), None)
