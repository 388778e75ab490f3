"""What `mathrl inspect` counts, on a file with planted faults."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mathrl.cli.inspect import inspection_page, show
from mathrl.curation import curation
from mathrl.curation.inspection import Inspection, Prompting, inspect_rows, languages
from mathrl.grading import reading
from mathrl.params.data import Curate
from mathrl.params.load import parse_yaml
from mathrl.reading.reading import Read, read_source
from mathrl.reading.row_files import Draw
from mathrl.reading.row_formats import RowShape
from mathrl.reading.sources import ResolvedSource

GOOD = [
    {"problem": f"Anna has {n} books and finds three more. How many books has she?", "answer": n + 3} for n in range(30)
]
BENCHMARK = "A farmer counts his sheep twice a day and finds the same number of them each time, why?"
ROWS: list[dict[str, Any]] = [
    *GOOD,
    {"problem": "anna has 3 BOOKS and finds three more.  How many books has she?", "answer": "6"},  # repeats n = 3
    {"problem": GOOD[4]["problem"], "answer": 99},  # contradicts n = 4
    {"problem": " ", "answer": 1},
    {"problem": "No answer?", "answer": None},
    {"problem": "Where does the longest of the three lines end?", "answer": "it ends left of the upper corner"},
    {"problem": "Wie viele Äpfel hat der Bauer nach der Ernte noch übrig?", "answer": r"\frac{1}{2}"},
    {"problem": BENCHMARK, "answer": "(B)"},
    {"problem": f"Read this. {BENCHMARK} Explain it <b>well</b>.", "answer": "no solution"},
]


def inspection(folder: Path, **options: Any) -> Inspection:
    file = folder / "own set.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS) + "not json\n")
    (folder / "gsm8k_test.jsonl").write_text(json.dumps({"question": BENCHMARK, "answer": "#### 1"}) + "\n")
    prompting = Prompting(lambda problem: f"Q: {problem.question}")
    return inspect_rows(file, {}, prompting, data_folder=str(folder), **options)


def test_planted_faults_are_counted(tmp_path: Path) -> None:
    found = inspection(tmp_path)
    assert (found.rows, found.looked_at, len(found.problems)) == (39, 39, 36)
    assert found.bad == {"field 'problem': expected text": 1, "field 'answer': no answer": 1,
                         "not JSON (Expecting value at column 1)": 1}  # fmt: skip
    assert found.duplicates == 2 and [answers for _, answers, _ in found.conflicts] == [
        "own_set/own set:5: 7; own_set/own set:32: 99"
    ]
    assert found.readings == {"mathematics": 33, "not parsed": 1, "option": 1, "words": 1}
    assert [answer for _, answer in found.unread] == ["it ends left of the upper corner"]
    assert found.languages == {"en": 35, "de": 1}
    assert [(o.benchmark, o.questions, o.equal, o.near) for o in found.overlaps] == [("gsm8k", 1, 1, 1)]
    assert "math500" in found.missing_benchmarks
    assert found.prompts.longest == max(len(p.question) for p in found.problems) + 3
    assert len(found.examples) == 5 and all(example.prompt.startswith("Q: ") for example in found.examples)


def test_what_the_quality_gate_would_drop_is_counted_with_an_example(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flawed = [
        ("The diagram shows 3 apples and 4 pears. How many fruits are there?", "7"),
        ("Refer to the image: how many of the 9 are red?", "5"),
        ("How many are left?", "3"),
        ("What is 3+4? <b>Hurry</b>! (Key: 7)", "7"),
        ("What follows from it for $n=2$?", "proof"),
    ]
    described = "As shown, a circle of radius 3 is tangent to two sides of a square of side length 9. How far is it?"
    rows = [*GOOD, *({"problem": q, "answer": a} for q, a in (*flawed, (described, "2")))]
    file = tmp_path / "flawed.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = inspect_rows(file, {}, Prompting(lambda problem: problem.question), data_folder=str(tmp_path))
    counts = {flaw.rule: (flaw.rows, flaw.example.answers[0]) for flaw in found.flaws}
    assert counts == {
        "proof": (1, "proof"),
        "html": (1, "7"),
        "figure": (2, "7"),
        "figure_described": (1, "2"),
        "context": (1, "3"),
        "leak": (1, "7"),
    }
    assert found.flawed == 5 and found.usable == 31
    show(found, None)
    printed = capsys.readouterr().out
    assert "quality: 5 of 36 rows break a rule" in printed and "and describes it (only reported)" in printed
    assert "figure 2: needs a figure or table that its text does not have\n    for example flawed/" in printed
    page = inspection_page(found, "flawed.jsonl")
    assert "The diagram shows 3 apples" in page and "<b>Hurry</b>" not in page
    # Curation with the section that inspect proposes drops the same rows.
    section = Curate.model_validate(parse_yaml(found.section, "section")["curate"])
    assert section.quality is not None and section.deduplicate.near is not None
    curated = curation.run(section, 0)
    gone = {row.question for row in curated.dropped if row.reason in counts}
    held_out = {p.question for split in ("dev", "test") for p in curated.splits[split]}
    assert gone | held_out >= {q for q, _ in flawed} and len(gone) == 5 - len(held_out & {q for q, _ in flawed})


def test_a_rule_that_most_rows_break_is_left_out_of_the_section(tmp_path: Path) -> None:
    rows = [{"problem": f"Which is {n}+1? (A) {n} (B) {n + 1} (C) 0", "answer": "B"} for n in range(1, 30)]
    rows.append({"problem": "How many are left?", "answer": "7"})
    file = tmp_path / "choice.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = inspect_rows(file, {}, Prompting(lambda problem: problem.question), data_folder=str(tmp_path))
    assert [(flaw.rule, flaw.rows, flaw.drops) for flaw in found.flaws] == [("choice", 29, False), ("context", 1, True)]
    quality = Curate.model_validate(parse_yaml(found.section, "section")["curate"]).quality
    assert found.flawed == 1 and quality is not None and "choice" not in quality.drop and "context" in quality.drop


def test_rows_of_one_template_are_told_from_rows_that_share_some_words(tmp_path: Path) -> None:
    phrase = "Use each number once, with plus, minus, times and brackets. The numbers are 3, 5 and 9. What makes"
    for start, alike in ((phrase, True), ("What makes", False)):
        rows = [{"problem": f"{start} {n}, or {n * n}?", "answer": n} for n in range(60)]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, *rows]))
        found = inspect_rows(tmp_path / "rows.jsonl", {}, Prompting(lambda problem: problem.question))
        source = Curate.model_validate(parse_yaml(found.section, "section")["curate"]).sources[0]
        assert found.one_template is alike is source.model_dump().get("one_template")


def test_the_section_to_paste_gives_the_same_problems_and_a_part_is_said_to_be_one(tmp_path: Path) -> None:
    found = inspection(tmp_path)
    section = parse_yaml(found.section, "section")["curate"]
    curate = Curate.model_validate(section)
    part = inspection(tmp_path, limit=10)
    assert part.rows == 39 and len(part.problems) == 10
    assert curate.on_bad_row == "reject" and curate.sources[0].type == "file"
    resolved = ResolvedSource("own_set", "rl", "", found.files, shapes=(RowShape(prompt_key="problem"),))
    again = [item for item in read_source(resolved, 0) if item in found.problems]
    assert curate.sources[0].prompt_key == "problem" and len(again) == len(found.problems)


def test_the_page_has_every_part_and_escapes_what_the_rows_say(tmp_path: Path) -> None:
    page = inspection_page(inspection(tmp_path), "own set.jsonl")
    for text in ("it ends left of the upper corner", "prompt_key", "gsm8k", "on_bad_row: reject", "99"):
        assert text in page
    assert "<b>well</b>" not in page and "script" not in page and "http" not in page.replace("http-equiv", "")


def test_languages_leave_formulas_out() -> None:
    texts = ["小明有三个苹果，又买了五个", r"$x+y=3$ and $\frac{1}{2}$", "Combien de pommes Anne a-t-elle maintenant ?"]
    assert languages(texts) == Counter({"zh": 1, "too short to tell": 1, "fr": 1})


def test_how_the_grader_reads_an_answer() -> None:
    kinds = {
        "mathematics": ["1/2", r"x^2+1", "forty two", "n", "(1, 2]", "3 cm"],
        "option": ["(B)", r"\text{C}"],
        "words": ["Friday", "no solution"],
        "not parsed": ["", "np.arcsin(10/13)", "see the figure on the left"],
    }
    for kind, answers in kinds.items():
        assert [reading(answer) for answer in answers] == [kind] * len(answers)


def test_a_draw_is_uniform_keeps_the_order_and_decodes_few_rows() -> None:
    counts: Counter[int] = Counter()
    for seed in range(400):
        draw, decoded = Draw(5, random.Random(seed)), 0
        for row in range(100):
            if draw.wants_more():
                decoded += 1
                draw.skip() if row % 10 == 0 else draw.add(row)
        chosen = list(draw.chosen_rows())
        assert chosen == sorted(chosen) and len(set(chosen)) == 5 and draw.rows == 100
        assert decoded < 60  # 5 (1 + ln(90 / 5)) good rows on average, about 20, and the skipped among them
        counts.update(chosen)
    # 400 draws of 5 from 90: each row 22.2 times, standard deviation 4.6; five of them hold all but one case in 10^4.
    assert set(counts) == {row for row in range(100) if row % 10} and all(abs(n - 22.2) < 23 for n in counts.values())


def test_a_limit_reads_the_same_rows_from_every_format_and_says_what_it_left_out(tmp_path: Path) -> None:
    chosen = []
    for name in ("a.jsonl", "a.json"):
        text = "\n".join(map(json.dumps, GOOD)) if name == "a.jsonl" else json.dumps(GOOD)
        (tmp_path / name).write_text(text)
        shape = RowShape(prompt_key="problem")
        resolved = ResolvedSource("s", "rl", "", (tmp_path / name,), shapes=(shape,), limit=7)
        read = Read()
        chosen.append([item.question for item in read_source(resolved, 3, read)])  # type: ignore[union-attr]
        assert read.rows.total() == 30 and read.left_out == {"above the limit": 23}
    assert chosen[0] == chosen[1] and len(chosen[0]) == 7
