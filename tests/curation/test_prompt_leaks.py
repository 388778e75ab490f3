"""No column of a user's row takes control by its name, and no prompt holds its own answer."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mathrl.core.errors import UserError
from mathrl.core.types import Control, Problem
from mathrl.curation import curation
from mathrl.curation.prompt_leaks import check_prompts, copied_share, leak
from mathrl.data.export import to_verl
from mathrl.data.templates import demonstration, is_chat, prompt_text, route
from mathrl.params.data import Curate
from mathrl.params.run import Prompt
from mathrl.reading.row_formats import RowShape, to_problem
from mathrl.rollout.sampler import Sampler
from tests.rollout.no_engine import NO_ENGINE

SOLUTION = "Half of the 48 clips are 24 clips, so Natalia sold 48 + 24 = 72 clips in both months together. \\boxed{72}"
QUESTION = "Natalia sold 48 clips in April and half as many in May. How many did she sell altogether?"
ROW = {"question": QUESTION, "answer": "72", "solution": SOLUTION}
CHAT = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": SOLUTION}]


# Q is the question.
STATED = (
    "Q Expected output: 72", "Q Ans. 72", "Q\nLösung: 72", "Q It comes to 72.", "Work out how one obtains 72: Q",
    "Q Thus she sold 48 + 24 = 72.", "Q Half of 48 is 24, so in all she sold $48+24=72$.",
    "Q 72 is the correct answer.", "Q (result: 72)", "Q 得数：72", "Q The answer is 72 clips.",
    "Q \\emph{Answer.} $72$",
    "Q n = 72", "Q You can check that you get 72.", "Q The total that you are looking for is 72.",
    "Q Therefore, the total is 72.",
)  # fmt: skip
NOT_STATED = (
    "Q Assume that it is 72.", "Q Please give the value for n = 72.", "Q Answer in base 72.", "Q Use 72.",
    "Q Each clip costs 72 cents.", "Q [asy] size(72); real x = 72; [/asy]", "Q There are 72 hours in three days.",
    "Suppose that the result is 72. Q", "Q If she got 72, what then?", "Of the 72 clips, 48 were sold in April. Q",
)  # fmt: skip


def read(row: dict[str, Any], **shape: Any) -> Problem:
    return to_problem(row, RowShape(**shape), name="f:1", source="s", split="rl", seed=0)


def test_a_users_columns_are_payload() -> None:
    columns = {"messages": CHAT, "templated": True, "response": "no", "task": "countdown", "demonstrated_answer": "no"}
    columns |= {"begun": [1, 2], "data_source": "other", "control": {"templated": True}}
    problem = read({**ROW, **columns}, solution_key="solution")
    assert problem.control == Control() and problem.extra == columns
    prompt = Prompt(template="boxed", routes={"countdown": {"template": "plain"}, "other": {"template": "plain"}})
    assert "72" not in prompt_text(problem, prompt) and not is_chat(problem, prompt)
    assert route(prompt, problem).template == "boxed"
    assert demonstration(problem, prompt, terse=False) == SOLUTION and "{72}" in demonstration(problem, prompt, True)
    assert to_verl(problem, 0)["prompt"] == CHAT[:1] and to_verl(problem, 0)["data_source"] == "s"
    assert Problem.from_row(json.loads(json.dumps(problem.to_row()))) == problem


def test_a_column_controls_where_a_parameter_names_it() -> None:
    problem = read({**ROW, "task": "other", "kind": "easy"}, task_key="kind")
    assert problem.control == Control(task="easy") and problem.extra["task"] == "other"
    prompt = Prompt(routes={"easy": {"instruction": "Now."}})
    assert prompt_text(problem, prompt).endswith("Now.")


def test_the_reward_is_routed_by_control_and_sees_the_columns() -> None:
    class Tokenizer:
        @staticmethod
        def encode(text: str, **_: Any) -> list[int]:
            return [len(text)]

    problem = read({**ROW, "task": "countdown"})
    sampler = Sampler(NO_ENGINE, Tokenizer, Prompt())
    completion = type("Completion", (), {"text": "", "tokens": [], "finish_reason": "stop"})
    item = sampler.reward_input(problem, completion, 1)  # type: ignore[arg-type]
    assert item.routes == ("s",) and item.row["task"] == "countdown" and item.row["source"] == "s"


def test_the_assistants_turn_at_the_end_of_a_verl_prompt_is_cut_and_counted(tmp_path: Path) -> None:
    row = {"data_source": "gsm8k", "prompt": CHAT, "reward_model": {"ground_truth": "72"}}
    problem = read(row, format="verl")
    assert problem.control == Control(tuple(CHAT[:1]), data_source="gsm8k", cut_turns=1)
    assert (problem.question, problem.solution) == (QUESTION, SOLUTION)
    shots = [*CHAT, {"role": "user", "content": "1+1?"}]
    assert read({**row, "prompt": shots}, format="verl").control == Control(tuple(shots), data_source="gsm8k")
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    source = {"type": "file", "name": "own", "path": str(file), "split": "rl", "format": "verl"}
    assert curation.run(Curate.model_validate({"sources": [source]}), 0).cut_turns == {"own": 1}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (QUESTION, None),
        (f"{QUESTION} {SOLUTION}", "its worked solution"),
        (f"{SOLUTION.replace('48 + 24', '$48+24$')}\n{QUESTION}", "its worked solution"),
        (f"{QUESTION} \\boxed{{72}}", "its answer, marked as the answer"),
        (f"{QUESTION}\n#### 72", "its answer, marked as the answer"),
        (f"{QUESTION} <answer>72</answer>", "its answer, marked as the answer"),
        (f"{QUESTION} The answer is $72$.", "its answer, marked as the answer"),
        (f"{QUESTION} 答案：72", "its answer, marked as the answer"),
        (f"{QUESTION} Put your answer in \\boxed{{}}.", None),
        (f"{QUESTION} She sold 72 pens.", None),
        (f"{QUESTION} If she sold none, the answer is 72.", None),
        (f"{QUESTION} The answer is 71.", None),
        *((text.replace("Q", QUESTION), "its answer, marked as the answer") for text in STATED),
        *((text.replace("Q", QUESTION), None) for text in NOT_STATED),
    ],
)
def test_what_a_prompt_gives_away(text: str, found: str | None) -> None:
    problem = Problem("p", QUESTION, ("72",), "s", "rl", solution=SOLUTION)
    assert leak(text, problem) == found


def test_a_solution_that_repeats_its_question_gives_nothing_away() -> None:
    equation = "Solve for x: -13x + 7 = 15x - 329"
    assert copied_share("-13x + 7 = 15x - 329\n-28x = -336\nx = 12", equation) == 0
    drawn = "[asy] draw((0,0)--(1,0)--(1,1)--(0,1)--cycle); label(A); [/asy]"
    assert copied_share(f"The area is one. {drawn}", f"What is the area? {drawn}") == 0


def test_training_stops_at_a_prompt_that_holds_its_answer() -> None:
    clean = Problem("clean", QUESTION, ("72",), "own", "rl", solution=SOLUTION)
    worked = clean.with_(id="worked", control=Control(tuple(CHAT)))

    class Chat:
        chat_template = "{{ messages }}"
        added_tokens_decoder: ClassVar[dict[int, Any]] = {}

        @staticmethod
        def apply_chat_template(messages: list[dict[str, str]], **_: Any) -> str:
            return "\n".join(turn["content"] for turn in messages)

    check_prompts([clean], Prompt(), None)
    with pytest.raises(UserError, match=r"problem worked: its prompt holds its worked solution .and .* 1 further"):
        check_prompts([clean, worked, worked.with_(id="w2")], Prompt(), Chat())
