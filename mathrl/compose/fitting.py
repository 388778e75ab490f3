"""Settings with which a run fits its GPUs or its CPU's memory, by the memory plan: sharding, micro-batches, sampler.

What somebody has written is kept and planned with. The rest is chosen in an order in which more memory never makes a
micro-batch smaller: a backend that costs speed gets no larger micro-batch than one that costs less must at least have.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mathrl.compose.checks import backend_problems
from mathrl.compose.settings import (
    BACKEND,
    ENGINE,
    OFFLOAD_OPTIMIZER,
    OFFLOAD_PARAMETERS,
    PARALLEL,
    PROCESSES,
    SEQUENCES,
    SHARE,
    SLEEP,
    STAGE,
    TRAINED,
    left_open,
    value_at,
    with_values,
)
from mathrl.core.gpus import Hardware
from mathrl.models.shapes import ModelShape
from mathrl.params.schema import Params
from mathrl.params.training import MathRl
from mathrl.planning.gpu_phases import LEAST_CACHED, vllm_parts
from mathrl.planning.memory import MARGIN, RESERVE, plan_memory
from mathrl.planning.memory_states import MemoryPlan, Stage
from mathrl.rollout.choices import stage_longest
from mathrl.rollout.vllm_budget import BLOCK, SIZE
from mathrl.servers.vllm_arguments import dtype_name

MOST_TOKENS = {"cpu": 4096, "cuda": 16384}  # of a micro-batch; on a GPU prime-rl's benchmarks have rows of 16k
FEWEST_TOKENS = {"cpu": 512, "cuda": 2048}  # on a GPU fewer leave it idle between kernels, unless a sequence is shorter
SHARES = tuple(n / 20 for n in range(2, 19))  # of a GPU, for vLLM
PARALLELS = (1, 2, 4, 8)
MOST_SEQUENCES = 1024
FEWEST_SEQUENCES = 16
CACHED = 4  # sequences of full length per one that vLLM's cache holds at least: most responses are shorter
FITTED: tuple[Stage, ...] = ("sft", "rl")  # stages that the memory plan knows
Values = dict[str, Any]
PLAIN: Values = {BACKEND: "torch"}
SHARDED: Values = {BACKEND: "fsdp"}
OFFLOADS: tuple[Values, ...] = (
    {BACKEND: "deepspeed", STAGE: 2, OFFLOAD_OPTIMIZER: True, OFFLOAD_PARAMETERS: False},
    {BACKEND: "deepspeed", STAGE: 3, OFFLOAD_OPTIMIZER: True, OFFLOAD_PARAMETERS: True},
)
ZERO: tuple[Values, ...] = tuple(
    {BACKEND: "deepspeed", STAGE: stage, OFFLOAD_OPTIMIZER: False, OFFLOAD_PARAMETERS: False} for stage in (2, 3)
)


@dataclass(frozen=True)
class Fit:
    """The values with which a run fits, written ones among them, and the plan of each stage with them.

    `beside` are micro-batches of stages that a run may not have: they fit too, or are left out.
    """

    values: Values
    params: Params
    plans: Mapping[str, MemoryPlan]
    beside: Values

    @property
    def host(self) -> float:
        """Bytes of CPU memory that all processes offload to."""
        return self.params.run.processes * max(sum(plan.host.values()) for plan in self.plans.values())


def planned_stages(params: Params, stages: Collection[str] = FITTED) -> tuple[Stage, ...]:
    """Those of the stages that train here, with mathrl's own loop: other engines have their own memory."""
    own = {
        "sft": isinstance(params.sft.engine, MathRl) and params.sft.steps > 0,
        "rl": isinstance(params.rl.engine, MathRl),
    }
    return tuple(stage for stage in FITTED if stage in stages and own[stage])


def fit_settings(
    params: Params, written: Collection[str], hardware: Hardware, shape: ModelShape, stages: Sequence[Stage]
) -> Fit | None:
    """The settings with which the stages fit the hardware; None if there are none."""
    for attempt in _attempts(params, written, hardware):
        case = _Case(with_values(params, attempt.engine), written, hardware, shape, stages, attempt)
        fit = case.on_gpus() if hardware.is_gpu else case.on_cpus()
        if fit is not None:
            return Fit({**attempt.engine, **fit.values}, fit.params, fit.plans, fit.beside)
    return None


