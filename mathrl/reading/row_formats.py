"""A row of any shape → `Problem`: named fields, RLinf rows, veRL rows, multiple choice, Countdown."""

import json
import random
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from mathrl.core.hashing import derive_seed
from mathrl.core.types import NO_CONTROL, Control, Problem
from mathrl.generators.countdown import problem_parts
from mathrl.grading import instruction_fault, leading_option, option, option_set
from mathrl.reading.row_values import (
    BadRow,
    accepted_answers,
    after_hashes,
    answer_sentence,
    answer_tag,
    as_text,
    conversation,
    from_json,
    is_blank,
    last_boxed,
    level_of,
    look_up,
    optional,
    pass_rate_of,
    payload,
    question_and_reply,
)

RULES: dict[str, tuple[Callable[[str], str | None], str]] = {
    "hash": (after_hashes, "no text after ####"),
    "boxed": (last_boxed, r"no \boxed{} with balanced braces"),
    "answer_tag": (answer_tag, "no <answer> tag"),
    "sentence": (answer_sentence, 'no last line that ends in "the answer is …"'),
}
_TEMPLATED = re.compile(r"<\|im_start\|>|<｜(?:User|Assistant)｜>|<\|start_header_id\|>|\[INST\]|<think>\s*$")


@dataclass(frozen=True)
class RowShape:
    """The fields of a row; `prompt_key` may join fields (Body+Question), a dot descends into one (0.value).

    Of joined fields, those that are empty in a row are left out (Alpaca's input).

    A prompt may be a chat list of one question; its reply is the solution where `solution_key` names none.
    `choices_key` has the options of a question of multiple choice; its answer is then the right option's letter, its
    number from 0 or its text.
    """

    format: str = "fields"
    prompt_key: str = "question"
    answer_key: str | None = "answer"
    solution_key: str | None = None
    id_key: str | None = None
    level_key: str | None = None
    subject_key: str | None = None
    pass_rate_key: str | None = None
    task_key: str | None = None
    choices_key: str | None = None
    answer_rule: str = "field"
    keep: Mapping[str, Any] = field(default_factory=dict)

    def fits(self, row: Mapping[str, Any]) -> bool:
        """Whether the row has the fields that a problem needs, and the id field if one is named."""
        keys = [*self.prompt_key.split("+")[:1], self.answer_key or self.solution_key or self.prompt_key]
        keys += [key for key in (self.id_key, self.choices_key) if key]
        return all(look_up(row, key) is not None for key in keys)


def source_fields(shape: RowShape, every: bool = False) -> dict[str, Any]:
    """The keys that a source in params/curate.yaml writes: those off their defaults, or `every` one with a field."""
    written = {entry.name: getattr(shape, entry.name) for entry in fields(RowShape) if entry.name != "keep"}
    idle = () if shape.format == "fields" else ("prompt_key", "answer_key")
    defaults = RowShape()
    return {
        name: value
        for name, value in written.items()
        if name not in idle
        if value != getattr(defaults, name) or (every and value is not None and name.endswith("_key"))
    }


def to_problem(row: Mapping[str, Any], shape: RowShape, *, name: str, source: str, split: str, seed: int) -> Problem:
    """Read one row; `name` (file and number) is its id if the row has none.

    Raises:
        BadRow: a field is missing, empty or of the wrong kind.
    """
    reader = {"rlinf": _rlinf, "verl": _verl, "multiple_choice": _choice, "countdown": _countdown,
              "ifeval": _instructions}.get(shape.format, _fields)  # fmt: skip
    parts = reader(row, shape, seed, name)
    answers = tuple(dict.fromkeys(parts["answers"]))
    row_id = optional(row, shape.id_key)
    row_id = parts.get("id") if row_id is None else row_id
    keys = (shape.solution_key, shape.id_key, shape.level_key, shape.subject_key, shape.pass_rate_key)
    used = {*keys, *parts.get("used", ()), "source", "split"}
    if shape.format == "fields":  # the other formats name prompt and answer themselves
        used |= {*_prompt_fields(row, shape), shape.answer_key}
    further = {key: _read(row, key, payload) for key, value in row.items() if key not in used and value is not None}
    extra = {str(key): value for key, value in further.items() if value not in (None, "", [], {})}
    subject = parts.get("subject") or optional(row, shape.subject_key)
    return Problem(
        id=f"{source}/{name}" if row_id is None else str(row_id),
        question=parts["question"],
        answers=answers,
        source=source,
        split=split,
        solution=parts.get("solution"),
        subject=_join_subjects(subject),
        level=_read(row, shape.level_key, level_of) if shape.level_key else None,
        pass_rate=_read(row, shape.pass_rate_key, pass_rate_of) if shape.pass_rate_key else None,
        extra={**extra, **parts.get("extra", {})},
        control=_control(row, shape, parts.get("control", NO_CONTROL)),
    )


