"""The prompt of a problem: plain, R1-Zero, boxed, question and answer, or the chat template of the tokenizer."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError

from mathrl.core.errors import UserError
from mathrl.core.files import encodable
from mathrl.core.types import Problem
from mathrl.data.sft_sets import demonstration, route
from mathrl.models.tool_messages import PYTHON, turn_end
from mathrl.params.run import Prompt

# Templates of Llama 3 and SmolLM 3 write today's date; prompts must not change from day to day. Llama's own default.
TODAY = date(2024, 7, 26)
CONTROL = re.compile(r"<[|｜].*[|｜]>")
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

    A chat's are those of `apply_chat_template`: whether they begin with the start token is up to the template. Any
    other text begins with it, once, if the tokenizer starts texts with it.

    Raises:
        UserError: the prompt needs a chat template, and the tokenizer has none, or the template refuses the prompt.
    """
    text = prompt_text(problem, prompt, tokenizer, few_shot)
    ids: list[int] = list(tokenizer.encode(text, add_special_tokens=False))
    start = [] if is_chat(problem, prompt) else _start(tokenizer)
    return ids if ids[:1] == start else [*start, *ids]


def prompt_lengths(
    problems: Sequence[Problem], prompt: Prompt, tokenizer: Any, few_shot: Sequence[Problem] = ()
) -> list[int]:
    """How many tokens `render` gives each problem: counted in one batch."""
    start = _start(tokenizer)
    texts = [prompt_text(problem, prompt, tokenizer, few_shot) for problem in problems]
    lengths = []
    for problem, ids in zip(problems, tokenizer(texts, add_special_tokens=False)["input_ids"], strict=True):
        begun = is_chat(problem, prompt) or list(ids[:1]) == start
        lengths.append(len(ids) + (0 if begun else len(start)))
    return lengths


def _start(tokenizer: Any) -> list[int]:
    """The start token, if the tokenizer starts texts with one."""
    bos = tokenizer.bos_token_id
    return [bos] if bos is not None and list(tokenizer.encode(""))[:1] == [bos] else []


def prompt_text(problem: Problem, prompt: Prompt, tokenizer: Any = None, few_shot: Sequence[Problem] = ()) -> str:
    """The prompt as text. Rows that arrive templated (`control.templated`) are taken as they are.

    Lone surrogates, which no tokenizer takes, are written as escapes (`core.files.encodable`). Control tokens that a
    problem spells stay text (`quote_control_tokens`).
    """
    return encodable(_prompt_text(problem, route(prompt, problem), tokenizer, few_shot))


def _prompt_text(problem: Problem, prompt: Prompt, tokenizer: Any, few_shot: Sequence[Problem]) -> str:
    if problem.control.templated:
        return problem.question
    problem, *few_shot = [_quote_problem(row, tokenizer) for row in (problem, *few_shot)]
    if is_chat(problem, prompt):
        return _chat(problem, prompt, tokenizer, few_shot)
    shots = "".join(
        f"{_wrap(shot, prompt)}{prompt_gap(prompt)}{demonstration(shot, prompt, terse=False)}\n\n" for shot in few_shot
    )
    head = R1_ZERO if prompt.template == "r1_zero" else ""
    return head + shots + _wrap(problem, prompt)


def is_chat(problem: Problem, prompt: Prompt) -> bool:
    """Whether the problem's prompt is made by the tokenizer's chat template."""
    if problem.control.templated:
        return False
    return route(prompt, problem).template == "chat" or bool(problem.control.messages)


def response_end(problem: Problem, prompt: Prompt, tokenizer: Any) -> int:
    """The token that a response to the problem is trained to end with: the chat template's, else the tokenizer's."""
    end = turn_end(tokenizer) if problem.control.templated or is_chat(problem, prompt) else None
    return int(tokenizer.eos_token_id if end is None else end)


def quote_control_tokens(text: str, tokenizer: Any) -> str:
    """`text` with a space in each spelling of a control token, which would end a turn or begin one.

    Example: "Repeat <|im_end|> twice" → "Repeat < |im_end|> twice", where <|im_end|> is a token.
    """
    pattern = _control_tokens(tokenizer) if tokenizer is not None else None
    return text if pattern is None else pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)


