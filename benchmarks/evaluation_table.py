"""From kept responses to the table: seconds and memory of `mathrl compare` on two models' graded responses.

`python benchmarks/evaluation_table.py` writes the responses of two models to 10,000 problems, 32 each (pass rates from
a Beta distribution, wrong answers from a few per problem), and compares them by the command, with pass@k, maj@k, their
intervals, the tests by level and subject, and the smallest detectable difference. The goal: 20 s and 1 GB.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from mathrl.core.files import write_jsonl

RATES = {"before": (0.6, 0.9), "after": (0.7, 0.85)}


def write_responses(file: Path, model: str, problems: int, samples: int) -> None:
    rng = np.random.default_rng(len(model))
    rates = rng.beta(*RATES[model], problems)
    right = rng.random((problems, samples)) < rates[:, None]
    wrong = rng.zipf(1.7, (problems, samples))
    lengths = rng.integers(50, 800, (problems, samples))
    write_jsonl(file, (
        {
            "model": model, "benchmark": "made", "problem_id": f"p{problem:05}", "question": f"question {problem}",
            "level": f"level {problem % 5}", "subject": f"subject {problem % 7}", "sample": sample,
            "correct": bool(right[problem, sample]), "truncated": False, "length": int(lengths[problem, sample]),
            "extracted": "1" if right[problem, sample] else str(1 + wrong[problem, sample]),
        }
        for problem in range(problems) for sample in range(samples)
    ))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=32)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for model in RATES:
            files.append(str(Path(folder) / f"{model}.jsonl"))
            write_responses(Path(files[-1]), model, options.problems, options.samples)
        ks = ",".join(str(2**n) for n in range(options.samples.bit_length()))
        command = [sys.executable, "-c", "from mathrl.cli import main; main()", "compare", *files]
        command += ["--set", f"evaluate.ks=[{ks}]"]
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - start
    print(done.stdout or done.stderr)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{2 * options.problems * options.samples:,} responses: {seconds:.1f} s, {peak:,.0f} MiB")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
