"""Run by test_sharding.py in two processes: ZeRO 3 from a start that is sharded as it is loaded and from a whole one.

Each rank writes OUT/RANK.pt.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import nn

from mathrl.core.metrics import JsonlSink, without_timings
from mathrl.learners import deepspeed_config, deepspeed_learner
from mathrl.learners import sharding as learner_sharding
from mathrl.learners.distributed import Ranks
from mathrl.learners.learner import make_learner
from mathrl.learners.sharding import FrozenModel, load_to_train, sharded_like, while_scoring
from mathrl.models import export, sharding
from mathrl.models.export import export_model
from mathrl.models.load import load_model, load_tokenizer, make_base
from mathrl.models.logprobs import response_logprobs
from mathrl.models.lora import add_lora
from mathrl.models.scores import make_scorer, token_scores
from mathrl.models.sharding import own_part, sharded_copy, with_whole_weights
from mathrl.params.advantage import Critic, Gae
from mathrl.params.loss import Truncated
from mathrl.params.optimizer import AdamW, Lora
from mathrl.params.rollout import Rollout
from mathrl.params.run import FreshModel, Model, Prompt
from mathrl.params.train import Asynchronous, Rl
from mathrl.params.training import DeepSpeed, Training
from mathrl.rollout.open_engine import training_engine
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.open_rl import Helpers
from mathrl.trainers.rl import train_rl
from mathrl.trainers.training_run import TrainingRun
from tests.engines.deepspeed_runs import PROBE, cut_and_resumed
from tests.engines.tiny_rl import Letters
from tests.trainers import small
from tests.trainers.small import PROBLEMS

MODEL = Model(
    base=FreshModel(hidden_size=64, intermediate_size=96, layers=4, heads=2, kv_heads=1, max_positions=128),
    precision="float32",
)
HALF = MODEL.model_copy(update={"precision": "bfloat16"})
ADAM = AdamW(lr=1e-2, warmup_steps=0, eps=1e-3)
CRITIC = Critic(optimizer=ADAM.model_copy(update={"lr": 1e-3}))
RL = Rl(steps=2, prompts_per_step=4, group_size=4, max_tokens=8, optimizer=ADAM, ema=None,
        dev={"every": 1, "samples": 1, "export": "best"}, kl={"coef": 0.1}, advantage=Gae(critic=CRITIC),
        importance=Truncated(), tokens_per_microbatch=64)  # fmt: skip
ZERO = Training(backend="deepspeed", deepspeed=DeepSpeed(stage=3))
OFFLOADED = Training(backend="deepspeed", deepspeed=DeepSpeed(stage=3, offload_optimizer=True, offload_parameters=True))
LARGEST = 96 * 64  # elements of a matrix of the MLP
# As small beside the largest weight as the real ones are beside those of a large model.
sharding.BUCKET = deepspeed_config.BUCKET = LARGEST
deepspeed_config.LIVE = 0
export.FILE_BYTES = 100_000


_CONFIG = deepspeed_config.deepspeed_config


def _all_sharded(*arguments: Any, **named: Any) -> dict[str, Any]:
    """By default weights of less than 100,000 elements, as all of these have, stay whole."""
    config = _CONFIG(*arguments, **named)
    config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    return config


deepspeed_learner.deepspeed_config = learner_sharding.deepspeed_config = _all_sharded


class Whole:
    """The maximum number of elements that this rank's parameters hold at a time, by what is done."""

    def __init__(self) -> None:
        self.most: dict[str, int] = {}
        self.phase = ""
        self.parameters: dict[int, Any] = {}
        make, enter, linear = nn.Parameter.__new__, deepspeed.zero.GatheredParameters.__enter__, nn.Linear.forward

        def made(kind: Any, *arguments: Any, **named: Any) -> Any:
            weight = make(kind, *arguments, **named)
            self.parameters[id(weight)] = weakref.ref(weight)
            self.note()
            return weight

        def entered(context: Any) -> Any:
            enter(context)
            self.note()

        def computed(layer: Any, input: Any) -> Any:
            self.note()
            return linear(layer, input)

        nn.Parameter.__new__ = made  # type: ignore[method-assign]
        deepspeed.zero.GatheredParameters.__enter__ = entered
        nn.Linear.forward = computed  # type: ignore[method-assign]

    def note(self) -> None:
        if not self.phase:
            return
        weights = [weight for weight in (reference() for reference in self.parameters.values()) if weight is not None]
        count = sum(weight.numel() for weight in weights if weight.device.type != "meta")
        self.most[self.phase] = max(self.most.get(self.phase, 0), count)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        self.phase = phase
        try:
            yield
        finally:
            self.phase = ""


