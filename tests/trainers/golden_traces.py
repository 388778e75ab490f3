"""Every logged metric of three steps of each method, and what the updates did to the weights.

`python -m tests.trainers.golden_traces --write` writes golden_traces.json, after a change that is meant to change a
figure; test_golden_traces.py compares with it. A case is a row of docs/reference/methods.md, or settings that meet in
no row.
"""

import copy
import json
import math
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mathrl.compose import load_params
from mathrl.core.metrics import without_timings
from mathrl.core.types import Control, Problem
from mathrl.params.curriculum import AdaptiveSamples, AsGiven, EasyToHard, PassRate, PoolCurriculum, Pools
from mathrl.params.loss import Masked, Truncated
from mathrl.params.optimizer import AdamW, Muon
from mathrl.params.paths import merge
from mathrl.params.rollout import Rollout
from mathrl.params.run import Prompt
from mathrl.params.train import Asynchronous, Rl
from mathrl.rewards.compose import build_reward
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import CopyEngine, TorchEngine
from mathrl.trainers.open_rl import Helpers
from mathrl.trainers.rl import train_rl
from tests.rollout.calculator import Calculator, Equations
from tests.trainers.small import (
    PROBLEMS,
    TOKENIZER,
    NonFiniteAtTheSecondStep,
    OnesAndShort,
    attention_dropout,
    changed,
    fast,
    gpt2,
    policy,
    steps_of_two,
    training_run,
)  # fmt: skip

Trace = dict[str, list[float | None]]
ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("golden_traces.json")
TABLE = (ROOT / "docs" / "reference" / "methods.md").read_text(encoding="utf-8")
ROWS = {
    cells[1].strip(): re.findall(r"`(rl\.[^`]+)`", cells[2])
    for line in TABLE.splitlines()
    if "`rl." in line and len(cells := line.split("|")) == 5
}
# Long enough that no prompt of it fits.
LONG = Problem(id="long", question="1+" * 300, answers=("1",), source="other", split="rl", level=9)
MIXED = [problem.with_(source=("even", "odd")[n % 2]) for n, problem in enumerate(PROBLEMS)]
RATED = [problem.with_(pass_rate=n / 8) for n, problem in enumerate(PROBLEMS)]
# Short enough for eight tokens, as the solution with its tags is not.
SHOWN = [problem.with_(control=Control(response=f"1+{problem.answers[0]}")) for problem in PROBLEMS]
MANY = [Problem(id=f"m{n}", question=f"{n}-1=", answers=("0",), source="chain", split="rl") for n in range(24)]


def method(name: str, lr: float = 2e-3, **changes: Any) -> Rl:
    """A row of docs/reference/methods.md over params/, made small, with learning rates for two steps and `changes`."""
    sizes = ["rl.prompts_per_step=4", "rl.group_size=4", "rl.max_tokens=8"]
    ones = [setting for setting in ROWS[name] if setting == "rl.group_size=1"]
    if ones:
        sizes[0] = "rl.prompts_per_step=16"
    read = load_params(ROOT / "params", overrides=[*ROWS[name], *sizes, *ones]).rl
    steps = {"steps": 2, "optimizer": fast(lr), "dev": {"every": 0}, "ema": None}
    return changed(read, **merge(steps, changes))


def verifier() -> Any:
    """The real grader, which finds nothing right, and a penalty for length, in which responses differ."""
    return build_reward({"parts": [{"type": "overlong", "options": {"max_length": 8, "buffer": 8}}]}, processes=1)


def majority() -> Any:
    """The vote of the group, whose answers are the last numbers of the responses."""
    return build_reward({"parts": [{"type": "majority"}]}, processes=1)


@dataclass(frozen=True)
class Case:
    """`segments` are those that an asynchronous run's sampler has made before each update; `tool`: it may be called."""

    params: Rl
    model: Callable[[], Any] = lambda: policy()[0]
    reward: Callable[[], Any] = OnesAndShort
    problems: Sequence[Problem] = tuple(PROBLEMS)
    helpers: dict[str, Callable[[], Any]] = field(default_factory=dict)
    segments: tuple[int, ...] = ()
    tool: bool = False


COMMON: dict[str, Any] = {
    "steps": 3, "prompts_per_step": 4, "group_size": 4, "max_tokens": 8, "ema": 0.8, "tokens_per_microbatch": 48,
    "optimizer": {
        "type": "adamw", "lr": 5e-3, "beta2": 0.95, "weight_decay": 0.0, "warmup_steps": 2, "schedule": "linear",
        "clip_norm": 0.2,
    },
    "dev": {"every": 1, "samples": 2},
}  # fmt: skip
METHOD = {name: COMMON[name] for name in ("steps", "optimizer", "tokens_per_microbatch")}
HELPERS: dict[str, dict[str, Callable[[], Any]]] = {
    "GRPO, process supervision": {"judge": lambda: steps_of_two},
    "on-policy distillation": {"teacher": lambda: policy(seed=8)[0]},
    "GKD on top-k logits": {"teacher": lambda: policy(seed=8)[0]},
}

