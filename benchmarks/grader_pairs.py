"""The verifier on pairs that are equal or unequal by construction: false positives, refusals, time and memory.

    python benchmarks/grader_pairs.py --unequal 100000 --equal 20000 --peer 10000 [--seed 0]

The pairs are those of tests/grading/pairs.py: each unequal pair is proved so at a point, each equal pair agrees at
many, both by plain Python beside the LaTeX. Every wrong verdict is printed. `--peer` runs Math-Verify on as many of
each kind, in a child process that is killed when it hangs. Times are of the processor: other work does not count.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.grader import Peer
from mathrl.grading import grade, grade_batch, warm_up
from mathrl.grading.engine import default_engine
from tests.grading.pairs import Pair, pairs


def boxed(pair: Pair) -> str:
    return f"\\boxed{{{pair.answer}}}"


def processor_seconds() -> float:
    """Of this process, and of the pairs that the symbolic engine has compared."""
    return time.process_time() + default_engine().seconds


def judge(
    sample: list[Pair], correct: Callable[[Pair], bool], limit: int
) -> tuple[Counter[str], list[float], list[Pair]]:
    """Wrong verdicts per family, processor seconds per pair, and the first wrong pairs."""
    wrong: Counter[str] = Counter()
    seconds, shown = [], []
    for pair in sample:
        started = processor_seconds()
        verdict = correct(pair)
        seconds.append(processor_seconds() - started)
        if verdict != pair.equal:
            wrong[pair.family] += 1
            if len(shown) < limit:
                shown.append(pair)
    return wrong, seconds, shown


def peer_correct(peer: Peer, pair: Pair) -> bool:
    return peer.ask([f"${boxed(pair)}$", pair.truth])[0]


def report(name: str, sample: list[Pair], wrong: Counter[str]) -> None:
    kind = "refused of equal" if sample[0].equal else "false positives of unequal"
    print(f"{name}: {wrong.total():,} {kind} {len(sample):,} ({wrong.total() / len(sample):.4%})")
    if wrong:
        print("   ", ", ".join(f"{family} {count}" for family, count in wrong.most_common()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unequal", type=int, default=10_000, help="number of unequal pairs")
    parser.add_argument("--equal", type=int, default=5_000, help="number of equal pairs")
    parser.add_argument("--peer", type=int, default=0, help="number of pairs of each kind for Math-Verify")
    parser.add_argument("--batch", type=int, default=0, help="number of responses of one batch, for its peak memory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=20, help="number of wrong pairs to print per kind")
    arguments = parser.parse_args()
    warm_up()
    for equal, count in ((False, arguments.unequal), (True, arguments.equal)):
        if not count:
            continue
        sample = list(islice(pairs(arguments.seed, equal), count))
        gc.freeze()  # the garbage collector would look through the sample again and again, at a pair's cost
        wrong, seconds, shown = judge(sample, lambda pair: grade(boxed(pair), pair.truth).correct, arguments.show)
        report("mathrl", sample, wrong)
        p99 = statistics.quantiles(seconds, n=100)[98]
        most, slowest = max(zip(seconds, sample, strict=True), key=lambda timed: timed[0])
        print(f"    {count / sum(seconds):,.0f} pairs/s, p99 {1000 * p99:.1f} ms, slowest {1000 * most:.0f} ms:")
        print(f"    {slowest.answer}   for   {slowest.truth}")
        for pair in shown:
            print(f"    {pair.family}: {pair.answer}   for   {pair.truth}")
        if arguments.peer:
            peer = Peer(patience=30.0)  # a busy machine must not decide
            some = random.Random(arguments.seed).sample(sample, min(arguments.peer, count))
            wrong, _, _ = judge(some, partial(peer_correct, peer), 0)
            report("Math-Verify", some, wrong)
            peer.close()
    if arguments.batch:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        sample = list(islice(pairs(arguments.seed + 1), arguments.batch))
        grade_batch([boxed(pair) for pair in sample], [pair.truth for pair in sample], processes=1)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"batch of {arguments.batch:,}: peak memory {peak / 1024:,.0f} MiB ({before / 1024:,.0f} MiB before)")


if __name__ == "__main__":
    main()
