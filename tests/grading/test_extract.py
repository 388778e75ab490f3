"""Where the answer is found in a response, and by which rule."""

import pytest

from mathrl.grading import extract, grade
from mathrl.grading.extract import without_think

# (right, accepted answer, response)
RESPONSES = [
    (True, "B", "The answer is (B)."),
    (True, "B", "Answer: B) because it fits"),
    (True, "B", "The correct answer is **B**."),
    (True, "B", "So the answer is B. The other options A and C are wrong."),
    (True, "42", "**Answer:** 42"),
    (True, "42", "ANSWER: 42"),
    (True, "5", "The final answer is: $\\boxed{5}$. Thanks for asking about 7."),
    (True, "42", "所以答案是 42。"),
    (True, "\\frac12", "所以答案为：$\\frac{1}{2}$"),
    (True, "42", "La réponse est 42."),
    (True, "12.5", "donc il reste 12,5 euros"),
    (True, "18", "She makes 9 * 2 = $18 every day at the farmer's market."),
    (True, "18", "Janet makes $18."),
    (True, "18", "so the total is 9 + 9 = 18 dollars per day."),
    (True, "0", "There are 0 left."),
    (True, "1234.5", "It costs $1,234.50 in total."),
    (True, "3/4", "the probability is 3/4."),
    (True, "\\frac{3}{4}", "Hence \\(x = \\frac{3}{4}\\)."),
    (True, "\\frac{3}{4}", "Hence \\[ x = \\frac{3}{4} \\]"),
    (True, "70", "The answer is $70$ degrees."),
    (True, "8", "The answer is 8 apples."),
    (True, "2", "so \\boxed{x = 2}"),
    (True, "2", "<think>maybe 3</think>The answer is 2"),
    (False, "3", "<think>maybe 3</think>The answer is 2"),
    (True, "2", "<think>hm</think><answer>2</answer>"),
    (True, "2", "reasoning without opening </think> <answer> 2 </answer>"),
    (True, "2", "Answer:\n\\boxed{2}"),
    (True, "x+1", "The answer is $x+1$."),
    (True, "(1,2)", "The answer is (1, 2)."),
    (True, "9", "<answer>\\boxed{9}</answer>"),
    (True, "9", "<answer>9</answer><|im_end|>"),
    (True, "9", "#### 9<|endoftext|>"),
    (True, "9", "\\boxed{9}<|im_end|>"),
    (True, "1,2", "The solutions are $\\boxed{1}$ and $\\boxed{2}$."),
    (True, "17", "$$m+n = 8+9 = \\boxed{17}$$ I checked it: $8+9=17$"),
    (True, "72", "Natalia sold 48+24 = <<48+24=72>>72 clips altogether in April and May.\n#### 72"),
    (True, "5", "Therefore x equals 5."),
    (True, "-3", "so x = -3"),
    (True, "100", "The answer is 100%"),
    (True, "20\\%", "it is 20 percent"),
    (True, "paris", "The answer is Paris."),
    (True, "\\text{yes}", "The answer is yes."),
    (True, "4", "\\boxed{\\boxed{4}}"),
    (True, "4", "$\\boxed{4}$\n\n$\\boxed{4}$"),
    (True, "3", "the answer is 3\n"),
    (True, "7", "答：还剩7页。"),
    (True, "7", "答案：7"),
    (True, "C", "故选C。"),
    (True, "C", "故选：C"),
    (True, "A", "I believe the correct option is A"),
    (True, "25", "Answer: The value is $25$."),
    (True, "10", "Answer: $x=10$"),
    (True, "10", "The answer is 10, since 2*5=10."),
    (True, "10", "Thus, the answer is \\boxed{10}."),
    (True, "1/3", "The answer is \\frac{1}{3}."),
    (True, "12", "The answer should be 12"),
    (False, "12", "The answer is not 12"),
    (True, "45", "the answer is: \n\n45"),
    (True, "1000", "The answer is 1,000."),
    (True, "2.5", "The answer is 2.5."),
    (True, "3", "Final Answer: $3$"),
    (True, "3", "**Final Answer**\n3"),
    (True, "3", "### Final Answer\n\nThe value is 3."),
    (True, "81", "Ответ: 81"),
    (True, "81", "Die Antwort lautet 81."),
    (True, "36", "4*9=36"),
    (True, "36", "7+5=12;12-3=9;9*4=36"),
    (False, "42", "\\boxed{42 or 43}"),
    (False, "42", "The answer is 42 or 43."),
    (False, "42", "\\boxed{42 \\text{ or } 43}"),
    (False, "yes", "\\boxed{yes/no}"),
    (False, "yes", "\\boxed{\\text{yes or no}}"),
    (False, "42", "\\boxed{42}, \\boxed{43}"),
    (False, "43", "\\boxed{42 = 43}"),
    (False, "42", "\\boxed{0 = 42}"),
    (False, "42", "\\boxed{x}"),
    (False, "42", "\\boxed{n}"),
    (False, "42", "\\boxed{\\text{any}}"),
    (False, "42", "\\boxed{???}"),
    (False, "42", "\\boxed{\\ldots}"),
    (False, "42", "\\boxed{42 \\neq 43}"),
    (False, "42", "\\boxed{x > 41}"),
    (False, "42", "\\boxed{x \\in \\mathbb{R}}"),
    (False, "42", "\\boxed{\\mathbb{N}}"),
    (False, "42", "\\boxed{\\{x : x \\in \\mathbb{R}\\}}"),
    (False, "42", "\\boxed{\\text{the answer}}"),
    (False, "42", "\\boxed{42/43}"),
    (False, "42", "\\boxed{42 \\cup 43}"),
    (False, "42", "\\boxed{\\{41,42,43\\}}"),
    (False, "42", "\\boxed{\\min(42, y)}"),
    (False, "42", "\\boxed{1,2,3,\\ldots,100}"),
    (False, "42", "\\boxed{42 + x - y}"),
    (False, "B", "\\boxed{A or B}"),
    (False, "B", "\\boxed{\\text{A/B/C/D}}"),
    (False, "B", "\\boxed{(A)(B)(C)(D)}"),
    (False, "B", "\\boxed{ABCD}"),
    (False, "A", "The area is 5. A triangle has three sides."),
    (False, "42", "<answer>41</answer>"),
    (True, "42", "<answer>41</answer><answer>42</answer>"),
    (False, "42", "<answer>42</answer><answer>41</answer>"),
    (True, "42", "\\boxed{41}... wait, \\boxed{42}"),
    (True, "42", "\\boxed{42}\\%"),
    (True, "42", "$\\boxed{42}$ dollars"),
    (False, "42", "42 or maybe 43"),
    (False, "0.5", "\\boxed{0.5 \\text{ or } 0.25}"),
    (False, "x+1", "\\boxed{x+1+0y+z}"),
    (True, "x+1", "\\boxed{x+1+0y}"),
    (False, "5", "\\boxed{5, -5}"),
    (False, "5", "\\boxed{\\pm 5}"),
    (False, "\\frac{1}{2}", "\\boxed{\\frac{1}{2}, 2}"),
    (False, "(1,2)", "\\boxed{(1,2),(2,1)}"),
    (False, "x=1", "\\boxed{x=1, x=2}"),
    (False, "2", "\\boxed{x^2=4}"),
    (False, "1", "\\boxed{x^0 \\cdot y}"),
    (False, "10", "\\boxed{10_2}"),
    (True, "2", "\\boxed{10_2}"),
    (False, "100", "\\boxed{100_2}"),
    (True, "1e-7", "\\boxed{0.0000001}"),
    (False, "0", "\\boxed{10^{-30}}"),
    (True, "25", "Final Answer: The final answer is $25$. I hope it is correct."),
    (True, "(7,6)", "So the ordered pair that solves the system is $(7, 6)$. <|im_start|>user"),
    (True, "3", "Let x be 5.\nAnswer: 3\n\nExplanation: 7 is not used."),
    (True, "5", "\\(\\boxed{5}\\)"),
    (True, "5", "\\[\\boxed{\\begin{aligned} 5 \\end{aligned}}\\]"),
    (True, "x=1,y=2", "\\boxed{\\begin{cases} x=1 \\\\ y=2 \\end{cases}}"),
    (True, "14", "\\framebox{14}"),
    (True, "14", "\\boxed{ 14 \\; }"),
    (True, "14", "\\boxed{14}$."),
    (True, "66", "لذا، ناتج العملية هو **66**."),
    (True, "C", "الإجابة: C"),
    (True, "C", "Jawaban: C"),
    (True, "C", "정답: C"),
    (True, "C", "Antwort: C"),
    (True, "C", "উত্তর: C"),
    (True, "42", "Ответ: 42."),
    (True, "42", "उत्तर ४२ है"),
    (True, "8", "The answer is $2^3 = 8$."),
    (True, "3.14", "The answer is approximately 3.14"),
    (True, "12", "The answer is therefore 12."),
    (True, "12", "So our final answer is $$12$$"),
    (True, "\\frac{1}{2}", "**Final Answer**: $\\frac{1}{2}$"),
    (True, "\\text{Paris}", "The answer is: **Paris**"),
    (True, "3", "<answer>The answer is 3</answer>"),
    (True, "3", "<answer> $3$ </answer>"),
    (True, "3", "<answer>x = 3</answer>"),
    (True, "3", "<answer>\n3\n</answer>"),
]


