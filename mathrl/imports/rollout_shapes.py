"""The rollouts of other trainers as rows of one shape, whatever file they were written to.

TRL 1.16       completions/completions_00012.parquet   prompt, completion, a column per reward, advantage
verl 0.8       ROLLOUT_DATA_DIR/12.jsonl               input, output, gts, score, step, what the reward adds
NeMo-RL 0.5    train_data_step12.jsonl                 content, rewards, idx
mathrl         rollouts/rollouts.parquet               what a record keeps, of an own run or an import
prime-rl       rollouts/step_12/train/all/traces.jsonl an episode with traces, each with its messages and reward
tinker         iteration_000012/train_rollout_summaries.jsonl  a trajectory with steps, each with its trace
any other      rows with a response and a reward
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.grading.reward_functions import accepted_answers
from mathrl.imports.metric_files import complete_lines, step_of

PROMPTS = ("prompt", "input", "question", "problem", "query")
RESPONSES = ("completion", "output", "responses", "generation", "text", "response")
REWARDS = ("score", "reward", "rewards", "total_reward")
TRUTHS = ("ground_truth", "gts", "answer", "answers", "solution", "gold", "label", "expected_answer", "target")
VERDICTS = ("acc", "accuracy", "correct", "accuracy_reward", "is_correct", "math_reward", "correctness")
SOURCES = ("data_source", "source", "dataset")
AGAINST = "their reward against our verdict"  # why a rollout of an import is odd
STEP_IN_NAME = re.compile(r"(?:step_?|completions_|global_step_|iteration_|^)(\d+)")


@dataclass(slots=True)
class TheirRollout:
    """One response of another trainer.

    Example:
        TheirRollout(12, "3+2=", "5", ["5"], reward=1.1, parts={"accuracy": 1.0, "short": 0.1}, verdict=True,
                     source="verl")

    `answers` is empty where the file has none; `verdict` is None where their reward is not one of right and wrong.
    """

    step: int
    question: str
    text: str
    answers: list[str]
    reward: float
    parts: dict[str, float] = field(default_factory=dict)
    verdict: bool | None = None
    source: str = ""
    tokens: int | None = None
    truncated: bool = False


def holds_rollouts(row: Mapping[str, Any]) -> bool:
    """Whether a row of a file is a rollout."""
    if "traces" in row or ("content" in row and "rewards" in row):
        return True
    if "traj_idx" in row:
        return any("trace" in step for step in row.get("steps") or ())
    has_response = any(isinstance(row.get(name, ""), str | list | None) and name in row for name in RESPONSES)
    return has_response and ("advantage" in row or any(name in row for name in REWARDS))


def first_row(file: Path) -> Mapping[str, Any]:
    """The first row of a JSON lines or parquet file; empty where there is none.

    Raises:
        UserError: the file is damaged.
    """
    if file.suffix == ".parquet":
        return dict.fromkeys(_open_parquet(file).schema_arrow.names)
    with file.open(encoding="utf-8-sig", errors="replace") as stream:
        number, line = next(((number, line) for number, line in enumerate(stream, start=1) if line.strip()), (1, ""))
    try:
        row = json.loads(line or "{}")
    except (ValueError, RecursionError):
        if line.endswith("\n"):
            raise UserError(f"{file}, line {number}: not a JSON object: {line.strip()[:40]!r}") from None
        return {}  # about to be written
    return row if isinstance(row, dict) else {}


def read_rollouts(file: Path, weights: Sequence[float] = ()) -> Iterator[TheirRollout]:
    """The rollouts of a file; `weights` are those of TRL's reward functions, whose columns are unweighted.

    Raises:
        UserError: the file is damaged.
    """
    named = STEP_IN_NAME.search(file.stem) or STEP_IN_NAME.search(file.parent.name)
    default = int(named[1]) if named else _step_of_parents(file)
    for row in _rows(file):
        if "disagrees" in row and "odd" in row:
            yield _of_record(row)
        elif "traces" in row:
            yield from _of_episode(row, default)
        elif "traj_idx" in row:
            yield from _of_trajectory(row)
        elif "content" in row and "rewards" in row:
            yield _of_messages(row, default)
        else:
            yield _of_columns(row, default, weights)


def _step_of_parents(file: Path) -> int:
    found = next((match for parent in file.parents if (match := re.fullmatch(r"step_(\d+)", parent.name))), None)
    return int(found[1]) if found else 0


def _rows(file: Path) -> Iterator[Mapping[str, Any]]:
    if file.suffix != ".parquet":
        yield from complete_lines(file)
        return
    for batch in _open_parquet(file).iter_batches():
        yield from batch.to_pylist()


def _open_parquet(file: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(file)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{file}: cannot be read as parquet ({error})") from None


def _of_record(row: Mapping[str, Any]) -> TheirRollout:
    """A rollout that a record keeps; in that of an import the verdict is ours, and theirs another where it says so."""
    verdict = bool(row["correct"]) != (AGAINST in (row["odd"] or ()))
    parts = dict(row["parts"] or ())
    return TheirRollout(
        row["step"], row["question"], row["text"], list(row["answers"]), row["reward"], parts, verdict, row["source"],
        row["length"], bool(row["truncated"]),
    )  # fmt: skip


def _of_columns(row: Mapping[str, Any], default: int, weights: Sequence[float]) -> TheirRollout:
    """TRL's and verl's rows, and those of whoever has a column per thing."""
    prompt = next((row[name] for name in PROMPTS if row.get(name) is not None), "")
    response = next((row[name] for name in RESPONSES if row.get(name) is not None), "")
    truth = next((row[name] for name in TRUTHS if row.get(name) is not None), None)
    total = next((row[name] for name in REWARDS if _is_number(row.get(name))), None)
    # The first three columns of TRL are step, prompt and completion; the rewards are the numbers among the others.
    known = {*PROMPTS, *RESPONSES, *TRUTHS, *REWARDS, "step", "advantage", "length", "tokens"}
    numbers = {name: float(value) for name, value in row.items() if name not in known and _is_number(value)}
    # NaN: TRL's reward function gave None, since the response is none of its kind; TRL leaves it out of the sum.
    parts = {name: value for name, value in numbers.items() if not math.isnan(value)}
    names = list(row)  # TRL's reward functions come after the completion, in their order
    weight = dict(zip(names[names.index("completion") + 1 :] if "completion" in row else (), weights, strict=False))
    verdict = next((float(row[name]) for name in VERDICTS if name in row and _is_number(row[name])), None)
    step = step_of(row)
    return TheirRollout(
        default if step is None else step,
        text_of(prompt, "user"),
        text_of(response, "assistant"),
        answers_of(truth),
        float(total)
        if total is not None
        else sum((weight.get(name, 0.0) if weight else 1.0) * value for name, value in parts.items()),
        parts,
        bool(verdict) if verdict in (0.0, 1.0) else None,
        next((str(row[name]) for name in SOURCES if isinstance(row.get(name), str)), ""),
    )


def _of_messages(row: Mapping[str, Any], default: int) -> TheirRollout:
    """NeMo-RL's rows: `content` has the messages of a conversation, or their texts."""
    content, reward = row["content"], row["rewards"]
    content = (
        content[0] if isinstance(content, list) and len(content) == 1 and isinstance(content[0], list) else content
    )
    texts = [text_of(message, "") for message in content] if isinstance(content, list) else [str(content)]
    reward = reward[0] if isinstance(reward, list) else reward
    value = float(reward) if _is_number(reward) else 0.0
    question = texts[-2] if len(texts) > 1 else ""
    verdict = bool(value) if value in (0.0, 1.0) else None
    return TheirRollout(default, question, texts[-1] if texts else "", answers_of(row.get("ground_truth")), value,
                        verdict=verdict)  # fmt: skip


