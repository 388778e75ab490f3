"""`mathrl init` with a file and a model folder that nobody prepared: other fields, architecture and tokenizer."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

import mathrl
from mathrl.cli import plan
from mathrl.cli.doctor import doctor
from mathrl.cli.init import init
from mathrl.cli.inspect import given_keys, inspect
from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.files import write_json
from mathrl.core.records import open_record
from mathrl.core.types import Problem, write_problems
from mathrl.curation import curation
from mathrl.models.load import load_model, load_tokenizer
from mathrl.models.model_shape import config_of, shape_of
from mathrl.params import Params
from mathrl.planning.final_values import LONGEST, response_tokens
from mathrl.planning.project import suited_prompt
from mathrl.planning.run_time import Speed, measured_speed, planned_time, speed_of_difficulty, write_speed
from mathrl.reports.evaluation import evaluate_once
from mathrl.rewards import RewardInput, build_reward
from mathrl.stages.rl import DIFFICULTY
from mathrl.sweeps.space import check_space

ROOT = Path(__file__).parents[2]
CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
REFUSES_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHAT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a file of 300 sums, two of them broken."""
    folder = tmp_path_factory.mktemp("own")
    rows = [
        {"ask": f"What is {a} + {b}?", "meta": json.dumps({"gold": a + b}), "working": f"{a} and {b} make {a + b}."}
        for a in range(15)
        for b in range(20)
    ]
    rows[7]["ask"], rows[8]["meta"] = "", "{}"
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        (row["working"] for row in rows), trainers.BpeTrainer(special_tokens=["<end>"], initial_alphabet=alphabet)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<end>")
    config = GPTNeoXConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=256, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    GPTNeoXForCausalLM(config).save_pretrained(folder / "neox")
    tokenizer.save_pretrained(folder / "neox")
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    qwen = Qwen2Config(vocab_size=len(tokenizer), intermediate_size=96, max_position_embeddings=256, **sizes)
    Qwen2ForCausalLM(qwen).save_pretrained(folder / "qwen")
    tokenizer.save_pretrained(folder / "qwen")
    return folder


def loaded(project: Path) -> Params:
    return load_params(project / "params")


def test_a_project_of_own_rows_and_an_own_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MATHRL_DATA", raising=False)
    init(Path("sums"), data=folder / "sums.jsonl", model=str(folder / "neox"))
    printed = capsys.readouterr().out
    assert "next: cd sums && mathrl run mix" in printed.splitlines()[-1]
    assert "unusable rows 2" in printed and "gpt_neox" in printed
    git = ["git", "-C", "sums", "log", "-1", "--format=%s"]
    assert subprocess.run(git, capture_output=True, text=True, check=True).stdout == "Project sums: sums.jsonl, neox\n"
    params = loaded(Path("sums"))
    (source,) = params.curate.sources
    assert (source.prompt_key, source.answer_key, source.solution_key) == ("ask", "meta.gold", "working")  # type: ignore[union-attr]
    curated = curation.run(params.curate, 0)
    sizes = {split: len(rows) for split, rows in curated.splits.items()}
    # 298 rows: 0.1678 of them for 50 tests, 0.05 of the rest to dev, a quarter of what is left to SFT.
    assert sizes == {"test": 50, "dev": 12, "sft": 59, "rl": 177} and len(curated.rejected) == 2
    assert params.prompt.template == "boxed" and params.sft.steps > 0 and params.rl.max_tokens <= 256 - 64
    # The published 1e-6 of a width of 896, here for a width of 32.
    assert params.rl.optimizer.lr == 3e-5 and params.sft.optimizer.lr == 3e-4
    # Nothing of the demo's is left that trains or samples: recipes and sweeps start from the project's own values.
    assert params.dpo.optimizer.lr == 1e-5 and params.reward_model.optimizer.lr == 3e-4
    assert params.controls.forced_prefix is None
    assert params.sample.max_tokens == params.evaluate.max_tokens == params.rl.max_tokens
    assert (
        params.sweep.study,
        params.sweep.space["rl.optimizer.lr"].low,
        params.sweep.space["rl.optimizer.lr"].high,
    ) == ("sums", 6e-6, 2e-4)
    assert set(check_space(params.sweep, Path("sums/params"))) == {"rl.optimizer.lr", "rl.kl.coef"}
    assert params.model.base.type == "pretrained"
    assert load_model(params.model.base.path, params.model, "cpu").config.model_type == "gpt_neox"
    files = subprocess.run(["git", "-C", "sums", "ls-files"], capture_output=True, text=True, check=True).stdout.split()
    assert len(files) <= 30 and {"sums/rewards.py", "tests/test_own_code.py", "constraints.txt"} < {*files}
    with pytest.raises(UserError, match="sums: exists and is not empty"):
        init(Path("sums"), data=folder / "sums.jsonl", model=str(folder / "neox"))