# Rewards and problems of rows that need others.
ROW_DATA: dict[str, dict[str, Any]] = {
    "OPSD": {"problems": SHOWN},
    "LUFFY": {"problems": SHOWN},
    "CHORD": {"problems": SHOWN},
    "CHORD-phi": {"problems": SHOWN},
    "TTRL": {"reward": majority, "problems": tuple(problem.with_(answers=()) for problem in PROBLEMS)},
}


def combined(**changes: Any) -> Rl:
    return Rl(**merge(COMMON, changes))


def ppo(whiten: bool = False, lr: float = 3e-3, policy_lam: Any = 0.9, **critic: Any) -> dict[str, Any]:
    """PPO with groups of two, and a critic with these settings; `policy_lam` is the policy's lambda."""
    gae = {"type": "gae", "lam": policy_lam, "gamma": 0.98, "whiten": whiten, "critic": FAST_CRITIC | critic}
    return {"advantage": gae, "group_size": 2, "optimizer": {"lr": lr}}


def line(start: float, end: float, steps: int = 2, after: int = 0) -> dict[str, float]:
    return {"start": start, "end": end, "steps": steps, "after": after}


FAST_CRITIC: dict[str, Any] = {"optimizer": {"lr": 1e-2}}
WITH_CRITIC = ("PPO", "VC-PPO", "VAPO")
FIXED, OFF = Asynchronous(pace="fixed"), {"optimizer": {"lr": 1e-2}, "minibatches": 2}
KL_IN_REWARD = {"kl": {"type": "reward", "coef": 0.2}}
CASES: dict[str, Case] = {
    name: Case(
        method(name, **METHOD | ({"advantage": {"critic": FAST_CRITIC}} if name in WITH_CRITIC else {})),
        helpers=HELPERS.get(name, {}),
        **ROW_DATA.get(name, {}),
    )
    for name in ROWS
} | {
    "everything that a loss can have": Case(
        combined(
            kl={"coef": 0.05, "controller": {"target": 1e-4, "horizon": 20}, "estimator": "k3+"},
            loss={"entropy_coef": 0.01, "log_ratio_penalty": 0.1, "dual": 1.01, "low": 0.01, "high": 0.02,
                  "aggregation": "sequence_sum"},
            epochs=2, minibatches=2, truncated="mask", temperature=0.8,
        ),
        problems=MIXED,
    ),
    "KL to a given reference": Case(
        combined(kl={"coef": 0.1, "estimator": "k2"}, advantage={"ddof": 0, "eps": 0.01}),
        helpers={"reference": lambda: policy(seed=8)[0]},
    ),
    "KL measured on some groups": Case(combined(kl={"type": "probe", "groups": 3}, advantage={"whiten": True})),
    "dynamic sampling by pass rate": Case(
        combined(
            dynamic_sampling={"rounds": 3, "prompts_per_round": 5}, curriculum=PassRate(memory=0.3), truncated="mask"
        ),
        problems=MANY,
    ),
    "the critic warms up": Case(combined(**ppo(warmup_steps=1, clip=0.01), **KL_IN_REWARD, epochs=2, minibatches=2)),
    "a lambda by length, the critic's own": Case(
        combined(**ppo(whiten=True, policy_lam={"alpha": 0.4}, lam=0.95), minibatches=2)
    ),
    "truncated responses do not teach the critic": Case(combined(**ppo(), truncated="mask")),
    "a critic with adapters": Case(combined(**ppo(whiten=True, lora={"r": 2}))),
    "adapters": Case(combined(lora={"r": 2}, kl={"coef": 0.1}, ema=None, dev={"export": "best"})),
    "a greedy baseline, judged": Case(
        combined(advantage={"type": "remax", "gamma": 0.9}, loss="reinforce", **KL_IN_REWARD),
        helpers={"judge": lambda: partial(map_rewards, lambda reward: 2 * reward)},
    ),
    "leave-one-out, KL in the reward": Case(combined(advantage="rloo", epochs=2, **KL_IN_REWARD)),
    "parts with a ramp": Case(
        combined(advantage={"type": "gdpo", "weights": {"ones": 2.0, "short": line(1.0, 0.0)}})
    ),
    "the mean of the steps' returns": Case(
        combined(advantage={"type": "process", "step_returns": "mean"}), helpers={"judge": lambda: steps_of_two}
    ),
    "the best weights": Case(combined(dev={"export": "best"})),
    "a skipped update": Case(combined(), reward=NonFiniteAtTheSecondStep),
    "updates whose ratio is too large": Case(combined(loss={"drop_ratio": 1.0005}, epochs=3, optimizer={"lr": 2e-2})),
    "Muon, cosine, weight decay": Case(
        combined(
            optimizer=Muon(
                lr=5e-3, adamw_scale=0.05, schedule="cosine", warmup_steps=0, weight_decay=0.3, clip_norm=None
            )
        )
    ),
    "flat then linear, recomputed activations": Case(
        combined(
            optimizer=AdamW(lr=5e-3, schedule="flat_linear", warmup_steps=0, beta1=0.8, beta2=0.9, eps=1e-6),
            gradient_checkpointing=True,
        )
    ),
    "pools with adaptive samples": Case(
        combined(
            group_size=6,
            curriculum=PoolCurriculum(pools=Pools(), adaptive=AdaptiveSamples(least=2, most=8)),
        ),
        problems=[*RATED, LONG],
    ),
    "as given": Case(
        combined(curriculum=AsGiven(), advantage={"type": "pkpo", "k": 2}), problems=[LONG, *MIXED]
    ),
    "easy to hard": Case(
        combined(curriculum=EasyToHard(), loss={"skip_zero_variance": False}), problems=RATED
    ),
    "dropout in GPT-2": Case(combined(), model=gpt2),
    "dropout in attention, packed": Case(combined(), model=partial(attention_dropout, packed=True)),
    "dropout in attention, padded": Case(combined(), model=partial(attention_dropout, packed=False)),
    "weights for older samples": Case(
        combined(**OFF, asynchronous=FIXED, importance=Truncated(high=1.02), truncated="mask", epochs=2)
    ),
    "masked by responses": Case(
        combined(
            **OFF, **KL_IN_REWARD, asynchronous=FIXED.model_copy(update={"staleness": 2}),
            loss={"type": "gspo", "low": 0.01, "high": 0.02},
            importance=Masked(level="sequence", low=0.95, high=1.05),
        )
    ),
    "tokens of high entropy, an entropy controller": Case(
        combined(
            minibatches=2, importance=Truncated(high=2.0),
            loss={"top_entropy": 0.4, "entropy_coef": 0.01, "entropy_controller": {"target": 3.351}},
        )
    ),
    "settings that move": Case(
        combined(
            minibatches=2, kl={"coef": 0.1},
            schedules={
                "temperature": line(1.0, 0.7), "max_tokens": [line(4, 6, steps=1), line(6, 8, steps=1, after=1)],
                "high": line(0.01, 0.02), "kl_coef": line(0.2, 0.0, steps=4), "entropy_coef": line(0.0, 0.1),
            },
        )
    ),
    "responses that filters catch": Case(
        combined(
            filters=[{"type": "sure_run", "window": 2, "probability": 0.036}, {"type": "repetition", "enforce": False}],
            advantage="dr_grpo",
        )
    ),
    "a reference that is reset": Case(combined(kl={"coef": 0.2, "reset_every": 2})),
    "far responses, the unbiased KL": Case(
        combined(
            **OFF, asynchronous=FIXED, importance=Truncated(high=2.0), kl={"coef": 0.1, "estimator": "unbiased"},
            loss={"off_policy_limit": 1e-4},
        )
    ),
    "older samples against a critic": Case(
        combined(**ppo() | OFF, asynchronous=FIXED, importance=Masked(low=0.97, high=1.03), truncated="mask")
    ),
    "samples that go on over updates": Case(
        combined(
            **OFF, asynchronous=Asynchronous(staleness=1, segment_tokens=3), dev={"export": "best"},
            curriculum=PassRate(),
        ),
        segments=(3, 6, 9),
    ),
    "graded by the verifier": Case(combined(), reward=verifier),
    "calls of a tool": Case(combined(max_tokens=24, truncated="mask", kl={"coef": 0.05}), tool=True),
    "a divergence from the policy that saw the solution": Case(
        combined(
            advantage=method("OPSD").advantage.model_dump(), temperature=0.8, minibatches=2, truncated="mask",
            loss={"type": "jsd", "beta": 0.3, "top_k": 5, "rest": "renormalise", "entropy_coef": 0.01},
        ),
        problems=SHOWN,
    ),
    "taking turns": Case(combined(asynchronous=Asynchronous(staleness=0), advantage="dr_grpo")),
}  # fmt: skip