def weights(network: Any) -> dict[str, torch.Tensor]:
    with with_whole_weights(network.parameters()):
        tensors = [*network.state_dict().items(), *network.named_buffers()]
        return {name: value.clone() for name, value in tensors}


def train(network: Any, folder: Path, where: Path, name: str, params: Rl, training: Training) -> Any:
    """Rows of the run; writes the model to where/name."""
    ranks, tokenizer, state = Ranks(torch.device("cpu"), training), load_tokenizer(folder), where / f"{name} state"
    engine = training_engine(network, folder, tokenizer, MODEL, Rollout(), params.asynchronous is not None)
    run = TrainingRun(ranks, state, 0, lambda after: JsonlSink(state / "metrics.jsonl", resume_after=after))
    train_rl(network, Sampler(engine, tokenizer, Prompt()), PROBLEMS, PROBLEMS[:2], Letters(), params, run, Helpers())
    export_model(network, tokenizer, where / name, "# Test\n")
    return without_timings(state / "metrics.jsonl") if ranks.rank == 0 else []


def count(folder: Path, where: Path, ranks: Ranks) -> dict[str, int]:
    """Whole elements in each phase from loading to the export, and while a model is loaded whole."""
    whole = Whole()
    with whole.during("loaded whole"):
        model = load_model(folder, MODEL, "cpu", plain=True)
    del model
    with whole.during("load"):
        policy = load_to_train(load_model, folder, MODEL, ranks)
    with whole.during("copies"), sharded_like(policy, ranks):
        reference, critic = sharded_copy(policy).requires_grad_(False), make_scorer(policy)
    frozen = FrozenModel(reference, ranks)
    learner, valuer = (make_learner(network, ADAM, 2, ranks, name="rl") for network in (policy, critic))
    with (
        whole.during("scoring"),
        torch.no_grad(),
        frozen.while_scoring(),
        learner.while_scoring(),
        valuer.while_scoring(),
    ):
        logprobs = [response_logprobs(network, PROBE)[0] for network in (policy, reference)]
        token_scores(critic, PROBE)
    assert torch.equal(*logprobs)
    with whole.during("sync"):
        for _ in learner.weights():
            pass
    learner.keep_best()
    for weight in policy.parameters():
        own_part(weight).add_(1)
    learner.finish()
    with whole.during("export"):
        export_model(policy, load_tokenizer(folder), where / "exported", "# Test\n")
    return whole.most


def main(out: Path) -> None:
    torch.set_num_threads(1)
    folder, ranks = out / "start", Ranks(torch.device("cpu"), ZERO)
    if ranks.rank == 0:
        make_base(MODEL, folder, seed=0)
    ranks.gather(None)
    results: dict[str, Any] = {}
    for model in (MODEL, HALF):
        whole = load_model(folder, model, "cpu", plain=True)
        parts = load_to_train(load_model, folder, model, ranks)
        results[f"loaded {model.precision}"] = [weights(whole), weights(parts)]
        with while_scoring(parts, ranks), torch.no_grad():
            results[f"scored {model.precision}"] = [response_logprobs(network, PROBE)[0] for network in (whole, parts)]

    def run(name: str, params: Rl, training: Training = ZERO, *, whole: bool = False) -> None:
        setup = Ranks(torch.device("cpu"), training)
        if whole:
            network: Any = load_model(folder, MODEL, "cpu", plain=True)
        else:
            network = load_to_train(load_model, folder, MODEL, setup)
        results[name] = train(network, folder, out, name, params, training)

    adapted = small.changed(RL, advantage="grpo", lora={"r": 4, "keep_adapter": True})
    run("whole", RL, whole=True)
    run("sharded", RL)
    run("offloaded", RL, OFFLOADED)
    run("whole, adapters", adapted, whole=True)
    run("sharded, adapters", adapted)
    run("asynchronous", RL.model_copy(update={"asynchronous": Asynchronous()}))
    often = ZERO.model_copy(update={"checkpoint_minutes": 1e-9})
    cut_and_resumed(partial(run, "resumed", RL, often), 1)
    half = load_to_train(load_model, folder, HALF, ranks)
    add_lora(half, Lora(r=4), seed=0)
    make_learner(half, ADAM, 2, ranks, name="rl").finish()  # adapters have the type that DeepSpeed asks for
    policy = load_to_train(load_model, folder, MODEL, ranks)
    with sharded_like(policy, ranks):
        scorer = make_scorer(policy)
    export_model(scorer, load_tokenizer(folder), out / "scorer", "# Test\n")
    results["count"] = count(folder, out, ranks)
    torch.save(results, out / f"{ranks.rank}.pt")