def test_the_first_commit_is_by_the_identity_of_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    Path("gitconfig").write_text(f'[includeIf "gitdir:{tmp_path}/work/"]\npath = {tmp_path}/work.cfg\n')
    Path("work.cfg").write_text("[user]\nname = Ada\nemail = ada@work.example\n")
    authors = []
    for folder in (Path("work/p"), Path("other/p")):
        init(folder, demo=True)
        log = ["git", "-C", str(folder), "log", "--format=%an %ae"]
        authors.append(subprocess.run(log, capture_output=True, text=True, check=True).stdout.strip())
    assert authors == ["Ada ada@work.example", "mathrl mathrl@localhost"]


def test_the_demo_is_this_repositorys_own_top_level_and_its_own_code_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    init(Path("My demo 2"), demo=True)
    assert "next: cd 'My demo 2' && mathrl run pipeline" in capsys.readouterr().out
    listed = subprocess.run(["git", "-C", "My demo 2", "ls-files"], capture_output=True, text=True, check=True)
    files = listed.stdout.splitlines()
    assert len(files) <= 30
    others = {file for file in files if file.split("/")[0] in ("my_demo_2", "tests")} | {"pyproject.toml", "README.md"}
    for file in {*files} - others:
        assert Path("My demo 2", file).read_bytes() == (ROOT / file).read_bytes(), file
    assert loaded(Path("My demo 2")) == load_params(ROOT / "params")
    text = Path("My demo 2", "pyproject.toml").read_text()
    assert 'code = ["my_demo_2"]' in text and f"mathrl[platform]=={mathrl.__version__}" in text
    assert "@" not in "".join(Path("My demo 2", file).read_text() for file in others)

    monkeypatch.chdir(tmp_path / "My demo 2")
    tests = [sys.executable, "-m", "pytest", "-q", "--doctest-modules", "my_demo_2", "tests"]
    done = subprocess.run(tests, capture_output=True, text=True)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout
    monkeypatch.syspath_prepend(str(Path.cwd()))
    part = "{type: function, name: short, weight: 0.5, options: {path: my_demo_2.rewards.short, longest: 10}}"
    params = load_params(overrides=[f"reward.parts=[{{type: accuracy}}, {part}]"])
    (result,) = build_reward(params.reward).score([RewardInput("<answer>36</answer>", ("36",))])
    assert result.overall == 1.0 + 0.5 * 0.0  # 19 characters are more than 10
    load_params(overrides=["rl.curriculum={type: user, sampler: {path: my_demo_2.samplers.InTurn}}"])


