"""The quality gate: each rule by examples that must and must not break it, and its step in curation."""

import json
from pathlib import Path
from typing import Any

import pytest

from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.curation import curation
from mathrl.curation.curation_account import manifest, write_report
from mathrl.curation.quality import DESCRIPTIONS, broken_rules
from mathrl.params.data import Curate, Quality


def broken(question: str, answer: str = "7", solution: str | None = None, votes: str = "") -> list[str]:
    problem = Problem("p", question, (answer,), "s", "rl", solution=solution)
    return list(broken_rules(problem, {"p": votes.split()}, Quality()))


CHOICE = "Which is prime? (A) 4 (B) 7 (C) 9"


@pytest.mark.parametrize(
    ("question", "rules"),
    [
        ("Prove that the sum of two odd numbers is even.", ["proof"]),
        ("Let $n>1$. Show by induction that $2^n>n$.", ["proof"]),
        ("证明：$a+b>c$。", ["proof"]),
        ("It can be shown that there is one. Find it, and show that it is even.", []),
        ("(a) Find $x$. (b) What is $x^2$?", ["parts"]),
        ("Part 1. How many are red?\nPart 2. How many are blue?", ["parts"]),
        ("已知 $x=2$。（1）求 $x^2$；（2）求 $x^3$。", ["parts"]),
        ("Find $x$. Also, find the square of it.", ["parts"]),
        ("Find the least $n$ so that (i) $n$ is even; (ii) $n+1$ is divisible by 3.", []),
        ("Let $f(a)$ and $f(b)$ be (a)symptotes. Find $f(c)$.", []),
        ("1. He gives a card away. 2. He takes one. How many has he?", []),
        ("Find x. See https://example.org/a.png", ["link"]),
        (r"\includegraphics{a} Find x.", ["link"]),
        ("In the figure below, $AB=3$. Find $BC$.", ["figure"]),
        ("As shown in the diagram, $AB=3$. Find $BC$.", ["figure"]),
        ("如图所示，求 $x$。", ["figure"]),
        ("In the figure below, $AB=3$. Find $BC$. [asy] draw((0,0)--(1,1)); [/asy]", []),
        ("The first numbers are shown below. Which is next? 1, 2, 4", []),
        ("He has to figure out how many apples the graph of $y=x$ has above it.", []),
        ("What is 3+4? The answer is 7.", ["leak"]),
        ("What is 3+4? [ans = 7]", ["leak"]),
        ("What is 3+4? Hint: you should get $7$.", ["leak"]),
        ("What is 3+4? (Key: 7)", ["leak"]),
        ("What is 3+4? Show that the result is 7: write the steps.", ["leak"]),
        ("If the result is 7 and one number is 3, what is the other? You should get 4 twice.", []),
        ("Give a rigorous argument for the fact that $\\sqrt2$ is irrational.", ["proof"]),
        ("Derive the identity $\\sin^2x+\\cos^2x=1$.", ["proof"]),
        ("Use induction to show that $2^n>n$ for all $n$.", ["proof"]),
        ("求证：$a+b>c$。", ["proof"]),
        ("Use induction to show that there is a formula, and find it for $n=7$.", []),
        ("He has 9 fruits. How many are apples, and how many are pears?", ["parts"]),
        ("The numbers are 3 and 4. What is the sum? What is their product?", ["parts"]),
        ("First compute $3+4$. Then compute its square.", ["parts"]),
        ("i) Find $x$. ii) Find $x^2$.", ["parts"]),
        ("Let $x=3$. 1. Find $x+4$. 2. How large is $x^2$?", ["parts"]),
        ("Part A: Find $x$. Part B: Find $x^2$.", ["parts"]),
        ("① 求 $x$；② 求 $x^2$。", ["parts"]),
        ("Of 26 people 22 have wine and 17 both. If each has one or more, how many people and drinks are there?", []),
        ("If he uses 300 MB and a half of what's left, how many MB are left of 500?", []),
        ("Part 1 of the race has 15 km, part 2 has 21 km. How long is the race?", []),
        ("What is 3+4?<br>Give a whole number.", ["html"]),
        ("<p>What is 3+4?</p>", ["html"]),
        ("What is <b>3+4</b>?", ["html"]),
        ("What is 3&nbsp;+&nbsp;4?", ["html"]),
        ("If $1<b<3$ and $a<b>c$, what is $b$?", []),
        ("The diagram shows three apples and four pears. How many fruits are there?", ["figure"]),
        ("Refer to the image: how many are red?", ["figure"]),
        ("Based on the bar chart, how many pupils like 7?", ["figure"]),
        ("A square has side 4. What is the area of the shaded region?", ["figure"]),
        ("As can be seen below, there are three. How many are missing of 10?", ["figure"]),
        ("Use the table to find $f(3)$.", ["figure"]),
        ("Each square of a row is shaded or not. How many ways leave the shaded region connected, of 3?", []),
        ("Find the area of the shaded region between the circles of radius 3 and 4.", []),
        ("A path has 9 steps. The following figure shows the case $n=6$. How many paths are there?", []),
        ("How many rocks can be removed from the table in 3 turns?", []),
        ("Use the table. \\begin{tabular}{c} 3 \\end{tabular} What is 3+4?", []),
        ("The pie chart gives the shares. How many voted for the park?", ["figure"]),
        ("The graph of $y=f(x)$ is shown. What is $f(3)$?", ["figure"]),
        ("What is the perimeter of the hexagon shown?", ["figure"]),
        ("Four cubes are glued together as shown. What is the surface of the solid?", ["figure"]),
        ("What is the area of triangle $JKL$ below?", ["figure"]),
        ("[Diagram omitted] What is the area of the field?", ["figure"]),
        ("What is the measure of the angle marked $x$?", ["figure"]),
        ("What fraction of the square is shaded?", ["figure"]),
        ("下表是各班的人数。三班有多少人？", ["figure"]),
        ("In the diagram, $AB=AC=5$, $BC=6$ and $D$ is the midpoint of $BC$. Find $AD$.", ["figure_described"]),
        ("如图，正方体的棱长为2，$M$ 是 $AB$ 的中点，平面 $CMN$ 垂直于 $AB$。求体积。", ["figure_described"]),
        (
            "A circle of radius 3 is tangent to two sides of a square of side length 9, as shown. Find $x$.",
            ["figure_described"],
        ),
        ("The graphs of $y=x$ and $y=x^2$ are drawn. At how many points do they meet?", []),
        ("They added these photos to the family's gallery of 3 pictures. How many are there now?", []),
        ("The 9 dots of the grid are red. How many squares have corners at dots of the grid?", []),
        ("There are 9 marbles on the table. On the table, how many can be red?", []),
        ("He read the map wrong: 3 inches on the map are 4 miles. How far is it?", []),
        ("For herself she figures 5 of each. How many of 12 are left?", []),
        ("在一个 $3\\times3$ 的方格表中，有多少个方格？", []),
        ("The clock shows 3:15. What is the angle of its hands?", []),
        ("The number shown on a die is 3. What is on the other side?", []),
        ("How many are left?", ["context"]),
        ("As in the previous problem, Tom has 3 apples and gets 4. How many has he?", ["context"]),
        ("Using the result of part (a), find $f(3)$.", ["context"]),
        ("Simplify the expression above.", ["context"]),
        ("由上题的结论，求 $x$。", ["context"]),
        ("$$x+1=8$$ Solve the equation above.", []),
        ("He solved two of 9 in the previous problem. How many are left?", []),
        ("How many sides does a heptagon have?", []),
    ],
)
def test_rules_on_questions(question: str, rules: list[str]) -> None:
    assert broken(question) == rules


