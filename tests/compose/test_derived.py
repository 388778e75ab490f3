"""Derived settings: published rates, lengths from the data, and a plan that fits, whatever somebody has written."""

import random
import re
import socket
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mathrl.compose import load_params
from mathrl.compose.checks import validate
from mathrl.compose.derived import DataTokens, changes, derive
from mathrl.compose.fitting import SHARES, fit_settings, planned_stages
from mathrl.compose.settings import (
    BACKEND,
    CRITIC,
    PROCESSES,
    PROMPT,
    RESPONSES,
    SEQUENCES,
    SHARE,
    TRAINED,
    Derived,
    value_at,
    with_values,
    written_keys,
)
from mathrl.core.errors import UserError
from mathrl.core.gpus import Hardware
from mathrl.models.shapes import KNOWN, known_model, known_shape
from mathrl.params.run import PretrainedModel
from mathrl.params.schema import SECTIONS, Params
from mathrl.planning.final_values import RATES, judge
from mathrl.planning.memory import plan_memory

PARAMS = Path(__file__).parents[2] / "params"
GB = 10**9
GSM8K = DataTokens(rows=7473, prompts_p95=158, longest_prompt=263, solutions_p95=228)
PRETRAINED = (
    "model.base={type: pretrained, path: Qwen/Qwen2.5-0.5B-Instruct}",
    *(f"{section}.optimizer.type=adamw" for section in ("sft", "rl", "dpo", "reward_model")),
    *(f"{section}.max_tokens=1024" for section in ("difficulty", "rl", "sample", "evaluate")),
    *("prompt.template=chat", "prompt.max_tokens=512", "sft.steps=0", "rl.ema=null"),
    *("rl.steps=100", "rl.prompts_per_step=128", "rl.group_size=8"),
)
PPO = ("rl.advantage=gae",)
MODELS = sorted(KNOWN)
CARDS = (8, 12, 16, 24, 40, 48, 80, 141)


@cache
def params(*overrides: str) -> Params:
    return load_params(PARAMS, overrides=[*PRETRAINED, *overrides])


def of(model: str, *overrides: str) -> Params:
    return with_values(params(*overrides), {"model.base": PretrainedModel(path=model)})


def derived(
    given: Params, hardware: Hardware | None = None, tokens: DataTokens | None = None, written: Collection[str] = ()
) -> dict[str, Derived]:
    assert isinstance(given.model.base, PretrainedModel)
    found = derive(given, written, hardware, known_model(given.model.base), tokens)
    assert len({each.key for each in found}) == len(found)
    return {each.key: each for each in found}


def gpus(count: int, memory: float) -> Hardware:
    return Hardware("cuda", memory=int(memory * GB), count=count)