def _of_episode(row: Mapping[str, Any], default: int) -> Iterator[TheirRollout]:
    """prime-rl's episodes: the task has question and answer, a trace its messages and rewards."""
    task = row.get("task") or {}
    for trace in row["traces"] or ():
        messages = trace.get("messages") or trace.get("nodes") or []
        messages = [node.get("message", node) for node in messages if isinstance(node, Mapping)]
        data = trace.get("task") or task
        data = data.get("data", data) if isinstance(data, Mapping) else {}
        truth = next((data[name] for name in TRUTHS if data.get(name) is not None), None)
        rewards = trace.get("rewards") or {}
        parts = {name: float(part.get("value") or 0) if isinstance(part, Mapping) else float(part or 0)
                 for name, part in rewards.items()}  # fmt: skip
        total = float(trace["reward"]) if _is_number(trace.get("reward")) else sum(parts.values())
        question = next((str(data[name]) for name in PROMPTS if data.get(name)), "") or text_of(messages, "user")
        verdict = bool(total) if total in (0.0, 1.0) else None
        yield TheirRollout(default, question, text_of(messages, "assistant"), answers_of(truth), total, parts, verdict)


def _of_trajectory(row: Mapping[str, Any]) -> Iterator[TheirRollout]:
    """tinker-cookbook's summaries: the last step's trace has the prompt, the response and the parts of the reward."""
    traced = [step for step in row.get("steps") or () if step.get("trace")]
    if not traced:
        return
    trace, metrics = traced[-1]["trace"], traced[-1].get("metrics") or {}
    question, text = (
        text_of((trace.get(name) or {}).get("messages", ""), role)
        for name, role in (("prompt", "user"), ("policy_response", "assistant"))
    )
    correct = metrics.get("correct")
    yield TheirRollout(
        int(row["iteration"]),
        question,
        text,
        answers_of((trace.get("reward") or {}).get("reference_answer")),
        float(row["total_reward"]),
        {name: float(value) for name, value in metrics.items() if _is_number(value)},
        bool(correct) if correct in (0.0, 1.0) else None,
        next(iter(row.get("tags") or ()), ""),
        sum(int(step["ac_len"]) for step in row["steps"]),
        traced[-1].get("stop_reason") == "length",
    )


def text_of(value: Any, role: str) -> str:
    """The text of a prompt or a response: a text, or the last message of the role in a conversation."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return text_of(value.get("content", ""), role)
    if isinstance(value, Sequence):
        mine = [turn for turn in value if not isinstance(turn, Mapping) or turn.get("role", role) == role]
        if all(isinstance(turn, Mapping) and "text" in turn for turn in value):  # a message in parts
            return "".join(str(turn["text"]) for turn in value)
        return text_of((mine or list(value))[-1], role) if value else ""
    return "" if value is None else str(value)


def answers_of(truth: Any) -> list[str]:
    """The accepted answers of a row, whatever form its trainer keeps them in."""
    if truth is None or truth == "" or (isinstance(truth, Mapping) and "numbers" not in truth):
        return []
    accepted = accepted_answers(truth)
    return [accepted] if isinstance(accepted, str) else list(accepted)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
