"""What cannot be done beside a tool yet is refused by name before anything runs, and only then."""

from pathlib import Path

import pytest

from mathrl.cli.evaluate import with_tool, without_tool
from mathrl.compose import load_params
from mathrl.core.errors import UserError

PARAMS = Path(__file__).parents[2] / "params"
TOOL = "rollout.tool.kind=bubblewrap"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rl.advantage=process"], "rl.advantage process has no rewards for steps with tool calls"),
        (["reward.judge.continuations=2"], "reward.judge.continuations continues the starts of responses"),
        (["sample.continuations=2"], "sample.continuations continues the starts of responses"),
        (["rollout.engine=vllm", "rollout.vllm.tensor_parallel=2"], "set rollout.vllm.tensor_parallel to 1"),
        (["rollout.turns.format=tool_call"], "prompt.template is plain: set it to chat"),
        (
            ["rollout.turns.format=tool_call", "prompt.template=chat", "prompt.routes={aime: {template: boxed}}"],
            "prompt.routes.aime.template is boxed: set it to chat",
        ),
    ],
)
def test_what_does_not_go_with_a_tool_is_refused(overrides: list[str], words: str) -> None:
    load_params(PARAMS, overrides=overrides)
    with pytest.raises(UserError) as raised:
        load_params(PARAMS, overrides=[*overrides, TOOL])
    assert words in str(raised.value) and "params/rollout.yaml" in str(raised.value)


def test_a_tool_goes_with_the_defaults_and_with_chats() -> None:
    assert load_params(PARAMS, overrides=[TOOL]).rollout.turns.max_calls == 4
    load_params(
        PARAMS, overrides=[TOOL, "rollout.turns.format=tool_call", "prompt.template=chat", "prompt.routes={aime: {}}"]
    )


def test_evaluate_takes_the_sandbox_or_the_tool_of_the_parameters() -> None:
    plain = load_params(PARAMS)
    assert with_tool(plain).rollout.tool.kind == "bubblewrap" and without_tool(plain) == plain
    own = load_params(PARAMS, overrides=["rollout.tool={kind: http, url: 'http://127.0.0.1:8080'}"])
    assert with_tool(own) == own and without_tool(own).rollout == plain.rollout
    chat = ["prompt.template=chat", "rollout.turns.format=tool_call"]
    assert with_tool(load_params(PARAMS, overrides=chat)).prompt.tools == "python"
    with pytest.raises(UserError, match=r"rl\.advantage process"):
        with_tool(load_params(PARAMS, overrides=["rl.advantage=process"]))
