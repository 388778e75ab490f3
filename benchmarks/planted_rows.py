r"""Rows with planted defects among real ones: which of them curation finds, and which real rows it would drop.

    python benchmarks/planted_rows.py [/path/to/sets] [--rows 120] [--show 3]

The folder (default $MATHRL_DATA) has gsm8k_train.jsonl.gz and math_train.jsonl.gz, whose questions get the defects, and
further sets that are counted if they are there. Each kind has two lists of wordings: those that the rules were written
by, and others that were held out; no rule was changed for what it misses of these. Those of leaks and figures are in
held_out_wordings.py, and which of them are missed is printed only with `--missed`.
`found` is the share of rows that break a rule of the kind (for look-alike letters: that equal the question which they
copy, as a duplicate and for decontamination). The second table counts, by rule, the rows of the real sets that break
it; `--show` prints some of them.
"""

import argparse
import os
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from held_out_wordings import FIGURES, LEAKS

from mathrl.core.types import Problem
from mathrl.curation.decontaminate import EvaluationIndex
from mathrl.curation.missing_figures import missing_figure
from mathrl.curation.prompt_leaks import leak
from mathrl.curation.quality import broken_rules
from mathrl.data.grams import exact_key
from mathrl.grading.boxes import closing_brace
from mathrl.params.data import Quality
from mathrl.reading.row_files import read_rows
from mathrl.reading.row_formats import RowShape, to_problem
from mathrl.reading.row_values import BadRow

HOSTS = ("gsm8k_train.jsonl.gz", "math_train.jsonl.gz")
REAL = (*HOSTS, "gsm8k_test.jsonl", "math_test.jsonl.gz", "dapo_math_17k_train.jsonl.gz", "cmath_dev.jsonl",
        "svamp_test.jsonl")  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """Wordings of a defect: {q} is the host's question, {a} its answer. `answer` replaces the answer."""

    rules: tuple[str, ...]
    known: tuple[str, ...]
    held_out: tuple[str, ...]
    answer: tuple[str, ...] = ()


