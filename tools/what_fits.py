"""The tables of docs/reference/what_fits.md: models and cards, by the function that `mathrl plan --fit` asks.

python tools/what_fits.py   # rewrites the tables; `make generate` does it too
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

from mathrl.compose.checks import validate
from mathrl.compose.derived import GB, MODELS, describe_hardware, with_lora
from mathrl.compose.fitting import Fit, fit_settings, planned_stages
from mathrl.compose.settings import BACKEND, ENGINE, OFFLOAD_PARAMETERS, TRAINED
from mathrl.core.gpus import Hardware
from mathrl.models.shapes import known_shape
from mathrl.params.load import apply_override
from mathrl.params.schema import SECTIONS, Params


def gpus(count: int, memory: float) -> Hardware:
    return Hardware("cuda", memory=int(memory * GB), count=count)


def one(memory: float) -> Hardware:
    return gpus(1, memory)


PAGE = Path(__file__).parents[1] / "docs" / "reference" / "what_fits.md"
CARDS = [*map(one, (8, 12, 16, 24, 48, 80)), gpus(8, 80)]
# What the tables are for; the rest is what the schema has.
BASE = {
    "curate": {"sources": [{"type": "file", "name": "own", "path": "own.jsonl", "split": "rl"}]},
    "mix": {"components": [{"source": "own", "weight": 1.0}]},
    "model": {"base": {"type": "pretrained", "path": "any"}, "precision": "bfloat16"},
    "prompt": {"template": "chat", "max_tokens": 512},
}
COMMON = [
    *(f"{section}.optimizer.type=adamw" for section in ("sft", "rl", "dpo", "reward_model")),
    *(f"{section}.max_tokens=1024" for section in ("difficulty", "rl", "sample", "evaluate")),
    *("sft.steps=0", "rl.ema=null", "rl.prompts_per_step=128", "rl.group_size=8", "rl.minibatches=1"),
]
METHODS = {"GRPO": [], "PPO": ["rl.advantage=gae", "rl.kl={type: reward, coef: 0.001}"]}


class Published(NamedTuple):
    """A run that somebody published: what it is, on what it ran, and what the tables say of the same."""

    run: str
    published: str
    method: str
    adapters: bool
    model: str
    hardware: Hardware
    settings: tuple[str, ...]
    verdict: str


GSM8K, COUNTDOWN = ("rl.max_tokens=256",), ("prompt.max_tokens=256",)
VERL = "smallest that verl has run"
PUBLISHED = [
    Published("PPO, 0.5B (EvalScope)", "24 GB; 16 to 18 GB used", "PPO", False, "0.5B", one(24), GSM8K, "agrees"),
    Published(
        "PPO, 1.5B, all weights (EvalScope)",
        "24 GB; about 22 GB used",
        "PPO",
        False,
        "1.5B",
        one(24),
        GSM8K,
        "**disagrees**: 16 bytes per weight of two models are 49 GB, so it needs offload, which is not said",
    ),
    Published("PPO, 1.5B, LoRA (EvalScope)", "24 GB; 20 GB used", "PPO", True, "1.5B", one(24), GSM8K, "agrees"),
    Published(
        "GRPO, 3B (GRPO-Zero)",
        "24 GB with the optimizer on the CPU",
        "GRPO",
        False,
        "3B",
        one(24),
        COUNTDOWN,
        "**stricter**: with the optimizer alone on the CPU less than 5 % of the GPU stays free, so the weights go too",
    ),
    Published(
        "GRPO, 3B (GRPO-Zero)",
        "48 GB",
        "GRPO",
        False,
        "3B",
        one(48),
        COUNTDOWN,
        "**stricter**: its weights and states are bfloat16; here the optimizer has float32 ones",
    ),
    Published("GRPO, 1B, LoRA (Oxen.ai)", "16 GB", "GRPO", True, "1B", one(16), (), "agrees"),
    Published("GRPO, 7B (verl)", f"2x80GB, {VERL}", "GRPO", False, "7B", gpus(2, 80), (), "agrees, without offload"),
    Published(
        "GRPO, 7B (verl)", "one of 80 GB is not listed", "GRPO", False, "7B", one(80), (), "**looser**: by offload"
    ),
    Published("GRPO, 14B (verl)", f"4x80GB, {VERL}", "GRPO", False, "14B", gpus(4, 80), (), "agrees, without offload"),
    Published("GRPO, 32B (verl)", f"8x96GB, {VERL}", "GRPO", False, "32B", gpus(8, 96), (), "agrees, without offload"),
    Published(
        "GRPO, 8B, LoRA (Unsloth)",
        "16 GB",
        "GRPO",
        True,
        "8B",
        one(16),
        (),
        "**cannot**: Unsloth has weights of 4 bits, once for sampler and trainer; mathrl has them in bfloat16, twice",
    ),
]


@cache
def settings(method: str, *more: str) -> Params:
    """The parameters of a method with a pretrained model, whose shape the caller has."""
    values = {section: dict(BASE.get(section, {})) for section in SECTIONS}
    for setting in [*COMMON, *METHODS[method], *more]:
        apply_override(values, setting)
    return validate(values, dict.fromkeys(SECTIONS, "the table"))


def fit_of(method: str, adapters: bool, model: str, hardware: Hardware, *more: str) -> Fit | None:
    """How a model of MODELS, or a hub id, is trained on the hardware."""
    params = settings(method, *more)
    stages = planned_stages(params)
    shape = known_shape(MODELS.get(model, model))
    return fit_settings(with_lora(params, stages) if adapters else params, (), hardware, shape, stages)


def cell(fit: Fit | None) -> str:
    """What a run is like that fits: "16k", "2k, 49 GB" with the memory of the CPU that it takes."""
    if fit is None:
        return "–"
    tokens = f"{fit.values[TRAINED['rl'].microbatch] / 1024:.3g}k".replace(".0k", "k")
    marks = {"fsdp": " F", "deepspeed": " P" if fit.values.get(OFFLOAD_PARAMETERS) else " O", "torch": ""}
    sampler = " t" if fit.values.get(ENGINE) == "torch" else ""
    host = f", {fit.host / GB:.0f} GB" if fit.host else ""
    return f"{tokens}{marks[fit.values[BACKEND]]}{sampler}{host}"


def table(method: str, adapters: bool) -> list[str]:
    """Lines of a table: a row per model, a column per machine."""
    lines = [f"| model | {' | '.join(describe_hardware(card) for card in CARDS)} |", "|---" * (len(CARDS) + 1) + "|"]
    for name in MODELS:
        cells = [cell(fit_of(method, adapters, name, card)) for card in CARDS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def published() -> list[str]:
    """Lines of the table of published runs."""
    lines = ["| run | published | here, on that hardware | |", "|---|---|---|---|"]
    for row in PUBLISHED:
        fit = fit_of(row.method, row.adapters, row.model, row.hardware, *row.settings)
        peak = "" if fit is None else f"; {max(plan.peak for plan in fit.plans.values()) / GB:.1f} GB of the GPU"
        here = f"{describe_hardware(row.hardware)}: {cell(fit)}{peak}"
        lines.append(f"| {row.run} | {row.published} | {here} | {row.verdict} |")
    return lines


def written(page: str) -> str:
    """The page with each table between its marks, such as `<!-- GRPO -->` and `<!-- end -->`."""
    tables = {"published": published()}
    for method in METHODS:
        tables |= {method: table(method, False), f"{method}, LoRA": table(method, True)}
    for name, lines in tables.items():
        head, _, rest = page.partition(f"<!-- {name} -->\n")
        page = "\n".join([f"{head}<!-- {name} -->", *lines, f"<!-- end -->{rest.partition('<!-- end -->')[2]}"])
    return page


def main() -> None:
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
