"""Run by test_fsdp.py: the trainers under FSDP beside plain torch, over 2 and 4 ranks, and resumed over 1 and 3.

python fsdp_runs.py OUT; rank 0 of each world writes OUT/WORLD.pt. The worlds are forked one after the other.
"""

import contextlib
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from mathrl.core.metrics import JsonlSink, without_timings
from mathrl.learners.checkpoint import Checkpoint
from mathrl.learners.distributed import Ranks
from mathrl.learners.fsdp_learner import FsdpLearner
from mathrl.learners.learner import make_learner
from mathrl.learners.sharding import FrozenModel, load_to_train, while_scoring
from mathrl.learners.torch_learner import TorchLearner
from mathrl.models import export
from mathrl.models.export import export_model
from mathrl.models.fsdp import fsdp_root
from mathrl.models.load import load_model, load_tokenizer, make_base
from mathrl.models.logprobs import response_logprobs
from mathrl.models.packing import Group
from mathrl.models.scores import make_scorer, token_scores
from mathrl.models.sharding import own_part, sharded_copy, whole
from mathrl.params.advantage import Critic, Gae
from mathrl.params.loss import Truncated
from mathrl.params.optimizer import AdamW, Lora, Muon
from mathrl.params.rollout import Rollout
from mathrl.params.run import FreshModel, Model, Prompt
from mathrl.params.train import Asynchronous, Rl, Sft
from mathrl.params.training import Training
from mathrl.rollout.open_engine import training_engine
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.open_rl import Helpers
from mathrl.trainers.reference import MovingReference
from mathrl.trainers.rl import train_rl
from mathrl.trainers.sft import train_sft
from mathrl.trainers.training_run import TrainingRun
from tests.forked_ranks import in_ranks
from tests.trainers import small

# With an eps of 1e-3, AdamW's first steps do not turn a rounding error of 1e-8 into a full step.
ADAM = AdamW(lr=1e-2, warmup_steps=3, eps=1e-3)
SLOW = ADAM.model_copy(update={"lr": 5e-3})
MUON = Muon(lr=5e-3, warmup_steps=3, eps=1e-3, adamw_scale=0.5, weight_decay=0.1)
SFT = Sft(steps=6, tokens_per_step=120, tokens_per_microbatch=32, optimizer=ADAM, eval_every=3,
          checkpoint_every=2)  # fmt: skip
SHORT = SFT.model_copy(update={"steps": 5, "eval_every": 0})
RL = Rl(steps=2, prompts_per_step=4, group_size=4, max_tokens=8, optimizer=SLOW, dev={"every": 1, "samples": 2},
        checkpoint_every=2, ema=None, tokens_per_microbatch=32)  # fmt: skip
CRITIC = Critic(optimizer=ADAM.model_copy(update={"lr": 1e-3}))
PPO = small.changed(RL, advantage=Gae(critic=CRITIC), kl={"coef": 0.1}, minibatches=2, ema=0.9, dev={"every": 0})
GROUPS = small.changed(
    RL, minibatches=2, epochs=2, loss={"drop_ratio": 1.00001}, dev={"export": "best"}, optimizer={"lr": 0.03},
    gradient_checkpointing=True,
)  # fmt: skip
KEPT = small.changed(
    RL, steps=3, dev={"export": "best"}, ema=0.9, optimizer=MUON, kl={"coef": 0.1, "reset_every": 2}
)  # every kind of tensor there is
MODEL = Model(
    base=FreshModel(hidden_size=64, intermediate_size=96, layers=4, heads=2, kv_heads=1, max_positions=128),
    precision="float32",
)
HALF = MODEL.model_copy(update={"precision": "bfloat16"})
PROBE = [Group((5, 60, 7), ((8, 9, 70, 11), (12, 80))), Group((100,), ((9, 3),))]  # tokens of both ranks' rows
STOPPED_AT = {"sft": 4, "kept": 2}


def demonstrations(count: int) -> list[Group]:
    """Prompts and responses of 1 to 9 tokens, so that the ranks' shares differ in size."""
    draw = torch.Generator().manual_seed(7)
    lengths = torch.randint(1, 10, (count, 2), generator=draw).tolist()
    rows = [[tuple(torch.randint(3, 20, (n,), generator=draw).tolist()) for n in pair] for pair in lengths]
    return [Group(prompt, (response,)) for prompt, response in rows]