IDENTITY = "$1+2+\\dots+n=\\frac{n(n+1)}2$"
OPTIONS = ("3", "8", "12", "15")
KINDS = {
    "leak": Kind(
        ("leak",),
        ("{q} [ans = {a}]", "{q} Hint: you should get {a}.", "{q} Key: {a}", "Show that the result is {a}: {q}",
         "{q} (Answer: {a})", "{q} The final answer is {a}.",
         "{q} (solution = {a})", "{q} You'll end up with {a}.", "{q} Ans. {a}", "{q} Check that your total is {a}.",
         "{q} Expected output: {a}", "{q} The correct value is {a}."),
        LEAKS,
    ),
    "proof": Kind(
        ("proof",),
        (f"Give a rigorous argument that {IDENTITY}.", f"Derive the identity {IDENTITY}.",
         f"Use induction to show that {IDENTITY}.", f"求证：{IDENTITY}。", f"Prove {IDENTITY}."),
        (f"Argue carefully that {IDENTITY}.", f"Write down a complete proof of {IDENTITY}.",
         f"By contradiction, show that $\\sqrt2$ is irrational. Note {IDENTITY}.", f"试证明 {IDENTITY}。",
         f"Explain why {IDENTITY} holds for all $n$.", f"Convince the reader that {IDENTITY}."),
    ),
    "parts": Kind(
        ("parts",),
        ("{q} How many are even, and how many are odd?", "i) {q} ii) Find the square of that.",
         "{q} What is the sum? What is their product?", "First compute the answer: {q} Then compute its square.",
         "1. {q} 2. Find twice that number.", "Part A: {q} Part B: What is half of it?"),
        ("{q} How much is left over, and how long would it last?", "(i) {q} (ii) Determine its digits.",
         "{q} How far is it? How fast does he go?", "Question 1: {q} Question 2: Which is larger?",
         "Q1. {q} Q2. How many divisors has it?", "① 求它的值；② 求它的平方。{q}", "{q} Furthermore, find its cube."),
    ),
    "choice": Kind(
        ("choice",),
        ("Which is right? a. {0} b. {1} c. {2} d. {3}", "Which is right? [A] {0} [B] {1} [C] {2} [D] {3}",
         "Which is right? ① {0} ② {1} ③ {2} ④ {3}", "Which is right? 1) {0} 2) {1} 3) {2} 4) {3}",
         "Which is right? (A) {0} (B) {1} (C) {2} (D) {3}"),
        ("Pick one. (a) {0} (b) {1} (c) {2} (d) {3}", "Choose the best option:\nA. {0}\nB. {1}\nC. {2}\nD. {3}",
         "下列哪个正确？ ①{0} ②{1} ③{2} ④{3}", "Select the answer.\n(1) {0}\n(2) {1}\n(3) {2}\n(4) {3}",
         "Which one? A: {0} B: {1} C: {2} D: {3}", "下列哪个正确？【A】{0}【B】{1}【C】{2}【D】{3}"),
    ),
    "figure": Kind(
        ("figure", "figure_described"),
        ("The diagram shows what happens. {q}", "Refer to the image: {q}", "Based on the bar chart, {q}",
         "{q} Find the area of the shaded region.", "As can be seen below, {q}", "Use the table. {q}",
         "In the figure below, {q}", "The chart displays the numbers. {q}", "See the attached picture. {q}",
         "{q} (Look at the graph.)", "According to the map, {q}", "{q} The lengths are as shown in the drawing.",
         "{q} 见下图。", "Consult the table for the prices. {q}", "What is the perimeter of the shaded part? {q}",
         "Observe the picture: {q}"),
        FIGURES,
    ),
    "context": Kind(
        ("context",),
        ("How many are left?", "As in the previous problem, how many does he need?",
         "Using the result of part (a), find the value.", "Simplify the expression above.", "由上题的结论求值。"),
        ("How much money does she have left?", "Repeat the last exercise for the other side. Like in the previous "
         "question, find it.", "Use your answer to question b to find the total.", "Solve the above equation for x.",
         "How many apples do they have altogether?", "With the data given earlier, find the mean.",
         "What percentage of the original remains?"),
    ),
    "html": Kind(
        ("html", "link"),
        ("<p>{q}</p>", "{q}<br/>", "<div class='q'>{q}</div>", "{q} x<sup>2</sup>", "{q}&nbsp;", "<img src='a'> {q}"),
        ("<h3>Problem</h3>{q}", "{q}<hr>", "<ul><li>{q}</li></ul>", "<i>{q}</i>", "{q} &times;", "<TABLE><TR>{q}"),
    ),
    "broken LaTeX": Kind(
        ("unparseable",), ("{q}",), ("{q}",),
        answer=("\\frac{1}{2", "\\fra{1}{2}", "\\sqrt{3", "x=", "2^{", "\\left(1,2", "\\frac{3}{4}}", "\\farc12",
                "\\sqr{5}", "3\\cdot", "\\begin{pmatrix}1&2"),
    ),
    "the answer proof": Kind(("proof",), ("{q}",), ("{q}",), answer=("proof", "Proof", "证明", "\\text{proof}")),
}  # fmt: skip
LOOKALIKES = {  # known: Cyrillic's small letters; held out: capitals, Greek, full-width, zero-width
    "known": ((str.maketrans("ae", "ае")), (str.maketrans("op", "ор"))),
    "held_out": (
        str.maketrans("cxyi", "схуі"), str.maketrans("ATHEo", "АТНЕο"), str.maketrans("s", "ｓ"),
        str.maketrans({"e": "e\u200b"}), str.maketrans("jd", "јԁ"),
    ),
}  # fmt: skip
ENDS, LONGEST_END = 600, 150  # solutions whose last sentence is taken, and its length in characters
EACH = 4  # rows per wording at least
BLANK = (" \n\u200b", "\u200b\u200c", "\ufeff", "\u00a0\t", "\u2060\n", "\u3164")


def problems(file: Path) -> Iterator[Problem]:
    for row in read_rows(file):
        yield Problem(str(row.values["id"]), row.values["question"], (str(row.values["answer"]),), file.stem, "rl")


def planted(kind: Kind, wordings: Sequence[str], hosts: Sequence[Problem], rng: random.Random) -> Iterator[Problem]:
    for number, host in enumerate(hosts):
        text, answer = wordings[number % len(wordings)], host.answers[0]
        if "{0}" in text:
            at = rng.randrange(4)
            for place, option in enumerate(OPTIONS):
                text = text.replace(f"{{{place}}}", option)
            numbered = "①" in text or "1)" in text
            answer = "1234"[at] if numbered else "ABCD"[at]
        question = text.replace("{q}", host.question).replace("{a}", answer)
        answer = kind.answer[number % len(kind.answer)] if kind.answer else answer
        yield host.with_(question=question, answers=(answer,))


def share(found: Sequence[bool]) -> str:
    return f"{sum(found)} of {len(found)} ({sum(found) / len(found):.0%})"


def recall(hosts: list[Problem], rows: int, rng: random.Random, show_missed: bool) -> None:
    print("| kind | known wordings: found | held-out wordings: found |\n|---|---|---|")
    missed: dict[str, Counter[str]] = defaultdict(Counter)
    for name, kind in KINDS.items():
        cells = []
        for wordings in (kind.known, kind.held_out):
            chosen = list(planted(kind, wordings, rng.sample(hosts, max(rows, EACH * len(wordings))), rng))
            found = [bool({str(r) for r in broken_rules(p, {}, Quality())} & set(kind.rules)) for p in chosen]
            cells.append(share(found))
            for number, (row, was_found) in enumerate(zip(chosen, found, strict=True)):
                if not was_found and (show_missed or wordings not in (LEAKS, FIGURES)):
                    missed[name][row.answers[0] if kind.answer else wordings[number % len(wordings)]] += 1
        print(f"| {name} | {cells[0]} | {'the same' if kind.answer else cells[1]} |", flush=True)
    for label in ("duplicate", "decontamination"):
        cells = [share(list(_copies_found(label, tables, rng.sample(hosts, rows)))) for tables in LOOKALIKES.values()]
        print(f"| look-alike letters, {label} | {cells[0]} | {cells[1]} |")
    rejected = [_is_rejected(text) for text in BLANK]
    print(f"| blank question | {share(rejected[:1])} | {share(rejected[1:])} |")
    for name, wordings_missed in missed.items():
        listed = "; ".join(f"{text!r} {count}" for text, count in wordings_missed.most_common())
        print(f"\nmissed, {name}: {listed}")


