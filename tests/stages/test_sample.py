"""sample: pairs and labels of steps by hand, and two processes with a model whose chances are known."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.compose import load_params
from mathrl.core.files import read_json, read_jsonl
from mathrl.core.records import RunRecord
from mathrl.core.types import Problem, read_problems, write_problems
from mathrl.data.rejection import Filters, rejection_sample
from mathrl.models.base import character_tokenizer, fresh_config
from mathrl.models.export import export_model
from mathrl.params.run import FreshModel
from mathrl.rollout import sample_problems
from mathrl.rollout.call_formats import pieces_of
from mathrl.stages.sample import label, pairs_of, to_label, with_prefix, work
from mathrl.stages.stage_run import StageRun

ROOT = Path(__file__).parents[2]
BASE = FreshModel(hidden_size=32, intermediate_size=16, layers=1, heads=2, kv_heads=1, alphabet="arithmetic")
TOKENIZER = character_tokenizer(BASE)


def problem(name: str, *answers: str) -> Problem:
    return Problem(id=name, question=f"{name}=", answers=answers or ("3",), source="made", split="rl")


def row(response: str, correct: bool, truncated: bool = False) -> dict[str, Any]:
    return {"response": response, "correct": correct, "truncated": truncated, "length": len(response)}


def test_pairs_are_right_against_wrong_at_most_n_a_problem_and_none_is_cut_off_and_chosen() -> None:
    groups = [
        (problem("a"), [row("3", True), row("1;3", True), row("4", False), row("5;", False, True), row("6", False)]),
        (problem("b"), [row("3", True), row("1;3", True)]),  # nothing wrong
        (problem("c"), [row("3", True, True), row("4", False)]),  # right, but cut off
        (problem("d"), [row("4", False), row("3", True)]),
    ]
    pairs = pairs_of(groups, 9, seed=0)
    assert [pair["problem_id"] for pair in pairs] == ["a", "a", "d"]
    assert {pair["chosen"] for pair in pairs[:2]} == {"3", "1;3"}
    assert all(pair["rejected"] in ("4", "5;", "6") for pair in pairs[:2])
    assert pairs[0]["rejected"] != pairs[1]["rejected"]
    assert all(pair["chosen_ended"] and pair["problem"]["id"] == pair["problem_id"] for pair in pairs)
    for seed in range(9):
        for pair in pairs_of(groups, 1, seed)[:1]:
            assert pair["rejected_ended"] == (pair["rejected"] != "5;")
    assert [pair["problem_id"] for pair in pairs_of(groups, 1, seed=0)] == ["a", "d"]
    assert pairs_of(groups, 9, seed=0) == pairs


def test_right_responses_with_a_call_are_imitated_and_in_no_pair() -> None:
    call = "```python\n1+2\n```\n```output\n3\n```\n"
    called = [row(f"<think>{call}3</think><answer>3</answer>", True) | {"calls": [{"code": "1+2\n", "output": "3"}]}]
    rows = [*called, row("<answer>3</answer>", True) | {"calls": []}, row("<answer>4</answer>", False) | {"calls": []}]
    pairs = pairs_of([(problem("a"), rows), (problem("b"), [*called, rows[2]])], 9, seed=0)
    assert [(pair["problem_id"], pair["chosen"]) for pair in pairs] == [("a", "<answer>3</answer>")]
    kept, _ = rejection_sample([(problem("a"), rows)], Filters(4), 0)
    assert {each.control.response for each in kept} == {rows[0]["response"], rows[1]["response"]}
    pieces = [piece for each in kept for piece, learned in pieces_of(each.control.response or "") if not learned]
    assert pieces == ["```output\n3\n```\n"]  # what sft.call_format leaves out of the loss


def test_prefixes_end_where_steps_do_and_labels_come_back_in_their_order() -> None:
    params = load_params(ROOT / "params", overrides=["sample.labelled_per_problem=2", 'prompt.response_prefix="1"'])
    groups = [
        (problem("a"), with_prefix([row(";2;3", True), row(";2;3", True), row(";4", False, True)], params)),
        (problem("b"), with_prefix([row("3", True)], params)),
    ]
    rows = to_label(groups, params, TOKENIZER)
    assert sorted((each["problem_id"], each["response"]) for each in rows) == [
        ("a", "1;2;3"),
        ("a", "1;4"),
        ("b", "13"),
    ]
    long = next(each for each in rows if each["response"] == "1;2;3")
    # Without the prefix, which is in the prompt already; the last step, the answer, needs no continuation.
    assert [TOKENIZER.decode(tokens) for tokens in long["prefixes"]] == [";", ";2;"]
    counts = {"1;2;3": [3, 1], "1;4": [0], "13": []}
    labelled = label(rows, [n for each in rows for n in counts[each["response"]]], 4)
    found = {each["response"]: (each["soft"], each["hard"]) for each in labelled}
    assert found == {
        "1;2;3": ([0.75, 0.25, 1.0], [1.0, 1.0, 1.0]),
        "1;4": ([0.0, 0.0], [0.0, 0.0]),
        "13": ([1.0], [1.0]),
    }
    assert all("prefixes" not in each for each in labelled)
    cut = [each | {"ended": False, "correct": True} for each in rows if each["response"] == "13"]
    assert label(cut, [], 4)[0]["soft"] == [0.0], "an answer that never ends is not right"


def bigram_model(folder: Path) -> None:
    """'=' is followed by 1, 1 and 2 by ';', that by 2 or an answer of 3 or 4 with equal chances."""
    from transformers import Qwen2ForCausalLM

    config = fresh_config(BASE, TOKENIZER)
    config.tie_word_embeddings = False
    network = Qwen2ForCausalLM(config)
    follow = {
        "=": "1",
        "1": ";",
        "2": ";",
        ";": ("2", "<answer>"),
        "<answer>": "34",
        "3": ("</answer>",),
        "4": ("</answer>",),
        "</answer>": (TOKENIZER.eos_token,),
    }
    with torch.no_grad():
        for layer in network.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        size = len(TOKENIZER)
        network.model.embed_tokens.weight.copy_(torch.eye(size, 32))
        network.lm_head.weight.fill_(-10.0)
        for token, nexts in follow.items():
            (before,) = TOKENIZER.encode(token)
            for after in nexts:
                network.lm_head.weight[TOKENIZER.encode(after)[0], before] = 0.0
    export_model(network, TOKENIZER, folder, "# A model of bigrams\n")


SETTINGS = (
    "run.processes=2",
    "run.device=cpu",
    "model.precision=float32",
    "sample.samples=8",
    "sample.max_tokens=32",
    "sample.continuations=64",
    "rollout.max_sequences=1024",
    "sample.labelled_per_problem=1",
)
KINDS = {"never": ("9",), "half": ("3",), "always": ("3", "4")}


class Place:
    """A folder with a model, problems and parameters in which the stage runs as its own processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "params", folder / "params")
        bigram_model(folder / "start")
        names = [f"{kind}{n}" for n in range(6) for kind in KINDS]
        problems = [problem(name, *KINDS[name.rstrip("0123456789")]) for name in names]
        write_problems(folder / "rl.jsonl", [each.with_(question="1+1=") for each in problems])

    def run(self, python: Path) -> None:
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | {
            "MATHRL_HOME": str(self.folder / "home"),
            "MATHRL_MIRROR": "none",
            "PYTHONPATH": str(ROOT),
        }
        words = ["pipelines/recipes/r/samples", "--start", "start", "--data", "rl.jsonl", "--examples", "rl.jsonl"]
        sets = [word for setting in SETTINGS for word in ("--set", setting)]
        command = [python, "-m", "mathrl.stages.sample", *words, *sets]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=800)
        assert done.returncode == 0, done.stderr


