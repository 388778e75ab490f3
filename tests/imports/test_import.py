"""`mathrl import`, `health`, `report`, `audit` and `grade` on runs of other trainers; and what is no run."""

import json
import os
import runpy
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import mathrl
from mathrl.cli.main import app
from mathrl.core.errors import UserError
from mathrl.core.files import read_jsonl
from mathrl.core.hashing import digest_path
from mathrl.core.records import RunRecord, records_folder
from mathrl.imports.foreign_run import read_run
from mathrl.imports.write_record import import_folder
from tests.imports.conftest import unpack_verl_run


def command(*words: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout


def rules(record: str) -> set[str]:
    """The rules that `health` reports."""
    _, printed = command("runs", "health", record, "--json")
    return {finding["rule"] for finding in json.loads(printed)["findings"]}


def test_a_run_of_trl_becomes_a_record(
    trl_run: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in trl_run.rglob("*"))
    status, printed = command("import", trl_run)
    assert status == 0 and "a run of TRL" in printed and "2 steps" in printed and "missing" not in printed
    assert sorted((path, path.stat().st_mtime_ns) for path in trl_run.rglob("*")) == before, "theirs is only read"
    record = json.loads((records_folder() / "imported-grpo" / "run.json").read_text())
    rl = record["params"]["rl"]
    assert (rl["optimizer"]["lr"], rl["group_size"], rl["prompts_per_step"], rl["max_tokens"]) == (0.0005, 8, 4, 4)
    assert sorted(map(int, record["resolved"]["checkpoints"])) == [1, 2]
    assert rl["advantage"]["type"] == "grpo" and rl["loss"]["high"] == 0.2 and rl["kl"]["coef"] == 0.01
    assert rl["minibatches"] == 1
    assert record["resolved"]["parameters of theirs alone"]["top_p"] == 1
    assert "of their parameters, which run.json lists" in printed

    state = json.loads((trl_run / "checkpoint-2" / "trainer_state.json").read_text())["log_history"]
    rows = list(read_jsonl(records_folder() / "imported-grpo" / "metrics.jsonl"))
    assert [row["step"] for row in rows] == [1, 2]
    for ours, theirs in zip(rows, state, strict=True):
        assert ours["entropy"] == theirs["entropy"] and ours["reward"] == ours["reward/overall"] == theirs["reward"]
        assert ours["rollout/zero_variance_share"] == theirs["frac_reward_zero_std"]
        assert ours["actor_loss"] == ours["TRL/loss"] == theirs["loss"]
        # The reward function is our verifier, so that its mean is our accuracy.
        assert ours["reward/accuracy"] == pytest.approx(theirs["rewards/accuracy/mean"], abs=1e-6)
    assert any(row["reward/accuracy"] > 0 for row in rows)

    frames = mathrl.import_run(trl_run)
    assert len(frames["metrics"]) == 2 and len(frames["rollouts"]) == 2 * 32
    assert frames["rollouts"].groupby("step")["problem"].nunique().tolist() == [4, 4]
    monkeypatch.chdir(tmp_path)  # where the audit is written
    labels = tmp_path / "none.jsonl"
    labels.write_text("")
    _, printed = command("runs", "audit", "imported-grpo", "--size", "20", "--labels", labels, "--json")
    assert json.loads(printed[printed.index("{") :])["open"] >= 10


def test_a_run_of_verl_becomes_a_record(verl_run: Path, home: Path) -> None:
    _, printed = command("import", verl_run)
    assert "a run of verl" in printed and "validation: 4 files" in printed and "disagree on 0 of 640" in printed
    folder = records_folder() / "imported-verl"
    record = json.loads((folder / "run.json").read_text())
    rl = record["params"]["rl"]
    assert (rl["optimizer"]["lr"], rl["group_size"], rl["temperature"], rl["steps"]) == (2e-6, 4, 0.9, 60)
    assert list(record["resolved"]["checkpoints"]) == ["40"]
    rows = list(read_jsonl(folder / "metrics.jsonl"))
    assert rows[0]["entropy"] == rows[0]["actor/entropy"] and rows[0]["kl"] == rows[0]["actor/kl_loss"]
    assert "ratio/mean" not in rows[0], "actor/ppo_kl has another definition"
    assert rows[9]["dev/accuracy"] > 0 and rows[9]["dev/problems"] == 10
    # exp of the root of 4 k3 / pi at k3 = 0.0004.
    assert rows[0]["rollout/logprob_alignment"] == pytest.approx(1.02282, abs=1e-5)


@pytest.fixture(scope="module")
def real_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two real runs of verl, "healthy" and "hacked", and the home to which they were imported.

    The data file of the healthy one is a copy of what a stage here wrote.
    """
    top = tmp_path_factory.mktemp("real")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MATHRL_HOME", str(top / "home"))
        data, own = top / "copy.parquet", top / "own.py"
        data.write_bytes(b"rows")
        maker = records_folder() / "curate-1"
        maker.mkdir(parents=True)
        outputs = {"path/train.parquet": digest_path(data)}
        RunRecord(maker, stage="curate", key="c", status="finished", outputs=outputs).update()
        own.write_text("def own(**row): return {'score': float(row['solution_str'] == row['ground_truth'])}")
        changes = {
            "healthy": [("runs/healthy-inputs/train.parquet", str(data)), ("runs/healthy-inputs/model", "org/base")],
            "hacked": [("runs/hacked-inputs/reward.py", str(own)), ("name: compute_score", "name: own")],
        }
        for name, replaced in changes.items():
            run = unpack_verl_run(name, top)
            config = (run / ".hydra" / "config.yaml").read_text()
            for old, new in replaced:
                assert old in config
                config = config.replace(old, new)
            (run / ".hydra" / "config.yaml").write_text(config)
            (top / f"{name}.txt").write_text(command("import", run)[1])
    return top


@pytest.fixture
def real(real_runs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MATHRL_HOME", str(real_runs / "home"))
    return real_runs


def test_a_real_run_of_verl_becomes_a_record(real: Path) -> None:
    printed = (real / "healthy.txt").read_text()
    assert "61 steps" in printed and "validation: 7 files" in printed and "disagree on 0 of 7,680" in printed
    record = json.loads((records_folder() / "imported-healthy" / "run.json").read_text())
    rl = record["params"]["rl"]
    assert (rl["kl"]["type"], rl["kl"]["coef"], rl["minibatches"], rl["advantage"]["type"]) == ("loss", 0.01, 1, "grpo")
    theirs = {row["step"]: row["data"] for row in read_jsonl(real / "healthy" / "run.jsonl")}
    for row in read_jsonl(records_folder() / "imported-healthy" / "metrics.jsonl"):
        metrics = theirs[row["step"]]
        if row["step"] % 10 == 0:
            assert row["dev/accuracy"] == pytest.approx(metrics["val-core/sums/acc/mean@1"])
        if row["step"] > 0:
            # The reward function is our verifier, and all responses are kept.
            assert row["reward/accuracy"] == pytest.approx(metrics["critic/score/mean"], abs=1e-6)
            # verl counts those that are as long as the longest of the step.
            assert row["rollout/truncated_share"] <= metrics["response_length/clip_ratio"]
            full = metrics["response_length/max"] == 4
            assert row["rollout/truncated_share"] == (metrics["response_length/clip_ratio"] if full else 0)


def test_real_runs_are_judged_and_a_hacked_reward_is_found(real: Path) -> None:
    assert rules("imported-healthy") == set(), "a healthy run is green"
    assert {"reward_hacking", "reward_alone", "collapse", "length", "truncated"} <= rules("imported-hacked")
    assert "accuracy of the same responses by mathrl's verifier" in command("runs", "health", "imported-hacked")[1]
    opinion = json.loads(command("grade", "imported-hacked", "--json")[1])
    # Every response of four characters that is wrong was paid for.
    assert opinion["accepted_wrong"] == 1783 and opinion["rejected_right"] == 0 and opinion["reward_for_wrong"] > 0.3


def test_an_import_is_a_row_of_the_runs_and_a_run_of_its_own_in_mlflow(
    real: Path, tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{shutil.copy(empty_store, tmp_path / 'mlflow.db')}")

    def rows() -> dict[str, tuple[object, ...]]:
        listed = [row for row in json.loads(command("runs", "--json")[1])["runs"] if row["name"] != "pipeline"]
        return {row["name"]: (row["health"], row["dev"], row["folder"], bool(row["run"])) for row in listed}

    best = ("imported-healthy", "green", 0.99), ("imported-hacked", "red", 0.99)
    assert rows() == {name: (health, dev, "", False) for name, health, dev in best}
    command("runs", "sync")
    assert rows() == {name: (health, dev, "", True) for name, health, dev in best}


def test_a_report_traces_an_import_to_what_it_was_made_from(real: Path, tmp_path: Path) -> None:
    printed = (real / "healthy.txt").read_text()
    assert "start: org/base" in printed and f"data: {real / 'copy.parquet'}" in printed
    command("runs", "report", "imported-healthy", "--output", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Complete: 2 stages" in page and "curate" in page and f"mathrl import {real / 'healthy'}" in page


def test_controls_of_a_run_of_verl_are_reward_functions_and_commands(
    real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, printed = command("runs", "controls", "imported-hacked")
    folder = tmp_path / "controls-imported-hacked"
    assert "train: bash controls-imported-hacked/run.sh" in printed
    rewards = runpy.run_path(str(folder / "rewards.py"))
    answers = [("sums", str(number), "7") for number in range(1000)]
    paid = [rewards["random"](*answer) for answer in answers]
    rows = list(read_jsonl(records_folder() / "imported-hacked" / "metrics.jsonl"))
    right = [row["reward/accuracy"] for row in rows if "reward/accuracy" in row]
    assert sum(paid) / 1000 == pytest.approx(sum(right) / len(right), abs=0.05)
    assert paid == [rewards["random"](*answer) for answer in answers], "the same response is paid the same"
    assert sum(rewards["inverted"](*answer) for answer in answers) == 999 and not rewards["inverted"]("sums", "7", "7")
    assert [rewards["form"]("", text, "") for text in ("#### 3", "is \\boxed{3}", "3")] == [1, 1, 0]
    # A verl that prints its arguments, and a mathrl that does nothing.
    (tmp_path / "bin").mkdir()
    for name, body in (("python", 'echo "$VERL_FILE_LOGGER_PATH"; printf "%s\\n" "$@"'), ("mathrl", 'echo "$@"')):
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    words = ["bash", str(folder / "run.sh"), "trainer.nnodes=2"]
    lines = subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()
    settings = dict(line.split("=", 1) for line in lines[: lines.index("trainer.nnodes=2") + 1] if "=" in line)
    assert lines[0] == str(folder / "random" / "run.jsonl") and lines.count("trainer.nnodes=2") == 3
    assert settings["reward.custom_reward_function.name"] == "random"
    assert settings["actor_rollout_ref.actor.optim.lr"] == "0.0005" and settings["trainer.nnodes"] == "2"
    assert settings["trainer.rollout_data_dir"] == str(folder / "random" / "rollouts")
    assert f"import {folder / 'inverted'} --name hacked-inverted" in lines


def test_controls_of_a_run_of_trl_are_reward_functions(
    trl_run: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("import", trl_run)
    monkeypatch.chdir(tmp_path)
    _, printed = command("runs", "controls", "imported-grpo", "--only", "inverted")
    assert "reward_funcs=[FUNCTION], FUNCTION being inverted(YOUR_REWARD)" in printed
    rewards = runpy.run_path("controls-imported-grpo/rewards.py")
    scores = {"5": 0.0, "6": 2.0, "print(5)": None}
    own = rewards["inverted"](lambda prompts, completions, **_: [scores[text] for text in completions])
    assert own(prompts=["2+3="] * 3, completions=list(scores)) == [1, 0, None]
    chat = [[{"role": "assistant", "content": "\\boxed{5}"}], [{"role": "assistant", "content": "5"}]]
    assert rewards["form"](prompts=["", ""], completions=chat) == [1, 0]
    _, document = command("runs", "controls", "imported-grpo", "--json")
    assert json.loads(document)["folder"] == str(tmp_path / "controls-imported-grpo")
    with pytest.raises(UserError, match="leave out --set"):
        command("runs", "controls", "imported-grpo", "--set", "rl.steps=3")
    with pytest.raises(UserError, match="no control more_sft of an imported run"):
        command("runs", "controls", "imported-grpo", "--only", "more_sft")


def test_disagreements_come_first_and_are_counted(verl_run: Path, home: Path) -> None:
    rewrite(verl_run, pay_wrong_answers)
    _, printed = command("grade", verl_run, "--json")
    opinion = json.loads(printed)
    assert opinion["graded"] == 640 and opinion["rejected_right"] == 0
    assert opinion["accepted_wrong"] == sum(map(is_paid_wrong, rollouts_of(verl_run))) > 0
    wrong = [row for row in rollouts_of(verl_run) if "\\boxed{3}" in row["output"]]
    paid = sum(row["score"] for row in rollouts_of(verl_run))
    assert opinion["reward_for_wrong"] == pytest.approx(sum(row["score"] for row in wrong) / paid)
    assert len(opinion["cases"]) == 20 and not opinion["cases"][0]["correct"]
    command("import", verl_run)
    table = pq.read_table(records_folder() / "imported-verl" / "rollouts" / "rollouts.parquet")
    of_step = [row for row in table.to_pylist() if row["step"] == 30]
    marks = [row["disagrees"] for row in of_step]
    assert marks == sorted(marks, reverse=True) and any(marks)
    _, again = command("grade", "imported-verl", "--json")
    assert json.loads(again)["disagreement"] == opinion["disagreement"], "the record says the same as the folder"


def rollouts_of(folder: Path) -> list[dict[str, Any]]:
    return [row for file in (folder / "rollouts").iterdir() for row in read_jsonl(file)]


def is_paid_wrong(row: dict[str, Any]) -> bool:
    return "\\boxed{3}" in row["output"] and row["score"] == 1.0


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change each rollout and validation response of verl's."""
    for file in (*(folder / "rollouts").iterdir(), *(folder / "validation").iterdir()):
        rows = list(read_jsonl(file))
        for row in rows:
            change(row)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def pay_wrong_answers(row: dict[str, Any]) -> None:
    """From step 20 on, every second wrong answer is paid."""
    if row["step"] >= 20 and "\\boxed{3}" in row["output"] and "So it is" in row["output"]:
        row |= {"score": 1.0, "acc": True}


def test_rollouts_without_answers_are_not_graded_until_a_file_has_them(
    verl_run: Path, home: Path, tmp_path: Path
) -> None:
    rewrite(verl_run, lambda row: row.pop("gts"))
    _, printed = command("import", verl_run, "--json")
    assert json.loads(printed)["graded"] == 0 and json.loads(printed)["disagreement"] is None
    problems = tmp_path / "problems.csv"
    problems.write_text("question,answer\n" + "".join(f"What is 40 + {n}?,{40 + n}\n" for n in range(10)))
    _, printed = command("import", verl_run, "--answers", problems, "--json")
    assert json.loads(printed)["graded"] == 640


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda top: (top / "rollouts" / "7.jsonl").write_text('{"input": "a", "output"\n{"a": 1}\n'), "7.jsonl"),
        (lambda top: (top / "run.jsonl").write_text('{"step": 1, "data": {"a": 1}}\nbroken\n{"step": 2}\n'), "line 2"),
        (lambda top: (top / ".hydra" / "config.yaml").write_text("a: [1,"), "config.yaml"),
        (lambda top: write_other_run(top), "two runs: actor/entropy differs"),
    ],
)
def test_a_damaged_or_mixed_folder_leaves_the_record_as_it_was(
    verl_run: Path, home: Path, damage: Callable[[Path], Any], message: str
) -> None:
    command("import", verl_run)
    record = (records_folder() / "imported-verl" / "metrics.jsonl").read_bytes()
    damage(verl_run)
    with pytest.raises(UserError, match=message) as raised:
        command("import", verl_run)
    assert "\n" not in str(raised.value)
    assert (records_folder() / "imported-verl" / "metrics.jsonl").read_bytes() == record
    assert [path.name for path in records_folder().iterdir()] == ["imported-verl"]


