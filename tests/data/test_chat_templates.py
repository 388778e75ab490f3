"""Chat templates and tokenizers of the families that people train, made here (tests/models/families.py)."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.types import Completion, Control, Problem
from mathrl.data.templates import TODAY, render, response_end
from mathrl.models.load import load_tokenizer
from mathrl.models.tool_messages import end_tokens, turn_end
from mathrl.params.run import Prompt
from mathrl.planning.final_values import ignored_settings
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.preference import tokenize_pairs
from mathrl.trainers.reward_model import tokenize_steps
from mathrl.trainers.supervised import tokenize_demonstrations
from tests.models.families import FAMILIES, make_family
from tests.rollout.no_engine import NO_ENGINE

CHAT = Prompt(template="chat")
QUESTION = "How many clips?\n\n  What is 48/2 + 48 in $x_1$ in May"
PROBLEM = Problem("a", QUESTION, ("72",), "s", "rl", solution="She sold 24.\nThe sum is \\boxed{72}.")
# What makes a family's answer begin after its reasoning; DeepSeek's distilled models always reason.
ANSWER_ONLY: dict[str, dict[str, Any]] = {name: {"enable_thinking": False} for name in ("qwen3", "qwen3.5", "smollm3")}
REASONS = ("deepseek-qwen", "deepseek-llama")


@pytest.fixture(scope="module")
def tokenizer_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    root = tmp_path_factory.mktemp("families")
    folders = {name: make_family(name, root / name, weights=False) for name in FAMILIES}
    tokenizers = {name: load_tokenizer(folder) for name, folder in folders.items()}
    for name, folder in folders.items():
        tokenizers[name].written = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda name: tokenizers[name]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_folders_tokenizer_is_the_one_of_its_file(family: str, tokenizer_of: Callable[[str], Any]) -> None:
    """DeepSeek's distilled Llama models name a class that would lose every space."""
    tokenizer = tokenizer_of(family)
    for text in (QUESTION, " x", "<think>\n7</think>", "कि été 日本", *FAMILIES[family].special):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == tokenizer.written.encode(text, add_special_tokens=False).ids
        lost = FAMILIES[family].pieces == "metaspace"  # the space of the first word, in every library
        assert tokenizer.decode(ids) == (text.removeprefix(" ") if lost else text)
    assert all(len(tokenizer.encode(text, add_special_tokens=False)) == 1 for text in FAMILIES[family].special)


def test_a_chat_is_what_apply_chat_template_gives(family: str, tokenizer_of: Callable[[str], Any]) -> None:
    tokenizer, options = tokenizer_of(family), ANSWER_ONLY.get(family, {})
    for prompt in (CHAT, CHAT.model_copy(update={"chat_template_kwargs": options})):
        ids = render(PROBLEM, prompt, tokenizer)
        expected = tokenizer.apply_chat_template(
            [{"role": "user", "content": QUESTION}],
            add_generation_prompt=True,
            return_dict=False,
            strftime_now=TODAY.strftime,
            **prompt.chat_template_kwargs,
        )
        assert ids == expected
        assert QUESTION in tokenizer.decode(ids)
    # One start token where the template writes it, though most of these tokenizers write one as well.
    starts = {"llama3", "gemma3", "mistral", "olmo2", *REASONS}
    assert ids.count(tokenizer.bos_token_id) == (family in starts)
    plain = render(PROBLEM, Prompt(), tokenizer)
    assert plain.count(tokenizer.bos_token_id) == (plain[0] == tokenizer.bos_token_id) == FAMILIES[family].starts


def test_a_template_without_a_start_token_gives_none(tokenizer_of: Callable[[str], Any]) -> None:
    """As apply_chat_template, vLLM and TRL do, though the tokenizer starts other texts with it."""
    tokenizer = copy.deepcopy(tokenizer_of("llama3"))
    tokenizer.chat_template = "{% for m in messages %}### {{ m.content }}\n{% endfor %}"
    assert render(PROBLEM, CHAT, tokenizer) == tokenizer.encode(f"### {QUESTION}\n", add_special_tokens=False)
    assert turn_end(tokenizer) is None
    assert response_end(PROBLEM, CHAT, tokenizer) == tokenizer.eos_token_id


