"""Run by test_resharding.py: DeepSpeed checkpoints of some ranks, resumed by others.

python resharded_runs.py OUT; rank 0 of each world writes OUT/RUN, WORLD.pt. The worlds are forked one after the other:
so torch and DeepSpeed are imported once.
"""

import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import deepspeed  # noqa: F401 (before the forks)
import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

from mathrl.core.metrics import without_timings
from mathrl.learners import learner as learners
from mathrl.learners.distributed import Ranks
from tests.engines import deepspeed_runs
from tests.engines.deepspeed_runs import MODES, RL, rl, sft, weights
from tests.forked_ranks import in_ranks
from tests.trainers import small

BEST = small.changed(RL, steps=3, dev={"export": "best", "every": 1}, checkpoint_every=2)
# What runs, the update before which it is looked at and stopped, and whether small weights stay whole under ZeRO 3.
RUNS: dict[str, tuple[Callable[[Path], Any], int, bool]] = {
    "sft, zero 1": (partial(sft, MODES["zero 1"]), 6, False),
    "half, zero 2": (partial(sft, MODES["zero 2"], dtype=torch.bfloat16), 6, False),
    "sft, zero 3": (partial(sft, MODES["zero 3"]), 6, False),
    "half and offloaded, zero 3": (partial(sft, MODES["offloaded"], dtype=torch.bfloat16), 6, True),
    "best, zero 2": (partial(rl, MODES["zero 2"], params=BEST), 2, False),
    "best, zero 3": (partial(rl, MODES["zero 3"], params=BEST), 2, False),
}
WORLDS = 1, 3


def trained(name: str, state: Path, out: Path, copy: Path | None = None) -> None:
    """Train; rank 0 writes metrics and final weights, and what was held before the update of RUNS.

    That is float32 weights and moments whole, as DeepSpeed gathers them, and the best weights. `copy` becomes a copy of
    the state at that time.
    """
    run, at, whole = RUNS[name]
    held: list[torch.Tensor] = []
    divided, update = learners.DeepSpeedLearner._config, learners.DeepSpeedLearner.update

    def noting(self: Any, loss: float) -> None:
        if self.updates == at and not held:
            # DeepSpeed gathers moments only once its own step has linked them.
            getattr(self.engine.optimizer, "_lazy_init_hp_params_optimizer_state", bool)()
            for weight in self.model.parameters():
                if weight.requires_grad:
                    held.append(safe_get_full_fp32_param(weight).clone())
                    held.extend(safe_get_full_optimizer_state(weight, key).clone() for key in ("exp_avg", "exp_avg_sq"))
            held.extend(_whole(self, key, value) for key, value in sorted(self.best.items()))
            if copy is not None and self.ranks.rank == 0:
                shutil.copytree(state, copy)
            self.ranks.gather(None)
        update(self, loss)

    learners.DeepSpeedLearner.update = noting  # type: ignore[method-assign]
    if whole:
        learners.DeepSpeedLearner._config = deepspeed_runs._CONFIG  # type: ignore[method-assign]
    final = weights(run(state))
    learners.DeepSpeedLearner.update, learners.DeepSpeedLearner._config = update, divided  # type: ignore[method-assign]
    if Ranks(torch.device("cpu")).rank == 0:
        torch.save({"rows": without_timings(state / "metrics.jsonl"), "weights": final, "held": held}, out)


def _whole(learner: Any, name: str, value: torch.Tensor) -> torch.Tensor:
    weight = learner.model.state_dict(keep_vars=True)[name]
    if not hasattr(weight, "ds_tensor"):
        return value
    return torch.cat(learner.ranks.gather(value))[: weight.ds_numel]


def main(out: Path) -> None:
    torch.set_num_threads(1)

    def write() -> None:
        for name in RUNS:
            trained(name, out / name, out / f"{name}, 2.pt", copy=out / f"{name}, stopped")

    def resume(world: int) -> None:
        for name in RUNS:
            trained(name, out / f"{name}, {world}", out / f"{name}, {world}.pt")

    in_ranks(2, write)
    for world in WORLDS:
        for name in RUNS:
            shutil.copytree(out / f"{name}, stopped", out / f"{name}, {world}")
        in_ranks(world, partial(resume, world))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
