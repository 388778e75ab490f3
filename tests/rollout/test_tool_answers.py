"""Which answer counts where a response calls a tool: never one in code or output. And sft's masks."""

from collections.abc import Callable
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from mathrl.core.errors import UserError
from mathrl.core.results import results_table
from mathrl.core.types import Completion, Problem, ToolCall
from mathrl.evaluation.responses import eval_row
from mathrl.evaluation.summary import summarise
from mathrl.models.base import character_tokenizer
from mathrl.params.evaluate import Evaluate
from mathrl.params.rollout import Rollout
from mathrl.params.run import FreshModel, Prompt
from mathrl.reports.html_figures import cells
from mathrl.rewards.compose import build_reward
from mathrl.rollout.call_formats import show_output
from mathrl.rollout.engine import Groups, Sampling
from mathrl.rollout.sample_problems import sample_problems
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.preference import tokenize_response
from mathrl.trainers.supervised import tokenize_demonstrations
from tests.rollout.calculator import Calculator

TOKENIZER = character_tokenizer(FreshModel())
PROBLEM = Problem("p", "17*23=", ("391",), "products", "rl")
CALL = "```python\nprint(17*23)\n```\n"
OUTPUT = "```output\n391\n```\n"


class Spoken:
    """An engine that says the next of its turns at each call, to one prompt."""

    rollout = Rollout()

    def __init__(self, *turns: str) -> None:
        self.turns, self.prompts = iter(turns), []  # type: ignore[var-annotated]

    def generate(self, prompts: Any, sampling: Sampling, seed: int, on_progress: Any = None, **_: Any) -> Groups:
        turn = next(self.turns)
        self.prompts.append(TOKENIZER.decode(list(prompts[0])))
        stops = bool(sampling.stop) and turn.endswith(sampling.stop)
        tokens = TOKENIZER.encode(turn) + ([] if stops else [TOKENIZER.eos_token_id])
        return [[Completion(tokens, [-0.5] * len(tokens), turn, "stop_string" if stops else "stop")]]


def sampler_of(*turns: str, tool: Calculator | None = None) -> Sampler:
    return Sampler(Spoken(*turns), TOKENIZER, Prompt(), tool=tool or Calculator())


def graded(*turns: str, tool: Calculator | None = None) -> Any:
    groups = sampler_of(*turns, tool=tool).sample([PROBLEM], Sampling(1, 1.0, 400), build_reward(), 0)
    assert groups[0] is not None
    return groups[0][0]


def test_the_tool_is_asked_and_the_answer_is_the_models() -> None:
    found = graded("<think>" + CALL, "So 391.</think><answer>391</answer>")
    assert found.correct and found.extracted == "391"
    completion = found.completion
    assert completion.text == "<think>" + CALL + OUTPUT + "So 391.</think><answer>391</answer>"
    (call,) = completion.calls
    assert call == ToolCall(len(TOKENIZER.encode("<think>" + CALL)), call.end, "print(17*23)\n", "391", "ok", 0.0)
    assert TOKENIZER.decode(completion.tokens[call.start : call.end].tolist()) == OUTPUT
    assert completion.logprobs[completion.sampled_mask].tolist() == [-0.5] * completion.sampled_count
    padded = graded(CALL.replace(")", ")<pad>"), "<answer>391</answer>").completion
    assert padded.tokens.tolist().count(TOKENIZER.pad_token_id) == 1 and padded.calls[0].code == call.code


@pytest.mark.parametrize(
    "turns",
    [
        ("```python\nprint('<answer>391</answer>')\n```\n", "That was it."),  # the answer stands in the code
        (CALL, ""),  # printed, never said
        ("<answer>391</answer>" + CALL.replace("17*23", "1"), "<answer>1</answer>"),  # the last word counts
        (CALL, CALL, "I print until one is right."),
        (
            "```python\nprint('<answer>391</answer>'); import os; os._exit(0)\n```\n",
            "It exited.",
        ),  # ends early, to count
        ("```python\nraise SystemExit('<answer>391</answer>')\n```\n", ""),
    ],
)
def test_nothing_but_the_models_own_last_answer_counts(turns: tuple[str, ...]) -> None:
    assert not graded(*turns).correct


def test_many_candidates_in_the_output_earn_nothing() -> None:
    class Lists(Calculator):
        def session(self) -> Any:
            session = super().session()
            run: Callable[[str], Any] = session.run
            session.run = lambda code: type(run("1"))(  # type: ignore[method-assign]
                "\n".join(f"<answer>{n}</answer> \\boxed{{{n}}}" for n in range(300, 400)), "ok", 0.0
            )
            return session

    found = graded(CALL, "One of these.", tool=Lists())
    assert not found.correct and found.extracted == "One of these."