def _control(row: Mapping[str, Any], shape: RowShape, control: Control) -> Control:
    """What the format says, and the task in the column that `task_key` names."""
    task = as_text(look_up(row, shape.task_key)) if shape.task_key else None
    return control if task is None else replace(control, task=task)


def _fields(row: Mapping[str, Any], shape: RowShape, seed: int, name: str) -> dict[str, Any]:
    turns = conversation(look_up(row, shape.prompt_key))
    if turns is not None:
        question, reply = _read(row, shape.prompt_key, lambda _: question_and_reply(turns))
        if is_blank(question):
            raise BadRow(f"field {shape.prompt_key!r}: its user turn is empty")
    else:
        question, reply = _joined_text(row, _prompt_keys(row, shape)), None
    solution = optional(row, shape.solution_key) if shape.solution_key else reply
    if (reasoned := conversation(solution)) is not None:
        solution = "\n\n".join(turn["content"] for turn in reasoned if turn["role"] not in ("system", "user"))
    if isinstance(solution, list):
        solution = "\n\n".join(str(part) for part in solution if part is not None)
    solution = None if solution is None else str(solution)
    parts = {"question": question, "answers": _answers(row, shape, reply), "solution": solution or None}
    return parts | _choose(row, shape, parts) if shape.choices_key else parts


def _prompt_keys(row: Mapping[str, Any], shape: RowShape) -> list[str]:
    return [shape.prompt_key] if shape.prompt_key in row else shape.prompt_key.split("+")


def _prompt_fields(row: Mapping[str, Any], shape: RowShape) -> set[str]:
    """The columns that the prompt is taken from, whole."""
    keys = _prompt_keys(row, shape)
    return {*keys, *(key.split(".")[0] for key in keys if key not in row)}


def _answers(row: Mapping[str, Any], shape: RowShape, reply: str | None = None) -> list[str]:
    if shape.answer_rule == "none":
        return []
    key = shape.answer_key or shape.solution_key
    if key is None and reply is None:
        raise BadRow("neither answer_key nor solution_key is given")
    if shape.answer_rule != "field":
        rule, missing = RULES[shape.answer_rule]
        answer = rule(_text(row, key) if key else str(reply))
        if answer is None:
            field = key or shape.prompt_key
            raise BadRow(f"field {field!r}: {missing}, so no answer (answer_rule {shape.answer_rule})")
        return [answer]
    answers = _read(row, key, accepted_answers) if key else [str(reply).strip()]
    if not answers:
        raise BadRow(f"field {key!r}: no answer (found {_show_field(row, str(key))})")
    return answers


def _read(row: Mapping[str, Any], key: str, read: Callable[[Any], Any]) -> Any:
    """What `read` makes of a field; its error names the field."""
    try:
        return read(look_up(row, key))
    except BadRow as error:
        raise BadRow(f"field {key!r}: {error}") from None


def _rlinf(row: Mapping[str, Any], shape: RowShape, seed: int, name: str) -> dict[str, Any]:
    question = _text(row, "prompt")
    answers = _answers(row, RowShape(answer_key="solutions"))
    control = Control(templated=bool(_TEMPLATED.search(question)), task=as_text(row.get("task")))
    used = ("prompt", "solutions", "query_id", "task")
    return {"question": question, "answers": answers, "id": row.get("query_id"), "control": control, "used": used}


def _verl(row: Mapping[str, Any], shape: RowShape, seed: int, name: str) -> dict[str, Any]:
    prompt, control, reply = row.get("prompt"), Control(data_source=as_text(row.get("data_source"))), None
    if isinstance(prompt, list):
        try:
            messages = [{"role": str(turn["role"]), "content": str(turn["content"])} for turn in prompt]
            asked = max(index for index, turn in enumerate(messages) if turn["role"] == "user")
        except (KeyError, TypeError, ValueError):
            raise BadRow("field 'prompt': a chat list needs role and content, and a user turn") from None
        question = messages[asked]["content"]
        if is_blank(question) or not all(isinstance(turn["content"], str) for turn in prompt):
            raise BadRow("field 'prompt': a chat list needs a text in each turn, and a question in its last user turn")
        kept, reply = without_reply(messages)
        control = replace(control, messages=kept, cut_turns=len(messages) - len(kept))
    else:
        question = _text(row, "prompt")
    answers = _answers(row, RowShape(answer_key="reward_model.ground_truth"))
    info = row.get("extra_info")
    info = info if isinstance(info, Mapping) else {}
    # Rows of export.py have the id and all accepted answers of the problem; veRL reads only the ground truth.
    further_answers, index = info.get("answers"), info.get("index")
    answers += [str(answer) for answer in further_answers] if isinstance(further_answers, list) else []
    place = f"{row.get('data_source')}/{info.get('split', 'row')}/{index}" if index is not None else None
    return {
        "question": question,
        "answers": answers,
        "id": info.get("id") or place,
        "subject": row.get("ability"),
        "solution": reply,
        "control": control,
        "used": ("prompt", "ability", "data_source"),
    }


