"""Forms in which trainers keep metrics and rollouts: files that their own library wrote, or as documented."""

import json
import math
import os
import pickle
import shutil
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mathrl.core.errors import UserError
from mathrl.imports.foreign_run import read_run
from mathrl.imports.metric_files import read_metrics
from mathrl.imports.rollout_shapes import read_rollouts
from mathrl.imports.second_opinion import find_answers
from mathrl.imports.write_record import gather
from tests.imports.test_import import command


def test_tensorboard_files_of_torch(tmp_path: Path) -> None:
    """OpenRLHF writes train/NAME so."""
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(1, 6):
            writer.add_scalar("train/kl", 0.25 * step, step)
            writer.add_scalar("train/reward", 0.5, step)
            writer.add_scalar("train/vllm_kl", 0.01, step)
    run = read_run(tmp_path, "openrlhf")
    assert run.steps[5] == pytest.approx({"train/kl": 1.25, "train/reward": 0.5, "train/vllm_kl": 0.01})
    rows = gather(run).rows
    assert rows[4]["kl"] == 1.25 and rows[4]["reward/overall"] == 0.5 and "rollout/logprob_alignment" not in rows[4]


def test_a_cut_off_tensorboard_file_has_what_was_whole(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(1, 6):
            writer.add_scalar("kl", 0.25 * step, step)
    file = next(tmp_path.glob("events.*"))
    file.write_bytes(file.read_bytes()[:-7])
    assert sorted(read_metrics(file)) == [1, 2, 3, 4]


def test_a_resumed_run_has_its_last_steps_from_the_newer_file(tmp_path: Path) -> None:
    for number, (value, steps) in enumerate(((0.1, range(1, 9)), (0.5, range(5, 13)))):
        file = tmp_path / f"events-{number}.jsonl"
        file.write_text("".join(json.dumps({"step": step, "kl": value}) + "\n" for step in steps))
        os.utime(file, (1e9 + number, 1e9 + number))
    assert [row["kl"] for row in read_run(tmp_path).steps.values()] == [0.1] * 4 + [0.5] * 8


def test_an_offline_run_of_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(project="p", dir=str(tmp_path), config={"learning_rate": 1e-6, "num_generations": 4})
    for step in range(1, 6):
        run.log({"train/reward": 0.1 * step, "train/kl": 0.5, "train/global_step": 10 * step})
        run.log({"eval/loss": 0.25, "train/global_step": 10 * step})
    run.finish()
    for _ in range(6000):  # its own process writes the file, and may end after this one goes on
        if any(len(read_metrics(file)) == 5 for file in tmp_path.rglob("*.wandb")):
            break
        time.sleep(0.1)
    found = read_run(tmp_path, "trl")
    assert found.config["num_generations"] == 4
    assert list(found.steps) == [10, 20, 30, 40, 50], "the trainer's steps, and not W&B's count of calls"
    assert found.steps[50]["train/kl"] == 0.5 and found.steps[50]["eval/loss"] == 0.25
    gathered = gather(found)
    assert gathered.rows[-1]["reward/overall"] == pytest.approx(0.5) and gathered.rl["group_size"] == 4
    file = next(tmp_path.rglob("*.wandb"))
    file.write_bytes(file.read_bytes()[:-40])
    assert len(read_run(tmp_path).steps) >= 4, "a file that is still written"


def test_a_validation_reward_below_0_is_no_dev_accuracy(tmp_path: Path, home: Path) -> None:
    """Its forecast and the rules that compare with it would be of a number that is no share."""
    name = "val-core/mine/reward/mean@1"
    always = {"actor/grad_norm": 0.1, "actor/kl_loss": 0.01}
    steps = {step: always | ({} if step % 10 else {name: step / 40 - 1}) for step in range(1, 81)}
    rows = [{"step": step, "data": data} for step, data in steps.items()]
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    gathered = gather(read_run(tmp_path, "verl"))
    assert not any("dev/accuracy" in row for row in gathered.rows) and gathered.rows[9][name] == -0.75
    assert "the validation rewards are not between 0 and 1" in gathered.notes[0]
    command("import", tmp_path, "--from", "verl", "--name", "mine")
    assert command("runs", "health", "imported-mine")[0] == 0


def test_the_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wandb", "wandb.proto.wandb_internal_pb2"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "run-1.wandb").write_bytes(b":W&B")
    with pytest.raises(UserError, match=r"mathrl\[trackers\]"):
        read_run(tmp_path)


def test_the_loggers_of_verl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """verl 0.9.1 itself writes its file and its console line."""
    pytest.importorskip("verl")
    from verl.utils.logger.aggregate_logger import LocalLogger
    from verl.utils.tracking import FileLogger

    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "run.jsonl"))
    file, console = FileLogger("p", "e"), LocalLogger()
    capsys.readouterr()
    for step in range(1, 4):
        figures = {"actor/entropy": np.float64(0.5) / step, "actor/kl_loss": 1e-7 * step, "critic/score/mean": 0.25}
        file.log(figures, step)
        console.log(figures, step)
    file.finish()
    (tmp_path / "run.log").write_text(capsys.readouterr().out)
    in_file, in_log = read_metrics(tmp_path / "run.jsonl"), read_metrics(tmp_path / "run.log")
    assert list(in_file) == [1, 2, 3] and in_file[3]["actor/kl_loss"] == pytest.approx(3e-7)
    assert in_log == in_file
    assert read_run(tmp_path).system == "verl", "both are of one run"


