"""The parameters of a project: what suits a person's own problems, model and machine.

Each value is a start that works and that the person may change: learning rates by the model's size
(params/final_values.py), lengths from the texts, group and batch sizes by the device.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from mathrl.core.gpus import Hardware
from mathrl.core.types import Problem
from mathrl.curation.inspection import Inspection
from mathrl.data.templates import BOXED_INSTRUCTION
from mathrl.models.shapes import ModelShape
from mathrl.params.load import parse_yaml
from mathrl.params.schema import Params
from mathrl.planning.final_values import LONGEST, prompt_tokens, response_tokens, usual_rate

FEWEST_TESTS, MOST_TESTS = 50, 500  # problems to measure on: fewer say little, more say hardly more
DIALOGUE = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
SFT_EPOCHS = 3
SFT_SHARE = 0.25  # of the rows, where SFT comes before RL
FEWEST_SFT_STEPS = 10
FEWEST_TEACHING_STEPS = 50  # for a model that solves too little: SFT_EPOCHS over few rows are hardly a step
MORE_TEACHING = 8  # times as much, where that was too little; more only repeats the same rows
CHARACTERS_PER_TOKEN = 3
EVAL_EVERY = 10  # RL steps between dev evaluations


@dataclass(frozen=True)
class DeviceSizes:
    """Sizes that depend on the device: those of the presets on a GPU, and what a step on a CPU can bear."""

    prompts: int
    group: int
    sft_tokens: int
    microbatch: int
    measured: int
    rl_steps: int


BATCHES = {
    "cpu": DeviceSizes(prompts=8, group=8, sft_tokens=4096, microbatch=4096, measured=256, rl_steps=50),
    "cuda": DeviceSizes(prompts=128, group=8, sft_tokens=16384, microbatch=16384, measured=2048, rl_steps=100),
}


def suited_prompt(tokenizer: Any) -> dict[str, Any]:
    """The section prompt for a model: its chat template where it has one, else the question with an instruction."""
    if not getattr(tokenizer, "chat_template", None):
        return {"template": "boxed"}
    try:
        tokenizer.apply_chat_template(DIALOGUE, tokenize=False, add_generation_prompt=True)
    except (TemplateError, ValueError):  # Gemma's, for one, takes no system message
        return {"template": "chat", "instruction": BOXED_INSTRUCTION}
    return {"template": "chat", "system": BOXED_INSTRUCTION}


def project_sections(
    inspection: Inspection,
    *,
    name: str,
    model: str,
    shape: ModelShape,
    positions: int,
    tokenizer: Any,
    hardware: Hardware,
    test: dict[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """The sections of params/ that a project sets, by name.

    Args:
        positions: Maximum length of prompt and response in tokens, from the model's configuration.
        test: A source of test problems; None: a share of the rows is held out.
    """
    device = hardware.kind
    sizes, chat = BATCHES[device], bool(getattr(tokenizer, "chat_template", None))
    prompt = prompt_tokens(inspection.prompts.longest, inspection.prompts.p95, positions)
    solved = inspection.solutions.p95 if inspection.solutions else None
    response = min(response_tokens(solved, chat=chat, longest=LONGEST[device]), positions - prompt)
    curate = _curate(inspection, test)
    worked = inspection.solutions.texts / len(inspection.problems) if inspection.solutions else 0.0
    sft_share = 0.0 if chat or worked < 0.95 else SFT_SHARE
    trained = inspection.usable * (1 - curate.get("test_share", 0)) * (1 - curate["dev_share"])
    checkpointing = shape.parameters > 3e8
    rl_rate = _learning_rate("rl", shape)
    rl_steps = max(10, min(sizes.rl_steps, ceil(2 * trained * (1 - sft_share) / sizes.prompts)))
    return {
        "run": {"seed": 0, "device": "auto", "processes": max(1, hardware.count) if hardware.is_gpu else 2},
        "curate": {**curate, **({"sft_share": sft_share} if sft_share else {})},
        "model": {"base": {"type": "pretrained", "path": model}, "precision": "bfloat16"},
        "prompt": {**suited_prompt(tokenizer), "max_tokens": prompt},
        "sft": {
            "steps": _sft_steps(inspection, trained * sft_share, sizes.sft_tokens) if sft_share else 0,
            "tokens_per_step": sizes.sft_tokens,
            "tokens_per_microbatch": sizes.microbatch,
            "terse_share": 0.0,
            "optimizer": {**_adamw("sft", shape), "warmup_steps": 5, "schedule": "cosine"},
            "gradient_checkpointing": checkpointing,
        },
        "difficulty": {"samples": 8, "temperature": 1.0, "max_problems": sizes.measured, "max_tokens": response},
        "mix": {"components": [{"source": "*", "weight": 1.0, "band": [0.05, 0.95]}], "order": "shuffled"},
        "reward": {"extraction": "lenient", "parts": [{"type": "accuracy", "weight": 1.0}]},
        "rl": {
            "steps": rl_steps,
            "prompts_per_step": sizes.prompts,
            "group_size": sizes.group,
            "optimizer": {**_adamw("rl", shape), "beta2": 0.999, "warmup_steps": 5, "schedule": "constant"},
            "temperature": 1.0,
            "max_tokens": response,
            "tokens_per_microbatch": sizes.microbatch,
            "gradient_checkpointing": checkpointing,
            "dev": {"every": EVAL_EVERY},
            "checkpoint_every": 10,
        },
        "evaluate": {
            "benchmarks": ["test"],
            "samples": 4,
            "ks": [1, 2, 4],
            "temperature": 0.7,
            "max_tokens": response,
            "extraction": "lenient",
        },
        "sample": {"max_tokens": response},
        "dpo": {"optimizer": _adamw("dpo", shape), "tokens_per_microbatch": sizes.microbatch},
        "reward_model": {"optimizer": _adamw("reward_model", shape), "tokens_per_microbatch": sizes.microbatch},
        "sweep": _sweep(name, rl_rate, device),
        "controls": {"forced_prefix": None},  # no form such as <think> is the model's
        "health": {"action": "warn", "lr": 1e-5, "kl": 0.3, "patience": 50},
        "register": {"name": name, "alias": "candidate"},
    }


def _adamw(stage: str, shape: ModelShape) -> dict[str, Any]:
    return {"type": "adamw", "lr": _learning_rate(stage, shape)}


def _learning_rate(stage: str, shape: ModelShape) -> float:
    """The published rate for a model of this size; below the width of 896 (0.5B) it grows as the width falls."""
    rate, _ = usual_rate(stage, False, shape.parameters / 1e9, shape.width)
    return float(f"{rate:.1g}")


def _sweep(name: str, rl_rate: float, device: str) -> dict[str, Any]:
    """A search around the project's own rate; it is trial 0."""
    return {
        "study": re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_") or "project",
        "space": {
            "rl.optimizer.lr": {"kind": "log", "low": float(f"{rl_rate / 5:.1g}"), "high": float(f"{5 * rl_rate:.1g}")},
            "rl.kl.coef": {"kind": "zero_or_log", "low": 1e-4, "high": 1e-2},
        },
        "set": ["run.processes=1"] if device == "cpu" else [],
        "workers": 2 if device == "cpu" else 1,
        "warmup_steps": EVAL_EVERY,
    }