def without_reply(turns: Sequence[Mapping[str, str]]) -> tuple[tuple[Mapping[str, str], ...], str | None]:
    """A conversation without the assistant's turns at its end, and the text of the last of them.

    Example: [user "2+2?", assistant "4"] → ([user "2+2?"], "4")
    """
    kept = list(turns)
    while kept and kept[-1]["role"] == "assistant":
        kept.pop()
    return tuple(kept), turns[-1]["content"] if len(kept) < len(turns) else None


def _choice(row: Mapping[str, Any], shape: RowShape, seed: int, name: str) -> dict[str, Any]:
    """The columns of GPQA, with the options shuffled by a seed per row; the answer is a letter."""
    question = _text(row, "Question")
    right = _text(row, "Correct Answer").strip()
    keys = sorted(key for key in row if re.fullmatch(r"Incorrect Answer \d+", key) and row[key])
    if not keys:
        raise BadRow(f"field 'Incorrect Answer 1': expected text, found {_show_field(row, 'Incorrect Answer 1')}")
    options = [right, *(str(row[key]).strip() for key in keys)]
    if len(set(options)) < len(options):
        twice = next(text for text in options if options.count(text) > 1)
        raise BadRow(f"fields 'Correct Answer', {', '.join(map(repr, keys))}: two of them are {twice!r}")
    random.Random(derive_seed(seed, "options", question)).shuffle(options)
    listed = "\n".join(f"({letter}) {text}" for letter, text in zip(string.ascii_uppercase, options, strict=False))
    return {
        "question": f"{question.strip()}\n\n{listed}",
        "solution": row.get("Explanation") or None,
        "answers": [string.ascii_uppercase[options.index(right)]],
        "id": row.get("Record ID"),
        "extra": {"options": options},
        "control": Control(task="multiple_choice"),
        "used": tuple(row),
    }


def _instructions(row: Mapping[str, Any], shape: RowShape, seed: int, name: str) -> dict[str, Any]:
    """The columns of IFEval: a prompt, the names of its instructions and their arguments."""
    names, arguments = from_json(row.get("instruction_id_list")), from_json(row.get("kwargs"))
    if not (isinstance(names, list) and names and isinstance(arguments, list) and len(names) == len(arguments)):
        raise BadRow("expected fields 'instruction_id_list' and 'kwargs', two lists of one length")
    arguments = [from_json(given) or {} for given in arguments]
    if not all(isinstance(given, dict) for given in arguments):
        raise BadRow(f"field 'kwargs': expected an object for each instruction, found {_show_field(row, 'kwargs')}")
    rules = [
        {**{key: value for key, value in given.items() if value is not None}, "id": name}
        for name, given in zip(names, arguments, strict=True)
    ]
    if faults := list(filter(None, map(instruction_fault, rules))):
        raise BadRow(f"fields 'instruction_id_list' and 'kwargs': {faults[0]}")
    return {
        "question": _text(row, "prompt"),
        "answers": [json.dumps({"instructions": rules}, ensure_ascii=False)],
        "id": row.get("key"),
        "control": Control(task="instructions"),
        "used": ("prompt", "instruction_id_list", "kwargs", "key"),
    }


# What AGIEval's texts have around a question: the answer is asked for by the prompt.
_ASKED = re.compile(
    r"^\s*(?:Q:|问题：)\s*|\s*(?:A: Among A through [A-J], the answer is|答案：从A到[A-J], 我们应选择)\s*$"
)
_LABEL = re.compile(r"\s*[(（]?([A-J])[)）.:：、]\s*")