def test_two_processes_label_the_steps_that_rank_0_chose(tmp_path: Path, warm_python: Path) -> None:
    Place(tmp_path).run(warm_python / "python")
    out = tmp_path / "pipelines/recipes/r/samples"
    rows = list(read_jsonl(out / "steps.jsonl"))
    halves = []
    lengths = set()
    for each in rows:
        kind = each["problem_id"].rstrip("0123456789")
        *prefixes, last = each["soft"]
        assert len(each["soft"]) == len(each["hard"]) == each["response"].count(";") + 1 > 1
        assert last == float(each["correct"])
        lengths.add(len(prefixes))
        if kind == "half":
            halves += prefixes
        else:
            assert set(prefixes) == {float(kind == "always")}
            assert each["hard"] == each["soft"] and last == float(kind == "always")
    assert len(rows) == 18 and len(lengths) > 2 and len(halves) > 6
    # From every prefix half of the continuations end in 3: 64 of them lie within 5 deviations of it.
    assert all(abs(rate - 0.5) < 5 * 0.5 / 8 for rate in halves) and len(set(halves)) > 2

    pairs = list(read_jsonl(out / "pairs.jsonl"))
    assert pairs and all(pair["problem_id"].startswith("half") for pair in pairs)
    assert all(">3<" in pair["chosen"] and ">4<" in pair["rejected"] for pair in pairs)
    kept = read_problems(out / "train.jsonl")
    assert {each.id.rstrip("#0123456789") for each in kept} == {"half", "always"}
    summary = read_json(out / "summary.json")
    assert (summary["problems"], summary["samples"], summary["labelled"]) == (18, 144, len(rows))
    samples = list(read_jsonl(out / "samples.jsonl"))
    assert sum(each["correct"] for each in samples) == summary["correct"]