def _curate(inspection: Inspection, test: dict[str, Any] | None) -> dict[str, Any]:
    """The section that the inspection proposes, with held-out shares by the number of rows."""
    section: dict[str, Any] = parse_yaml(inspection.section, "the inspection")["curate"]
    rows = max(1, inspection.usable)
    if test is not None:
        section["sources"].append(test)
        del section["test_share"]
    else:
        section["test_share"] = round(min(0.3, max(min(0.1, MOST_TESTS / rows), FEWEST_TESTS / rows)), 4)
    section["dev_share"] = round(min(0.05, 200 / rows), 4)
    return section


def _sft_steps(inspection: Inspection, rows: float, tokens_per_step: int) -> int:
    assert inspection.solutions is not None
    per_row = inspection.prompts.median + inspection.solutions.median
    return max(FEWEST_SFT_STEPS, ceil(SFT_EPOCHS * rows * per_row / tokens_per_step))


def teach_first(params: Params, rows: Sequence[Problem]) -> list[str] | str:
    """The settings of an SFT before RL, for a model that solves too little, or a sentence on why SFT does not help.

    First SFT_EPOCHS over the demonstrations, but at least FEWEST_TEACHING_STEPS; then MORE_TEACHING times as much; then
    the model is not one that these rows can teach.

    Args:
        rows: The curated rl split.
    """
    taught, share = params.sft.steps, params.curate.sft_share or SFT_SHARE
    worked = [row for row in rows if row.solution]
    if not taught and (not worked or len(worked) < 0.95 * len(rows)):
        return "your rows have no solutions to teach it with: take an instruct model, or easier problems"
    tokens = sum(len(row.question) + len(row.solution or "") for row in worked) / CHARACTERS_PER_TOKEN
    epoch = tokens * share / (1 - params.curate.sft_share) / params.sft.tokens_per_step  # in steps
    first = max(FEWEST_TEACHING_STEPS, ceil(SFT_EPOCHS * epoch))
    if taught >= MORE_TEACHING * first:
        return (
            f"{taught} steps of SFT on your solutions did not teach it: the model is too weak for these problems; take "
            "an instruct model, a larger one, or easier problems, and make a new project with mathrl init"
        )
    steps = MORE_TEACHING * first if 2 * taught > first else first  # a few steps more would teach hardly more
    return [*([] if taught else [f"curate.sft_share={share:g}"]), f"sft.steps={steps}"]


def test_source(path: Path, name: str, inspection: Inspection) -> dict[str, Any]:
    """A file of test problems as a source with the fields that were guessed for it."""
    (source,) = parse_yaml(inspection.section, str(path))["curate"]["sources"]
    return {**source, "name": name, "split": "test"}
