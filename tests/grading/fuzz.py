"""Random and mutated strings against the grader: nothing may raise, nothing may pass the time limit.

python tests/grading/fuzz.py --count 100000 [--seed 0]
"""

import argparse
import random
import time
from collections import Counter

from mathrl.grading import grade, warm_up

LIMIT = 1.5
SEEDS = [
    r"\frac{1}{2}", r"\sqrt{2}+\sqrt[3]{x}", r"(1,2]\cup[3,\infty)", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
    r"\{1\pm\sqrt{5},-2\}", "1,234.5", r"12\frac{3}{4}", r"0.1\overline{6}", r"50\%", r"45^\circ",
    r"3\text{ cm}^2", r"x^2+2x+1=0", r"-1<x\le 5", "1011_2", r"1.5\times10^{-3}", r"e^{i\pi}", r"\log_2 8",
    r"\sum_{k=1}^n k", "3:4:5", r"\text{even}", "(B)", r"x\in\mathbb{R}\setminus\{0\}", r"\int_0^1 x\,dx",
    r"n!", r"|x-1|\ge 2", "{1,2}", "]1,2[", r"2^{2^{2^2}}", r"\sin^2 x", r"\lfloor 3.7\rfloor",
    "p=5,q=2;p=7,q=2", "中文答案是 42", "４２", "½", "x²",
]  # fmt: skip
FRAMES = [
    "\\boxed{%s}",
    "The answer is %s.",
    "<think>a</think><answer>%s</answer>",
    "#### %s",
    "%s",
    "$%s$",
    "so $x=%s$ ok",
]
BITS = [
    *"0123456789xyzieE+-*/^_=<>!%$&|,;:.(){}[]\\'\" \n\t~#@",
    "\\frac", "\\sqrt", "\\boxed{", "\\text{", "\\left(", "\\right)", "\\pm", "\\infty", "\\cup",
    "\\begin{pmatrix}", "\\end{pmatrix}", "\\\\", "<think>", "</think>", "<answer>", "^{", "_{", "}}", "{{",
    "\\sum", "10^{10}", "!!", "\x00", "\ud800", "\u202e", "π", "∞", "é", "中", "\\overline{", "\\circ", "and",
    "or", "answer is", "if", "1e9",
]  # fmt: skip


def mutated(text: str, random_: random.Random) -> str:
    for _ in range(random_.randint(1, 6)):
        i = random_.randint(0, len(text))
        j = min(len(text), i + random_.randint(0, 6))
        kind = random_.random()
        if kind < 0.4:
            text = text[:i] + random_.choice(BITS) + text[i:]
        elif kind < 0.6:
            text = text[:i] + text[j:]
        elif kind < 0.75:
            text = text[:j] + text[i:j] * random_.choice([2, 3, 50]) + text[j:]
        else:
            other = random_.choice(SEEDS)
            text = text[:i] + other[: random_.randint(0, len(other))] + text[i:]
    return text[:5000]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    random_ = random.Random(arguments.seed)
    warm_up()
    slowest, worst, late, raised = 0.0, "", 0, 0
    rules: Counter[str] = Counter()
    started = time.monotonic()
    for i in range(arguments.count):
        truth = random_.choice(SEEDS)
        if i % 5:
            text = mutated(random_.choice([truth, random_.choice(SEEDS)]), random_)
        else:
            text = "".join(random_.choice(BITS) for _ in range(random_.randint(0, 80)))
        response = random_.choice(FRAMES).replace("%s", text)
        begun = time.monotonic()
        try:
            verdict = grade(response, truth)
            rules[verdict.rule] += 1
            if verdict.rule.endswith("error"):
                raised += 1
                print(f"GAP {verdict.reason} on {response!r} for {truth!r}")
        except Exception as error:  # the point of the run: count, show, go on
            raised += 1
            print(f"RAISED {error!r} on {response!r} for {truth!r}")
        seconds = time.monotonic() - begun
        late += seconds > LIMIT
        if seconds > slowest:
            slowest, worst = seconds, response
    total = time.monotonic() - started
    print(f"{arguments.count} strings in {total:.0f} s: {raised} raised, {late} over {LIMIT} s")
    print(f"slowest, {slowest:.3f} s: {worst[:200]!r}")
    print(dict(rules.most_common(12)))
    raise SystemExit(1 if raised or late else 0)


if __name__ == "__main__":
    main()