class _Attempt(NamedTuple):
    """What is tried: the sampler, the share of the memory that stays free, offload, and the smallest micro-batches."""

    engine: Values
    reserve: float
    offload: bool = False
    fewest: bool = True


def _attempts(params: Params, written: Collection[str], hardware: Hardware) -> Iterator[_Attempt]:
    """All on the GPU, with room for fragmentation or without; offload; the torch engine, where vLLM does not fit.

    Only the first may have more than the smallest micro-batches, so that less memory never has larger ones.
    """
    yield _Attempt({}, RESERVE + MARGIN, fewest=False)
    yield _Attempt({}, RESERVE)
    if not hardware.is_gpu:
        return
    yield _Attempt({}, RESERVE + MARGIN, offload=True)
    yield _Attempt({}, RESERVE, offload=True)
    if params.rollout.engine == "auto" and ENGINE not in written:
        yield from (_Attempt({ENGINE: "torch"}, RESERVE, offload) for offload in (False, True))


@dataclass(frozen=True)
class _Case:
    """A run on hardware, and what is tried."""

    params: Params
    written: Collection[str]
    hardware: Hardware
    shape: ModelShape
    stages: Sequence[Stage]
    attempt: _Attempt

    @property
    def room(self) -> float:
        return self.hardware.memory * (1 - self.attempt.reserve)

    def on_gpus(self) -> Fit | None:
        """One process per GPU: whole models if micro-batches are then no smaller, else sharded ones; or offload."""
        params = with_values(self.params, left_open({PROCESSES: _processes(self.params, self.hardware)}, self.written))
        if params.run.processes > self.hardware.count:
            return None
        several = OFFLOADS if self.attempt.offload else self.arrangements(params)
        found = [(v, self.micro_batches(params, v)) for v in several if self.may_change(params, v)]
        fitting = [(values, batches) for values, batches in found if batches is not None]
        if not fitting:
            return None
        values, batches = max(fitting, key=lambda item: sum(item[1].values()))  # the first of equal ones
        return self.finish(params, values, batches)

    def on_cpus(self) -> Fit | None:
        """As many processes as leave whole micro-batches, at most one per core; a last one may have smaller ones."""
        cores = max(1, self.hardware.count)
        counts = [self.params.run.processes] if PROCESSES in self.written else range(cores, 0, -1)
        for count in counts:
            params = with_values(self.params, {PROCESSES: count})
            batches = self.micro_batches(params, {})
            most = {stage: self.ladder(params, stage)[0] for stage in self.stages}
            if batches is not None and (batches == most or count == counts[-1]):
                return self.finish(params, {}, batches)
        return None

    def arrangements(self, params: Params) -> list[Values]:
        """Backends that keep everything on the GPUs, the fastest first; ZeRO where somebody wrote deepspeed."""
        if BACKEND in self.written and params.training.backend == "deepspeed":
            zero = params.training.deepspeed
            own = {STAGE: zero.stage, OFFLOAD_OPTIMIZER: zero.offload_optimizer}
            return [{BACKEND: "deepspeed", **own, OFFLOAD_PARAMETERS: zero.offload_parameters}, *ZERO]
        return [PLAIN, *([SHARDED] if params.run.processes > 1 or BACKEND in self.written else [])]

    def may_change(self, params: Params, values: Values) -> bool:
        """Whether nobody wrote other values, and the rest of the run can do with these."""
        if any(key in self.written and value_at(params, key) != value for key, value in values.items()):
            return False
        backend = values[BACKEND]
        if next(backend_problems(with_values(params, {BACKEND: backend})), None):
            return False
        if backend != "torch" and params.training.on_out_of_memory == "halve":
            return False
        kinds = {getattr(params, stage).optimizer.type for stage in self.stages}
        return backend != "deepspeed" or (kinds == {"adamw"} and not params.rl.ema)

    def micro_batches(self, params: Params, values: Values) -> dict[str, int] | None:
        """The largest micro-batches that fit by stage, with all else as small as it may be; None if none fit."""
        params, chosen = with_values(params, values), dict[str, int]()
        for stage in self.stages:
            sizes = self.ladder(params, stage)
            size = next((size for size in sizes if self.sampler(self.smallest(params, stage, size), stage)), None)
            if size is None:
                return None
            chosen[stage] = size
        return chosen

    def ladder(self, params: Params, stage: str) -> list[int]:
        """Sizes of a micro-batch in tokens, the largest first."""
        key, kind = TRAINED[stage].microbatch, self.hardware.kind
        if key in self.written:
            return [value_at(params, key)]
        least = max(FEWEST_TOKENS[kind], _round_up(stage_longest(params, "rl")))
        sizes = [MOST_TOKENS[kind] >> n for n in range(8) if MOST_TOKENS[kind] >> n > least]
        return [least] if self.attempt.fewest else [*sizes, least]

    def smallest(self, params: Params, stage: str, size: int) -> Params:
        keys = TRAINED[stage]
        return with_values(params, left_open({keys.microbatch: size, keys.checkpointing: True}, self.written))

    def sampler(self, params: Params, stage: str) -> bool:
        """Whether the stage fits with some settings of the sampler."""
        if stage == "sft":
            return self.fits(params, "sft") is not None
        return next(self.samplers(params), None) is not None

    def samplers(self, params: Params) -> Iterator[Params]:
        """The settings of the sampler that need least memory, if rl fits with them."""
        for parallel in self.parallels(params):
            yield from self.smallest_shares(params, parallel, self.sequences(params)[-1], LEAST_CACHED)

    def best_sampler(self, params: Params) -> Params:
        """The sampler that decodes most at a time with a cache that holds a part of it, else the first that fits."""
        for parallel in self.parallels(params):
            for sequences in self.sequences(params):
                for cached in (sequences, -(-sequences // CACHED)):
                    found = next(self.smallest_shares(params, parallel, sequences, max(cached, LEAST_CACHED)), None)
                    if found is not None:
                        return found
        return next(self.samplers(params))

    def smallest_shares(self, params: Params, parallel: int, sequences: int, cached: int) -> Iterator[Params]:
        """The parameters with vLLM's smallest share that caches so many sequences, if the stage fits with it."""
        values: Values = {SEQUENCES: sequences}
        if not self.vllm(params):
            if self.hardware.is_gpu and params.rollout.engine == "vllm_server":
                values = {}
            changed = with_values(params, left_open(values, self.written))
            if self.fits(changed, "rl") is not None:
                yield changed
            return
        values |= {PARALLEL: parallel, SLEEP: params.rl.asynchronous is None}
        changed = with_values(params, left_open(values, self.written))
        share = changed.rollout.vllm.memory_share if SHARE in self.written else self.share(changed, cached)
        if share is not None:
            changed = with_values(changed, {SHARE: share})
            if self.fits(changed, "rl") is not None:
                yield changed

    def share(self, params: Params, cached: int) -> float | None:
        """The smallest share of a GPU with which vLLM caches so many sequences of rl, and one of every other stage."""
        length = stage_longest(params, "rl")
        longest = max(stage_longest(params, stage) for stage in ("difficulty", "rl", "evaluate"))
        parts, _ = vllm_parts(self.shape, params, length, float(self.hardware.memory))
        beside = sum(parts.values()) - parts["vLLM: cache"]
        cache = max(cached * self.row(params, length), self.row(params, longest))
        return next((share for share in SHARES if share * self.hardware.memory >= beside + cache), None)

    def row(self, params: Params, length: int) -> float:
        """Bytes of the cache of one sequence, in whole blocks."""
        keys = -(-self.shape.key_heads // params.rollout.vllm.tensor_parallel)
        size = SIZE[dtype_name(params.rollout, params.model)]
        return 2.0 * size * self.shape.layers * keys * self.shape.head_width * (BLOCK * -(-length // BLOCK))

    def vllm(self, params: Params) -> bool:
        return self.hardware.is_gpu and params.rollout.engine in ("auto", "vllm")

    def parallels(self, params: Params) -> list[int]:
        """Numbers of GPUs that may share an engine of vLLM."""
        if PARALLEL in self.written or not self.vllm(params) or params.rl.asynchronous is not None:
            return [params.rollout.vllm.tensor_parallel]
        ranks, heads = params.run.processes, self.shape.heads
        return [size for size in PARALLELS if not ranks % size and not heads % size]

    def sequences(self, params: Params) -> list[int]:
        """Numbers of responses that may be decoded at a time, the most first."""
        if SEQUENCES in self.written:
            return [params.rollout.max_sequences]
        rl = params.rl
        share = -(-rl.prompts_per_step // params.run.processes) * rl.group_size
        most = min(MOST_SEQUENCES, 1 << (share - 1).bit_length() if share > 1 else 1)
        least = min(most, max(FEWEST_SEQUENCES, rl.group_size))
        return [most >> n for n in range(11) if most >> n >= least] or [most]

    def fits(self, params: Params, stage: Stage) -> MemoryPlan | None:
        """The plan of the stage if it fits."""
        plan = plan_memory(self.shape, params, stage, self.hardware.kind, gpu_memory=float(self.hardware.memory))
        each = 1 if self.hardware.is_gpu else params.run.processes
        return None if plan.excess(self.room / each) else plan

    def finish(self, params: Params, values: Values, batches: Mapping[str, int]) -> Fit:
        """The rest of the settings: the sampler, and no recomputation where its memory is there anyway."""
        params = with_values(params, values)
        for stage in self.stages:
            params = self.smallest(params, stage, batches[stage])
        if "rl" in self.stages:
            params = self.best_sampler(params)
        for stage in self.stages:
            key = TRAINED[stage].checkpointing
            without = with_values(params, left_open({key: False}, self.written))
            if self.fits(without, stage) is not None:
                params = without
        plans: dict[str, MemoryPlan] = {}
        for stage in self.stages:
            plans[stage] = plan_memory(
                self.shape, params, stage, self.hardware.kind, gpu_memory=float(self.hardware.memory)
            )
        keys = [PROCESSES, *values, *(self.sampling_keys(params) if "rl" in self.stages else [])]
        keys += [key for stage in self.stages for key in (TRAINED[stage].microbatch, TRAINED[stage].checkpointing)]
        return Fit({key: value_at(params, key) for key in keys}, params, plans, self.beside(params))

    def sampling_keys(self, params: Params) -> list[str]:
        if not self.vllm(params):
            return [SEQUENCES]
        return [SEQUENCES, SHARE, SLEEP, *([PARALLEL] if params.run.processes > 1 else [])]

    def beside(self, params: Params) -> Values:
        """Micro-batches of what only some recipes train, as far as they fit; preference training recomputes nothing."""
        chosen: Values = {}
        for name in ("sft", "dpo", "reward_model"):
            keys, section = TRAINED[name], getattr(params, name)
            if name in self.stages:
                continue
            recomputed = False
            if keys.checkpointing:
                recomputed = section.gradient_checkpointing if keys.checkpointing in self.written else True
            for size in self.ladder(params, name):
                as_sft = params.sft.model_copy(
                    update={
                        "optimizer": section.optimizer,
                        "lora": section.lora,
                        "gradient_checkpointing": recomputed,
                        "tokens_per_microbatch": size,
                        "tokens_per_step": size * params.run.processes,
                    }
                )
                if self.fits(params.model_copy(update={"sft": as_sft}), "sft") is not None:
                    chosen |= {keys.microbatch: size} | ({keys.checkpointing: recomputed} if keys.checkpointing else {})
                    break
        return chosen


def _processes(params: Params, hardware: Hardware) -> int:
    """One process per GPU that no server of its own takes, at most one per prompt of a step."""
    rollout = params.rollout
    taken = 0
    if rollout.engine == "vllm_server" and rollout.servers.weights != "ipc":
        taken = rollout.servers.start * rollout.vllm.tensor_parallel
    return max(1, min(hardware.count - taken, params.rl.prompts_per_step))


def _round_up(tokens: int) -> int:
    """Up to the next multiple of 256."""
    return 256 * -(-tokens // 256)