def map_rewards(change: Callable[[float], float], groups: list[Any]) -> list[Any]:
    """A judge that changes each reward."""
    return [replace(group, rewards=tuple(map(change, group.rewards))) for group in groups]


def trace(name: str) -> Trace:
    """What the case logged, by metric: a value per step, None where the step has none.

    Figures of the whole run have one value: the result's, and, of the change of the exported weights (of adapters, the
    weights themselves), the norm and sums with two fixed waves, so that every weight at every place counts.
    """
    case = CASES[name]
    model = case.model()
    start = torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])
    with tempfile.TemporaryDirectory() as folder:
        params, state = case.params, Path(folder)
        rollout = Rollout(max_sequences=8)  # several batches per step
        engine = TorchEngine(model, TOKENIZER, rollout)
        if params.asynchronous is not None:
            engine = CopyEngine(copy.deepcopy(model), TOKENIZER, rollout, 1e-4)
        if case.segments:
            params = params.model_copy(update={"asynchronous": replayed(params, case.segments, state)})
        helpers = Helpers(**{name: make() for name, make in case.helpers.items()})
        sampler = Sampler(engine, TOKENIZER, Prompt(max_tokens=64), tool=Calculator() if case.tool else None)
        if sampler.turns is not None:
            sampler.turns.format = Equations()
        run, reward = training_run(state), case.reward()
        result = train_rl(model, sampler, case.problems, PROBLEMS[:3], reward, params, run, helpers)
        rows = without_timings(state / "metrics.jsonl")
    assert [row.pop("step") for row in rows] == list(range(1, params.steps + 1))
    values = {name: [row.get(name) for row in rows] for name in sorted({name for row in rows for name in row})}
    tensors = [(".lora_" in name, weight.detach().flatten().double()) for name, weight in model.named_parameters()]
    moved = torch.cat([weight for adapter, weight in tensors if not adapter]) - start
    moved = torch.cat([moved, *(weight for adapter, weight in tensors if adapter)])
    places = torch.arange(len(moved), dtype=torch.float64)
    return values | {
        "result/sampled_tokens": [result.sampled_tokens],
        "result/trained_tokens": [result.trained_tokens],
        "result/dev_accuracy": [result.dev_accuracy],
        "result/exported_step": [result.exported_step],
        "result/weights_norm": [float(moved.norm())],
        "result/weights_sines": [float(moved @ places.sin())],
        "result/weights_cosines": [float(moved @ (places * 0.01).cos())],
    }


