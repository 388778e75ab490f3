r"""The quality gate on 2,000 rows with planted defects of eight kinds, beside Big-Math's rules. Prints a table.

    python benchmarks/quality_gate.py /path/to/math_train.jsonl.gz /path/to/gsm8k_train.jsonl.gz [--show 5]

1,000 rows stay as they are, 125 get each defect; which, and in which of several wordings, is seeded. A policy's samples
are made as well: 8 per row, of which 6 give the right answer, so that the rule `majority` has something to count.
Big-Math's rules (arXiv:2502.17387, section 3; github.com/SynthLabsAI/big-math, signals/) are written here from their
description: proof, several parts, true/false, yes/no, multiple choice and links. It has no rules for the other kinds.
Rows that are defective before anything is planted count as false alarms; `--show` prints some.
"""

import argparse
import json
import random
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mathrl.core.types import Problem
from mathrl.curation.quality import broken_rules
from mathrl.params.data import Quality
from mathrl.reading.row_files import read_rows

PER_KIND, CLEAN = 125, 1000
KINDS: dict[str, tuple[str, ...]] = {
    "proofs": ("proof",),
    "several parts": ("parts",),
    "yes/no and choice": ("yes_no", "choice"),
    "links and missing figures": ("link", "figure", "figure_described"),
    "answer in the question": ("leak",),
    "answer not in its solution": ("solution_disagrees",),
    "unparseable truth": ("unparseable",),
    "truth against the majority": ("majority",),
}
PROOFS = (
    "Prove that {s}", "Show that {s}", "Give a proof that {s}", "Let $n$ be a positive integer. Prove the identity {s}",
    "Suppose that $x$ and $y$ are real. Then prove that {s}", "Verify that {s} holds for all real $x$.",
    "Demonstrate that {s}", "Let $f$ be continuous. Disprove: {s}", "(USAMO) Show by induction that {s}",
)  # fmt: skip
STATEMENTS = (
    "$a^2+b^2 \\ge 2ab$.", "the sum of two odd numbers is even.", "there are infinitely many primes.",
    "$\\sqrt{2}$ is irrational.", "$n^3-n$ is divisible by 6.",
)  # fmt: skip
PARTS = (
    "(a) {q} (b) What is twice that number?", "(i) {q}\n(ii) Find the square of the result.",
    "1. {q}\n2. How many divisors does it have?", "a) {q}\nb) Compute half of it.",
    "{q} (a) Give your answer as a fraction. (b) Find its decimal form.",
    "Part 1. {q}\nPart 2. Determine whether it is prime.", "（1）求 $x$ 的值；（2）求 $x^2$ 的值。 {q}",
    "{q} Also, find the sum of the digits of the result, and explain which is larger.",
)  # fmt: skip
FIGURES = (
    "In the figure below, {q}", "{q} (See the diagram above.)", "As shown in the figure, {q}", "如图所示，{q}",
    "The triangle shown below has the side that is asked for. {q}", "Use the chart shown. {q}",
    "{q} ![](media/image3.png)", "{q} Figure 2 gives the lengths.",
)  # fmt: skip
LINKS = (
    "{q} See https://artofproblemsolving.com/community/c4h1 for a drawing.", "{q} \\includegraphics[width=3cm]{{img}}",
    "\\href{{https://example.org/p}}{{Problem}}: {q}", "{q} (from www.example.org)",
)  # fmt: skip
LEAKS = (
    "{q} The answer is {a}.", "{q}\nAnswer: {a}", "{q} $\\boxed{{{a}}}$", "{q}\n#### {a}", "{q}\n\n{s}",
    "{s}\n\n{q}", "{q} 答案：{a}", "{q} (Correct choice: {a})",
)  # fmt: skip
UNPARSEABLE = (
    "see the solution above for the full derivation", "np.sqrt(2)*np.pi", "\\frac{1}{2", "x >= 3 if a > 0 else none",
    "the set of all points on the left side of the given line", "$$", "{'value': 3, 'unit': 'cm'}", "3 +* 4",
)  # fmt: skip


@dataclass
class Planted:
    problem: Problem
    kind: str
    votes: list[str]


def plant(problem: Problem, kind: str, rng: random.Random) -> Planted:
    """The problem with a defect, and a policy's answers to it."""
    question, answer, solution = problem.question, problem.answers[0], problem.solution or ""
    votes = [answer] * 6 + ["0", "1"]
    wrong = str(rng.randint(2, 9999)) + "7"
    if kind == "proofs":
        problem = problem.with_(question=rng.choice(PROOFS).replace("{s}", rng.choice(STATEMENTS)), solution=None)
    elif kind == "several parts":
        problem = problem.with_(question=rng.choice(PARTS).replace("{q}", question))
    elif kind == "yes/no and choice" and rng.random() < 0.5:
        asked = rng.choice(("Is it true that the result of this is positive? {q}", "{q} Is the result even?"))
        truth = rng.choice(("Yes", "no", "\\text{True}", "False", "\\text{No}."))
        votes = [truth] * 6
        problem = problem.with_(question=asked.replace("{q}", question), answers=(truth,), solution=None)
    elif kind == "yes/no and choice":
        marks = rng.choice(("({})", "{}.", "\\textbf{{({})}}", "{})"))
        letters = [f"{marks.format(letter)} {rng.randint(1, 99)}" for letter in "ABCDE"]
        listed = rng.choice((" ", "\n", " \\qquad ")).join(letters)
        truth = rng.choice(("C", "(B)", "\\text{(D)}", "A"))
        votes = [truth] * 6
        problem = problem.with_(question=f"{question}\n{listed}", answers=(truth,), solution=None)
    elif kind == "links and missing figures":
        wording = rng.choice(FIGURES if rng.random() < 0.6 else LINKS)
        problem = problem.with_(question=wording.replace("{q}", question).replace("{{", "{").replace("}}", "}"))
    elif kind == "answer in the question":
        wording = rng.choice(LEAKS).replace("{{", "{").replace("}}", "}")
        text = wording.replace("{q}", question).replace("{a}", answer).replace("{s}", solution)
        problem = problem.with_(question=text)
    elif kind == "answer not in its solution":
        problem = problem.with_(answers=(wrong,))
        votes = [wrong] * 6 + ["0", "1"]
    elif kind == "unparseable truth":
        problem = problem.with_(answers=(rng.choice(UNPARSEABLE),), solution=None)
        votes = []
    elif kind == "truth against the majority":
        problem = problem.with_(answers=(wrong,), solution=None)
    return Planted(problem, kind, votes)