def test_rules_on_answers() -> None:
    assert broken(CHOICE, "B") == broken(CHOICE, r"\text{(B)}") == ["choice"]
    for options in ("a. 4 b. 7 c. 9", "[A] 4 [B] 7 [C] 9", "(a) 4 (b) 7 (c) 9"):
        assert broken(f"Which is prime? {options}", "B") == ["choice"]
    for options, answer in (("① 4 ② 7 ③ 9", "②"), ("1) 4 2) 7 3) 9", "2"), ("1. 4 2. 7 3. 9", "(2)")):
        assert broken(f"Which is prime? {options}", answer) == ["choice"]
    assert broken("How many of these are prime? 1) 4 2) 7 3) 9", "1") == []
    assert broken("Which sum is it? 1) 4 2) 7 3) 9", "20") == []
    assert broken("What of it?", "proof") == broken("已知 $a$，求它。", "证明") == ["proof"]
    for answer in (r"\fra{1}{2}", "x=", r"\frac{1}{2", r"2\cdot", r"\undefined{3}"):
        assert broken("How many?", answer) == ["unparseable"]
    assert broken(CHOICE, "7") == broken("What is the grade of the best?", "A") == []
    assert broken("Is 7 prime?", "Yes") == broken("Is it?", r"\text{False}.") == ["yes_no"]
    assert broken("How many?", "np.sqrt(2)") == broken("How many?", r"\frac{1}{2") == ["unparseable"]
    assert broken("Who?", "Evelyn") == broken("Where?", r"(1,2)\cup[3,\infty)") == broken("Which?", "A, C") == []