def test_verl_s_console_log(tmp_path: Path) -> None:
    """concat_dict_to_str of verl 0.8; Ray puts its own words before a line, numpy its types around a number."""
    (tmp_path / "train.log").write_text(
        "(TaskRunner pid=12) step:1 - actor/entropy:0.41 - actor/kl_loss:np.float64(0.002) - timing_s/step:3.5\n"
        "Training Progress: 10%\n"
        "(TaskRunner pid=12) step:2 - actor/entropy:1e-3 - actor/kl_loss:-0.5 - critic/score/mean:0.25\n"
        "(TaskRunner pid=12) step:3 - actor/entro"
    )
    run = read_run(tmp_path)
    assert run.system == "verl" and list(run.steps) == [1, 2]
    assert run.steps[1] == {"actor/entropy": 0.41, "actor/kl_loss": 0.002, "timing_s/step": 3.5}
    assert run.steps[2]["actor/kl_loss"] == -0.5


def test_any_csv_with_a_column_of_steps(tmp_path: Path) -> None:
    (tmp_path / "history.csv").write_text('"Step","run - train/reward","kl"\n1,0.5,0.1\n2,,0.2\n')
    assert read_metrics(tmp_path / "history.csv") == {1: {"run - train/reward": 0.5, "kl": 0.1}, 2: {"kl": 0.2}}
    assert read_run(tmp_path / "history.csv").steps[2] == {"kl": 0.2}


def test_a_csv_that_is_still_written_has_no_number_that_is_cut_short(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    for end, last in (("2,0.75,1.5", {"reward": 0.75}), ("2,0.75,1.5e-05\r\n", {"reward": 0.75, "kl": 1.5e-05})):
        file.write_bytes(b"step,reward,kl\r\n1,0.5,0.1\r\n" + end.encode())
        assert read_metrics(file) == {1: {"reward": 0.5, "kl": 0.1}, 2: last}
    file.write_bytes(b"step,reward,kl\n1,0.5,0.1\n2")
    assert list(read_metrics(file)) == [1]


def test_a_byte_order_mark_blank_lines_and_long_texts_are_no_obstacle(tmp_path: Path) -> None:
    """As Excel and some editors leave them; a response of 32k tokens is longer than csv's default limit."""
    (tmp_path / "log.csv").write_text(f"step,text,reward\n1,{'a' * 140_000},0.5\n", encoding="utf-8-sig")
    (tmp_path / "log.jsonl").write_text('\n{"step": 1, "kl": 0.1}\n', encoding="utf-8-sig")
    assert read_run(tmp_path).steps == {1: {"reward": 0.5, "kl": 0.1}}


def test_prime_rl_s_file_monitor(tmp_path: Path) -> None:
    """Rows of a step by several parts, episodes with traces, toml (main of August 2026)."""
    parts = [{"optim/grad_norm": 0.5}, {"entropy/all/mean": 0.3, "mismatch_kl/all/mean": 0.001}]
    parts += [{"train/all/solver/reward/mean": 0.75, "train/all/solver/solved_some": 0.4}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"step": 3, "time": 1.0, **p}) + "\n" for p in parts))
    (tmp_path / "orchestrator.toml").write_text("max_steps = 50\n[orchestrator]\ngroup_size = 2\n")
    folder = tmp_path / "rollouts" / "step_3" / "train" / "all"
    folder.mkdir(parents=True)
    messages = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "\\boxed{4}"}]
    trace = {"messages": messages, "reward": 1.0, "rewards": {"correct": {"value": 1.0}}}
    wrong = trace | {"messages": [messages[0], {"role": "assistant", "content": "\\boxed{5}"}]}
    episode = {"task": {"data": {"question": "2+2?", "answer": "4"}}, "traces": [trace, wrong]}
    (folder / "traces.jsonl").write_text(json.dumps(episode) + "\n" + json.dumps({"task": {}, "traces": None}) + "\n")
    run = read_run(tmp_path)
    gathered = gather(run)
    assert run.system == "prime-rl" and gathered.rl["group_size"] == 2 and gathered.rl["steps"] == 50
    row = gathered.rows[0]
    assert (row["step"], row["entropy"], row["grad_norm"], row["reward/overall"]) == (3, 0.3, 0.5, 0.75)
    assert row["rollout/zero_variance_share"] == pytest.approx(0.6) and row["reward/accuracy"] == 0.5
    assert gathered.opinion.accepted_wrong == 1 and gathered.opinion.wrong_share == 0.5