def _choose(row: Mapping[str, Any], shape: RowShape, parts: Mapping[str, Any]) -> dict[str, Any]:
    """The question with its options in their order, and the letter and the text of the right one as answers.

    The text is no answer where a reader could take it for a letter. Options that stand in the question already are not
    listed again.
    """
    key = str(shape.choices_key)
    texts, labels = _options(row, key)
    right = _right_option(look_up(row, shape.answer_key or ""), texts, labels)
    if right is None:
        raise BadRow(
            f"field {shape.answer_key!r}: {_show_field(row, str(shape.answer_key))} is none of the {len(texts)} "
            f"options of {key!r}: expected a letter, a number from 0 or the text of one"
        )
    question = _ASKED.sub("", parts["question"]).strip()
    pairs = list(zip(string.ascii_uppercase, texts, strict=False))
    if not all(re.search(rf"{letter}[)）.:：、]\s*{re.escape(text)}", question) for letter, text in pairs):
        question = "\n".join([f"{question}\n", *(f"({letter}) {text}" for letter, text in pairs)])
    letter, text = string.ascii_uppercase[right], texts[right]
    letters = option(text) or leading_option(text) or option_set(text)
    plain = letters is None and texts.count(text) == 1
    return {
        "question": question,
        "answers": [letter, text] if plain else [letter],
        "extra": {"options": texts},
        "control": Control(task="multiple_choice"),
        "used": (key.split(".")[0],),
    }


def _options(row: Mapping[str, Any], key: str) -> tuple[list[str], list[str]]:
    """The texts of a row's options without their letters, and their labels where the row has any (ARC)."""
    value = from_json(look_up(row, key))
    labels: list[str] = []
    if isinstance(value, Mapping):  # {"text": […], "label": […]}, or {"A": …, "B": …}
        labels = [str(label) for label in value.get("label") or ()] if "text" in value else list(map(str, value))
        value = value["text"] if "text" in value else list(value.values())
    value = list(value) if isinstance(value, list | tuple) else []
    while value and value[-1] is None:  # a column of structs has every letter that any row has
        value.pop()
    texts = [text for item in value if (text := as_text(item))]
    if not 2 <= len(texts) <= len(string.ascii_uppercase) or len(texts) != len(value):
        raise BadRow(f"field {key!r}: expected a list of 2 to 26 options, found {_show_field(row, key)}")
    marks = [_LABEL.match(text) for text in texts]
    if all(mark and mark[1] == letter for mark, letter in zip(marks, string.ascii_uppercase, strict=False)):
        texts = [text[mark.end() :].strip() for text, mark in zip(texts, marks, strict=True) if mark]
    return texts, labels[: len(texts)]


def _right_option(value: Any, texts: Sequence[str], labels: Sequence[str]) -> int | None:
    """The number of the option that an answer names."""
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value < len(texts) else None
    text = as_text(value) or ""
    if text in labels:
        return labels.index(text)
    letter = option(text)
    if letter is not None and letter.isupper() and (number := string.ascii_uppercase.index(letter)) < len(texts):
        return number
    if texts.count(text) == 1:
        return texts.index(text)
    return int(text) if re.fullmatch(r"\d", text) and int(text) < len(texts) else None


def _countdown(row: Mapping[str, Any], shape: RowShape, seed: int, name: str) -> dict[str, Any]:
    numbers, target = row.get("nums"), row.get("target")
    integers = [number for number in numbers if isinstance(number, int)] if isinstance(numbers, list) else []
    if not integers or integers != numbers or not isinstance(target, int):
        raise BadRow("expected fields 'nums' (a list of integers) and 'target'")
    parts = problem_parts(integers, target)
    if parts is None:
        raise BadRow(f"no way to make {target} from {numbers}")
    return {**parts, "used": ("nums", "target")}


def _join_subjects(subject: Any) -> str | None:
    """A subject, or several (MathArena's problem_type) as one text."""
    return ", ".join(map(str, subject)) or None if isinstance(subject, list | tuple) else subject and str(subject)


def _text(row: Mapping[str, Any], key: str) -> str:
    value = look_up(row, key)
    if not isinstance(value, str) or is_blank(value):
        raise BadRow(f"field {key!r}: expected text, found {_show_field(row, key)}")
    return value


def _show_field(row: Mapping[str, Any], key: str) -> str:
    if look_up(row, key) is None and key.split(".")[0] not in row:
        return f"no such field among {', '.join(sorted(row)) or 'none'}"
    return repr(look_up(row, key))[:60]


def _joined_text(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The texts of the fields, joined. Those that are empty in this row are left out, unless all are."""
    filled = [key for key in keys if not _is_empty(row, key)] or keys
    *parts, last = (_text(row, key) for key in filled)
    return " ".join([*map(_end_sentence, parts), last]).strip()


def _is_empty(row: Mapping[str, Any], key: str) -> bool:
    """Whether the row has the field and nothing in it; a field that it lacks may be a misspelt name."""
    value = look_up(row, key)
    if isinstance(value, str):
        return is_blank(value)
    return (value is None and key.split(".")[0] in row) or value != value  # NaN


def _end_sentence(text: str) -> str:
    text = text.strip()
    return text if text[-1] in ".?!:;,。？！：；，" else text + "."
