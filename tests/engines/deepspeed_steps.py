"""Run by test_deepspeed.py on two processes: ten steps of a model folder at one ZeRO stage.

torchrun --nproc-per-node 2 deepspeed_steps.py MODEL STAGE OUT.json
"""

import json
import sys
from pathlib import Path

import deepspeed
import torch
from deepspeed_batches import SEQUENCES, batches
from transformers import AutoModelForCausalLM


def main(model: str, stage: str, out: str) -> None:
    deepspeed.init_distributed("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(
        model=policy,
        optimizer=optimizer,
        config={
            "train_micro_batch_size_per_gpu": SEQUENCES // world,
            "zero_optimization": {"stage": int(stage)},
            "zero_allow_untested_optimizer": True,
            "gradient_clipping": 1.0,
        },
    )
    losses = []
    for tokens_BT in batches(policy.config.vocab_size):
        mine_BT = tokens_BT[rank::world]
        loss = engine(input_ids=mine_BT, labels=mine_BT).loss
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        losses.append(float(mean) / world)
    if rank == 0:
        Path(out).write_text(json.dumps(losses))


if __name__ == "__main__":
    main(*sys.argv[1:])
