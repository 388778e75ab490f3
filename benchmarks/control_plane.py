"""What a rank does in a step of RL beside its models: from sampled responses to packed micro-batches.

    python benchmarks/control_plane.py [--responses 8192] [--tokens 10000] [--ranks 128] [--against CHECKOUT]

One process does the work of one rank of many; what the other ranks would send is made beforehand (four ranks'
messages, copied). The parts:

    engine     the sampler's tensors as completions (without the tokenizer)
    rewards    completions as graded responses, without the grading
    send       this rank's groups as a message
    receive    the messages of all ranks as groups
    metrics    rewards, lengths, repetition, sources
    batch      advantages and log-probs
    partition  mini-batches, and which rank computes which groups
    packing    this rank's micro-batches as the model's inputs

Each part's figures are the least of `--repeat` runs, in processor and wall seconds per million tokens of the global
batch. With `--against` the same script runs on another checkout too, an older one, with fewer responses (lists of
Python numbers take 80 bytes per token). `--processes 2` measures nothing of this, but how long so many processes
of this machine take to exchange the groups over gloo, as arrays and as lists.
"""

import argparse
import gc
import io
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(os.environ.get("CONTROL_PLANE_ROOT", Path(__file__).parents[1]))
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from mathrl.core.types import Problem  # noqa: E402
from mathrl.grading import Verdict  # noqa: E402
from mathrl.learners.distributed import Ranks  # noqa: E402
from mathrl.learners.micro_batches import own_micro_batches  # noqa: E402
from mathrl.models.packing import pack  # noqa: E402
from mathrl.models.prepared import Kernel, Prepared, compute_as  # noqa: E402
from mathrl.params.rollout import Rollout  # noqa: E402
from mathrl.params.run import Prompt  # noqa: E402
from mathrl.params.train import Rl  # noqa: E402
from mathrl.rewards.compose import RewardResult  # noqa: E402
from mathrl.rollout.engine import Sampling  # noqa: E402
from mathrl.rollout.sampler import Sampler  # noqa: E402
from mathrl.rollout.torch_engine import TorchEngine  # noqa: E402
from mathrl.trainers import rollouts  # noqa: E402
from mathrl.trainers.batch import make_batch  # noqa: E402
from mathrl.trainers.policy_update import minibatches, update_gradient  # noqa: E402
from mathrl.trainers.rollouts import metrics_by_source, rollout_metrics  # noqa: E402
from mathrl.trainers.scores import score  # noqa: E402


def rollout_groups(problems: Any, prompts: Any, graded: Any) -> Any:
    if hasattr(rollouts, "rollout_groups"):
        return rollouts.rollout_groups(problems, prompts, graded)
    return [getattr(rollouts, "rollout_group")(*group) for group in zip(problems, prompts, graded, strict=True)]  # noqa: B009


VOCABULARY, PROMPT, GROUP = 151_936, 200, 16
KERNEL: Kernel = "varlen"  # a GPU's
PARTS = ("engine", "rewards", "send", "receive", "metrics", "batch", "partition", "packing")


class Clock:
    """Processor and wall seconds of the parts of a run."""

    def __init__(self) -> None:
        self.seconds: dict[str, tuple[float, float]] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        start = time.process_time(), time.perf_counter()
        yield
        cpu, wall = self.seconds.get(name, (0.0, 0.0))
        self.seconds[name] = cpu + time.process_time() - start[0], wall + time.perf_counter() - start[1]


class OneOfMany(Ranks):
    """Rank 0 of `world` ranks that are not there: what it gathers is its own."""

    def __init__(self, world: int) -> None:
        os.environ.pop("WORLD_SIZE", None)
        super().__init__(torch.device("cpu"))
        self.world = world

    def gather(self, value: Any) -> list[Any]:
        return [value]


class Packs:
    """A learner that packs its micro-batches and computes nothing."""

    def __init__(self, ranks: Ranks, clock: Clock) -> None:
        self.ranks, self.clock, self.packed = ranks, clock, 0
        self.model = torch.nn.Module()
        compute_as(self.model, Prepared(packed=True, kernel=KERNEL))

    def micro_batches(self, sizes: Any, tokens: int, chosen: Any = None) -> Iterator[tuple[list[int], float]]:
        yield from ((micro, 1.0) for micro in own_micro_batches(sizes, tokens, self.ranks, chosen))

    def through_root(self, loss_of: Any) -> Any:
        return self.forward

    def forward(self, model: Any, part: Any, *args: Any) -> Any:
        with self.clock.part("packing"):
            self.packed += len(pack([group.group for group in part.groups], "cpu", KERNEL).targets_N)
        return torch.zeros(()), {
            name: torch.zeros(())
            for name in ("loss", "kl", "entropy", "clipped", "ratio", "alignment", "responses", "tokens", "trained")
        }

    def backward(self, loss: Any) -> None:
        pass


