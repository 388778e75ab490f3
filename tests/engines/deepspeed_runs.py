"""Run by test_deepspeed.py in two processes: some steps of every trainer, with torch and with ZeRO.

Rank 0 writes OUT/results.pt.
"""

import contextlib
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mathrl.core.errors import is_disk_full
from mathrl.core.metrics import without_timings
from mathrl.learners import learner as learners
from mathrl.learners.distributed import Ranks
from mathrl.models import head
from mathrl.models.export import export_model
from mathrl.models.head import LogprobHead
from mathrl.models.logprobs import response_logprobs
from mathrl.models.packing import Group
from mathrl.models.scores import make_scorer
from mathrl.models.sharding import with_whole_weights
from mathrl.params.advantage import Critic, Gae
from mathrl.params.optimizer import AdamW, Lora
from mathrl.params.train import Dpo, RewardModel, Rl, Sft
from mathrl.params.training import DeepSpeed, Training
from mathrl.trainers.preference import train_dpo
from mathrl.trainers.reward_model import train_reward_model
from mathrl.trainers.rl import train_rl
from mathrl.trainers.sft import train_sft
from mathrl.trainers.supervised import Item
from tests.trainers import small

BEFORE_FORKS = ("deepspeed",)
# With an eps of 1e-3, AdamW's first steps do not turn a rounding error of 1e-8 into a full step.
ADAM = AdamW(lr=1e-2, warmup_steps=3, eps=1e-3)
SFT = Sft(steps=10, tokens_per_step=120, tokens_per_microbatch=32, optimizer=ADAM, eval_every=5, checkpoint_every=2)
SLOW = ADAM.model_copy(update={"lr": 5e-3})
RL = Rl(steps=3, prompts_per_step=4, group_size=4, max_tokens=8, optimizer=SLOW, dev={"every": 2, "samples": 2},
        checkpoint_every=2, ema=None, tokens_per_microbatch=32)  # fmt: skip
CRITIC = Critic(optimizer=ADAM.model_copy(update={"lr": 1e-3}))
PPO = small.changed(RL, advantage=Gae(critic=CRITIC), kl={"coef": 0.1}, minibatches=2)
DROP = small.changed(
    RL,
    minibatches=2,
    epochs=2,
    loss={"drop_ratio": 1.00001},
    dev={"export": "best", "every": 1},
    optimizer={"lr": 0.03},
)
PROBE = [Group((5, 6, 7), ((8, 9, 10, 11), (12, 13))), Group((20,), ((9, 3),))]
MODES = {
    "torch": Training(),
    **{f"zero {n}": Training(backend="deepspeed", deepspeed=DeepSpeed(stage=n)) for n in (1, 2, 3)},
    "offloaded": Training(
        backend="deepspeed", deepspeed=DeepSpeed(stage=3, offload_optimizer=True, offload_parameters=True)
    ),
}


_CONFIG = learners.DeepSpeedLearner._config


def _divided(self: Any) -> dict[str, Any]:
    """Make ZeRO 3 divide these weights, too: by default it keeps those of less than 100,000 elements whole."""
    config: dict[str, Any] = _CONFIG(self)
    if self.stage == 3:
        config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    return config


learners.DeepSpeedLearner._config = _divided  # type: ignore[method-assign]


def demonstrations(count: int) -> list[Group]:
    """Prompts and responses of 1 to 9 tokens, so that the processes' shares differ in size."""
    draw = torch.Generator().manual_seed(7)
    out = []
    for _ in range(count):
        lengths = torch.randint(1, 10, (2,), generator=draw).tolist()
        prompt, response = (tuple(torch.randint(3, 20, (n,), generator=draw).tolist()) for n in lengths)
        out.append(Group(prompt, (response,)))
    return out


def pairs(count: int) -> list[Item]:
    rows = demonstrations(2 * count)
    return [
        Item(Group(one.prompt, (one.responses[0], other.responses[0])))
        for one, other in zip(rows[:count], rows[count:], strict=True)
    ]


def weights(model: Any) -> torch.Tensor:
    with with_whole_weights(model.parameters()):
        return torch.cat([each.detach().float().flatten() for each in model.parameters()])


def sft(training: Training, state: Path, params: Sft = SFT, dtype: Any = torch.float32) -> Any:
    model = small.policy()[0].to(dtype)
    groups = demonstrations(40)
    train_sft(model, groups[3:], groups[:3], params, small.training_run(state, training=training))
    return model


def rl(training: Training, state: Path, params: Rl) -> Any:
    model, sampler = small.policy()
    with torch.no_grad():  # answers that depend on the weights
        for weight in model.parameters():
            weight.mul_(1.5)
    train_rl(
        model,
        sampler,
        small.PROBLEMS,
        small.PROBLEMS[:3],
        small.CountsOnes(),
        params,
        small.training_run(state, training=training),
    )
    return model


def dpo(training: Training, state: Path) -> Any:
    model = small.policy()[0]
    params = Dpo(steps=4, pairs_per_step=5, tokens_per_microbatch=32, eval_every=2, optimizer=ADAM)
    train_dpo(model, pairs(11)[2:], pairs(11)[:2], params, small.training_run(state, training=training))
    return model


def reward_model(training: Training, state: Path) -> Any:
    scorer = make_scorer(small.policy()[0])
    params = RewardModel(steps=4, batch=5, tokens_per_microbatch=32, eval_every=2, optimizer=ADAM)
    train_reward_model(scorer, pairs(11)[2:], pairs(11)[:2], params, 1, small.training_run(state, training=training))
    return scorer