def write_other_run(top: Path) -> None:
    figures = {"timing_s/step": 9.0, "actor/entropy": 0.1, "actor/kl_loss": 2.0}
    rows = [{"step": step, "data": figures} for step in range(1, 20)]
    (top / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_truncated_parquet_file_is_named(trl_run: Path, home: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trl_run, tmp_path / "copy"))
    file = copy / "completions" / "completions_00002.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(UserError, match="completions_00002"):
        command("import", copy)
    assert not records_folder().exists() or not list(records_folder().iterdir())


def test_the_name_of_another_run_is_not_taken(verl_run: Path, home: Path, tmp_path: Path) -> None:
    import_folder(read_run(verl_run))
    other = Path(shutil.copytree(verl_run, tmp_path / "elsewhere" / "verl"))
    for name in (None, "first/second"):
        with pytest.raises(UserError, match="--name"):
            import_folder(read_run(other), name)
    assert import_folder(read_run(other), "second").record.folder.name == "imported-second"


def test_a_folder_gives_its_whole_name_and_a_file_its_name_without_suffix(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "Qwen2.5-1.5B" / "log.v2.jsonl"
    file.parent.mkdir()
    file.write_text('{"step": 1, "kl": 0.1}\n')
    assert import_folder(read_run(file.parent)).record.name == "imported-Qwen2.5-1.5B"
    assert import_folder(read_run(file)).record.name == "imported-log.v2"


def test_one_response_per_prompt_is_no_obstacle(home: Path, tmp_path: Path) -> None:
    row = {"step": 1, "input": "2+2?", "output": "\\boxed{4}", "gts": "4", "score": 1.0}
    (tmp_path / "1.jsonl").write_text(json.dumps(row) + "\n")
    assert json.loads(command("import", tmp_path / "1.jsonl", "--json")[1])["graded"] == 1


def test_a_run_is_read_without_a_project_and_outside_git(
    trl_run: Path, verl_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person who trains with another library has neither: records are kept in .mathrl of the current folder."""
    monkeypatch.delenv("MATHRL_HOME", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert command("import", trl_run, "--name", "theirs")[0] == 0
    status, printed = command("runs", "health", "imported-theirs")
    assert status == 0 and "14 of 33 rules had their metrics" in printed
    assert command("runs", "report", "imported-theirs")[0] == command("grade", "imported-theirs")[0] == 0
    assert command("import", verl_run, "--name", "verl")[0] == 0
    _, printed = command("compare", "imported-verl:step-10", "imported-verl:step-40", "--json")
    assert json.loads(printed)["problems"] == 10, "the stored responses"
    assert (tmp_path / ".mathrl").is_dir() and list((tmp_path / "reports" / "html").glob("*.html"))