def test_a_run_that_ends_while_it_continues_prefixes_makes_the_same_files_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    monkeypatch.chdir(tmp_path)
    params = load_params(overrides=[*SETTINGS, "run.processes=1", "sample.continuations=4", "run.seed=3"])

    def draw_into(name: str, state: str) -> dict[str, bytes]:
        run = StageRun("sample", params, tmp_path / state, RunRecord(tmp_path / f"{state}-record"))
        run.state.mkdir(exist_ok=True)
        places = {"start": place.folder / "start", "data": [Path("rl.jsonl")], "examples": Path("rl.jsonl")}
        work(run, **places, out=Path(name))  # type: ignore[arg-type]
        return {file.name: file.read_bytes() for file in sorted(Path(name).iterdir())}

    whole_run = draw_into("whole", "state-1")
    sampled = sample_problems.sample_problems

    def until_the_second(*given: Any, **named: Any) -> Any:
        if named["name"] == "continue":
            raise KeyboardInterrupt
        return sampled(*given, **named)

    monkeypatch.setattr(sample_problems, "sample_problems", until_the_second)
    with pytest.raises(KeyboardInterrupt):
        draw_into("cut", "state-2")
    kept = sorted((tmp_path / "state-2").glob("*.jsonl"))
    assert kept and not Path("cut").exists()
    for file in kept:  # what is no whole next chunk is sampled again
        whole = file.read_text()
        file.write_text(whole + '{"chunk": 99, "groups": [null]}\n' + whole)
    monkeypatch.setattr(sample_problems, "sample_problems", sampled)
    assert draw_into("cut", "state-2") == whole_run
    assert sorted(whole_run) == ["pairs.jsonl", "samples.jsonl", "steps.jsonl", "summary.json", "train.jsonl"]


@pytest.mark.parametrize("prefix", ["", "1;"])
def test_a_response_prefix_is_part_of_what_is_learned(prefix: str) -> None:
    params = load_params(ROOT / "params", overrides=[f"prompt.response_prefix={prefix!r}"])
    assert [each["response"] for each in with_prefix([row("3", True)], params)] == [prefix + "3"]