class NoText:
    """The tokenizer is not measured."""

    def batch_decode(self, rows: Any, **_: Any) -> list[str]:
        return [""] * len(rows)

    def decode(self, *_: Any, **__: Any) -> str:
        return ""

    def encode(self, *_: Any, **__: Any) -> list[int]:
        return []


class Alternating:
    """Every third response is right."""

    def score(self, items: Any) -> list[RewardResult]:
        verdict = Verdict(False, None, "none", "", 0.0)
        return [RewardResult(float(n % 3 == 0), n % 3 == 0, {"accuracy": 1.0}, verdict) for n in range(len(items))]

    def audit(self, items: Any, results: list[RewardResult]) -> None:
        """No other grader."""


def encode(value: Any) -> bytes:
    """What torch's all_gather_object does before it sends, as `decode` does after."""
    file = io.BytesIO()
    pickle.Pickler(file).dump(value)
    return file.getvalue()


def decode(message: bytes) -> Any:
    return pickle.Unpickler(io.BytesIO(message)).load()


def sampled(rank: int, responses: int, tokens: int) -> tuple[torch.Tensor, ...]:
    """A rank's sampled tensors: ids as frequent as words are, every tenth response with a repeated end."""
    generator = torch.Generator().manual_seed(rank)
    uniform = torch.rand(responses, tokens, generator=generator)
    ids = (VOCABULARY**uniform).long().clamp_(max=VOCABULARY - 1)
    ids[::10, tokens // 2 :] = ids[::10, tokens // 2 : tokens // 2 + 1]
    lengths = torch.randint(tokens - tokens // 10, tokens + 1, (responses,), generator=generator)
    return ids, -torch.rand(responses, tokens, generator=generator), lengths, lengths < tokens


def rank_groups(rank: int, share: int, tokens: int, problems: list[Problem], clock: Clock) -> list[Any]:
    """The groups that a rank has sampled and graded."""
    tensors = sampled(rank, share, tokens)
    engine: Any = object.__new__(TorchEngine)
    engine.tokenizer = NoText()
    with clock.part("engine"):
        completions = engine._completions(*tensors)
    groups = [completions[first : first + GROUP] for first in range(0, share, GROUP)]
    numbers = range(rank * len(groups), (rank + 1) * len(groups))
    sampled_before = SimpleNamespace(generate=lambda *_: groups, rollout=Rollout())
    sampler = Sampler(sampled_before, NoText(), Prompt())  # type: ignore[arg-type]
    prompt = [7] * PROMPT
    prompts = [prompt] * len(groups)
    with clock.part("rewards"):
        asked, sampling = [problems[number] for number in numbers], Sampling(GROUP, 1.0, tokens)
        graded = sampler.sample(asked, sampling, Alternating(), 0, prompts=prompts)  # type: ignore[arg-type]
    with clock.part("metrics"):  # of these responses
        return rollout_groups(numbers, prompts, graded)


def step(clock: Clock, args: argparse.Namespace, problems: list[Problem], messages: list[Any]) -> int:
    """The control plane of one step at rank 0; the packed tokens of its share."""
    share = args.responses // args.ranks
    own = rank_groups(0, share, args.tokens, problems, clock)
    with clock.part("send"):
        encode(own)
    with clock.part("receive"):
        groups = [group for message in messages for group in decode(message)]
    with clock.part("metrics"):
        rollout_metrics(groups, groups)
        metrics_by_source(groups, problems)
    params = Rl(max_tokens=args.tokens, minibatches=args.minibatches, tokens_per_microbatch=args.budget)
    ranks = OneOfMany(args.ranks)
    policy = Packs(ranks, clock)
    with clock.part("batch"):
        batch, _ = make_batch(groups, params, score(groups, params, ranks, None), 0.0)
    before = clock.seconds.get("packing", (0.0, 0.0))
    with clock.part("partition"):
        for part in minibatches(batch, params, 0, 0):
            arguments = {"policy": policy, "params": params, "ranks": ranks, "batch": part, "kl_coef": 0.0}
            update_gradient(**{name: arguments[name] for name in signature(update_gradient).parameters})
    packing, whole = clock.seconds["packing"], clock.seconds["partition"]
    clock.seconds["partition"] = (whole[0] - packing[0] + before[0], whole[1] - packing[1] + before[1])
    return policy.packed


def measure(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    share, count = args.responses // args.ranks, args.responses // GROUP
    problems = [Problem(str(number), "?", ("1",), source="ab"[number % 2], split="rl") for number in range(count)]
    different = [encode(rank_groups(rank, share, args.tokens, problems, Clock())) for rank in range(min(4, args.ranks))]
    messages = [bytes(bytearray(different[rank % len(different)])) for rank in range(args.ranks)]
    runs = []
    for _ in range(args.repeat):
        gc.collect()
        clock = Clock()
        packed = step(clock, args, problems, messages)
        runs.append(clock.seconds)
    million = args.responses * args.tokens * 0.95 / 1e6
    parts = {name: [min(run[name][kind] for run in runs) / million for kind in (0, 1)] for name in PARTS}
    return {
        "parts": parts,
        "million": million,
        "packed": packed,
        "bytes": sum(map(len, messages)) / million / 1e6,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def exchange(rank: int, args: argparse.Namespace, folder: str) -> None:
    """One of the processes that exchange groups; rank 0 prints the least seconds of the runs."""
    torch.set_num_threads(1)
    world = args.processes
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    share = args.responses // args.ranks
    problems = [Problem(str(number), "?", ("1",), source="a", split="rl") for number in range(args.responses)]
    groups = rank_groups(rank, share, args.tokens, problems, Clock())
    listed = [[row.tolist() for row in (*group.responses, *group.logprobs)] for group in groups]
    ways = {"arrays": groups, "lists": listed}
    million = share * world * args.tokens * 0.95 / 1e6
    for name, value in ways.items():
        seconds = []
        for _ in range(args.repeat):
            dist.barrier()
            start = time.process_time(), time.perf_counter()
            dist.all_gather_object([None] * world, value)
            seconds.append((time.process_time() - start[0], time.perf_counter() - start[1]))
        if rank == 0:
            cpu, wall = (min(values) / million for values in zip(*seconds, strict=True))
            print(f"  {name:<22}{cpu:10.4f}{wall:10.4f}")
    dist.destroy_process_group()


def report(label: str, args: argparse.Namespace, result: dict[str, Any]) -> None:
    print(
        f"\n{label}: {args.responses:,} responses of up to {args.tokens:,} tokens, {result['million']:.1f} M tokens, "
        f"rank 0 of {args.ranks}; {result['bytes']:.1f} bytes per token sent; peak {result['peak']:.1f} GiB"
    )
    print(f"  {'s per million tokens':<22}{'processor':>12}{'wall':>12}")
    for name in PARTS:
        print(f"  {name:<22}" + "".join(f"{value:12.4f}" for value in result["parts"][name]))
    print(f"  {'all':<22}" + "".join(f"{sum(v[kind] for v in result['parts'].values()):12.4f}" for kind in (0, 1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--minibatches", type=int, default=4)
    parser.add_argument("--budget", type=int, default=32_768, help="tokens per micro-batch")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--against", type=Path, help="another checkout, measured with --against-responses")
    parser.add_argument("--against-responses", type=int, default=1024)
    parser.add_argument("--processes", type=int, help="only exchange the groups of so many ranks, over gloo")
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.processes:
        print(f"{args.processes} processes: processor and wall seconds per million tokens")
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(exchange, (args, folder), args.processes)  # type: ignore[no-untyped-call]
        return
    if args.against:
        older = argparse.Namespace(**{**vars(args), "responses": args.against_responses})
        older.ranks = args.ranks * older.responses // args.responses  # as many responses per rank
        options = [f"--{name}={getattr(older, name)}" for name in ("responses", "tokens", "ranks", "minibatches")]
        command = [sys.executable, __file__, *options, f"--budget={args.budget}", f"--repeat={args.repeat}", "--json"]
        environment = {**os.environ, "CONTROL_PLANE_ROOT": str(args.against.resolve())}
        output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        report(str(args.against), older, json.loads(output.splitlines()[-1]))
    result = measure(args)
    print(json.dumps(result)) if args.json else report("this checkout", args, result)


if __name__ == "__main__":
    main()
