"""Time of generated problems: `python benchmarks/generators.py [100000]`.

Each generator produces this number of problems for the rl split, with options that allow as many (those of
benchmarks/curate_scale.py); every problem is checked to differ from the others, as in a run. On a busy machine look at
the processor time.
"""

import sys
import time

from curate_scale import OPTIONS

from mathrl.generators import GENERATORS, generate


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    print(f"{'generator':>16} {'problems':>9} {'seconds':>8} {'cpu s':>7} {'per s':>9}")
    for name in sorted({*GENERATORS} - {"reasoning_gym"}):
        start, used = time.perf_counter(), time.process_time()
        made = sum(1 for _ in generate(name, {"rl": count}, OPTIONS.get(name, {}), seed=0))
        seconds, cpu = time.perf_counter() - start, time.process_time() - used
        print(f"{name:>16} {made:>9,} {seconds:>8.1f} {cpu:>7.1f} {made / cpu:>9,.0f}", flush=True)


if __name__ == "__main__":
    main()