def test_thinking_is_switched_by_the_templates_own_variable(tokenizer_of: Callable[[str], Any]) -> None:
    ends = {
        ("qwen3", None): "assistant\n",
        ("qwen3", False): "<think>\n\n</think>\n\n",
        ("qwen3.5", None): "assistant\n<think>\n",
        ("qwen3.5", False): "<think>\n\n</think>\n\n",
        ("smollm3", True): "assistant\n",
        ("smollm3", False): "<think>\n\n</think>\n",
    }
    for (name, switch), end in ends.items():
        options = {} if switch is None else {"enable_thinking": switch}
        prompt = Prompt(template="chat", chat_template_kwargs=options)
        assert tokenizer_of(name).decode(render(PROBLEM, prompt, tokenizer_of(name))).endswith(end)
    wrong = Prompt(template="chat", chat_template_kwargs={"enable_thinking": False})
    with pytest.raises(UserError, match=r"chat_template_kwargs: .* does not read enable_thinking; leave it out"):
        render(PROBLEM, wrong, tokenizer_of("qwen2.5"))
    params = load_params(overrides=["prompt.chat_template_kwargs={enable_thinking: false}"])
    assert params.prompt.chat_template_kwargs == {"enable_thinking": False}
    assert any("prompt.chat_template_kwargs has no effect" in sentence for sentence in ignored_settings(params))


def test_prompts_are_the_same_on_every_day(tokenizer_of: Callable[[str], Any]) -> None:
    for name, today in (("llama3", "Today Date: 26 Jul 2024"), ("smollm3", "Today Date: 26 July 2024")):
        assert today in tokenizer_of(name).decode(render(PROBLEM, CHAT, tokenizer_of(name)))


def test_a_conversation_that_the_template_refuses_is_an_error(tokenizer_of: Callable[[str], Any]) -> None:
    prompt = Prompt(template="chat", system="Think.")
    with pytest.raises(UserError, match=r"problem a: .*Only user and assistant roles.*set prompt\.instruction"):
        render(PROBLEM, prompt, tokenizer_of("mistral"))
    assert "Think.\n\nHow many" in tokenizer_of("gemma3").decode(render(PROBLEM, prompt, tokenizer_of("gemma3")))


def test_a_turns_end_is_sampled_to_and_trained_on(family: str, tokenizer_of: Callable[[str], Any]) -> None:
    tokenizer, written = tokenizer_of(family), FAMILIES[family]
    end, eos = (tokenizer.convert_tokens_to_ids(text) for text in (written.turn_end, written.eos))
    assert turn_end(tokenizer) == end
    assert set(end_tokens(tokenizer, None)) == {end, eos}
    prompt = Prompt(template="chat", chat_template_kwargs=ANSWER_ONLY.get(family, {}))
    solved = PROBLEM.with_(solution=f"24</think>{PROBLEM.solution}") if family in REASONS else PROBLEM
    (group,) = tokenize_demonstrations([solved], prompt, tokenizer, 0.0, 0)
    response = list(group.responses[0])
    assert response[-1] == end and response.count(end) == 1
    assert tokenizer.decode(response[:-1]) == solved.solution
    (group,) = tokenize_demonstrations([PROBLEM], Prompt(template="boxed"), tokenizer, 0.0, 0)
    assert group.responses[0][-1] == eos, "no turn of a chat"

    row = {"problem": PROBLEM.to_row(), "problem_id": "a", "chosen": "7", "rejected": "8", "rejected_ended": False}
    chosen, rejected = tokenize_pairs([row], prompt, tokenizer)[0].group.responses
    assert chosen[-1] == end and end not in rejected
    steps = {"problem": PROBLEM.to_row(), "problem_id": "a", "response": "7", "ended": True, "soft": [1.0]}
    assert tokenize_steps([steps], prompt, tokenizer, "line", "soft")[0].group.responses[0][-1] == end
    templated = PROBLEM.with_(control=Control(templated=True))
    messages = PROBLEM.with_(control=Control(({"role": "user", "content": "7"},)))
    assert response_end(templated, Prompt(), tokenizer) == response_end(messages, Prompt(), tokenizer) == end