def differences(name: str, found: Trace, expected: Trace) -> list[str]:
    """The metrics that differ by more than another processor's order of sums explains.

    Measured: the instruction sets AVX512, AVX2, SSE4.2 and PyTorch's without vectors differ in these traces by at most
    a third of these tolerances. Muon orthogonalises in bfloat16, whose steps are 2^-8: its weights differ more. KL-Cov
    penalises the few tokens of the largest covariance, of which rounding may choose another one.
    """
    if changed := found.keys() ^ expected.keys():
        return [f"{metric}: in one of the two alone" for metric in sorted(changed)]
    (norm,) = expected["result/weights_norm"]
    assert norm is not None
    chosen = CASES[name].params.loss.type == "kl_cov"
    of_weights = norm * (2e-2 if chosen or CASES[name].params.optimizer.type == "muon" else 1e-3)
    of_metrics = 6e-2 if chosen else 3e-4
    lines = []
    for metric, values in expected.items():
        for step, (value, other) in enumerate(zip(values, found[metric], strict=True), start=1):
            if value is None or other is None or math.isnan(value) or math.isnan(other):
                same = str(value) == str(other)
            else:
                tolerance = of_weights if metric.startswith("result/weights") else 3e-6 + of_metrics * abs(value)
                same = abs(value - other) <= tolerance
            if not same:
                lines.append(f"{metric}, value {step}: {other} instead of {value}")
    return lines


def replayed(params: Rl, segments: Sequence[int], folder: Path) -> Asynchronous:
    """The section with a log to repeat that has nothing but the number of segments before each update."""
    assert params.asynchronous is not None
    settings = {
        "run.seed": 0,
        "run.processes": 1,
        "rl.prompts_per_step": params.prompts_per_step,
        "rl.group_size": params.group_size,
        "rl.max_tokens": params.max_tokens,
        "rl.asynchronous.staleness": params.asynchronous.staleness,
        "rl.asynchronous.segment_tokens": params.asynchronous.segment_tokens,
    }
    steps = [{"step": step, "ranks": [{"segments": count}]} for step, count in enumerate(segments, start=1)]
    file = folder / "recorded.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [{"step": 0, "settings": settings}, *steps]))
    return params.asynchronous.model_copy(update={"replay": str(file)})


def as_text(traces: dict[str, Trace]) -> str:
    """A line per metric, with seven digits."""

    def number(value: float | None) -> str:
        return "null" if value is None else "NaN" if math.isnan(value) else f"{value:.7g}"

    cases = []
    for name, values in traces.items():
        lines = [f"  {json.dumps(metric)}: [{', '.join(map(number, row))}]" for metric, row in values.items()]
        cases.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(cases) + "\n}\n"


def read() -> dict[str, Trace]:
    traces: dict[str, Trace] = json.loads(FILE.read_text(encoding="utf-8"))
    return traces


if __name__ == "__main__":
    text = as_text({name: trace(name) for name in CASES})
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
