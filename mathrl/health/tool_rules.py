"""The rules about tool calls (see `mathrl.health.rules`): on the metrics tool/… of runs whose responses call a tool."""

from collections.abc import Sequence

from mathrl.health.rules import Diagnosis, Row, Rule, accuracy, gain, now, then
from mathrl.params.health import Health
from mathrl.params.train import Rl


def tool_down(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value = now(rows, health, "tool/unavailable_rate")
    if value is None or value <= health.tool_unavailable:
        return None
    return (
        f"the tool itself failed in {value:.0%} of the calls",
        "the sandbox or its server is down or overloaded: responses that call are marked wrong for no fault of theirs",
        "look at `mathrl doctor` and the statuses in `mathrl rollouts`; raise rollout.tool's limits",
    )


def tool_calls(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value, before = now(rows, health, "tool/calls"), then(rows, health, "tool/calls")
    if value is None or not before or value < 1 or value < health.tool_rise * before:
        return None
    if gain(rows, health) >= health.progress:
        return None
    return (
        f"calls per response grew from {before:.2f} to {value:.2f}, accuracy by {gain(rows, health):+.3f}",
        "the policy calls for the sake of calling, or repeats calls that fail",
        "read responses with `mathrl rollouts`, lower rollout.turns.max_calls, look at tool/error_rate",
    )


def told_answers(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value, calls = now(rows, health, "tool/echo_rate"), now(rows, health, "tool/calls") or 0.0
    if value is None or len(rows) < health.window or calls < 0.1 or value <= health.tool_echo:
        return None
    return (
        f"in {value:.0%} of the calls the output stands in the code, at accuracy {accuracy(rows, health):.3f}",
        "the code prints an answer that it was told instead of computing one",
        "read responses with `mathrl rollouts`; take demonstrations whose code computes, and no reward for calling",
    )


TOOL_RULES = (
    Rule("tool_down", "red", tool_down),
    Rule("tool_calls", "yellow", tool_calls),
    Rule("told_answers", "yellow", told_answers),
)