def weights(model: Any) -> torch.Tensor:
    return torch.cat([whole(each.detach(), torch.float32).float().flatten() for each in model.parameters()])


def sft(training: Training, state: Path, params: Sft = SFT, dtype: torch.dtype = torch.float32) -> Any:
    model, groups = small.policy()[0].to(dtype), demonstrations(40)
    train_sft(model, groups[3:], groups[:3], params, small.training_run(state, training=training))
    return model


def rl(training: Training, state: Path, params: Rl) -> Any:
    model, sampler = small.policy()
    with torch.no_grad():  # answers that depend on the weights
        for weight in model.parameters():
            weight.mul_(1.5)
    run = small.training_run(state, training=training)
    train_rl(model, sampler, small.PROBLEMS, small.PROBLEMS[:3], small.CountsOnes(), params, run)
    return model


RUNS = {
    "sft": sft,
    "ppo": partial(rl, params=PPO),
    "groups": partial(rl, params=GROUPS),
    "kept": partial(rl, params=KEPT),
}


@contextlib.contextmanager
def with_a_bad_step() -> Iterator[None]:
    """One rank's loss of the fourth step is not a number."""
    kept = FsdpLearner.backward, TorchLearner.backward

    def bad(before: Any) -> Any:
        def backward(self: Any, loss: Any) -> None:
            before(self, loss * float("nan") if self.updates == 3 and self.ranks.rank == 1 else loss)

        return backward

    FsdpLearner.backward, TorchLearner.backward = map(bad, kept)  # type: ignore[method-assign]
    try:
        yield
    finally:
        FsdpLearner.backward, TorchLearner.backward = kept  # type: ignore[method-assign]


class Noted:
    """What a learner holds before its update number `at`: bytes by kind, and every part of its checkpoint, whole.

    `copy`: where its state is copied to then; `stops`: nothing is done afterwards.
    """

    def __init__(self, at: int, state: Path, copy: Path | None = None, stops: bool = False) -> None:
        self.at, self.state, self.copy, self.stops = at, state, copy, stops
        self.bytes: dict[str, int] = {}
        self.held: dict[str, torch.Tensor] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        update = FsdpLearner.update

        def noting(learner: Any, loss: float) -> None:
            if learner.updates == self.at and learner.name in ("sft", "rl"):
                self.note(learner)
            update(learner, loss)

        FsdpLearner.update = noting  # type: ignore[method-assign]
        try:
            with contextlib.suppress(small.Killed):
                yield
        finally:
            FsdpLearner.update = update  # type: ignore[method-assign]

    def note(self, learner: Any) -> None:
        parts = list(learner._parts())
        pieces = [piece for rank in learner.ranks.gather(parts) for piece in rank]
        for name in sorted({name for name, _, _ in pieces}):
            found = {begin: values for each, begin, values in pieces if each == name and len(values)}
            self.held[name] = torch.cat([found[begin] for begin in sorted(found)])
        grads = [weight.grad.to_local() for weight in learner.model.parameters() if weight.grad is not None]
        self.bytes = {
            "weights": sum(own_part(weight).nbytes for weight in learner.model.parameters()),
            "gradients": sum(grad.nbytes for grad in grads),
            "states": sum(values.nbytes for name, _, values in parts if name.split("/")[0] in STATES),
        }
        if self.copy is not None and learner.ranks.rank == 0:
            shutil.copytree(self.state, self.copy)
        learner.ranks.gather(None)
        if self.stops:
            raise small.Killed


STATES = ("exp_avg", "exp_avg_sq", "momentum_buffer")


class Widest:
    """The maximum number of elements of a network that a rank holds whole, by what is done."""

    def __init__(self) -> None:
        self.most: dict[str, int] = {}

    @contextlib.contextmanager
    def during(self, phase: str, *networks: Any) -> Iterator[None]:
        forward = nn.Linear.forward

        def noting(layer: Any, input: Any) -> Any:
            parameters = [weight for network in networks for weight in network.parameters()]
            count = sum(weight.numel() for weight in parameters if not isinstance(weight, DTensor))
            self.most[phase] = max(self.most.get(phase, 0), count)
            return forward(layer, input)

        nn.Linear.forward = noting  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Linear.forward = forward  # type: ignore[method-assign]


