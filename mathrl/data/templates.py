"""The prompt of a problem (plain, R1-Zero, boxed, question and answer, or chat), and the response that SFT teaches."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from mathrl.core.errors import UserError
from mathrl.core.files import encodable
from mathrl.core.types import Problem, read_problems
from mathrl.models.tool_messages import PYTHON, turn_end
from mathrl.params.run import Prompt
from mathrl.reading.row_values import last_boxed

# Templates of Llama 3 and SmolLM 3 write today's date; prompts must not change from day to day. Llama's own default.
TODAY = date(2024, 7, 26)
CONTROL = re.compile(r"<[|｜].*[|｜]>")
BOXED_INSTRUCTION = r"Please reason step by step, and put your final answer within \boxed{}."
_CALCULATOR = re.compile(r"<<[^<>]*>>")  # GSM8K's calculator annotations: <<48/2=24>>
_FINAL_LINE = re.compile(r"\n?\s*####[^\n]*\s*$")

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


@lru_cache(maxsize=4)
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


def route(prompt: Prompt, problem: Problem) -> Prompt:
    """The prompt section for this problem: the route of its task or source overrides the rest (R7).

    The first of `control.task`, `control.data_source` and the name of the source that has a route counts, as in the
    reward. The result has no routes, so that worked examples are written like the problem itself.
    """
    if not prompt.routes:
        return prompt
    names = (*problem.control.routes, problem.source)
    routes = [prompt.routes[name] for name in names if name in prompt.routes]
    overrides = routes[0].model_dump(exclude_none=True) if routes else {}
    return prompt.model_copy(update={**overrides, "routes": {}})


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
    pattern = _control_tokens(tokenizer) if tokenizer is not None else None
    texts = (problem.question, problem.solution or "", *(turn["content"] for turn in problem.control.messages))
    if pattern is None or not any(map(pattern.search, texts)):
        return problem  # as nearly all are
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


def demonstration(problem: Problem, prompt: Prompt, terse: bool) -> str:
    r"""The whole response, including `prompt.response_prefix` where that is the solution's own opening tag.

    Lone surrogates, which no tokenizer takes, are written as escapes (`core.files.encodable`).

    Example:
        plain, r1_zero: "<think>7+5=12;12-3=9</think><answer>9</answer>", terse "<answer>9</answer>"
        question_answer: "7+5=12;12-3=9\nThe answer is 9.", terse "The answer is 9."
        boxed, chat: "7+5=12;12-3=9\n\nThe answer is \boxed{9}.", terse "\boxed{9}"

    Raises:
        UserError: the problem has no answer; or the demonstration is worked, and it has no solution.
    """
    return encodable(_demonstration(problem, route(prompt, problem), terse))


def _demonstration(problem: Problem, prompt: Prompt, terse: bool) -> str:
    if problem.control.response is not None:  # of a policy, kept by rejection sampling
        return problem.control.response
    tags = prompt.template in ("plain", "r1_zero")
    shown = problem.control.demonstrated_answer
    if shown is None and not problem.answers:
        raise UserError(
            f"problem {problem.id} has no answer to teach: rows without one (answer_rule none) are for RL alone; name "
            "their answer_key in params/curate.yaml, or set sft.steps and prompt.few_shot to 0"
        )
    answer = problem.answers[0] if shown is None else shown
    if prompt.template == "question_answer":
        return f"{'' if terse else worked_solution(problem) + chr(10)}The answer is {answer}."
    if terse:
        return f"<answer>{answer}</answer>" if tags else rf"\boxed{{{answer}}}"
    solution = worked_solution(problem)
    if tags:
        return f"<think>{solution}</think><answer>{answer}</answer>"
    if last_boxed(solution) is not None:
        return solution
    return f"{solution}\n\nThe answer is \\boxed{{{answer}}}."


def worked_solution(problem: Problem) -> str:
    """The text of the solution without calculator annotations and without the `#### answer` line."""
    if not problem.solution:
        raise UserError(
            f"problem {problem.id} has no worked solution to learn from; set sft.terse_share to 1, sft.steps "
            "to 0, or name the field with the solution (solution_key) in params/curate.yaml"
        )
    return _FINAL_LINE.sub("", _CALCULATOR.sub("", problem.solution)).strip()


def few_shot_examples(prompt: Prompt, file: Path) -> list[Problem]:
    """The first `prompt.few_shot` problems of the sft split that have a worked solution.

    Raises:
        UserError: there are too few.
    """
    if not prompt.few_shot:
        return []
    examples = [problem for problem in read_problems(file) if problem.solution][: prompt.few_shot]
    if len(examples) < prompt.few_shot:
        raise UserError(
            f"{file}: prompt.few_shot is {prompt.few_shot}, but only {len(examples)} problems have a solution"
        )
    return examples
