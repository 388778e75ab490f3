"""What cannot be done beside a tool yet, each refused before anything runs, with what to write instead."""

from collections.abc import Iterator

from mathrl.params.advantage import Process
from mathrl.params.schema import Params


def tool_problems(params: Params) -> Iterator[str]:
    """A sentence for each setting that does not go with `rollout.tool`."""
    rollout = params.rollout
    if rollout.tool.kind == "none":
        return
    if isinstance(params.rl.advantage, Process):
        yield "rollout.tool: rl.advantage process has no rewards for steps with tool calls yet; set it to grpo"
    if params.reward.judge.continuations:
        yield (
            "rollout.tool: reward.judge.continuations continues the starts of responses, whose sessions are gone; set "
            "it to 0"
        )
    if params.sample.continuations:
        yield (
            "rollout.tool: sample.continuations continues the starts of responses, whose sessions are gone; set it to 0"
        )
    if rollout.engine == "vllm" and rollout.vllm.tensor_parallel > 1:
        yield (
            "rollout.tool: ranks that share a vLLM engine would wait for each other's turns forever; set "
            "rollout.vllm.tensor_parallel to 1, or rollout.engine to vllm_server"
        )
    if rollout.turns.format == "tool_call":
        templates = {params.prompt.template, *(route.template for route in params.prompt.routes.values())} - {None}
        if templates != {"chat"}:
            yield (
                f"rollout.turns.format is tool_call, but prompt.template is {params.prompt.template}: set it to chat, "
                "or the format to python_block"
            )
