"""The verifier beside Math-Verify, in one run: accuracy, abuse, speed, threads.

    python benchmarks/grader.py --cases PATH --data PATH --exams tests/grading/exams.jsonl

`--cases`: a folder of .jsonl files of labelled cases. Fields: response (or response_parts [[text, count], …]
to be joined), ground_truth, expected (null: only crashes and hangs count), form ("bare": wrap in a box),
policy (true: scored separately); rows with a `group` are abuse. `@PWN_DIR@` is replaced by a folder that
must stay empty.
`--data`: a folder with gsm8k_test.jsonl and math500_test.jsonl (answer, solution) for the speed.
The peer runs in a child process that is killed when it hangs.
"""

from __future__ import annotations

import argparse
import json
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SLOW = 1.5
KILL = 3.0
_PEER = r"""
import json, signal, sys, threading
from math_verify import parse, verify
def judge(response, truth):
    return bool(verify(parse("$" + truth + "$"), parse(response)))
def threaded():
    out = []
    def run():
        try:
            out.append(judge(r"\boxed{\frac{2}{4}}", "0.5"))
        except BaseException:
            out.append(False)
    thread = threading.Thread(target=run); thread.start(); thread.join()
    signal.alarm(100)
    judge(r"\boxed{3}", "3")
    return bool(out[0]) and signal.alarm(0) > 0
print("ready", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    try:
        reply = threaded() if request is None else judge(*request)
    except Exception as error:
        reply = False
    print(json.dumps(reply), flush=True)
"""