def reset_and_restored(policy: Any, reference: Any, folder: Path) -> None:
    """Zeros in the reference become the policy's weights by a reset, and again by the shards of a checkpoint."""
    moving = MovingReference(*(dict(each.named_parameters()) for each in (policy, reference)), sharded=True)
    zeros_in(reference)
    moving.reset()
    moving.write(folder)
    zeros_in(reference)
    moving.load(Checkpoint(2, {}, {}, folder))


def zeros_in(network: Any) -> None:
    for weight in network.parameters():
        own_part(weight).zero_()


def loaded(folder: Path, out: Path, ranks: Ranks) -> dict[str, Any]:
    """Models that are divided as they are loaded, beside the same loaded whole."""
    results: dict[str, Any] = {}
    for model in (MODEL, HALF):
        one = load_model(folder, model, "cpu", plain=True)
        policy = load_to_train(load_model, folder, model, ranks)
        reference, critic = sharded_copy(policy).requires_grad_(False), make_scorer(policy)
        reset_and_restored(policy, reference, out.with_suffix(".parts"))
        rows = [sum(own_part(each).numel() for each in network.parameters()) for network in (one, policy)]
        with (
            while_scoring(policy, ranks),
            while_scoring(critic, ranks),
            FrozenModel(reference, ranks).while_scoring(),
            torch.no_grad(),
        ):
            results[model.precision] = {
                "logprobs": [response_logprobs(network, PROBE)[0] for network in (one, policy, reference)],
                "scores": token_scores(critic, PROBE),
                "weights": [weights(one), weights(policy), weights(reference)],
                "buffers": all(
                    torch.equal(buffer, dict(policy.named_buffers())[name]) for name, buffer in one.named_buffers()
                ),
                "rows": rows,
                "tied": policy.lm_head.weight is policy.model.embed_tokens.weight,
            }
    widest = Widest()
    learner = make_learner(policy, ADAM, 2, ranks, name="rl")  # in bfloat16
    with widest.during("update", policy):
        for micro, _ in learner.micro_batches([7, 3], 16):
            loss, _ = learner.through_root(lambda micro: (response_logprobs(policy, PROBE)[0].mean(), {}))(micro)
            learner.backward(loss)
    results["types"] = sorted({str(weight.dtype) for weight in policy.parameters()})
    with widest.during("scoring", policy), torch.no_grad(), learner.while_scoring():
        response_logprobs(policy, PROBE)
    with widest.during("sampling", policy), torch.no_grad(), learner.whole():
        response_logprobs(policy, PROBE)
    learner.update(float(loss.detach()))
    sent = dict(learner.weights())
    learner.finish()
    export_model(policy, load_tokenizer(folder), out / "half", "# Test\n")
    results["sent"] = {name: weight.dtype == torch.bfloat16 for name, weight in sent.items()}
    results["widest"] = widest.most | {
        "layer": sum(each.numel() for each in fsdp_root(policy).network.model.layers[0].parameters())
    }
    return results


def make_untied(source: Path, folder: Path) -> None:
    """A model with a head of its own, which FSDP gathers apart, as the embedding."""
    tied = load_model(source, MODEL, "cpu")
    tied.config.tie_word_embeddings = False
    torch.manual_seed(1)
    export_model(type(tied)(tied.config).eval(), load_tokenizer(source), folder, "# Test\n")


def adapted(folder: Path, out: Path, training: Training, name: str, **changes: Any) -> Any:
    """Rows of RL from the model of the folder, which FSDP divides as it is loaded; exports it to out/name."""
    params = small.changed(RL, importance=Truncated(), steps=2, **changes)
    ranks, tokenizer, state = Ranks(torch.device("cpu"), training), load_tokenizer(folder), out / f"{name} state"
    network = load_to_train(load_model, folder, MODEL, ranks)
    engine = training_engine(network, folder, tokenizer, MODEL, Rollout(), params.asynchronous is not None)
    run = TrainingRun(ranks, state, 0, lambda after: JsonlSink(state / "metrics.jsonl", resume_after=after))
    sampler = Sampler(engine, tokenizer, Prompt())
    train_rl(network, sampler, small.PROBLEMS, small.PROBLEMS[:2], small.CountsOnes(), params, run, Helpers())
    export_model(network, tokenizer, out / name, "# Test\n")
    return without_timings(state / "metrics.jsonl") if ranks.rank == 0 else []


