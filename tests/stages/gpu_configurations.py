"""What each stage of each preset would pass to vLLM, DeepSpeed and the optimizer on the GPU that the preset names.

`python -m tests.stages.gpu_configurations` writes golden/<preset>.json; test_gpu_configurations.py compares with it.
"""

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from mathrl.compose import load_params
from mathrl.compose.experiment import preset_names
from mathrl.core.gpus import Hardware
from mathrl.learners.deepspeed_config import deepspeed_config
from mathrl.learners.optimizer import optimizer_arguments
from mathrl.models.model_shape import config_of, shape_of
from mathrl.params.rollout import Rollout
from mathrl.params.schema import PIPELINE, Params
from mathrl.rollout import resolve
from mathrl.rollout.choices import choose_engine, stage_longest
from mathrl.rollout.vllm_budget import VllmBudget, vllm_budget
from mathrl.servers.serve import server_arguments
from mathrl.servers.vllm_arguments import command_line, dtype_name, llm_arguments

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("golden")
# Memory as torch.cuda.get_device_properties reports it.
RTX_4090 = Hardware("cuda", "NVIDIA GeForce RTX 4090", 25_262_096_384, 1)
RTX_4080 = Hardware("cuda", "NVIDIA GeForce RTX 4080", 16_720_068_608, 1)
A6000 = Hardware("cuda", "NVIDIA RTX A6000", 50_925_535_232, 1)
H100 = Hardware("cuda", "NVIDIA H100 80GB HBM3", 85_028_765_696, 8)
GPUS = dict.fromkeys((name for name in preset_names(ROOT / "params") if name != "demo"), H100) | {
    "gsm8k-ppo-24gb": RTX_4090,
    "gsm8k-ppo-quickstart": RTX_4090,
    "qwen2.5-0.5b-gsm8k": RTX_4090,
    "countdown-grpo-zero-24gb": RTX_4090,
    "llama-1b-lora-16gb": RTX_4080,
    "countdown-grpo-zero-48gb": A6000,
}
DATA_PRESETS = ("gsm8k", "math", "math-mixture", "dapo")
MODEL = "model.base={type: pretrained, path: Qwen/Qwen2.5-1.5B-Instruct}"
TRAINS, SAMPLES = ("sft", "rl"), ("difficulty", "rl", "evaluate")
assert {stage for stage, sections in PIPELINE.items() if {"training", "rollout"} & {*sections}} == {*TRAINS, *SAMPLES}


@cache
def parameters(preset: str, *changes: str) -> Params:
    """As the preset's page says to use it: a preset of data alone is given a pretrained model."""
    overrides = [*changes, *([MODEL] if preset in DATA_PRESETS else [])]
    return load_params(ROOT / "params", preset=preset, overrides=overrides)


def ranks_of(params: Params, stage: str, hardware: Hardware) -> int:
    """The stages that only sample run on one machine."""
    return params.run.processes if stage in TRAINS else min(params.run.processes, hardware.count)


def resolved(params: Params, stage: str, hardware: Hardware, folder: Path) -> Rollout:
    return resolve.resolve_rollout(
        choose_engine(params.rollout, params.model, hardware, vllm_installed=True),
        folder,
        params.model,
        hardware,
        longest=stage_longest(params, stage),
        ranks=ranks_of(params, stage, hardware),
    )


def model_folder(params: Params, folder: Path) -> Path:
    """A folder with the model's config.json alone."""
    config = config_of(params.model.base)
    # As in its config.json, or less: 4,096 for deepseek-math, 32,768 and more for Qwen2, 131,072 for Llama 3.
    config.max_position_embeddings = 4096 if "deepseek-math" in getattr(params.model.base, "path", "") else 32768
    config.save_pretrained(folder)
    return folder


def budget(params: Params, rollout: Rollout, stage: str, hardware: Hardware) -> VllmBudget:
    shape, dtype = shape_of(config_of(params.model.base)), dtype_name(rollout, params.model)
    return vllm_budget(shape, rollout, dtype, hardware, ranks_of(params, stage, hardware))


def learner(params: Params, section: Any, hardware: Hardware) -> dict[str, Any]:
    zero = params.training.backend == "deepspeed"
    made: dict[str, Any] = {"optimizer": optimizer_arguments(section.optimizer, fused=True)}
    if zero:
        half = params.model.precision == "bfloat16"
        made["deepspeed"] = deepspeed_config(params.training.deepspeed, section.optimizer, half=half, hardware=hardware)
    return made


def configurations(preset: str) -> dict[str, Any]:
    """By stage: the engine with its arguments, and the learners."""
    params, hardware = parameters(preset), GPUS[preset]
    made: dict[str, Any] = {"gpu": f"{hardware.count} x {hardware.name}"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = model_folder(params, Path(temporary))
        for stage in (*TRAINS, *SAMPLES):
            made.setdefault(stage, {})
        for stage in SAMPLES:
            rollout = resolved(params, stage, hardware, folder)
            ranks = ranks_of(params, stage, hardware)
            made[stage]["engine"] = rollout.engine
            made[stage]["llm"] = llm_arguments(
                "MODEL", params.model, rollout, hardware, ranks=ranks, trains=stage in TRAINS
            )
            made[stage]["cached_sequences"] = budget(params, rollout, stage, hardware).sequences
        made["serve"] = command_line(server_arguments("MODEL", params.model, params.rollout, hardware))
    made["sft"]["learner"] = learner(params, params.sft, hardware) if params.sft.steps else None
    made["rl"]["learner"] = learner(params, params.rl, hardware)
    if params.rl.critic is not None:
        made["rl"]["critic"] = learner(params, params.rl.critic, hardware)
    engine = choose_engine(params.rollout, params.model, hardware, vllm_installed=True)
    importance = resolve.resolve_importance(params.rl, engine).importance
    made["rl"]["importance"] = importance and importance.model_dump()
    loaded: dict[str, Any] = json.loads(json.dumps(made))
    return loaded


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for preset in GPUS:
        text = json.dumps(configurations(preset), indent=1)
        (GOLDEN / f"{preset}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