def unwritten(file: Path, rng: random.Random) -> None:
    """Two measures on a set with solutions and drawings, whose wordings nobody made up."""
    rows = [(str(row.values["answer"]), row.values) for row in read_rows(file)]
    ends = [(answer, values, _conclusion(values["solution"])) for answer, values in rows]
    stated = [(answer, values, end) for answer, values, end in ends if answer in end and len(end) <= LONGEST_END]
    leaks = [
        leak(text, Problem("p", text, (answer,), "s", "rl"))
        for answer, values, end in rng.sample(stated, ENDS)
        for text in [f"{values['question']} {end}"]
    ]
    print(
        f"\nquestions with the last sentence of their solution, leak: {share([found is not None for found in leaks])}"
    )
    drawn = [values["question"] for _, values in rows if "[asy]" in values["question"]]
    bare = [re.sub(r"\[asy\].*?\[/asy\]", " ", question, flags=re.DOTALL) for question in drawn]
    print(f"questions without their drawing, figure: {share([missing_figure(question) for question in bare])}")


def _conclusion(solution: str) -> str:
    r"""The last sentence of a solution, without the \boxed around its answer; empty if it has none."""
    start = solution.rfind("\\boxed{")
    end = closing_brace(solution, start + 6) if start >= 0 else -1
    if end < 0:
        return ""
    plain = solution[:start] + solution[start + 7 : end] + solution[end + 1 :]
    return re.split(r"(?<=[.!?])\s+|\n", plain.strip())[-1]


def _copies_found(label: str, tables: Sequence[dict[int, object]], hosts: Sequence[Problem]) -> Iterator[bool]:
    index = EvaluationIndex(10)
    for host in hosts:
        index.add(host.id, "question", host.question)
    for number, host in enumerate(hosts):
        copy = host.question.translate(tables[number % len(tables)])
        if label == "duplicate":
            yield exact_key(copy) == exact_key(host.question)
        else:
            hit = index.look_up("copy", copy)
            yield hit is not None and hit.share >= 0.5


def _is_rejected(text: str) -> bool:
    try:
        to_problem({"question": text, "answer": "1"}, RowShape(), name="f:1", source="s", split="rl", seed=0)
    except BadRow:
        return True
    return False


def dropped(folder: Path, show: int, rng: random.Random) -> None:
    print("\n| set | rows | that break a rule | by rule |\n|---|---|---|---|")
    shown: dict[str, list[Problem]] = defaultdict(list)
    for name in REAL:
        if not (folder / name).is_file():
            continue
        rows = list(problems(folder / name))
        counts: Counter[str] = Counter()
        flawed = 0
        for problem in rows:
            rules = broken_rules(problem, {}, Quality())
            flawed += bool(rules)
            counts.update(rules)
            for rule in rules:
                shown[rule].append(problem)
        listed = ", ".join(f"{rule} {count}" for rule, count in counts.most_common())
        print(f"| {name.split('.')[0]} | {len(rows):,} | {flawed:,} | {listed or 'none'} |", flush=True)
    for rule, found in shown.items() if show else ():
        for problem in rng.sample(found, min(show, len(found))):
            print(f"{rule}: {problem.id}: {' '.join(problem.question.split())[:300]} | {problem.answers[0][:40]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("MATHRL_DATA"))
    parser.add_argument("--rows", type=int, default=120, help="planted rows per kind and list of wordings")
    parser.add_argument("--show", type=int, default=0, help="print this many real rows per rule")
    parser.add_argument("--missed", action="store_true", help="print which wordings of held_out_wordings.py are missed")
    given = parser.parse_args()
    if given.folder is None:
        parser.error("name the folder with the sets, or set MATHRL_DATA")
    rng = random.Random(0)
    clean = [p for name in HOSTS for p in problems(given.folder / name) if not broken_rules(p, {}, Quality())]
    # An answer of one digit stands in many texts; a short question leaves decontamination nothing to find.
    hosts = [p for p in clean if len(p.question) > 80 and "[asy]" not in p.question]
    recall(hosts, given.rows, rng, given.missed)
    if (test := given.folder / "math_test.jsonl.gz").is_file():
        unwritten(test, rng)
    dropped(given.folder, given.show, rng)


if __name__ == "__main__":
    main()
