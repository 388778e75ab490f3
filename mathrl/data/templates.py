"""The prompt of a problem: plain, R1-Zero, boxed, or the chat template of the tokenizer."""

from collections.abc import Sequence
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.files import encodable
from mathrl.core.types import Problem
from mathrl.data.sft_sets import demonstration, routed
from mathrl.params.run import Prompt

BOXED_INSTRUCTION = r"Please reason step by step, and put your final answer within \boxed{}."

# DeepSeek-R1 (arXiv:2501.12948), table 1.
R1_ZERO = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. "
    "The assistant first thinks about the reasoning process in the mind and then provides the user with the "
    "answer. The reasoning process and answer are enclosed within <think> </think> and <answer> </answer> "
    "tags, respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>. "
)


def render(problem: Problem, prompt: Prompt, tokenizer: Any, few_shot: Sequence[Problem] = ()) -> list[int]:
    """Token ids of the prompt, without `prompt.response_prefix`, which belongs to the response.

    Raises:
        UserError: the prompt needs a chat template, and the tokenizer has none.
    """
    text = prompt_text(problem, prompt, tokenizer, few_shot)
    ids: list[int] = list(tokenizer.encode(text, add_special_tokens=False))
    bos = tokenizer.bos_token_id
    # A tokenizer that starts every text with its start token still does; a chat template writes its own.
    if bos is not None and ids[:1] != [bos] and list(tokenizer.encode(""))[:1] == [bos]:
        ids.insert(0, bos)
    return ids


def prompt_text(problem: Problem, prompt: Prompt, tokenizer: Any = None, few_shot: Sequence[Problem] = ()) -> str:
    """The prompt as text. Rows that arrive templated (`extra.templated`) are taken as they are.

    Lone surrogates, which no tokenizer takes, are written as escapes (`core.files.encodable`).
    """
    return encodable(_prompt_text(problem, routed(prompt, problem), tokenizer, few_shot))


def _prompt_text(problem: Problem, prompt: Prompt, tokenizer: Any, few_shot: Sequence[Problem]) -> str:
    if problem.extra.get("templated"):
        return problem.question
    if prompt.template == "chat" or problem.extra.get("messages"):
        return _chat(problem, prompt, tokenizer, few_shot)
    shots = "".join(
        f"{_wrapped(shot, prompt)}{prompt_gap(prompt)}{demonstration(shot, prompt, terse=False)}\n\n"
        for shot in few_shot
    )
    head = R1_ZERO if prompt.template == "r1_zero" else ""
    return head + shots + _wrapped(problem, prompt)


def prompt_gap(prompt: Prompt) -> str:
    """The text between the question of a worked example and its answer."""
    return " " if prompt.template == "r1_zero" else ""


def _wrapped(problem: Problem, prompt: Prompt) -> str:
    asked = _asked(problem, prompt)
    if prompt.template == "r1_zero":
        return f"User: {asked} Assistant:"
    return asked + "\n" if prompt.template == "boxed" else asked


def _asked(problem: Problem, prompt: Prompt) -> str:
    instruction = prompt.instruction
    if instruction is None and prompt.template == "boxed":
        instruction = BOXED_INSTRUCTION
    return f"{problem.question}\n{instruction}" if instruction else problem.question


def _chat(problem: Problem, prompt: Prompt, tokenizer: Any, few_shot: Sequence[Problem]) -> str:
    if tokenizer is None or not getattr(tokenizer, "chat_template", None):
        raise UserError(
            "prompt.template is chat, but the model's tokenizer has no chat template; "
            "set prompt.template to boxed or r1_zero, or take an instruction-tuned model"
        )
    messages = [dict(message) for message in problem.extra.get("messages", ())]
    if not messages:
        for shot in few_shot:
            messages.append({"role": "user", "content": _asked(shot, prompt)})
            messages.append({"role": "assistant", "content": demonstration(shot, prompt, terse=False)})
        messages.append({"role": "user", "content": _asked(problem, prompt)})
    if prompt.system is not None and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": prompt.system})
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