CRITIC_LORA, REWARD_LORA = (*PPO, "rl.advantage.critic.lora={}"), ("reward_model.lora={}",)
# Each as its document has it: the section, the model, further settings, and the rate.
PUBLISHED: list[tuple[str, str, tuple[str, ...], float, str]] = [
    ("sft", "Qwen/Qwen2.5-0.5B", (), 1e-5, "verl, SFT trainer: optim.lr 1e-5"),
    ("sft", "meta-llama/Llama-3.1-8B", (), 5e-6, "Tulu 3, arXiv:2411.15124: 8B"),
    ("sft", "meta-llama/Llama-3.1-70B", (), 2e-6, "Tulu 3, arXiv:2411.15124: 70B"),
    ("sft", "Qwen/Qwen2.5-0.5B-Instruct", ("sft.lora={}",), 1e-4, "verl, examples/sft/gsm8k/run_qwen_05_peft.sh"),
    ("rl", "Qwen/Qwen2.5-0.5B-Instruct", (), 1e-6, "verl, docs/start/quickstart.rst: actor.optim.lr"),
    ("rl", "deepseek-ai/deepseek-math-7b-instruct", (), 1e-6, "DeepSeekMath, arXiv:2402.03300, section 4.2"),
    ("rl", "Qwen/Qwen2.5-32B", (), 1e-6, "DAPO, arXiv:2503.14476, section 4.1"),
    ("rl", "Qwen/Qwen2.5-7B-Instruct", ("rl.lora={}",), 1e-5, "ten times 1e-6: LoRA Without Regret"),
    (CRITIC, "Qwen/Qwen2.5-0.5B-Instruct", PPO, 1e-5, "verl, docs/start/quickstart.rst: critic.optim.lr"),
    (CRITIC, "Qwen/Qwen2.5-32B", PPO, 1e-5, "as for smaller ones: verl's PPO examples"),
    (CRITIC, "Qwen/Qwen2.5-0.5B-Instruct", CRITIC_LORA, 1e-4, "ten times 1e-5: LoRA Without Regret"),
    ("dpo", "meta-llama/Llama-3.1-8B", (), 5e-7, "Tulu 3, arXiv:2411.15124: 8B"),
    ("dpo", "meta-llama/Llama-3.1-70B", (), 2e-7, "Tulu 3, arXiv:2411.15124: 70B"),
    ("dpo", "Qwen/Qwen2.5-0.5B-Instruct", ("dpo.lora={}",), 5e-6, "ten times 5e-7: LoRA Without Regret"),
    ("reward_model", "Qwen/Qwen2-0.5B-Instruct", (), 1e-5, "TRL, examples/scripts/reward_modeling.py"),
    ("reward_model", "Qwen/Qwen2.5-7B", (), 9e-6, "InstructGPT, arXiv:2203.02155, appendix C: 6B"),
    ("reward_model", "Qwen/Qwen2.5-32B", (), 5e-6, "half of a smaller one's, as for DPO"),
    ("reward_model", "Qwen/Qwen2-0.5B-Instruct", REWARD_LORA, 1e-4, "TRL, examples/scripts/reward_modeling.py"),
]


def far(row: tuple[str, str, tuple[str, ...], float, str]) -> bool:
    """Whether the derived rate is more than three times the published one, or less than a third of it."""
    path, model, more, rate, _ = row
    found = derived(of(model, *more))[TRAINED[path].lr]
    assert found.source and "billion parameters" in found.reason
    return not rate / 3 <= found.value <= rate * 3


def test_rates_are_those_of_published_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [row for row in PUBLISHED if far(row)]
    for path, rates in RATES.items():
        for kind in ("small", "large", "lora"):
            for wrong in (10, 0.1):
                planted = rates._replace(**{kind: getattr(rates, kind) * wrong})
                monkeypatch.setitem(RATES, path, planted)
                assert [row for row in PUBLISHED if far(row)], f"{path} {kind} times {wrong} goes unnoticed"
        monkeypatch.setitem(RATES, path, rates)


def test_a_rate_follows_the_optimizer_the_size_and_the_adapters() -> None:
    small, large = of("Qwen/Qwen2.5-7B"), of("Qwen/Qwen2.5-32B")
    rl, sft = TRAINED["rl"], TRAINED["sft"]
    assert derived(large)[sft.lr].value < derived(small)[sft.lr].value
    adapters = derived(of("Qwen/Qwen2.5-7B", "rl.lora={}"))[rl.lr]
    assert adapters.value == pytest.approx(10 * derived(small)[rl.lr].value) and "adapters" in adapters.reason
    muon = derived(of("Qwen/Qwen2.5-7B", "rl.optimizer.type=muon"))
    assert muon[rl.lr].value * muon[rl.scale].value == pytest.approx(derived(small)[rl.lr].value)
    assert "2502.16982" in muon[rl.lr].source
    assert derived(small)[rl.lr].reason == "7.62 billion parameters, AdamW, all weights"


def test_lengths_hold_what_the_data_need() -> None:
    found = derived(of("Qwen/Qwen2.5-0.5B-Instruct"), tokens=GSM8K)
    assert (found[PROMPT].value, found[RESPONSES["rl"]].value) == (288, 512)
    assert "263" in found[PROMPT].reason
    assert found[RESPONSES["rl"]].reason == (
        "95 % of the solutions have at most 228 tokens; half as much again is 342, and an instruct model gets 512 at "
        "least"
    )
    long = DataTokens(rows=100, prompts_p95=900, longest_prompt=1500, solutions_p95=3000)
    math = derived(of("Qwen/Qwen2.5-Math-7B"), tokens=long)
    assert math[PROMPT].value + math[RESPONSES["rl"]].value == 4096, "all positions of the model"
    assert "4,096 positions" in math[RESPONSES["rl"]].reason
    assert not {PROMPT, *RESPONSES.values()} & set(derived(of("Qwen/Qwen2.5-0.5B-Instruct"))), "nothing is known"