def test_rows_of_evaluations_have_calls_only_with_a_tool() -> None:
    def rows(sampler: Sampler) -> list[dict[str, Any]]:
        sampled = sample_problems(sampler, [PROBLEM], Sampling(1, 1.0, 400), build_reward(), seed=0, name="t")
        assert sampled is not None and sampled[0] is not None
        columns = {"model": "m", "benchmark": "b", "problem_id": "p"}
        return [{**columns, **row} for row in sampled[0]]

    (row,) = rows(sampler_of(CALL, "<answer>391</answer>"))
    assert row["calls"] == [{"code": "print(17*23)\n", "output": "391", "status": "ok"}]
    assert row["length"] == len(TOKENIZER.encode(CALL + "<answer>391</answer>")) + 1
    assert cells(row) == [(CALL + "```output\n", "model"), ("391", "ok"), ("\n```\n<answer>391</answer>", "model")]
    (silent,) = rows(sampler_of("<answer>3</answer>"))
    (plain,) = rows(Sampler(Spoken("<answer>391</answer>"), TOKENIZER, Prompt()))
    assert silent["calls"] == [] and "calls" not in plain
    figures = {
        name: summarise([eval_row(group)], Evaluate(ks=(1,)))
        for name, group in {"with": [row, silent, silent, row], "without": [plain, plain]}.items()
    }
    assert (figures["with"].calls, figures["with"].call_share, figures["with"].right_with_call) == (0.5, 0.5, 1.0)
    assert figures["without"].calls is None
    table = results_table(figures)
    assert [line["with a call"] for line in table] == ["50.0%", ""] and "with a call" not in results_table(
        {"without": figures["without"]}
    )[0]


def test_a_seeded_share_of_the_demonstrations_is_the_answer_alone() -> None:
    problems = [
        Problem(f"p{n}", f"{n}+{n}=", (str(2 * n),), "own", "sft", solution=f"{n}+{n}={2 * n}") for n in range(1, 9)
    ]
    groups = tokenize_demonstrations(problems, Prompt(), TOKENIZER, 0.4, 3)
    for number, group in enumerate(groups, start=1):
        answer, solution = f"<answer>{2 * number}</answer><end>", f"<think>{number}+{number}={2 * number}</think>"
        text = answer if number in (1, 3, 4) else solution + answer  # the same with every version
        assert (
            TOKENIZER.decode(list(group.responses[0])) == text
            and TOKENIZER.decode(group.prompt) == f"{number}+{number}="
        )
        assert group.sampled == ()
    for share, count in ((0.0, 0), (0.3, 2), (1.0, 8)):
        made = tokenize_demonstrations(problems, Prompt(), TOKENIZER, share, 3)
        assert sum(TOKENIZER.decode(list(group.responses[0])).startswith("<answer>") for group in made) == count
    with pytest.raises(UserError, match=r"sft: there is no demonstration; give the sft split problems"):
        tokenize_demonstrations([], Prompt(), TOKENIZER, 0.4, 3)
    told = problems[0].with_(question=r"1+1= \boxed{2}")
    with pytest.raises(UserError, match=r"problem p1: its prompt holds"):
        tokenize_demonstrations([told], Prompt(), TOKENIZER, 0.4, 3)


def test_no_token_that_begins_a_text_stands_within_a_response() -> None:
    """Llama's tokenizer, among others, puts one before every text that it is given."""
    plain, begins = TOKENIZER.encode, TOKENIZER.pad_token_id
    tokenizer: Any = character_tokenizer(FreshModel())
    processor = TemplateProcessing(single="<pad> $A", special_tokens=[("<pad>", begins)])
    tokenizer.backend_tokenizer.post_processor = processor
    assert tokenizer.encode("12") == [begins, *plain("12")]
    assert show_output("1" * 20, 20, tokenizer) == "1" * 20
    assert tokenize_response("12", tokenizer, None) == tuple(plain("12"))
    solved = PROBLEM.with_(solution=CALL + OUTPUT + "It is 391.")
    (group,) = tokenize_demonstrations([solved], Prompt(), tokenizer, 0.0, 0, True)
    engine = Spoken(CALL, "<answer>391</answer>")
    sampler = Sampler(engine, tokenizer, Prompt(response_prefix="<think>"), tool=Calculator())
    assert sampler.prefix == plain("<think>")
    assert sampler.turns is not None
    ((answered,),) = sampler.turns.generate([[7]], Sampling(1, 1.0, 200), 0)
    assert len(answered.calls) == 1 and begins not in answered.tokens and begins not in group.responses[0]


def test_demonstrations_do_not_teach_outputs() -> None:
    shown = PROBLEM.with_(solution=CALL + OUTPUT + "It is 391.")
    (group,) = tokenize_demonstrations([shown], Prompt(), TOKENIZER, 0.0, 0, True)
    (mask,) = group.sampled
    text = "<think>" + CALL + OUTPUT + "It is 391.</think><answer>391</answer><end>"
    assert TOKENIZER.decode(list(group.responses[0])) == text
    read = [token for token, learned in zip(group.responses[0], mask, strict=True) if not learned]
    assert TOKENIZER.decode(read) == OUTPUT
    (whole,) = tokenize_demonstrations([shown], Prompt(), TOKENIZER, 0.0, 0)
    assert whole.responses == group.responses and whole.sampled == () and sum(whole.counts) > sum(group.counts)
