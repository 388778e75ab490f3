"""Run by test_deepspeed.py: an update with the dictionaries that a GPU would be given, on the CPU; one gloo process.

python deepspeed_cuda_config.py: prints a line per configuration that DeepSpeed took and stepped with, then one per
learner of a preset whose configuration is among them.
"""

import copy
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.config import DeepSpeedConfig

from mathrl.core.gpus import Hardware
from mathrl.learners.deepspeed_config import deepspeed_config
from mathrl.learners.deepspeed_internals import make_engine
from mathrl.learners.distributed import Ranks
from mathrl.learners.optimizer import optimizer_arguments
from mathrl.params.optimizer import AdamW
from mathrl.params.training import DeepSpeed, Training
from tests.trainers import small

SETTINGS = {
    "1": DeepSpeed(stage=1),
    "1, offloaded": DeepSpeed(stage=1, offload_optimizer=True),
    "2": DeepSpeed(stage=2),
    "2, offloaded": DeepSpeed(stage=2, offload_optimizer=True),
    "3": DeepSpeed(stage=3),
    "3, offloaded": DeepSpeed(stage=3, offload_optimizer=True, offload_parameters=True),
}
GOLDEN = Path(__file__).parents[1] / "stages/golden"
GPU = Hardware("cuda", "NVIDIA H100 80GB HBM3", 85_028_765_696, 8)


def loss_of(model: Any) -> torch.Tensor:
    ids = torch.tensor([[5, 6, 7, 8]])
    loss: torch.Tensor = model(input_ids=ids, labels=ids, use_cache=False).loss
    return loss


def presets() -> Iterator[tuple[str, dict[str, Any]]]:
    """What each learner of each preset would be given on the GPU that the preset names."""
    for file in sorted(GOLDEN.glob("*.json")):
        made = json.loads(file.read_text(encoding="utf-8"))
        for stage, learner in (("sft", "learner"), ("rl", "learner"), ("rl", "critic")):
            config = (made[stage].get(learner) or {}).get("deepspeed")
            if config:
                yield f"{file.stem}, {stage} {learner}", config


def main() -> None:
    torch.set_num_threads(1)
    ranks = Ranks(torch.device("cpu"), Training(backend="deepspeed"))
    optimizer, tried = AdamW(lr=0.01, warmup_steps=0), []
    for name, settings in SETTINGS.items():
        config = deepspeed_config(settings, optimizer, half=True, hardware=GPU)
        tried.append({**copy.deepcopy(config), "gradient_clipping": None})
        assert DeepSpeedConfig(config).zero_config.stage == settings.stage
        model = small.policy()[0].to(torch.bfloat16)
        adamw = torch.optim.AdamW(model.parameters(), **optimizer_arguments(optimizer, fused=True)["AdamW"])
        engine = make_engine(model, adamw, config, ranks)
        losses = []
        for _ in range(2):
            loss = engine(partial(loss_of, model))
            engine.backward(loss, scale_wrt_gas=False)
            engine.step()
            losses.append(float(loss.detach()))
        assert losses[1] < losses[0], losses
        print(f"ZeRO {name}: {losses}")
        engine.destroy()
    for name, config in presets():
        assert {**config, "gradient_clipping": None} in tried, name
        assert DeepSpeedConfig(copy.deepcopy(config)).gradient_clipping == config["gradient_clipping"]
        print(f"preset {name}")
    ranks.close()


if __name__ == "__main__":
    main()