def cut_and_resumed(run: Callable[[], Any], after: int) -> Any:
    """A run that stops before its model's update `after` + 1 and resumes from the checkpoint of that step."""

    def stops(self: Any, loss: float, before: Any = learners.DeepSpeedLearner.update) -> None:
        if self.updates == after and self.name in ("sft", "rl"):
            raise small.Killed
        before(self, loss)

    kept = learners.DeepSpeedLearner.update
    learners.DeepSpeedLearner.update = stops  # type: ignore[method-assign]
    with contextlib.suppress(small.Killed):
        run()
    learners.DeepSpeedLearner.update = kept  # type: ignore[method-assign]
    return run()


def sliced(training: Training, state: Path) -> tuple[Any, list[int]]:
    """SFT with logits for two rows at a time; the head's passes, its fetches forward and backward, and its slices."""
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator as Coordinator

    counts, product, most = [0, 0, 0, 0], head.wide_product, head.MOST_LOGITS
    fetch, passed = Coordinator.fetch_sub_module, LogprobHead.forward

    def fetched(self: Any, module: Any, forward: bool) -> None:
        counts[1 if forward else 2] += isinstance(module, LogprobHead)
        fetch(self, module, forward)

    def ran(self: Any, hidden: Any, targets: Any = None, *rest: Any) -> Any:
        counts[0] += targets is not None
        return passed(self, hidden, targets, *rest)

    def slice_of(*args: Any) -> torch.Tensor:
        counts[3] += 1
        return product(*args)

    Coordinator.fetch_sub_module, LogprobHead.forward = fetched, ran  # type: ignore[method-assign]
    head.wide_product = slice_of
    head.MOST_LOGITS = 2 * small.policy()[0].get_output_embeddings().out_features
    try:
        return sft(training, state, SFT.model_copy(update={"eval_every": 0})), counts
    finally:
        Coordinator.fetch_sub_module, LogprobHead.forward = fetch, passed  # type: ignore[method-assign]
        head.MOST_LOGITS, head.wide_product = most, product


def without_room(training: Training, state: Path) -> str:
    """The error of an SFT run whose weights (75 kB) fit on the disk, but no process's share of the optimizer states."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (90_000, limits[1]))
    try:
        sft(training, state)
    except OSError as error:
        return f"disk full: {is_disk_full(error)}, {error}"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return "it had room"


def with_a_bad_step(training: Training, state: Path) -> Any:
    """SFT in which one process's loss of the fourth step is not a number."""
    kept = learners.DeepSpeedLearner.backward, learners.TorchLearner.backward

    def bad(before: Any) -> Any:
        def backward(self: Any, loss: Any) -> None:
            broken = self.updates == 3 and self.ranks.rank == 1
            before(self, loss * float("nan") if broken else loss)

        return backward

    learners.DeepSpeedLearner.backward, learners.TorchLearner.backward = map(bad, kept)  # type: ignore[method-assign]
    try:
        return sft(training, state)
    finally:
        learners.DeepSpeedLearner.backward, learners.TorchLearner.backward = kept  # type: ignore[method-assign]


def main(out: Path) -> None:
    torch.set_num_threads(1)
    runs: dict[str, Callable[[Training, Path], Any]] = {
        "sft": sft,
        "dpo": dpo,
        "reward_model": reward_model,
        "ppo": lambda training, state: rl(training, state, PPO),
        "bad": with_a_bad_step,
        "drop": lambda training, state: rl(training, state, DROP),
        "lora": lambda training, state: rl(training, state, RL.model_copy(update={"lora": Lora(r=4)})),
    }
    plan = [("sft", mode) for mode in MODES] + [
        ("bad", "torch"), ("bad", "zero 1"), ("bad", "zero 3"),
        ("dpo", "torch"), ("dpo", "zero 2"), ("reward_model", "torch"), ("reward_model", "zero 3"),
        ("ppo", "torch"), ("ppo", "zero 2"), ("ppo", "zero 3"), ("lora", "torch"), ("lora", "zero 3"),
        ("drop", "torch"), ("drop", "zero 2"), ("drop", "zero 3"),
    ]  # fmt: skip
    results: dict[str, Any] = {}
    rank = Ranks(torch.device("cpu")).rank

    def note(name: str, state: Path, model: Any) -> None:
        rows = without_timings(state / "metrics.jsonl") if rank == 0 else []
        results[name] = (weights(model), rows)

    for name, mode in plan:
        state = out / f"{name} {mode}"
        model = runs[name](MODES[mode], state)
        note(f"{name}, {mode}", state, model)
        if (name, mode) == ("sft", "zero 3"):
            export_model(model, small.TOKENIZER, out / "exported", "# Test\n")
            with with_whole_weights(model.parameters()):
                results["exported"] = response_logprobs(model.eval(), PROBE)[0].detach()
    model, results["head"] = sliced(MODES["zero 3"], out / "sliced zero 3")
    note("sliced, zero 3", out / "sliced zero 3", model)
    half = partial(sft, dtype=torch.bfloat16)
    state = out / "half"
    note("half, zero 2", state, half(MODES["zero 2"], state))
    # These runs write a checkpoint at every step, the uninterrupted ones at every second: that changes no bit.
    again = {"sft": (sft, 6), "half": (half, 6), "ppo": (runs["ppo"], 4)}
    for name, mode in [
        ("sft", "zero 1"),
        ("sft", "zero 2"),
        ("sft", "zero 3"),
        ("half", "zero 2"),
        ("ppo", "zero 2"),
        ("ppo", "zero 3"),
    ]:
        run, after = again[name]
        often = MODES[mode].model_copy(update={"checkpoint_minutes": 1e-9})
        state = out / f"resumed {name} {mode}"
        note(f"resumed {name}, {mode}", state, cut_and_resumed(partial(run, often, state), after))
    results["full"] = without_room(MODES["zero 1"], out / "full")
    if rank == 0:
        torch.save(results, out / "results.pt")