def test_a_truth_is_compared_with_its_solution_and_a_policys_majority() -> None:
    assert (
        broken("How many?", "7", r"So \boxed{8}.") == broken("How many?", "7", "so\n#### 8") == ["solution_disagrees"]
    )
    assert broken("How many?", "0.5", r"So \boxed{\frac12}.") == broken("How many?", "7", "It is 8.") == []
    assert broken("How many?", "7", votes="8 8 8.0 3") == ["majority"]
    for agreeing in ("8 8 8", "8 8 7 7", "7 7 7 8", "7.0 7.0 7.0 7.0"):
        assert broken("How many?", "7", votes=agreeing) == []


def test_without_an_answer_no_rule_on_answers_counts() -> None:
    def rules(question: str, solution: str | None = None) -> list[str]:
        problem = Problem("p", question, (), "s", "rl", solution=solution)
        return list(broken_rules(problem, {"p": ["8"] * 9}, Quality()))

    assert rules("How many?", r"So \boxed{8}.") == rules(CHOICE) == []
    assert rules("Prove that 1=1.") == ["proof"]


def curate(folder: Path, quality: dict[str, Any]) -> tuple[Curate, curation.CurationPlan]:
    rows = [{"id": str(i), "question": f"What is {i}+0?", "answer": str(i)} for i in range(3)]
    rows += [{"id": "proof", "question": "Prove that 1=1.", "answer": "1"}]
    test = [{"id": "t", "question": "Show that 2=2.", "answer": "2"}]
    sources = []
    for split, given in (("rl", rows), ("test", test)):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
        path = str(folder / f"{split}.jsonl")
        sources.append({"type": "file", "name": split, "path": path, "split": split, "id_key": "id"})
    params = Curate.model_validate({"sources": sources, "quality": quality, "decontaminate": None})
    return params, curation.plan(params)


def test_the_gate_drops_training_rows_and_reports_all(tmp_path: Path) -> None:
    samples = tmp_path / "samples.jsonl"
    samples.write_text("".join(json.dumps({"problem_id": "2", "extracted": "9"}) + "\n" for _ in range(4)))
    params, planned = curate(tmp_path, {"samples": str(samples), "drop": ["proof", "majority"]})
    made = curation.run(params, 0, planned)
    assert [p.id for p in made.splits["rl"]] == ["0", "1"] and [p.id for p in made.splits["test"]] == ["t"]
    assert [(d.id, d.reason, d.detail) for d in made.dropped] == [
        ("2", "majority", DESCRIPTIONS["majority"]),
        ("proof", "proof", DESCRIPTIONS["proof"]),
    ]
    account = manifest(made, planned, params, 0, {})
    assert account["broken_rules"] == {"majority": 1, "proof": 2} and account["quality_samples"]["rows"] == 4
    assert str(tmp_path) not in json.dumps(account)
    write_report(tmp_path / "report", made, params, 0)
    report = (tmp_path / "report" / "report.md").read_text()
    assert "| proof | asks for a proof | 1 | dropped | 1 |" in report and "`t`: `Show that 2=2.`" in report

    kept = curation.run(curate(tmp_path, {"drop": []})[0], 0)
    assert len(kept.splits["rl"]) == 4 and [row.rules for row in kept.broken] == [("proof",), ("proof",)]


def test_majority_needs_its_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="majority, which needs samples"):
        Quality(drop=("majority",))
    with pytest.raises(UserError, match=r"curate\.quality\.samples: .*none\.jsonl is not a file"):
        curate(tmp_path, {"samples": str(tmp_path / "none.jsonl")})