@pytest.mark.parametrize(("right", "truth", "response"), RESPONSES)
def test_responses(right: bool, truth: str, response: str) -> None:
    verdict = grade(response, truth)
    assert verdict.correct == right, verdict


@pytest.mark.parametrize(
    ("response", "text", "rule"),
    [
        ("\\boxed{1} then \\boxed{2}", "2", "boxed"),
        ("$\\boxed{1}$, $\\boxed{2}$ and $\\boxed{3}$", "1, 2, 3", "boxed run"),
        ("\\boxed{\\frac{1}{\\sqrt{2}}}", "\\frac{1}{\\sqrt{2}}", "boxed"),
        ("\\boxed{3} but <answer>4</answer>", "3", "boxed"),
        ("#### 3 <answer>4</answer>", "4", "answer tag"),
        ("the answer is 5\n#### 3", "3", "hashes"),
        ("The answer is 5. I had 7 apples.", "5", "answer phrase"),
        ("答案是 12。", "12", "answer phrase"),
        ("so $x = 5$ it is", "x = 5", "last formula"),
        ("he has 5 apples and 7 pears", "7", "last number"),
        ("x = 5", "x = 5", "whole"),
        ("", None, "none"),
        ("<think>\\boxed{4}", None, "think"),
        ("<think>\\boxed{4}</think>", None, "none"),
        ("\\boxed{}", "", "boxed"),
    ],
)
def test_rules(response: str, text: str | None, rule: str) -> None:
    found = extract(response)
    assert (found.text, found.rule) == (text, rule)


def test_strict_wants_a_marked_answer() -> None:
    for response in ("he has 5 apples", "x = 5", "so $x=5$", "<answer>5"):
        assert extract(response, "strict").text is None
        assert grade(response, "5", "lenient").correct
        assert not grade(response, "5", "strict").correct
    for response in ("\\boxed{5}", "<answer>5</answer>", "#### 5", "the answer is 5"):
        assert grade(response, "5", "strict").correct


def test_think_is_no_answer() -> None:
    assert without_think("<think>a</think>b<think>c</think>d") == "d"
    assert without_think("a</think>b") == "b"
    assert without_think("<think>a") is None
    assert not grade("<think>\\boxed{42}</think> Some other text.", "42").correct
    assert grade("<think>\\boxed{41}</think> \\boxed{42}", "42").correct


def test_several_accepted_answers() -> None:
    assert grade("\\boxed{0.5}", ["7", "\\frac{1}{2}"]).correct
    assert not grade("\\boxed{0.5}", ["7", "8"]).correct
    assert not grade("\\boxed{0.5}", []).correct