def test_what_a_kill_leaves_is_removed_by_the_next_attempt(tmp_path: Path, warm_python: Path) -> None:
    place = tmp_path / "sums [1]"
    code = (
        "import os, sys; from pathlib import Path; from mathrl.cli.init import _new_project\n"
        "with _new_project(Path(sys.argv[1])) as aside: (aside / 'params').mkdir(parents=True); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([warm_python / "python", "-c", code, place], cwd=ROOT, check=False).returncode == -9
    assert len(list(tmp_path.iterdir())) == 1
    init(place, demo=True)
    assert list(tmp_path.iterdir()) == [place] and not list(place.glob("*/params"))


def test_a_project_whose_files_were_moved_at_a_kill_becomes_complete(tmp_path: Path, warm_python: Path) -> None:
    place = tmp_path / "sums"
    place.mkdir()
    code = (
        "import os, sys; from pathlib import Path; from mathrl.cli.init import init\n"
        "rename, place = Path.rename, Path(sys.argv[1])\n"
        "def end(old, new):\n"
        "    rename(old, new)\n"
        "    if Path(new) == place / 'params': os.kill(os.getpid(), 9)\n"
        "Path.rename = end; init(place, demo=True)"
    )
    assert subprocess.run([warm_python / "python", "-c", code, place], cwd=ROOT, check=False).returncode == -9
    with pytest.raises(UserError, match="killed as it ended; it is complete now"):
        init(place, demo=True)
    assert not subprocess.run(["git", "status", "--porcelain"], cwd=place, capture_output=True, check=True).stdout
    assert loaded(place) == load_params(ROOT / "params") and not (place / ".new").exists()


def test_what_is_missing_or_too_much_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name your problems and a model"):
        init(tmp_path / "new")
    with pytest.raises(UserError, match="--demo has data and a model of its own"):
        init(tmp_path / "new", demo=True, model="x")
    assert not (tmp_path / "new").exists()


def test_a_response_has_room_for_the_solutions_on_every_device() -> None:
    """The device's limit cuts what is given beyond the solutions alone: stages refuse lengths that cut these."""
    for longest, chat, p95 in product(LONGEST.values(), (False, True), (20, 300, 500, 900, 6000)):
        tokens = response_tokens(p95, chat=chat, longest=longest)
        assert p95 <= tokens <= max(longest, p95 + 32) and tokens % 32 == 0


def test_answers_that_no_response_could_equal_are_said_before_the_next_command(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    told = [
        {"question": f"What is {n} + 1?", "answer": f"One more than {n} makes {n + 1}, as we saw"} for n in range(60)
    ]
    Path("told.jsonl").write_text("".join(json.dumps(row) + "\n" for row in told))
    init(Path("told"), data=Path("told.jsonl"), model=str(folder / "neox"))
    *_, warned, following = capsys.readouterr().out.splitlines()
    assert warned.startswith("warning: the grader cannot compare 100% of the answers") and "answer_key=FIELD" in warned
    assert following.startswith("next: cd told && mathrl run mix")


def test_a_file_of_test_problems_takes_the_place_of_the_share(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exam.csv").write_text("ask,gold\n" + "".join(f"What is {n} - 1?,{n - 1}\n" for n in range(30)))
    init(Path("our sums"), data=folder / "sums.jsonl", model=str(folder / "qwen"), test=Path("exam.csv"))
    assert "next: cd 'our sums' && mathrl run mix" in capsys.readouterr().out
    params = loaded(Path("our sums"))
    assert [problem.source for problem in curation.run(params.curate, 0).splits["test"]] == ["our-sums_test"] * 30
    assert params.register_.name == "our-sums", "as a registered model may be called"
    # What nobody wrote follows when a run changes: the rate of adapters, and the other stages' lengths.
    changed = load_params(Path("our sums/params"), overrides=["rl.lora={}", "rl.max_tokens=100"])
    assert (params.rl.optimizer.lr, changed.rl.optimizer.lr) == (1e-5, 1e-4)
    assert changed.difficulty.max_tokens == changed.sample.max_tokens == changed.evaluate.max_tokens == 100


@pytest.fixture(scope="module")
def no_tokenizer(folder: Path) -> Path:
    """The model's folder without the files of its tokenizer, for which transformers makes one up."""
    bare = folder / "bare"
    shutil.copytree(folder / "neox", bare, ignore=shutil.ignore_patterns("tokenizer*", "special_tokens*"))
    return bare


def test_a_model_folder_without_a_tokenizer_is_refused_by_name(
    folder: Path, no_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = load_params(ROOT / "params", overrides=["run.processes=1"])
    problem = Problem("1", "1+1=", ("2",), source="own", split="test")
    for refused in (
        lambda: init(Path("sums"), data=folder / "sums.jsonl", model=str(no_tokenizer)),
        lambda: monkeypatch.chdir(ROOT) or doctor(str(no_tokenizer)),  # type: ignore[func-returns-value]
        lambda: evaluate_once(no_tokenizer, "test", params, tmp_path / "out", problems=[problem]),
        lambda: load_tokenizer(no_tokenizer),  # of every stage
    ):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UserError, match=r"bare: no tokenizer: .*copy .*tokenizer\.json"):
            refused()
    assert not (tmp_path / "sums").exists()


def test_the_tokenizer_of_a_larger_model_is_refused(folder: Path, no_tokenizer: Path, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed"
    shutil.copytree(folder / "neox", mixed)
    config = json.loads((mixed / "config.json").read_text())
    write_json(mixed / "config.json", config | {"vocab_size": 50})
    with pytest.raises(UserError, match=r"mixed: its tokenizer is another model's: .* the model has 50"):
        load_tokenizer(mixed)


def test_a_field_can_be_named_and_the_page_is_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    inspect(folder / "sums.jsonl", field=["answer_key=working"], model=str(folder / "neox"), limit=100, html=page)
    printed = capsys.readouterr().out
    assert "answer_key: working" in printed and "tokens (median)" in printed and "of them, chosen by a seed" in printed
    assert "what it holds" in page.read_text()
    with pytest.raises(UserError, match=r"--field answer=x: write KEY=FIELD.*answer_key"):
        given_keys(["answer=x"])


def test_questions_in_another_language_than_the_instruction_are_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"question": f"小明有{n}个苹果，又买了三个，现在一共有多少个？", "answer": n + 3} for n in range(30)]
    (tmp_path / "题库.json").write_text(json.dumps(rows))
    inspect(tmp_path / "题库.json")
    printed = capsys.readouterr().out
    assert "100% of the questions are in Chinese, and the instruction of each prompt is English" in printed
    assert r"prompt.instruction, such as '请逐步推理，并将最终答案放在 \boxed{} 中。'" in printed
    inspect(tmp_path / "题库.json", template="r1_zero")
    assert "the instruction of each prompt is English" not in capsys.readouterr().out


def test_the_prompt_suits_the_tokenizer(folder: Path) -> None:
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder / "neox")
    assert suited_prompt(tokenizer) == {"template": "boxed"}
    tokenizer.chat_template = CHAT
    assert suited_prompt(tokenizer).keys() == {"template", "system"}
    tokenizer.chat_template = REFUSES_SYSTEM
    assert suited_prompt(tokenizer).keys() == {"template", "instruction"}


def test_the_time_of_a_run_by_hand(folder: Path, tmp_path: Path) -> None:
    overrides = ["sft.steps=10", "sft.tokens_per_step=1000", "rl.steps=5", "rl.prompts_per_step=4", "rl.group_size=8",
                 "rl.gradient_checkpointing=true", "sft.gradient_checkpointing=false", "prompt.max_tokens=10",
                 "difficulty.samples=8", "difficulty.max_problems=100", "evaluate.samples=2", "evaluate.limit=30",
                 "model.base={type: pretrained, path: m}"]  # fmt: skip
    params = load_params(ROOT / "params", overrides=overrides)
    shape = shape_of(config_of(params.model.base.model_copy(update={"path": str(folder / "neox")})))
    weights = shape.matrices + shape.head
    parts = {
        part.part: part.seconds
        for part in planned_time(params, shape, Speed("m", 100.0, 20.0), 1e6, {"rl": 50, "test": 40})
    }
    assert parts["sft"] == pytest.approx(10 * 1000 * 6 * weights / 1e6)
    assert parts["difficulty"] == pytest.approx(50 * 8 * 20 / 100)
    # 32 responses of 20 tokens at 100 tokens/s; 4 prompts of 10 tokens and 32 responses trained on, recomputed once.
    assert parts["rl"] == pytest.approx(5 * (6.4 + (40 + 640) * 8 * weights / 1e6))
    assert parts["evaluate"] == pytest.approx(2 * 30 * 2 * 20 / 100)
    write_speed(tmp_path / "neox-test", Speed("m", 1.0, 2.0))
    assert measured_speed("m", tmp_path) == Speed("m", 1.0, 2.0) and measured_speed("other", tmp_path) is None


def test_a_plan_says_whether_rl_would_start_and_a_command_that_helps(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(folder / "neox")
    params = load_params(
        ROOT / "params",
        overrides=["model.base={type: pretrained, path: " + model + "}", "sft.steps=0", "rl.optimizer.lr=1e-5"],
    )
    monkeypatch.setattr(plan, "main_checkout", lambda: tmp_path)
    shutil.copytree(ROOT / "params", tmp_path / "params")
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path / "home"))
    write_speed(tmp_path / "reports" / "evaluations" / "neox-test", Speed(model, 100.0, 20.0))
    problems = [
        Problem(str(i), f"{i}+1=", (str(i + 1),), source="own", split="rl", solution="by hand") for i in range(9)
    ]
    write_problems(tmp_path / "data" / "curated" / "rl.jsonl", problems)
    write_json(tmp_path / "data" / "mixture" / "manifest.json", {"problems": 3})
    shape = shape_of(config_of(params.model.base))
    write_json(tmp_path / DIFFICULTY, {"pass_at_8": 0.1})
    lines = plan.show_time(params, shape)
    assert "100 tokens/s" in capsys.readouterr().out
    assert lines[0].startswith("time: about ") and lines[1].startswith("rl would not start: ")
    taught, anyway = (line.partition(": mathrl run ")[2].split() for line in lines[2:])
    assert taught[:1] == ["mix"] and anyway[:1] == ["pipeline"]
    # What the lines advise is taken as it stands, and SFT gets its rows and its steps.
    given = [word for word in taught if "=" in word]
    advised = load_params(ROOT / "params", overrides=given)
    assert advised.curate.sft_share == 0.25 and advised.sft.steps == 50
    assert load_params(ROOT / "params", overrides=[word for word in anyway if "=" in word]).rl.min_pass_at_8 == 0
    again = plan.skill_lines(advised, tmp_path, None, given)[1]
    assert again.endswith("mathrl run mix --set curate.sft_share=0.25 --set sft.steps=400")
    # A few steps more than init chose would teach hardly more, and cost a round of advice.
    by_init = load_params(ROOT / "params", overrides=["curate.sft_share=0.25", "sft.steps=45"])
    assert plan.skill_lines(by_init, tmp_path)[1].endswith("mathrl run mix --set sft.steps=400")
    much = load_params(ROOT / "params", overrides=["curate.sft_share=0.25", "sft.steps=400"])
    assert "400 steps of SFT on your solutions did not teach it: " in plan.skill_lines(much, tmp_path)[1]
    write_problems(
        tmp_path / "data" / "curated" / "rl.jsonl", [replace(problem, solution=None) for problem in problems]
    )
    assert "no solutions to teach it with" in plan.skill_lines(params, tmp_path)[1]
    write_json(tmp_path / DIFFICULTY, {"pass_at_8": 0.9})
    *_, starts, following = plan.show_time(params, shape)
    assert starts.startswith("rl would start: pass@8 0.900, 3 problems") and following == "next: mathrl run pipeline"
    monkeypatch.setattr("mathrl.tasks.repro.stages_up_to_date", lambda *_: ["curate", "sft", "difficulty"])
    capsys.readouterr()
    assert plan.show_time(params, shape)[0].endswith(" on this machine, for mix -> rl -> evaluate -> register")
    assert re.search(r"difficulty +done ", capsys.readouterr().out)


def test_the_speed_that_difficulty_measured_is_taken_before_an_evaluations(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path))
    params = load_params(
        ROOT / "params", overrides=["model.base={type: pretrained, path: mine}", "rl.optimizer.lr=1e-5"]
    )
    assert speed_of_difficulty(params) is None
    record = open_record("difficulty", "77")
    record.update(
        stage="difficulty",
        status="finished",
        params={"model": params.model.model_dump(mode="json"), "run": {"processes": 2}},
        summary={"tokens_per_second": 22_000.0, "response_tokens": 88.0, "pass_at_1": 0.5},
    )
    assert speed_of_difficulty(params) == Speed("mine", 22_000.0, 88.0, 2)
    other = load_params(
        ROOT / "params", overrides=["model.base={type: pretrained, path: other}", "rl.optimizer.lr=1e-5"]
    )
    assert speed_of_difficulty(other) is None