def test_nemo_rl_s_rollouts(tmp_path: Path) -> None:
    """log_batched_dict_as_jsonl (main of August 2026)."""
    rows = [
        {"content": ["2+2?", "\\boxed{4}"], "rewards": 1.0, "idx": 0},
        {"content": ["2+2?", "no"], "rewards": [0.0]},
    ]
    (tmp_path / "train_data_step7.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "val_data_step7.jsonl").write_text(json.dumps(rows[0]) + "\n")
    run = read_run(tmp_path)
    assert run.system == "NeMo-RL" and [file.name for file in run.validation] == ["val_data_step7.jsonl"]
    read = list(read_rollouts(run.rollouts[0]))
    assert [(row.step, row.question, row.text, row.reward) for row in read] == [
        (7, "2+2?", "\\boxed{4}", 1.0),
        (7, "2+2?", "no", 0.0),
    ]


def test_tinker_cookbook_s_metrics(tmp_path: Path) -> None:
    rows = [
        {"step": n, "env/all/reward/total": 0.5, "env/all/by_group/frac_mixed": 0.7, "optim/entropy": 0.2}
        for n in (0, 1)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "config.json").write_text(
        '{"learning_rate": 4e-5, "max_tokens": 256, "dataset_builder": {"group_size": 16}}'
    )
    gathered = gather(read_run(tmp_path))
    assert gathered.rl["group_size"] == 16 and gathered.rl["optimizer"]["lr"] == 4e-5
    assert gathered.rows[1]["rollout/zero_variance_share"] == pytest.approx(0.3) and gathered.rows[1]["entropy"] == 0.2


def test_tinker_cookbook_s_summaries_with_traces(tmp_path: Path) -> None:
    def trajectory(number: int, text: str, correct: float, **more: Any) -> dict[str, Any]:
        said = {
            "type": "conversation",
            "messages": [{"role": "assistant", "content": [{"type": "text", "text": text}]}],
        }
        asked = {"type": "conversation", "messages": [{"role": "user", "content": "2+2?"}]}
        reward = {"reference_answer": "4", "correct": bool(correct), "reward": f"{correct:.3f}"}
        step = {
            "step_idx": 0, "ob_len": 9, "ac_len": 5, "reward": correct, "stop_reason": "stop",
            "metrics": {"correct": correct, "format": 1.0},
            "trace": {"prompt": asked, "policy_response": said, "reward": reward},
        }  # fmt: skip
        return {
            "schema_version": 1, "split": "train", "iteration": 3, "group_idx": 0, "traj_idx": number,
            "tags": ["math"], "total_reward": correct, "final_reward": 0.0, "steps": [{**step, **more}],
        }  # fmt: skip

    rows = [trajectory(0, "\\boxed{4}", 1.0), trajectory(1, "\\boxed{5}", 0.0, stop_reason="length")]
    folder = tmp_path / "iteration_000003"
    folder.mkdir()
    (tmp_path / "metrics.jsonl").write_text('{"step": 3, "env/all/reward/total": 0.5}\n')
    (folder / "train_rollout_summaries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "eval_math_rollout_summaries.jsonl").write_text(json.dumps(rows[0]) + "\n")
    run = read_run(tmp_path)
    assert [file.name for file in run.rollouts] == ["train_rollout_summaries.jsonl"] and len(run.validation) == 1
    right, wrong = read_rollouts(run.rollouts[0])
    assert (right.step, right.question, right.text, right.answers) == (3, "2+2?", "\\boxed{4}", ["4"])
    assert (right.reward, right.verdict, right.source, right.tokens, right.truncated) == (1.0, True, "math", 5, False)
    assert (wrong.verdict, wrong.truncated) == (False, True)
    (folder / "train_rollout_summaries.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in (rows[0], {**rows[1], "steps": None}))
    )
    assert len(list(read_rollouts(read_run(tmp_path).rollouts[0]))) == 1
    for row in rows:
        del row["steps"][0]["trace"]
    (folder / "train_rollout_summaries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_run(tmp_path).rollouts == []


def test_conversations_of_trl_and_rewards_that_are_no_verdict(tmp_path: Path) -> None:
    rows = [
        {
            "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}],
            "completion": [{"role": "assistant", "content": text}],
            "advantage": 0.1,
            "fmt": reward,
            "answer": "4",
        }
        for text, reward in (("\\boxed{4}", 2.0), ("\\boxed{5}", 0.9), ("\\boxed{6}", 1.5))
    ]
    (tmp_path / "completions_00003.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    opinion = gather(read_run(tmp_path)).opinion
    # From half of the largest reward, 1.0, a response counts as right for them.
    assert (opinion.accepted_wrong, opinion.rejected_right) == (1, 0)
    assert opinion.cases[0].theirs.question == "2+2?" and opinion.cases[0].theirs.step == 3


def test_reward_functions_of_trl_count_by_their_weights_where_they_gave_a_reward(tmp_path: Path) -> None:
    """Its completions have them unweighted, before the columns that they log."""
    row = {"step": 1, "prompt": "2+2?", "completion": "4", "math": 1.0, "code": 0.5, "seen": 7, "advantage": 0.1}
    rows = [row, row | {"math": math.nan}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "completions_00001.parquet")
    (tmp_path / "args.json").write_text(json.dumps({"reward_weights": [2.0, -1.0]}))
    (figures,) = gather(read_run(tmp_path, "trl")).rows
    assert (figures["reward/overall"], figures["reward/math"], figures["reward/code"]) == (0.5, 1.0, 0.5)
    # Without weights, what its log names are the rewards: the number that a function logs is none.
    (tmp_path / "args.json").unlink()
    log = [{"step": 1, "rewards/math/mean": 1.0, "rewards/code/mean": 0.5, "rewards/math/std": 0.0, "loss": 0.1}]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    (figures,) = gather(read_run(tmp_path, "trl")).rows
    assert figures["reward/overall"] == (1.5 + 0.5) / 2


def test_a_configuration_that_holds_itself_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: &whole [*whole]\n")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    with pytest.raises(UserError, match=r"config\.yaml: cannot be read as a configuration"):
        read_run(tmp_path)


def test_arguments_are_read_without_running_what_a_pickle_names(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "ran"),)

    class Arguments:
        def __init__(self) -> None:
            self.num_generations, self.trap = 8, Trap()

    Arguments.__qualname__ = "Arguments"
    globals()["Arguments"] = Arguments
    (tmp_path / "checkpoint-1").mkdir()
    with zipfile.ZipFile(tmp_path / "checkpoint-1" / "training_args.bin", "w") as packed:
        packed.writestr("training_args/data.pkl", pickle.dumps(Arguments()))
    state = {"log_history": [{"step": 1, "reward": 0.5, "kl": 0.1}]}
    (tmp_path / "checkpoint-1" / "trainer_state.json").write_text(json.dumps(state))
    assert read_run(tmp_path).config["num_generations"] == 8
    assert not (tmp_path / "ran").exists()
    whole = pickle.dumps(Arguments())
    for damaged in (b"", b"N.", b"0.", b"]e.", whole[:-9], whole[20:]):
        with zipfile.ZipFile(tmp_path / "checkpoint-1" / "training_args.bin", "w") as packed:
            packed.writestr("training_args/data.pkl", damaged)
        with pytest.raises(UserError, match=r"training_args\.bin: cannot be read as a configuration"):
            read_run(tmp_path)


def test_a_question_is_found_in_its_prompt() -> None:
    answers = {"What is 1+1?": ["2"], "What is 1+1? Then double it.": ["4"]}
    assert find_answers("What is 1+1?", answers) == ["2"]
    assert find_answers("Think step by step.\n\nWhat is  1+1?", answers) == ["2"]
    assert find_answers("user What is 1+1? Then double it. assistant", answers) == ["4"]
    assert find_answers("another question", answers) == []


def test_a_run_of_an_mlflow_server(
    tmp_path: Path, home: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mathrl.tracking.client import connect

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{shutil.copy(empty_store, tmp_path / 'mlflow.db')}")
    client = connect()
    experiment = client.create_experiment("theirs", artifact_location=str(tmp_path / "artifacts"))
    run = client.create_run(experiment, run_name="verl run")
    for step in range(1, 6):
        client.log_metric(run.info.run_id, "actor/entropy", 0.5 / step, step=step)
        client.log_metric(run.info.run_id, "critic/score/mean", 0.1 * step, step=step)
    client.log_param(run.info.run_id, "actor_rollout_ref.rollout.n", 16)
    status, printed = command("import", run.info.run_id, "--from", "mlflow")
    assert status == 0 and "a run of verl" in printed and "5 steps of 2 metrics" in printed
    record = json.loads((home / "records" / "imported-verl run" / "run.json").read_text())
    assert record["params"]["rl"]["group_size"] == 16
    status, printed = command("watch", run.info.run_id, "--from", "mlflow", "--idle", "0")
    assert status == 0 and printed.startswith("step 5: green; ")
