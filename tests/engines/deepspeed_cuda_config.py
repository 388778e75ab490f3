"""Run by test_deepspeed.py: an update with the dictionaries that a GPU would be given, on the CPU; one gloo process.

python deepspeed_cuda_config.py: prints a line per configuration that DeepSpeed took and stepped with.
"""

from functools import partial
from typing import Any

import torch
from deepspeed.runtime.config import DeepSpeedConfig

from mathrl.core.hardware import Hardware
from mathrl.learners.deepspeed_config import deepspeed_config
from mathrl.learners.deepspeed_internals import make_engine
from mathrl.learners.distributed import Ranks
from mathrl.learners.optimizer import optimizer_arguments
from mathrl.params.train import Optimizer
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
GPU = Hardware("cuda", "NVIDIA H100 80GB HBM3", 85_028_765_696, 8)


def loss_of(model: Any) -> torch.Tensor:
    ids = torch.tensor([[5, 6, 7, 8]])
    loss: torch.Tensor = model(input_ids=ids, labels=ids, use_cache=False).loss
    return loss


def main() -> None:
    torch.set_num_threads(1)
    ranks = Ranks(torch.device("cpu"), Training(backend="deepspeed"))
    optimizer = Optimizer(type="adamw", warmup_steps=0)
    for name, settings in SETTINGS.items():
        config = deepspeed_config(settings, optimizer, half=True, hardware=GPU)
        assert DeepSpeedConfig(config).zero_config.stage == settings.stage
        model = small.policy()[0].to(torch.bfloat16)
        adamw = torch.optim.AdamW(model.parameters(), **optimizer_arguments(optimizer, 1e-2, fused=True)["AdamW"])
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
    ranks.close()


if __name__ == "__main__":
    main()
