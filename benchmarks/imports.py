"""How long `mathrl import` takes for 100,000 rollouts, and its peak memory; beside pandas reading the same files.

`python benchmarks/imports.py [ROLLOUTS [CHARACTERS]]` writes a run in verl's format (rollouts of 500 per step, file
logger) into a temporary folder, then imports it in a process of its own. Every response is another text and is graded.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PER_STEP, GROUP = 500, 8
IMPORT = "import sys; from mathrl.cli.main import main; sys.argv = ['mathrl', 'import', sys.argv[1]]; main()"
PEER = "import sys, glob, pandas as pd; print(sum(len(pd.read_json(f, lines=True)) for f in glob.glob(sys.argv[1])))"


def write_run(top: Path, rollouts: int, characters: int) -> None:
    chosen = random.Random(1)
    words = [
        "so",
        "then",
        "we",
        "add",
        "the",
        "numbers",
        "and",
        "find",
        "that",
        "it",
        "is",
        "therefore",
        "\\frac{1}{2}",
    ]
    (top / "rollouts").mkdir(parents=True)
    with (top / "run.jsonl").open("w") as log:
        for step in range(1, rollouts // PER_STEP + 1):
            with (top / "rollouts" / f"{step}.jsonl").open("w") as stream:
                for number in range(PER_STEP):
                    first, second = step, number // GROUP
                    answer = first + second if chosen.random() < 0.5 else chosen.randrange(999)
                    text = " ".join(chosen.choices(words, k=characters // 5)) + f" \\boxed{{{answer}}}"
                    row = {"input": f"What is {first} + {second}?", "output": text, "gts": str(first + second)}
                    stream.write(json.dumps(row | {"score": float(answer == first + second), "step": step}) + "\n")
            log.write(json.dumps({"step": step, "data": {"actor/entropy": 0.5, "critic/score/mean": 0.5}}) + "\n")


def measure(name: str, program: str, argument: str, home: Path) -> None:
    """Run the program, and print its seconds and its peak memory."""
    start = time.perf_counter()
    environment = os.environ | {"MATHRL_HOME": str(home), "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen([sys.executable, "-c", program, argument], env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - start
    print(f"{name}: {seconds:.1f} s, {usage.ru_maxrss / 1024:.0f} MiB" + (f", exit status {status}" * bool(status)))


def main(rollouts: int = 100_000, characters: int = 600) -> None:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        write_run(top / "run", rollouts, characters)
        print(f"{rollouts:,} rollouts of about {characters} characters, {PER_STEP} per step")
        measure("mathrl import, graded again", IMPORT, str(top / "run"), top / "home")
        measure("pandas.read_json of the same files", PEER, str(top / "run" / "rollouts" / "*.jsonl"), top / "home")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