class Peer:
    """Math-Verify in a child process that is killed after `patience` seconds without a reply, then restarted."""

    def __init__(self, patience: float = KILL) -> None:
        self.patience = patience
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, request: Any) -> tuple[bool, float]:
        """The verdict and its seconds; (False, patience) if it had to be killed."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            assert self.process.stdout is not None
            self.process.stdout.readline()
        assert self.process.stdin is not None and self.process.stdout is not None
        started = time.perf_counter()
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            ready, _, _ = select.select([self.process.stdout], [], [], self.patience)
            line = self.process.stdout.readline() if ready else b""
        except BrokenPipeError:
            line = b""
        seconds = time.perf_counter() - started
        if line:
            return bool(json.loads(line)), seconds
        self.close()
        return False, seconds if ready else max(seconds, self.patience)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Ours:
    def __init__(self) -> None:
        from mathrl.grading import warm_up

        warm_up()

    def ask(self, request: Any) -> tuple[bool, float]:
        from mathrl.grading import grade

        started = time.perf_counter()
        if request is None:
            return self.threaded(), 0.0
        verdict = grade(*request)
        return verdict.correct, time.perf_counter() - started

    def threaded(self) -> bool:
        from mathrl.grading import grade

        results: list[bool] = []
        pair = ("\\boxed{\\frac{n(n+1)(2n+1)}{6}}", "\\sum_{k=1}^n k^2")  # one that goes to the symbolic engine
        thread = threading.Thread(target=lambda: results.append(grade(*pair).rule.endswith("symbolic")))
        signal.alarm(100)
        thread.start()
        thread.join()
        return results == [True] and signal.alarm(0) > 0

    def close(self) -> None:
        return None


@dataclass
class Score:
    right: int = 0
    total: int = 0
    false_positives: int = 0
    false_negatives: int = 0
    slow: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        return self.right / self.total if self.total else float("nan")


def read_rows(folder: Path, trap: Path) -> list[dict[str, Any]]:
    rows = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            parts = row.get("response_parts")
            text = "".join(part * count for part, count in parts) if parts is not None else row.get("response")
            text = (text or "").replace("@PWN_DIR@", str(trap))
            row["text"] = f"\\boxed{{{text}}}" if row.get("form") == "bare" else text
            rows.append(row)
    return rows


def run_rows(rows: list[dict[str, Any]], grader: Ours | Peer) -> dict[str, Score]:
    scores = {name: Score() for name in ("cases", "abuse", "policy")}
    for row in rows:
        name = "cases" if "group" not in row else "policy" if row.get("policy") else "abuse"
        correct, seconds = grader.ask([row["text"], row["ground_truth"]])
        score = scores[name]
        score.slow += seconds > SLOW
        if row["expected"] is None:
            continue
        score.total += 1
        score.right += correct == row["expected"]
        score.false_positives += correct and not row["expected"]
        score.false_negatives += bool(row["expected"]) and not correct
        if correct != row["expected"]:
            score.wrong.append(str(row.get("id")))
    return scores


def run_exams(file: Path, grader: Ours | Peer) -> dict[str, list[int]]:
    """By exam the unequal pairs that are accepted, and the equal ones that are refused."""
    wrong: dict[str, list[int]] = {}
    for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
        correct, _ = grader.ask([row["response"], row["truth"]])
        counts = wrong.setdefault(row["exam"], [0, 0])
        counts[row["equal"]] += correct != row["equal"]
    return wrong


def speed_pairs(folder: Path, count: int) -> list[list[str]]:
    """Half correct (the worked solution), half wrong (another problem's answer), shuffled with a fixed seed."""
    pairs: list[list[str]] = []
    for name in ("gsm8k_test.jsonl", "math500_test.jsonl"):
        rows = [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
        for i, row in enumerate(rows):
            pairs.append([str(row["solution"]), str(row["answer"])])
            pairs.append([f"So the answer is $\\boxed{{{rows[i - 3]['answer']}}}$.", str(row["answer"])])
    random.Random(0).shuffle(pairs)
    return pairs[:count]


def speed(pairs: list[list[str]], grader: Ours | Peer) -> tuple[float, float, float]:
    """Pairs per second, median ms, p99 ms."""
    grader.ask(pairs[0])
    seconds = [grader.ask(pair)[1] for pair in pairs]
    cuts = statistics.quantiles(seconds, n=100)
    return len(pairs) / sum(seconds), 1000 * statistics.median(seconds), 1000 * cuts[98]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, help="folder of labelled cases (.jsonl)")
    parser.add_argument("--exams", type=Path, help="pairs that are equal or not: tests/grading/exams.jsonl")
    parser.add_argument("--data", type=Path, help="folder with gsm8k_test.jsonl and math500_test.jsonl")
    parser.add_argument("--pairs", type=int, default=3600, help="speed pairs for mathrl")
    parser.add_argument("--peer-pairs", type=int, default=400, help="speed pairs for the peer")
    parser.add_argument("--no-peer", action="store_true", help="leave Math-Verify out")
    arguments = parser.parse_args()
    graders: dict[str, Ours | Peer] = {"mathrl": Ours()}
    if not arguments.no_peer:
        graders["math-verify"] = Peer()
    table: dict[str, dict[str, str]] = {}

    def put(row: str, name: str, text: str) -> None:
        table.setdefault(row, {})[name] = text

    for name, grader in graders.items():
        if arguments.cases:
            with tempfile.TemporaryDirectory() as trap:
                scores = run_rows(read_rows(arguments.cases, Path(trap)), grader)
                ran = len(list(Path(trap).iterdir()))
            cases, abuse, policy = scores["cases"], scores["abuse"], scores["policy"]
            put("accuracy on cases", name, f"{cases.accuracy:.4f} of {cases.total}")
            put("  false positives / negatives", name, f"{cases.false_positives} / {cases.false_negatives}")
            put("accuracy on abuse, policy apart", name, f"{abuse.accuracy:.4f} of {abuse.total}")
            put("  house rules (policy rows)", name, f"{policy.accuracy:.4f} of {policy.total}")
            put(f"inputs over {SLOW} s", name, str(sum(score.slow for score in scores.values())))
            put("ran code from a response", name, str(ran))
            if name == "mathrl" and cases.wrong + abuse.wrong + policy.wrong:
                print("mathrl is wrong on:", ", ".join(cases.wrong + abuse.wrong + policy.wrong))
        for exam, (accepted, refused) in run_exams(arguments.exams, grader).items() if arguments.exams else ():
            put(f"exam {exam}: accepted / refused", name, f"{accepted} / {refused}")
        if arguments.data:
            count = arguments.pairs if name == "mathrl" else arguments.peer_pairs
            rate, median, p99 = speed(speed_pairs(arguments.data, count), grader)
            put("pairs a second on one core", name, f"{rate:,.0f}")
            put("  median / p99, ms", name, f"{median:.3f} / {p99:.2f}")
        put("off the main thread, alarm kept", name, "yes" if grader.ask(None)[0] else "no")
        grader.close()
    print(f"{'':34}" + "".join(f"{name:>22}" for name in graders))
    for row, columns in table.items():
        print(f"{row:34}" + "".join(f"{columns.get(name, '-'):>22}" for name in graders))


if __name__ == "__main__":
    main()