def test_a_length_that_is_written_is_that_of_all_responses() -> None:
    given = with_values(of("Qwen/Qwen2.5-0.5B-Instruct"), {RESPONSES["rl"]: 3000})
    found = derived(given, tokens=GSM8K, written=[RESPONSES["rl"], RESPONSES["sample"]])
    assert found[RESPONSES["evaluate"]].value == found[RESPONSES["difficulty"]].value == 3000
    assert not {RESPONSES["rl"], RESPONSES["sample"]} & set(found)
    thinking = derived(of("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"), tokens=GSM8K)
    assert thinking[RESPONSES["rl"]].value == 8192 and "thinks" in thinking[RESPONSES["rl"]].reason
    quiet = of("Qwen/Qwen3-1.7B", "prompt.chat_template_kwargs={enable_thinking: false}")
    assert derived(quiet, tokens=GSM8K)[RESPONSES["rl"]].value == 512


def settled(given: Params, found: dict[str, Derived]) -> Params:
    """The parameters with the derived values, as the schema takes them."""
    after = with_values(given, {key: each.value for key, each in found.items()})
    return validate(after.model_dump(mode="json", by_alias=True), dict.fromkeys(SECTIONS, "the test"))


def compositions(count: int, seed: int) -> list[tuple[Params, Hardware, DataTokens | None, set[str]]]:
    """Random experiments, each with some values that somebody has written."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        more = draw.choice([(), (), PPO])
        if draw.random() < 0.4:
            more += ("rl.lora={}", *(["rl.advantage.critic.lora={}"] if more else []))
        more += draw.choice([(), ("sft.steps=50",), ("rl.optimizer.type=muon",), ("rl.ema=0.9",)])
        values: dict[str, Any] = {
            RESPONSES["rl"]: draw.choice([256, 1024, 4096]),
            TRAINED["rl"].microbatch: draw.choice([1024, 8192]),
            SHARE: draw.choice(SHARES),
            SEQUENCES: draw.choice([64, 256]),
            BACKEND: draw.choice(["torch", "fsdp"]),
            TRAINED["rl"].checkpointing: draw.random() < 0.5,
            TRAINED["rl"].lr: 3e-7,
        }
        written = {key for key in values if draw.random() < 0.15}
        given = with_values(of(draw.choice(MODELS), *more), {key: values[key] for key in sorted(written)})
        tokens = DataTokens(1000, draw.randint(50, 900), draw.randint(900, 1500), draw.choice([None, 100, 900]))
        hardware = gpus(draw.choice([1, 1, 2, 8]), draw.choice(CARDS))
        made.append((given, hardware, draw.choice([None, tokens]), written))
    return made


def test_a_random_experiment_fits_and_is_judged_right_or_is_refused_with_what_would_fit() -> None:
    fitted = 0
    for given, hardware, tokens, written in compositions(80, 0):
        try:
            found = derived(given, hardware, tokens, written)
        except UserError as error:
            assert "would fit with" in str(error) or "take a smaller model" in str(error)
            continue
        fitted += 1
        assert not written & set(found), "what is written is left alone"
        after = settled(given, found)
        assert all(value_at(after, key) == value_at(given, key) for key in written)
        assert not judge(after, ("sft", "difficulty", "rl", "dpo", "reward_model", "sample", "evaluate"))[0]
        for stage in planned_stages(after):
            shape = known_model(after.model.base).shape  # type: ignore[arg-type, union-attr]
            plan = plan_memory(shape, after, stage, "cuda", gpu_memory=hardware.memory)  # type: ignore[arg-type]
            assert not plan.excess(0.95 * hardware.memory), (stage, found)
        assert after.run.processes <= hardware.count
        for each in found.values():
            assert each.source or each.reason.startswith("as ")
            assert re.search(r"\d", each.reason) or each.key.endswith("sleep") or each.reason.startswith("as "), each
        assert derived(given, hardware, tokens, written) == found
        assert changes(after, found.values()) == {}
    assert fitted >= 35


def test_more_memory_never_makes_a_micro_batch_smaller() -> None:
    draw = random.Random(100)
    grown = 0
    for given, hardware, _, written in compositions(40, 50):
        before: dict[str, int] = {}
        for memory in sorted(draw.uniform(6, 160) for _ in range(8)):
            shape = known_shape(given.model.base.path)
            fit = fit_settings(given, written, gpus(hardware.count, memory), shape, planned_stages(given))
            if fit is None:
                assert not before, f"it did fit less than {memory:.1f} GB"
                continue
            for stage in planned_stages(given):
                size = value_at(fit.params, TRAINED[stage].microbatch)
                assert size >= before.get(stage, 0), (given.model.base, hardware.count, memory, stage)
                grown += size > before.get(stage, size)
                before[stage] = size
    assert grown, "some grow"


def test_a_model_that_cannot_be_trained_on_a_card_says_what_would_fit() -> None:
    with pytest.raises(UserError) as refusal:
        derived(of("Qwen/Qwen2.5-7B-Instruct"), gpus(1, 8))
    text = str(refusal.value)
    assert text.startswith("7.62 billion parameters with all weights trained do not fit 1x8GB: it would fit with LoRA")
    assert "2x80GB" in text and "a smaller model (model=Qwen/Qwen2.5-" in text
    for count, memory in re.findall(r"(\d+)x(\d+)GB(?! with 16)", text)[2:]:
        derived(of("Qwen/Qwen2.5-7B-Instruct"), gpus(int(count), int(memory)))
    smaller = re.search(r"model=([^)]+)", text)
    assert smaller is not None
    derived(of(smaller[1]), gpus(1, 8))
    with pytest.raises(UserError, match=r"run\.processes is 4, and 1x80GB have 1"):
        derived(with_values(of("Qwen/Qwen2.5-0.5B"), {PROCESSES: 4}), gpus(1, 80), written=[PROCESSES])
    with pytest.raises(UserError, match=r"shorter responses \(rl\.max_tokens=\d+\)"):
        given = with_values(of("Qwen/Qwen2.5-0.5B-Instruct"), {RESPONSES["rl"]: 30_000})
        derived(given, gpus(1, 8))


def test_only_the_stages_that_run_have_to_fit() -> None:
    given = of("Qwen/Qwen2.5-7B-Instruct", "sft.steps=50", "sft.lora={}")
    found = {each.key for each in derive(given, (), gpus(1, 24), known_model(given.model.base), None, ["sft"])}
    assert TRAINED["sft"].microbatch in found and not {SHARE, SEQUENCES, TRAINED["rl"].microbatch} & found
    other = of("Qwen/Qwen2.5-7B-Instruct", "rl.engine=trl", "rl.importance=null", "rl.advantage.eps=1e-4")
    assert BACKEND not in derived(other, gpus(1, 8)), "TRL has memory of its own"


def test_settings_of_a_cpu_follow_its_cores_and_memory() -> None:
    given = of("Qwen/Qwen2.5-0.5B-Instruct", "rl.prompts_per_step=8", "rl.max_tokens=256")
    one = derived(given, Hardware("cpu", memory=24 * GB, count=8))
    many = derived(given, Hardware("cpu", memory=400 * GB, count=8))
    assert one[PROCESSES].value < many[PROCESSES].value == 8
    assert "8 cores, 24.0 GB" in one[PROCESSES].reason
    with pytest.raises(UserError, match=r"fewer processes \(run\.processes=1\)"):
        derived(with_values(given, {PROCESSES: 2}), Hardware("cpu", memory=24 * GB, count=8), written=[PROCESSES])
    with pytest.raises(UserError, match="2 cores with 4 GB"):
        derived(given, Hardware("cpu", memory=4 * GB, count=2))


def test_nothing_follows_for_random_weights_and_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "socket", refused)
    monkeypatch.setattr(socket, "create_connection", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    assert derive(load_params(PARAMS), (), gpus(1, 24), None, GSM8K) == []
    assert derived(of("somebody/unknown-13b"), gpus(8, 80), GSM8K)[TRAINED["rl"].lr].value == 1e-6


def test_written_keys_are_those_of_single_values() -> None:
    assert set(written_keys({"rl": {"optimizer": {"type": "muon"}}, "run": {"seed": 1}})) == {
        "rl.optimizer.type",
        "run.seed",
    }