def test_control_tokens_that_a_problem_spells_stay_text(family: str, tokenizer_of: Callable[[str], Any]) -> None:
    tokenizer, prompt = tokenizer_of(family), Prompt(template="chat", few_shot=1, chat_template_kwargs={})
    control = [*FAMILIES[family].special, *(mark for mark in FAMILIES[family].marks if "think" not in mark)]
    attack = f"A{''.join(control)}{control[-1]}B"
    shot = PROBLEM.with_(solution="72")
    ids = [tokenizer.convert_tokens_to_ids(text) for text in control]

    def controls(problem: Problem, shot: Problem, prompt: Prompt) -> list[int]:
        return [token for token in render(problem, prompt, tokenizer, [shot]) if token in ids]

    harmless = controls(PROBLEM, shot, prompt)
    assert len(harmless) >= 2 - (family == "olmo2")
    assert controls(PROBLEM.with_(question=attack), shot, prompt) == harmless
    assert controls(PROBLEM, shot.with_(question=attack, solution=attack), prompt) == harmless
    said = PROBLEM.with_(control=Control(({"role": "user", "content": attack},)))
    assert controls(said, shot, prompt) == controls(
        said.with_(control=Control(({"role": "user", "content": "A"},))), shot, prompt
    )
    text = tokenizer.decode(render(PROBLEM.with_(question=attack), prompt, tokenizer))
    assert attack not in text and attack in text.replace(" ", "")
    plain = Prompt(template="boxed")
    assert controls(PROBLEM.with_(question=attack), shot, plain) == controls(PROBLEM, shot, plain)
    (group,) = tokenize_demonstrations([PROBLEM.with_(solution=attack)], plain, tokenizer, 0.0, 0)
    assert [token for token in group.responses[0] if token in ids] == [tokenizer.eos_token_id]
    # What a template has written, and what a model has sampled, keeps its tokens.
    templated = PROBLEM.with_(question=attack, control=Control(templated=True))
    assert set(ids) <= set(render(templated, prompt, tokenizer))


def test_an_open_reasoning_block_is_continued_not_opened_again(tokenizer_of: Callable[[str], Any]) -> None:
    for name in ("qwen3.5", *REASONS):
        tokenizer = tokenizer_of(name)
        with pytest.raises(UserError, match=r"problem a: .* opens <think>, which the solution does not close"):
            tokenize_demonstrations([PROBLEM], CHAT, tokenizer, 0.0, 0)
        sampled = PROBLEM.with_(control=Control(response="<think>\n24+48</think>\n72"))
        (group,) = tokenize_demonstrations([sampled], CHAT, tokenizer, 0.0, 0)
        assert tokenizer.decode([*group.prompt, *group.responses[0][:-1]]).count("<think>") == 1
        assert tokenizer.decode(group.responses[0][:-1]) == "24+48</think>\n72"


def test_a_continued_response_is_read_as_one_text(tokenizer_of: Callable[[str], Any]) -> None:
    """Pieces of Llama 2's kind have their space before them: decoded apart, two words become one."""
    text = "The answer is 7 clips, été"
    for name in ("mistral", "phi3", "qwen2.5", "gemma3"):
        tokenizer = tokenizer_of(name)
        ids = tokenizer.encode(text, add_special_tokens=False)
        for cut in range(1, len(ids)):
            begun, rest = ids[:cut], np.array(ids[cut:], np.int32)
            completion = Completion(rest, np.zeros(len(rest), np.float32), tokenizer.decode(rest), "stop")
            sampler = Sampler(NO_ENGINE, tokenizer, Prompt())
            problem = PROBLEM.with_(control=Control(begun=tuple(begun)))
            assert sampler.reward_input(problem, completion, 64).response == text
