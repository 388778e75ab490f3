"""A model repository whose chat template has the form of Qwen 2.5's: calls in <tool_call> tags, from its folder on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mathrl.core.types import Completion, Problem
from mathrl.models.base import character_tokenizer
from mathrl.models.load import load_tokenizer
from mathrl.params.rollout import Rollout, Turns
from mathrl.params.run import FreshModel, Prompt
from mathrl.rewards.compose import build_reward
from mathrl.rollout.engine import Groups, Sampling
from mathrl.rollout.sampler import Sampler
from tests.rollout.calculator import Calculator

TEMPLATE = Path(__file__).with_name("qwen_form.jinja").read_text(encoding="utf-8")
PROBLEM = Problem("p", "17*23=", ("391",), "products", "rl")
PROMPT = Prompt(template="chat", tools="python", max_tokens=2000)
END, ASSISTANT = "<|im_end|>", "<|im_start|>assistant\n"


@pytest.fixture
def tokenizer(tmp_path: Path, network: Callable[..., Any]) -> Any:
    """That of a repository which is written and read again; the tags are added tokens, but not special, as Qwen's."""
    base = FreshModel(marks=("<tool_call>", "</tool_call>"))
    made = character_tokenizer(base)
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", END], "eos_token": END})
    made.chat_template = TEMPLATE
    model = network()
    model.resize_token_embeddings(len(made))
    model.generation_config.eos_token_id = made.eos_token_id
    model.save_pretrained(tmp_path)
    made.save_pretrained(tmp_path)
    return load_tokenizer(tmp_path)


class Speaking:
    """An engine that says the next of its turns at each call and ends it, and keeps the prompts that it was given."""

    def __init__(self, tokenizer: Any, *turns: str) -> None:
        self.tokenizer, self.turns, self.prompts = tokenizer, iter(turns), []  # type: ignore[var-annotated]
        self.rollout = Rollout(turns=Turns(format="tool_call", max_calls=8))

    def generate(self, prompts: Any, sampling: Sampling, seed: int, on_progress: Any = None, **_: Any) -> Groups:
        assert sampling.stop == ()
        self.prompts.append(self.tokenizer.decode(list(prompts[0])))
        turn = next(self.turns)
        tokens = self.tokenizer.encode(turn + END, add_special_tokens=False)
        return [[Completion(tokens, [-0.5] * len(tokens), turn, "stop")]]


def call(value: Any) -> str:
    return f"<tool_call>\n{value if isinstance(value, str) else json.dumps(value)}\n</tool_call>"


def python(code: str) -> dict[str, Any]:
    return {"name": "python", "arguments": {"code": code}}


def test_a_conversation_with_calls_is_what_the_template_writes(tokenizer: Any) -> None:
    calls = [
        python("17*20"),
        python("17*3") | {"arguments": json.dumps({"code": "17*3"})},
        '{"name": "python", "arguments": {"code": "1}',
        {"name": "search", "arguments": {"query": "17*23"}},
        python("340+51"),
    ]
    turns = [
        "I multiply. <answer>1</answer>\n" + "\n".join(map(call, calls[:4])),
        call(calls[4]),
        "<answer>391</answer>",
    ]
    engine = Speaking(tokenizer, *turns)
    sampler = Sampler(engine, tokenizer, PROMPT, tool=Calculator())
    groups = sampler.sample([PROBLEM], Sampling(1, 1.0, 4000), build_reward(), 0)
    assert groups[0] is not None
    (graded,) = groups[0]
    made = graded.completion.calls
    assert [(each.status, each.output) for each in made[:2] + made[4:]] == [("ok", "340"), ("ok", "51"), ("ok", "391")]
    assert [each.status for each in made[2:4]] == ["error", "error"]
    assert made[2].output.startswith("error: the call is not JSON (Invalid control character")
    assert made[3].output.startswith("error: there is one tool, python; write")
    assert graded.correct and graded.extracted == "391"

    # The tokens that the model was given are those of the template over the same messages.
    messages = [
        {"role": "user", "content": PROBLEM.question},
        {"role": "assistant", "content": turns[0]},
        *({"role": "tool", "content": each.output} for each in made[:4]),
        {"role": "assistant", "content": turns[1]},
        {"role": "tool", "content": "391"},
    ]
    written = tokenizer.apply_chat_template(
        messages, tools=[json.loads(tools_of(engine.prompts[0]))], tokenize=False, add_generation_prompt=True
    )
    assert engine.prompts[-1] == written
    assert engine.prompts[0] == written.partition(turns[0])[0] and engine.prompts[0].endswith(ASSISTANT)
    sampled = tokenizer.decode(graded.completion.tokens[graded.completion.sampled_mask].tolist())
    assert sampled == "".join(turn + END for turn in turns)
    own = sampler.own_text(PROBLEM, graded.completion)
    assert own.split() == ["I", "multiply.", "<answer>1</answer>", "<answer>391</answer>"]


def test_a_response_that_an_answer_fills_is_cut(tokenizer: Any) -> None:
    turn = call(python("17*23"))
    room = len(tokenizer.encode(turn + END)) + 2
    sampler = Sampler(Speaking(tokenizer, turn), tokenizer, PROMPT, tool=Calculator())
    groups = sampler.sample([PROBLEM], Sampling(1, 1.0, room), build_reward(), 0)
    assert groups[0] is not None
    completion = groups[0][0].completion
    assert (len(completion.tokens), len(completion.calls), completion.finish_reason) == (room, 1, "length")


def tools_of(prompt: str) -> str:
    return prompt.partition("<tools>\n")[2].partition("\n</tools>")[0]


@pytest.mark.parametrize(
    "turn",
    [
        '<tool_call>\n{"name": "python", "arguments": {"code": "17*23"}}',  # never closed: no call
        "```python\n17*23\n```\n",  # the other form
        "</tool_call> 391",
    ],
)
def test_what_is_no_call_ends_the_response(tokenizer: Any, turn: str) -> None:
    tool = Calculator()
    sampler = Sampler(Speaking(tokenizer, turn), tokenizer, PROMPT, tool=tool)
    groups = sampler.sample([PROBLEM], Sampling(1, 1.0, 4000), build_reward(), 0)
    assert groups[0] is not None and groups[0][0].completion.calls == () and tool.runs == 0


def test_an_answer_in_a_call_or_in_its_output_earns_nothing(tokenizer: Any) -> None:
    turns = (call(python("391")) + call({"name": "<answer>391</answer>"}), "I have computed it.")
    sampler = Sampler(Speaking(tokenizer, *turns), tokenizer, PROMPT, tool=Calculator())
    groups = sampler.sample([PROBLEM], Sampling(1, 1.0, 4000), build_reward(), 0)
    assert groups[0] is not None and not groups[0][0].correct