def big_math(problem: Problem) -> dict[str, bool]:
    """Big-Math's rules by kind."""
    text, lower, answer = problem.question, problem.question.lower(), problem.answers[0]
    parts = (r"\([iⅰ\s,\.]\).*\([iⅱ\s,\.]\)", r"\([1-9][^\)]*\).*\([1-9][^\)]*\)", r"(?:\d+\.).*(?:\d+\.)",
             r"\(i+\).*\(i+\)", r"(?:^|\s)(?:1[.)]|i[.)]|①).*(?:\s|$)(?:2[.)]|ii[.)]|②)")  # fmt: skip
    last = text.split("\n")[-1].lower()
    yes_no = re.search(r"\b(yes|no)\b", answer, re.IGNORECASE) or re.search(r"true|false", answer, re.IGNORECASE)
    asks = last.startswith(("is ", "are ", "do ", "does ", "can "))
    return {
        "proofs": "prove that" in lower or "a proof" in lower or any(
            sentence.lstrip().lower().startswith("show") for sentence in re.split(r"(?<=[.!?])\s", text)
        ),
        "several parts": any(re.search(pattern, lower) for pattern in parts),
        "yes/no and choice": bool(yes_no) or asks or _in_order(text, "ABCD") or _in_order(text, "1234"),
        "links and missing figures": bool(re.search(r"\\url|\\href|https?://", text)),
    }  # fmt: skip


def _in_order(text: str, options: str) -> bool:
    places = [text.replace(options, "").rfind(option) for option in options]
    return -1 not in places and places == sorted(places)


def measure(rows: list[Planted], flagged: Callable[[Planted], set[str]]) -> dict[str, tuple[int, int, int]]:
    """Per kind: planted, found, and rows flagged in all."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in rows:
        counts[row.kind][0] += 1
        for kind in flagged(row):
            counts[kind][1] += kind == row.kind
            counts[kind][2] += 1
    return {kind: (planted, found, said) for kind, (planted, found, said) in counts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="problem sets with question, answer and solution")
    parser.add_argument("--show", type=int, default=0, help="print this many misses and false alarms per kind")
    given = parser.parse_args()
    rng = random.Random(0)
    pool = [
        Problem(str(row.values["id"]), row.values["question"], (str(row.values["answer"]),), "s", "rl",
                solution=row.values["solution"])
        for file in given.files for row in read_rows(file) if row.values.get("solution")
    ]  # fmt: skip
    kinds = [kind for kind in KINDS for _ in range(PER_KIND)] + ["clean"] * CLEAN
    rows = [plant(problem, kind, rng) for problem, kind in zip(rng.sample(pool, len(kinds)), kinds, strict=True)]
    quality = Quality()

    def ours(row: Planted) -> set[str]:
        rules = set(broken_rules(row.problem, {row.problem.id: row.votes}, quality))
        return {kind for kind, of in KINDS.items() if rules & set(of)}

    def theirs(row: Planted) -> set[str]:
        return {kind for kind, broken in big_math(row.problem).items() if broken}

    results = {"mathrl": measure(rows, ours), "Big-Math": measure(rows, theirs)}
    print("| kind | mathrl: recall, precision | Big-Math: recall, precision |\n|---|---|---|")
    for kind in KINDS:
        cells = []
        for found in results.values():
            planted, right, said = found.get(kind, (PER_KIND, 0, 0))
            cells.append(f"{right / planted:.3f}, {right / said:.3f}" if said else "no rule")
        print(f"| {kind} | {' | '.join(cells)} |")
    clean = [row for row in rows if row.kind == "clean"]
    print(f"\nclean rows flagged: mathrl {sum(map(bool, map(ours, clean)))}, "
          f"Big-Math {sum(map(bool, map(theirs, clean)))} of {len(clean)}")  # fmt: skip
    for kind in KINDS if given.show else ():
        missed = [row for row in rows if row.kind == kind and kind not in ours(row)]
        alarms = [row for row in rows if row.kind != kind and kind in ours(row)]
        for name, some in (("missed", missed), ("false alarm", alarms)):
            for row in some[: given.show]:
                shown = {"kind": row.kind, "question": row.problem.question[:300], "answers": row.problem.answers}
                print(f"{kind}, {name}: {json.dumps(shown, ensure_ascii=False)}")


if __name__ == "__main__":
    main()