def write(out: Path, results: dict[str, Any], ranks: Ranks) -> None:
    if ranks.rank == 0:
        torch.save(results, out / f"{ranks.world}.pt")


def trained(out: Path, name: str, backend: Any, results: dict[str, Any], run: Any = None) -> None:
    state = out / f"{name} {backend}"
    model = (run or RUNS[name])(Training(backend=backend), state)
    rows = without_timings(state / "metrics.jsonl") if (state / "metrics.jsonl").exists() else []
    results[f"{name}, {backend}"] = (weights(model), rows)


def of_two(out: Path) -> None:
    training, results = Training(backend="fsdp"), dict[str, Any]()
    ranks = Ranks(torch.device("cpu"), training)
    for name in RUNS:
        trained(out, name, "torch", results)
    for name in ("ppo", "groups"):
        trained(out, name, "fsdp", results)
    for name, at in STOPPED_AT.items():
        noted = Noted(at, out / f"{name} fsdp", out / f"{name} stopped")
        with noted.watching():
            trained(out, name, "fsdp", results)
        results[f"{name}, held"], results[f"{name}, bytes"] = noted.held, noted.bytes
    with with_a_bad_step():
        for backend in ("torch", "fsdp"):
            trained(out, f"bad {backend}", backend, results, partial(sft, params=SHORT))
    trained(out, "half", "fsdp", results, partial(sft, dtype=torch.bfloat16))
    resumed_at_once(out, results)
    folder = out / "start"
    if ranks.rank == 0:
        make_base(MODEL, folder, seed=0)
        make_untied(folder, out / "untied start")
    ranks.gather(None)
    export.FILE_BYTES = 100_000
    results["loaded"] = loaded(folder, out, ranks)
    lora = Lora(r=4, keep_adapter=True)
    for backend in ("torch", "fsdp"):
        results[f"adapted, {backend}"] = adapted(
            folder, out, Training(backend=backend), f"adapted {backend}", lora=lora, kl={"coef": 0.1}
        )
        untied = adapted(out / "untied start", out, Training(backend=backend), f"untied {backend}", kl={"coef": 0.1})
        results[f"untied, {backend}"] = untied
    results["ahead"] = adapted(folder, out, training, "ahead", asynchronous=Asynchronous(pace="fixed"))
    write(out, results, ranks)


def resumed_at_once(out: Path, results: dict[str, Any]) -> None:
    """A run that is stopped before an update and resumed at the same ranks, from a checkpoint of every step."""
    often = Training(backend="fsdp", checkpoint_minutes=1e-9)
    state = out / "resumed"
    with Noted(4, state, stops=True).watching():
        sft(often, state)
    results["resumed, fsdp"] = (weights(sft(often, state)), without_timings(state / "metrics.jsonl"))


def of_four(out: Path) -> None:
    results: dict[str, Any] = {}
    trained(out / "4", "sft", "fsdp", results)
    write(out, results, Ranks(torch.device("cpu")))


def resumed(out: Path) -> None:
    results, ranks = dict[str, Any](), Ranks(torch.device("cpu"), Training(backend="fsdp"))
    for name, at in STOPPED_AT.items():
        state = out / f"{name} of {ranks.world} fsdp"
        if ranks.rank == 0:
            shutil.copytree(out / f"{name} stopped", state)
        ranks.gather(None)
        noted = Noted(at, state, stops=name == "kept")  # it would draw other responses
        with noted.watching():
            trained(out, f"{name} of {ranks.world}", "fsdp", results, RUNS[name])
        results[f"{name}, held"] = noted.held
    write(out, results, ranks)


def main(out: Path) -> None:
    torch.set_num_threads(1)
    in_ranks(2, partial(of_two, out))
    in_ranks(4, partial(of_four, out))
    for world in (1, 3):
        in_ranks(world, partial(resumed, out))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
