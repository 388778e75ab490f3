from typing import ClassVar

import pytest

from mathrl.core.errors import UserError
from mathrl.core.types import Control, Problem
from mathrl.data.templates import BOXED_INSTRUCTION, demonstration, prompt_text, render
from mathrl.params.run import Prompt

CHAIN = Problem("a", "7+5-3=", ("9",), "chain", "rl", solution="7+5=12;12-3=9")
GSM8K_SOLUTION = "She sold 48/2 = <<48/2=24>>24 clips in May.\n48+24 = <<48+24=72>>72.\n#### 72"
GSM8K = Problem("b", "How many clips?", ("72",), "gsm8k", "rl", solution=GSM8K_SOLUTION)
MATH = Problem("c", "Find $x$.", ("3",), "math", "rl", solution=r"So $x=\boxed{3}$.")


class Characters:
    """A tokenizer of code points."""

    bos_token_id: int | None = None
    chat_template: str | None = None
    added_tokens_decoder: ClassVar[dict[int, object]] = {}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        bos = [self.bos_token_id] if add_special_tokens and self.bos_token_id is not None else []
        return [*bos, *map(ord, text)]

    def apply_chat_template(self, messages: list[dict[str, str]], **_: object) -> str:
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"


def test_plain_is_the_question_alone() -> None:
    assert prompt_text(CHAIN, Prompt()) == "7+5-3="
    assert render(CHAIN, Prompt(), Characters()) == [ord(c) for c in "7+5-3="]
    assert prompt_text(CHAIN, Prompt(response_prefix="<think>")) == "7+5-3=", "it belongs to the response"


def test_r1_zero_names_its_tags_and_leaves_the_turn_to_the_assistant() -> None:
    text = prompt_text(CHAIN, Prompt(template="r1_zero"))
    assert "<think> reasoning process here </think> <answer> answer here </answer>" in text
    assert text.endswith("User: 7+5-3= Assistant:")


def test_boxed_asks_for_a_box_and_takes_another_instruction() -> None:
    assert prompt_text(MATH, Prompt(template="boxed")) == f"Find $x$.\n{BOXED_INSTRUCTION}\n"
    assert prompt_text(MATH, Prompt(template="boxed", instruction="Answer:")) == "Find $x$.\nAnswer:\n"


def test_a_rows_task_or_source_selects_its_template() -> None:
    prompt = Prompt.model_validate(
        {
            "template": "boxed",
            "few_shot": 1,
            "routes": {
                "chain": {"template": "plain"},
                "gsm8k": {"instruction": "Give a number."},
                "multiple_choice": {"instruction": "Give a letter."},
            },
        }
    )
    assert prompt_text(MATH, prompt) == f"Find $x$.\n{BOXED_INSTRUCTION}\n"
    assert prompt_text(CHAIN, prompt) == "7+5-3="
    assert prompt_text(GSM8K, prompt) == "How many clips?\nGive a number.\n"
    choice = GSM8K.with_(control=Control(task="multiple_choice"))
    assert prompt_text(choice, prompt) == "How many clips?\nGive a letter.\n"
    assert prompt_text(CHAIN.with_(control=Control(data_source="gsm8k")), prompt) == "7+5-3=\nGive a number.\n"
    assert demonstration(CHAIN, prompt, terse=True) == "<answer>9</answer>"
    assert demonstration(MATH, prompt, terse=True) == r"\boxed{9}".replace("9", "3")
    # A worked example is written like the problem that it stands before.
    assert prompt_text(MATH, prompt, few_shot=[CHAIN]).startswith(f"7+5-3=\n{BOXED_INSTRUCTION}\n7+5=12")
    assert prompt_text(CHAIN, prompt, few_shot=[CHAIN]) == (
        "7+5-3=<think>7+5=12;12-3=9</think><answer>9</answer>\n\n7+5-3="
    )


def test_chat_uses_the_tokenizers_template_with_system_and_worked_examples() -> None:
    tokenizer = Characters()
    tokenizer.chat_template = "yes"
    prompt = Prompt(template="chat", system="Think.", instruction="Box it.")
    assert prompt_text(MATH, prompt, tokenizer, [CHAIN]) == (
        "<system>Think.<user>7+5-3=\nBox it.<assistant>7+5=12;12-3=9\n\nThe answer is \\boxed{9}."
        "<user>Find $x$.\nBox it.<assistant>"
    )


def test_a_chat_prompt_without_a_chat_template_says_what_to_do() -> None:
    with pytest.raises(UserError, match=r"no chat template; set prompt\.template to boxed"):
        render(MATH, Prompt(template="chat"), Characters())


def test_a_row_with_its_own_messages_keeps_them_and_a_templated_one_is_left_alone() -> None:
    tokenizer = Characters()
    tokenizer.chat_template = "yes"
    chat = MATH.with_(control=Control(({"role": "user", "content": "Hi"},)))
    assert prompt_text(chat, Prompt(), tokenizer) == "<user>Hi<assistant>"
    done = MATH.with_(question="<|im_start|>user\nx<think>\n", control=Control(templated=True))
    assert prompt_text(done, Prompt(template="boxed"), tokenizer) == "<|im_start|>user\nx<think>\n"


def test_a_start_token_that_the_tokenizer_writes_is_kept() -> None:
    tokenizer = Characters()
    tokenizer.bos_token_id = 1
    assert render(CHAIN, Prompt(), tokenizer)[0] == 1


@pytest.mark.parametrize(
    ("problem", "template", "terse", "expected"),
    [
        (CHAIN, "plain", False, "<think>7+5=12;12-3=9</think><answer>9</answer>"),
        (CHAIN, "r1_zero", True, "<answer>9</answer>"),
        (CHAIN, "boxed", True, r"\boxed{9}"),
        (CHAIN, "boxed", False, "7+5=12;12-3=9\n\nThe answer is \\boxed{9}."),
        (GSM8K, "chat", False, "She sold 48/2 = 24 clips in May.\n48+24 = 72.\n\nThe answer is \\boxed{72}."),
        (GSM8K, "plain", False, "<think>She sold 48/2 = 24 clips in May.\n48+24 = 72.</think><answer>72</answer>"),
        (MATH, "boxed", False, r"So $x=\boxed{3}$."),
    ],
)
def test_demonstrations(problem: Problem, template: str, terse: bool, expected: str) -> None:
    prompt = Prompt(template=template)  # type: ignore[arg-type]
    assert demonstration(problem, prompt, terse) == expected


def test_a_worked_demonstration_needs_a_solution() -> None:
    with pytest.raises(UserError, match="problem a has no worked solution"):
        demonstration(CHAIN.with_(solution=None), Prompt(), terse=False)
    with pytest.raises(UserError, match="problem a has no answer to teach"):
        demonstration(CHAIN.with_(answers=()), Prompt(), terse=False)
