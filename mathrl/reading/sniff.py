"""Which fields of a file hold the prompt, the answer, the solution and the rest, guessed from its first rows.

Names come first, then what the values look like; every guess has its reason, for a person to judge.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from mathrl.core.errors import UserError
from mathrl.grading import reading
from mathrl.reading.row_formats import RULES, RowShape
from mathrl.reading.row_values import BadRow, accepted_answers, conversation, from_json, level_of, look_up, pass_rate_of

SAMPLE = 500  # rows that a guess looks at
SEVERAL = 0.02  # share of rows from which another shape is worth a word
MOST = 0.5  # share of the rows in which a form must be seen
STEPS = 5  # characters before a marked answer that are steps: "3+4=7 #### 7" has them, "#### 7" has not
SHORT = 60  # characters of a bare answer, as the median
DEEPEST = 3  # fields within fields

# In the order in which they are tried; compared without case and underscores.
PROMPTS = (
    "question", "problem", "problem_statement", "prompt", "query", "instruction", "input", "q", "task", "exercise",
    "text", "messages", "conversations", "conversation", "chat", "dialogue",
)  # fmt: skip
ANSWERS = (
    "answer", "answers", "final_answer", "expected_answer", "ground_truth", "gt_answer", "gt", "gold", "golden",
    "answer_number", "correct_answer", "answer_key", "answer_idx", "correct_option", "target", "label", "truth",
    "result", "a", "solution", "solutions", "output", "response", "completion",
)  # fmt: skip
SOLUTIONS = (
    "solution", "worked_solution", "rationale", "reasoning", "explanation", "cot", "steps", "proof",
    "generated_solution", "generation", "response", "completion", "output", "answer",
)  # fmt: skip
CHOICES = ("choices", "options", "answer_choices", "alternatives")
IDS = ("id", "uid", "uuid", "unique_id", "problem_id", "question_id", "qid", "key", "name")
LEVELS = ("level", "difficulty", "grade", "stage")
SUBJECTS = ("subject", "type", "topic", "category", "subfield", "domain", "field", "problem_type", "tag")
RATES = re.compile(r"(pass|solve|success)_?rate|pass_?at_?1|_rate$", re.IGNORECASE)
ASKS = re.compile(
    r"[?？]\s*$|\b(find|compute|calculate|determine|evaluate|solve|simplify|how (many|much)|what (is|are)|prove|"
    r"show that|berechne|bestimme|wie viele?|combien|calcul|calcula|cuántos?|quanti|trova|найдите|сколько)\b|"
    r"求|多少|计算|=\s*$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Field:
    """What the values of one field look like in the sample.

    Example:
        Field("answer", present=1.0, distinct=0.41, length=3, rule="field", ...)
    """

    path: str
    values: Sequence[Any]
    present: float
    distinct: float
    length: float
    marked: str
    chat: bool
    text: bool

    @property
    def short(self) -> bool:
        return self.length <= SHORT


@dataclass(frozen=True)
class Sniffed:
    """The guess: the keys, a reason for each, and what a person should look at."""

    shape: RowShape
    reasons: Mapping[str, str] = field(default_factory=dict)
    doubts: Sequence[str] = ()
    fields: Sequence[str] = ()


def sniff(rows: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any] | None = None) -> Sniffed:
    """The keys of `rows`; those in `given` are taken as they are.

    Raises:
        UserError: no field looks like a question, or none like an answer.
    """
    chosen = dict(chosen or {})
    fields = {column.path: column for column in _fields(rows)}
    listed = ", ".join(dict.fromkeys(name for row in rows for name in row)) or "none"
    if known_format := _known_format(rows):
        known_shape, reason = known_format
        keys = ("prompt_key", "answer_key") if known_shape.format == "fields" else ("format",)
        doubts = _other_shapes(rows, known_shape, fields)
        return Sniffed(replace(known_shape, **chosen), dict.fromkeys(keys, reason), doubts, tuple(fields))
    reasons: dict[str, str] = dict.fromkeys(chosen, "as given")
    prompt = chosen.get("prompt_key") or _prompt(rows, fields, reasons)
    if prompt is None:
        raise UserError(f"no field looks like a question (fields: {listed}); name it with --field prompt_key=NAME")
    free = {path: column for path, column in fields.items() if path not in prompt.split("+")}
    free = {path: column for path, column in free.items() if not path.startswith(f"{prompt}.")}
    shape = RowShape(prompt_key=prompt, answer_key=None)
    if choices := chosen.get("choices_key") or _choices(fields, reasons):
        shape = replace(shape, choices_key=choices)
        free = {path: column for path, column in free.items() if path.split(".")[0] != choices.split(".")[0]}
    shape = replace(shape, **_answer(free, fields.get(prompt), chosen, reasons))
    if shape.answer_key is None and shape.solution_key is None and not reasons.get("answer_rule"):
        raise UserError(
            f"no field looks like an answer (fields: {listed}); name it with --field answer_key=NAME, and if it stands "
            "within a solution --field answer_rule=boxed"
        )
    if shape.solution_key is None and shape.answer_key and "solution_key" not in chosen:
        shape = replace(shape, solution_key=_working_field(rows, free, shape.answer_key, reasons))
    used = {prompt, shape.answer_key, shape.solution_key}
    further = _further({path: column for path, column in free.items() if path not in used}, reasons)
    doubts = [*_doubts(rows, fields.get(prompt), further), *_other_shapes(rows, shape, fields)]
    return Sniffed(replace(shape, **{**further, **chosen}), reasons, doubts, tuple(fields))


def _known_format(rows: Sequence[Mapping[str, Any]]) -> tuple[RowShape, str] | None:
    """A published format by the fields of most rows, as a shape with the reason."""

    def with_fields(*keys: str) -> list[Mapping[str, Any]]:
        having = [row for row in rows if all(look_up(row, key) is not None for key in keys)]
        return having if len(having) > MOST * len(rows) else []

    if verl := with_fields("prompt", "reward_model.ground_truth"):
        roles = {tuple(turn["role"] for turn in conversation(row["prompt"]) or ()) for row in verl}
        if roles == {("user",)}:  # so that a model without a chat template takes them too
            return RowShape("fields", "prompt", "reward_model.ground_truth"), "veRL's fields, each prompt one user turn"
        return RowShape("verl", "prompt", "reward_model.ground_truth"), "veRL's fields: prompt, reward_model"
    if with_fields("prompt", "solutions", "query_id"):
        return RowShape("rlinf", "prompt", "solutions"), "RLinf's fields: prompt, solutions, query_id"
    if with_fields("Question", "Correct Answer", "Incorrect Answer 1"):
        return RowShape("multiple_choice", "Question", "Correct Answer"), "GPQA's fields: Correct Answer, Incorrect …"
    return None


def _fields(rows: Sequence[Mapping[str, Any]]) -> Iterator[Field]:
    for path in dict.fromkeys(path for row in rows for path in _paths(row)):
        values = [value for row in rows if (value := look_up(row, path)) not in (None, "", [], {})]
        if not values:
            continue
        texts = [value if isinstance(value, str) else repr(value) for value in values]
        lengths = sorted(map(len, texts))
        marks = {rule: sum(bool(read(text)) for text in texts) for rule, (read, _) in RULES.items()}
        chats = [conversation(value) is not None for value in values]
        strings = [isinstance(value, str) for value in values]
        yield Field(
            path,
            values,
            present=len(values) / len(rows),
            distinct=len(set(texts)) / len(texts),
            length=lengths[len(lengths) // 2],
            marked=next((rule for rule, count in marks.items() if count > MOST * len(texts)), ""),
            chat=fmean(chats) > MOST,  # not all: rows may have two shapes
            text=fmean(strings) > MOST and all(map(any, zip(strings, chats, strict=True))),
        )


def _paths(row: Mapping[str, Any], depth: int = 1) -> Iterator[str]:
    """The paths of the values in a row; a chat list and a list of plain values are one value."""
    for name, value in row.items():
        yield str(name)
        inside = value if conversation(value) is None else None
        inside = from_json(inside) if isinstance(inside, str) else inside
        if isinstance(inside, list) and inside and all(isinstance(item, Mapping) for item in inside[:4]):
            inside = {str(index): item for index, item in enumerate(inside[:4])}
        if isinstance(inside, Mapping) and depth < DEEPEST:
            yield from (f"{name}.{path}" for path in _paths(inside, depth + 1))


def _fields_named(fields: Mapping[str, Field], names: Sequence[str]) -> list[Field]:
    """The fields with one of these names, in the order of the names, the less deep first."""

    def plain(name: str) -> str:
        return name.lower().replace("_", "").replace("-", "").replace(" ", "")

    ranks = {plain(name): rank for rank, name in enumerate(names)}
    matches = [(ranks[last], path.count("."), path) for path in fields if (last := plain(path.split(".")[-1])) in ranks]
    return [fields[path] for _, _, path in sorted(matches)]


def _tells_apart(rows: Sequence[Mapping[str, Any]], first: Field, second: Field) -> bool:
    """Whether rows with the same text in the first field differ in the second."""
    pairs = {(repr(look_up(row, first.path)), repr(look_up(row, second.path))) for row in rows}
    return len({text for text, _ in pairs}) < len(pairs)


def _prompt(rows: Sequence[Mapping[str, Any]], fields: Mapping[str, Field], reasons: dict[str, str]) -> str | None:
    by_name = {path.lower(): path for path in fields}
    if "body" in by_name and "question" in by_name:
        reasons["prompt_key"] = "a Body and its Question, joined"
        return f"{by_name['body']}+{by_name['question']}"
    texts = {path: column for path, column in fields.items() if (column.text or column.chat) and column.present > MOST}
    named = _fields_named(texts, PROMPTS)
    # A chat list often repeats a question that has a column of its own, and adds the reply.
    for candidate in sorted(named, key=lambda column: column.chat):
        alpaca = candidate.text and candidate.path.lower() == "instruction"
        further = fields.get(by_name.get("input", "")) if alpaca else None
        if further is not None and further.text and ("output" in by_name or _tells_apart(rows, candidate, further)):
            reasons["prompt_key"] = f"an instruction and its input (in {further.present:.0%} of the rows), joined"
            return f"{candidate.path}+{further.path}"
        if candidate.distinct > 0.1 or len(candidate.values) < 20:
            reasons["prompt_key"] = "by its name; " + ("chat lists" if candidate.chat else _looks(candidate))
            return candidate.path
    asking = {
        path: fmean(isinstance(text, str) and bool(ASKS.search(text)) for text in column.values)
        for path, column in texts.items()
    }
    best = max(asking, key=lambda path: (asking[path], texts[path].distinct), default=None)
    if best is None or asking[best] < 0.3:
        return None
    reasons["prompt_key"] = f"{asking[best]:.0%} of its texts ask for something; {_looks(texts[best])}"
    return best


def _choices(fields: Mapping[str, Field], reasons: dict[str, str]) -> str | None:
    """The field with the options of a question: a list of them, or an object with one per letter."""
    for column in _fields_named(fields, CHOICES):
        lists = [value for each in column.values if isinstance(value := from_json(each), list | tuple | Mapping)]
        if column.present > MOST and sum(len(value) > 1 for value in lists) > MOST * len(column.values):
            reasons["choices_key"] = f"by its name; options in {column.present:.0%} of the rows"
            return column.path
    return None


def _answer(
    free: Mapping[str, Field], prompt: Field | None, chosen: Mapping[str, Any], reasons: dict[str, str]
) -> dict[str, Any]:
    """answer_key, solution_key and answer_rule."""
    keys: dict[str, Any] = {key: chosen[key] for key in ("answer_key", "solution_key", "answer_rule") if key in chosen}
    likely = [column for column in free.values() if column.present > 0.2]
    named = _fields_named({column.path: column for column in likely}, ANSWERS)
    named.sort(key=lambda column: column.present <= MOST)  # where rows have two shapes: the more frequent one
    # A bare answer first, whatever its rank: a solution that ends in \boxed{} is read only where there is none.
    bare = [column for column in named if column.short and not column.marked and not column.chat and _answers(column)]
    marked = [column for column in (*named, *likely) if column.marked]
    if "answer_key" not in keys and bare:
        keys["answer_key"] = bare[0].path
        reasons["answer_key"] = f"by its name; {_looks(bare[0])}"
    elif "answer_key" not in keys and marked:
        keys["answer_key"] = marked[0].path
        keys.setdefault("answer_rule", marked[0].marked)
        reasons["answer_key"] = "its texts end in an answer"
        reasons["answer_rule"] = f"most of its texts have {MARKS[marked[0].marked]}"
    elif "answer_key" not in keys and prompt is not None and prompt.chat and (mark := _mark_of_replies(prompt)):
        keys.setdefault("answer_rule", mark)
        reasons["answer_rule"] = f"most replies of the chat lists have {MARKS[mark]}"
    elif "answer_key" not in keys and (alone := _only_candidate(likely, prompt)):
        keys["answer_key"] = alone.path
        reasons["answer_key"] = f"the only field of such values left; {_looks(alone)}"
    answer = free.get(keys.get("answer_key") or "")
    if answer is not None and answer.marked and "answer_rule" not in keys and not answer.short:
        keys["answer_rule"] = answer.marked
        reasons["answer_rule"] = f"most of its texts have {MARKS[answer.marked]}"
    if "solution_key" not in keys:
        like = (column for path, column in free.items() if "solution" in path.lower())  # r1_solution_1
        worked = [column for column in (*_fields_named(free, SOLUTIONS), *like) if column.present > 0.2]
        worked = [column for column in worked if _has_steps(column) or not (column.short or column.marked)]
        worked = [column for column in worked if column.path != keys.get("answer_key") or column.marked]
        if worked:
            keys["solution_key"] = worked[0].path
            reasons["solution_key"] = f"by its name; {_looks(worked[0])}"
    return keys


def _working_field(
    rows: Sequence[Mapping[str, Any]], free: Mapping[str, Field], answer_key: str, reasons: dict[str, str]
) -> str | None:
    """The field whose texts go on longer than the answers and have them in them."""
    answers = [[str(answer) for answer in _read_answers(look_up(row, answer_key))] for row in rows]
    for path, column in free.items():
        holds_fields = any(other.startswith(f"{path}.") for other in free)  # an object as a text
        if path == answer_key or holds_fields or not column.text or column.present < MOST or column.distinct < 0.1:
            continue
        pairs = [(look_up(row, path), row_answers) for row, row_answers in zip(rows, answers, strict=True)]
        texts = [
            (text, row_answers[0]) for text, row_answers in pairs if isinstance(text, str) and text and row_answers
        ]
        share = fmean(answer in text and len(text) > len(answer) + 4 for text, answer in texts) if texts else 0.0
        if share > 0.8:
            reasons["solution_key"] = f"{share:.0%} of its texts hold the answer; {_looks(column)}"
            return path
    return None


def _read_answers(value: Any) -> list[str]:
    try:
        return accepted_answers(value)
    except BadRow:
        return []


MARKS = {"hash": "####", "boxed": r"\boxed{}", "answer_tag": "an <answer> tag", "sentence": '"the answer is"'}


def _has_steps(column: Field) -> bool:
    """Whether most texts of a field with marked answers have something before the mark."""
    mark = r"####|\\boxed|<answer>|(?i:the (?:final )?answer is)"
    before = (re.split(mark, str(value))[0].strip() for value in column.values)
    return bool(column.marked) and fmean(len(text) >= STEPS for text in before) > MOST


def _answers(column: Field) -> bool:
    return any(_read_answers(value) for value in column.values)


def _mark_of_replies(prompt: Field) -> str:
    replies = [turns[-1]["content"] for value in prompt.values if (turns := conversation(value))]
    counts = {rule: sum(bool(read(reply)) for reply in replies) for rule, (read, _) in RULES.items()}
    return next((rule for rule, count in counts.items() if count > MOST * len(replies)), "")


def _only_candidate(likely: Sequence[Field], prompt: Field | None) -> Field | None:
    named = {column.path for column in _fields_named({f.path: f for f in likely}, (*IDS, *LEVELS, *SUBJECTS))}
    left = [
        column
        for column in likely
        if column.short and column is not prompt and column.path not in named and not RATES.search(column.path)
        if column.present > 0.8 and "." not in column.path and not column.chat and _answers(column)
        if not (column.distinct == 1 and all(str(value).isdecimal() for value in column.values))  # a row number
    ]
    numbers = [column for column in left if _share_read(column) > 0.8]
    return next((candidates[0] for candidates in (numbers, left) if len(candidates) == 1), None)


def _share_read(column: Field) -> float:
    """The share of the values that the grader reads as mathematics."""
    answers = [_read_answers(value)[:1] for value in column.values[:100]]
    return fmean(bool(answer) and reading(answer[0]) == "mathematics" for answer in answers)


def _further(free: Mapping[str, Field], reasons: dict[str, str]) -> dict[str, str]:
    """id_key, level_key, subject_key and pass_rate_key, where fields of such names hold such values."""
    keys: dict[str, str] = {}
    for column in _fields_named(free, IDS):
        if column.short and column.distinct == 1 and column.present == 1 and "." not in column.path:
            keys["id_key"], reasons["id_key"] = column.path, "by its name; no value twice"
            break
    rates = [column for path, column in free.items() if RATES.search(path.split(".")[-1])]
    for column in (*rates, *_fields_named(free, LEVELS)):
        try:
            numbers = [number for value in column.values if (number := pass_rate_of(value)) is not None]
        except BadRow:
            numbers = []
        if "pass_rate_key" not in keys and numbers and (column in rates or any(0 < rate < 1 for rate in numbers)):
            keys["pass_rate_key"] = column.path
            reasons["pass_rate_key"] = f"shares from {min(numbers):.2g} to {max(numbers):.2g}"
    for column in _fields_named(free, LEVELS):
        try:
            levels = {level for value in column.values if (level := level_of(value)) is not None}
        except BadRow:
            continue
        if levels and column.path != keys.get("pass_rate_key"):
            keys["level_key"], reasons["level_key"] = column.path, f"by its name; {min(levels)} to {max(levels)}"
            break
    for column in _fields_named(free, SUBJECTS):
        if column.text and column.short and column.distinct < 0.5:
            keys["subject_key"] = column.path
            reasons["subject_key"] = f"by its name; {len(set(map(str, column.values)))} values"
            break
    return keys


def _doubts(rows: Sequence[Mapping[str, Any]], prompt: Field | None, further: Mapping[str, str]) -> list[str]:
    doubts = []
    if prompt is not None and prompt.distinct < 0.5 and len(rows) >= 20:
        doubts.append(f"{prompt.path}: half of its texts occur more than once")
    if prompt is not None and prompt.marked and not prompt.chat:
        doubts.append(f"{prompt.path}: most of its texts have {MARKS[prompt.marked]}, as solutions do")
    if "id_key" not in further:
        doubts.append("no field with an id of its own in each row: ids are file name and row number")
    return doubts


def _other_shapes(rows: Sequence[Mapping[str, Any]], shape: RowShape, fields: Mapping[str, Field]) -> list[str]:
    """What to say of rows that lack a field of the guess and have others in its place."""
    keys = [key for key in (*shape.prompt_key.split("+")[:1], shape.answer_key) if key]
    whole = [all(look_up(row, key) is not None for key in keys) for row in rows]
    lacking = [row for row, has_all in zip(rows, whole, strict=True) if not has_all]
    if len(lacking) < SEVERAL * len(rows):
        return []
    missing = [key for key in keys if sum(look_up(row, key) is None for row in lacking) > MOST * len(lacking)]
    names = Counter(name for row in lacking for name in row if row[name] is not None and name not in keys)
    new = set(fields).difference(*(row for row, has_all in zip(rows, whole, strict=True) if has_all))
    others = [name for name, count in names.most_common() if count > MOST * len(lacking) and name in new]
    if not others:
        return []
    return [
        f"{len(lacking):,} of {len(rows):,} rows have another shape: no {' or '.join(missing)}, but "
        f"{', '.join(others)}; a source has one shape, so put these rows into a file and a source of their own"
    ]


def _looks(column: Field) -> str:
    kind = "chat lists" if column.chat else "text" if column.text else type(column.values[0]).__name__
    return f"{kind} of {column.length:,.0f} characters (median), in {column.present:.0%} of the rows"