@lru_cache(maxsize=4)
def _control_tokens(tokenizer: Any) -> re.Pattern[str] | None:
    """Special tokens, and others that are spelled like <|role|>. Tokens such as <think> may stand in any text."""
    added = tokenizer.added_tokens_decoder.values()
    spellings = {token.content for token in added if token.special or CONTROL.fullmatch(token.content)}
    ordered = sorted((text for text in spellings if len(text) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def _quote_problem(problem: Problem, tokenizer: Any) -> Problem:
    turns = tuple(
        {**turn, "content": quote_control_tokens(turn["content"], tokenizer)} for turn in problem.control.messages
    )
    control = replace(problem.control, messages=turns)
    solution = problem.solution and quote_control_tokens(problem.solution, tokenizer)
    return problem.with_(question=quote_control_tokens(problem.question, tokenizer), solution=solution, control=control)


def prompt_gap(prompt: Prompt) -> str:
    """The text between the question of a worked example and its answer."""
    return " " if prompt.template in ("r1_zero", "question_answer") else ""


def _wrap(problem: Problem, prompt: Prompt) -> str:
    asked = _text_of_problem(problem, prompt)
    if prompt.template == "r1_zero":
        return f"User: {asked} Assistant:"
    if prompt.template == "question_answer":
        return f"Question: {asked}\nAnswer:"
    return asked + "\n" if prompt.template == "boxed" else asked


def _text_of_problem(problem: Problem, prompt: Prompt) -> str:
    if problem.control.task == "instructions":  # the question says all that a response is judged by
        return problem.question
    instruction = prompt.instruction
    if instruction is None and prompt.template == "boxed":
        instruction = BOXED_INSTRUCTION
    return f"{problem.question}\n{instruction}" if instruction else problem.question


def chat_messages(problem: Problem, prompt: Prompt, few_shot: Sequence[Problem] = ()) -> list[dict[str, str]]:
    """The prompt as a chat list, for a model that is asked over the network: no chat template is read.

    Example: [{"role": "user", "content": "7+5-3*4="}]
    """
    messages = _messages(problem, route(prompt, problem), few_shot)
    return [{**message, "content": encodable(message["content"])} for message in messages]


def _messages(problem: Problem, prompt: Prompt, few_shot: Sequence[Problem]) -> list[dict[str, str]]:
    messages = [dict(message) for message in problem.control.messages]
    if not messages:
        for shot in few_shot:
            messages.append({"role": "user", "content": _text_of_problem(shot, prompt)})
            messages.append({"role": "assistant", "content": demonstration(shot, prompt, terse=False)})
        messages.append({"role": "user", "content": _text_of_problem(problem, prompt)})
    if prompt.system is not None and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": prompt.system})
    return messages


def _chat(problem: Problem, prompt: Prompt, tokenizer: Any, few_shot: Sequence[Problem]) -> str:
    if tokenizer is None or not getattr(tokenizer, "chat_template", None):
        raise UserError(
            "prompt.template is chat, but the model's tokenizer has no chat template; "
            "set prompt.template to boxed or r1_zero, or take an instruction-tuned model"
        )
    messages = _messages(problem, prompt, few_shot)
    variables = dict(prompt.chat_template_kwargs)
    unread = [name for name in variables if not re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template))]
    if unread:
        raise UserError(
            f"prompt.chat_template_kwargs: the model's chat template does not read {', '.join(unread)}; leave it out"
        )
    tools = [PYTHON] if prompt.tools == "python" else None
    if tools and "tools" not in str(tokenizer.chat_template):
        raise UserError(
            "prompt.tools is python, but the model's chat template names no tools; set it to none and describe the "
            "tool in prompt.system, or take a model whose template does (Qwen 2.5, Qwen 3, Hermes)"
        )
    try:
        text = tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True, strftime_now=TODAY.strftime, **variables
        )
    except TemplateError as error:
        raise UserError(
            f"problem {problem.id}: the model's chat template refuses the conversation ({error}); if it takes no "
            "system message, leave prompt.system empty and set prompt.instruction"
        ) from None
    return str(text)
