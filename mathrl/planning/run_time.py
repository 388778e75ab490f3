"""The time of a run on this machine, from what a baseline evaluation measured and one matrix product.

Sampling takes the measured time per token. An update takes 6 floating-point operations per weight and token (8 with
gradient checkpointing: Kaplan et al., arXiv:2001.08361, section 2.1, and one more forward pass) at the rate that a
product of the model's own sizes reaches. Start-up, grading and weight sync are left out.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from mathrl.core.files import read_json, write_json
from mathrl.core.records import RunRecord, newest_record
from mathrl.models.linear import multiply
from mathrl.models.shapes import ModelShape
from mathrl.params.schema import Params

SPEED = "speed.json"
SAMPLED, LENGTH = "tokens_per_second", "response_tokens"  # in the summary of a record of difficulty
ROWS, SECONDS = 1024, 0.3  # of the measured product


@dataclass(frozen=True)
class Speed:
    """How fast a model sampled, all processes together, and the mean length of its responses.

    Example:
        Speed(model="/models/mine", tokens_per_second=412.0, response_tokens=88.4)
    """

    model: str
    tokens_per_second: float
    response_tokens: float
    processes: int = 1  # that sampled side by side


@dataclass(frozen=True)
class Planned:
    """The time of one part of a run, in seconds, and how it comes about."""

    part: str
    seconds: float
    account: str


class SamplingClock:
    """Times responses as they are finished; loading the model, before the first of them, does not count."""

    def __init__(self) -> None:
        self.began = self.last = time.perf_counter()
        self.responses = self.counted = 0

    def tick(self, responses: int) -> None:
        self.last = time.perf_counter()
        if self.responses:
            self.counted += responses
        else:
            self.first = self.last
        self.responses += responses

    def per_second(self) -> float:
        """Responses per second: after the first chunk if there are several, else since the start."""
        if self.counted:
            return self.counted / max(self.last - self.first, 1e-9)
        return self.responses / max(self.last - self.began, 1e-9)


def write_speed(folder: Path, speed: Speed) -> None:
    write_json(folder / SPEED, asdict(speed))


def measured_speed(model: str, evaluations: Path) -> Speed | None:
    """The speed in the latest evaluation of this model below a folder; None if it was never evaluated there."""
    files = sorted(evaluations.glob(f"*/{SPEED}"), key=lambda file: file.stat().st_mtime)
    speeds = [Speed(**read_json(file)) for file in files]
    return next((speed for speed in reversed(speeds) if speed.model == model), None)


def speed_of_difficulty(params: Params) -> Speed | None:
    """The speed that the stage `difficulty` last measured on this machine with this base model, as runs will sample."""
    model = params.model.base.model_dump(mode="json")

    def matches(record: RunRecord) -> bool:
        started_from = record.params.get("model", {}).get("base")
        return record.stage == "difficulty" and started_from == model and SAMPLED in record.summary

    record = newest_record(matches, prefix="difficulty-")
    if record is None:
        return None
    processes = int(record.params.get("run", {}).get("processes", 1))
    return Speed(str(model.get("path", "")), record.summary[SAMPLED], record.summary[LENGTH], processes)


def product_rate(shape: ModelShape, device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of a product of the model's MLP sizes on this machine."""
    tokens = torch.randn(ROWS, shape.width, device=device).to(dtype)
    weights = torch.randn(shape.width, shape.mlp, device=device).to(dtype)
    products, began = 0, 0.0
    while products < 3 or time.perf_counter() - began < SECONDS:
        if products == 2:  # the first two start threads and choose kernels
            began = time.perf_counter()
        multiply(tokens, weights)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        products += 1
    return 2.0 * ROWS * shape.width * shape.mlp * (products - 2) / (time.perf_counter() - began)


def planned_time(
    params: Params, shape: ModelShape, speed: Speed, operations: float, problems: dict[str, int]
) -> Iterator[Planned]:
    """The parts of a run in their order.

    Args:
        operations: Floating-point operations per second of one process.
        problems: The number of problems per split, as far as it is known.
    """
    workers = params.run.processes if torch.cuda.is_available() else 1  # ranks on a CPU share its cores
    sampling = speed.tokens_per_second * (workers / speed.processes if torch.cuda.is_available() else 1)
    weights = shape.matrices + shape.head

    def sampling_seconds(responses: int) -> float:
        return responses * speed.response_tokens / sampling

    def update_seconds(tokens: float, checkpointing: bool) -> float:
        return tokens * weights * (8 if checkpointing else 6) / (operations * workers)

    if params.sft.steps:
        step = update_seconds(params.sft.tokens_per_step, params.sft.gradient_checkpointing)
        yield Planned("sft", params.sft.steps * step, f"{params.sft.steps} steps of {step:.2g} s")
    rl = params.rl
    measured = min(problems.get("rl", 1 << 60), params.difficulty.max_problems or 1 << 60)
    if measured < 1 << 60:
        responses = measured * params.difficulty.samples
        yield Planned("difficulty", sampling_seconds(responses), f"{responses:,} responses")
    group = sampling_seconds(rl.prompts_per_step * rl.group_size)
    tokens = rl.prompts_per_step * (params.prompt.max_tokens + rl.group_size * speed.response_tokens)
    update = rl.epochs * update_seconds(tokens, rl.gradient_checkpointing)
    account = f"{rl.steps} steps of {group:.2g} s sampling and {update:.2g} s update"
    yield Planned("rl", rl.steps * (group + update), account)
    if "test" in problems:
        tested = min(problems["test"], params.evaluate.limit or problems["test"])
        responses = 2 * tested * params.evaluate.samples
        yield Planned("evaluate", sampling_seconds(responses), f"{responses:,} responses of two models")
