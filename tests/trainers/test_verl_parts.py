"""The parts of engine verl that run without verl: settings, rows, the reward, metrics, checkpoints, its process."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.engines.prompt_texts import PromptTexts
from mathrl.engines.verl_config import VerlFiles, hydra_overrides, verl_settings
from mathrl.engines.verl_process import VerlTraining, attention_of, check_ended, latest_checkpoint, verl_python
from mathrl.engines.verl_reward import compute_score
from mathrl.engines.verl_rl import VerlSteps
from mathrl.engines.verl_rows import (
    RowProblems,
    dev_figures,
    step_figures,
    take_graded,
    verl_figures,
    write_reward_settings,
    write_rows,
)
from mathrl.params import Params
from tests.trainers.test_trl_parts import sampler

ROOT = Path(__file__).parents[2]
VERL = (
    "rl.engine=verl",
    "rl.ema=null",
    "rl.optimizer.type=adamw",
    "rl.optimizer.schedule=constant",
    "rl.optimizer.lr=5e-4",
)
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def params_of(*overrides: str) -> Params:
    return load_params(ROOT / "params", overrides=[*VERL, *overrides])


def settings(*overrides: str, resume: Path | None = None) -> dict[str, Any]:
    files = VerlFiles(Path("/m"), Path("/rows"), Path("/checkpoints"))
    return verl_settings(params_of(*overrides), files, longest_prompt=20, resume=resume, attention="sdpa")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            [],
            {
                "data.train_batch_size": 32, f"{ROLLOUT}.n": 16, "trainer.total_training_steps": 50,
                "trainer.n_gpus_per_node": 2, f"{ACTOR}.optim.lr": 5e-4, f"{ACTOR}.optim.betas": [0.9, 0.95],
                f"{ACTOR}.optim.lr_warmup_steps": 10, f"{ACTOR}.clip_ratio_high": 0.28, f"{ACTOR}.clip_ratio_c": 1e9,
                f"{ACTOR}.loss_agg_mode": "token-mean", f"{ACTOR}.use_kl_loss": False,
                f"{ROLLOUT}.max_model_len": 84, "algorithm.adv_estimator": "grpo",
                "algorithm.norm_adv_by_std_in_grpo": True, "algorithm.rollout_correction.rollout_is": "token",
                "algorithm.rollout_correction.rollout_is_threshold": 2.0, "trainer.resume_mode": "disable",
                "reward.custom_reward_function.path": "pkg://mathrl.engines.verl_reward",
                "+ray_kwargs.ray_init.include_dashboard": False,
            },
        ),
        (
            ["rl.minibatches=4", "rl.epochs=2", "rl.advantage=rloo", "rl.loss=reinforce",
             "rl.loss.aggregation=sequence_sum", "rl.tokens_per_microbatch=64", "model.precision=float32"],
            {
                f"{ACTOR}.ppo_mini_batch_size": 8, f"{ACTOR}.ppo_epochs": 2, f"{ACTOR}.optim.lr_warmup_steps": 2,
                "algorithm.adv_estimator": "rloo", f"{ACTOR}.policy_loss.loss_mode": "gpg",
                f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm", f"{ACTOR}.loss_scale_factor": 64,
                f"{ACTOR}.ppo_max_token_len_per_gpu": 84, f"{ROLLOUT}.dtype": "float32",
            },
        ),
        (
            ["rl.kl.coef=0.01", "rl.kl.estimator=k2", "rl.importance={type: masked, level: sequence}",
             "rl.dev.every=0", "rl.dev.temperature=0", "rl.engine.ray_address=auto"],
            {
                f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_type": "k2", f"{ACTOR}.kl_loss_coef": 0.01,
                "algorithm.use_kl_in_reward": False, "algorithm.rollout_correction.rollout_rs": "seq_sum_k1",
                "algorithm.rollout_correction.rollout_rs_threshold": "0.5_2", "trainer.test_freq": 50,
                f"{ROLLOUT}.val_kwargs.do_sample": False, "+ray_kwargs.ray_init.address": "auto",
                "+ray_kwargs.ray_init.include_dashboard": "missing",
            },
        ),
        (
            ["rl.importance={type: masked, low: 0.5, high: 4, normalise: true, reject: {low: 0.8, high: 1.6}}"],
            {  # its bounds are those of the sampler's probability over the trainer's
                "algorithm.rollout_correction.rollout_is_threshold": "0.5_4.0",
                "algorithm.rollout_correction.rollout_rs": "token_k1,seq_mean_k1",
                "algorithm.rollout_correction.rollout_rs_threshold": "0.25_2,0.625_1.25",
                "algorithm.rollout_correction.rollout_is_batch_normalize": True,
            },
        ),
        (
            ["rl.loss={type: clip_cov, share: 0.01, covariance_low: 2, covariance_high: 6, low: 0.1, high: 0.3}"],
            {
                f"{ACTOR}.policy_loss.loss_mode": "clip_cov", f"{ACTOR}.policy_loss.clip_cov_ratio": 0.01,
                f"{ACTOR}.policy_loss.clip_cov_lb": 2.0, f"{ACTOR}.policy_loss.clip_cov_ub": 6.0,
                f"{ACTOR}.clip_ratio_low": 0.1, f"{ACTOR}.clip_ratio_high": 0.3,
            },
        ),
        (
            ["rl.loss={type: kl_cov, share: 0.02, coef: 0.3}"],
            {
                f"{ACTOR}.policy_loss.loss_mode": "kl_cov", f"{ACTOR}.policy_loss.kl_cov_ratio": 0.02,
                f"{ACTOR}.policy_loss.ppo_kl_coef": 0.3, f"{ACTOR}.clip_ratio_low": "missing",
            },
        ),
        (
            ["rl.importance={high: 5, reject: {level: sequence, low: 0, high: 2}}"],
            {
                "algorithm.rollout_correction.rollout_is_threshold": 5.0,
                "algorithm.rollout_correction.rollout_rs": "seq_sum_k1",
                "algorithm.rollout_correction.rollout_rs_threshold": "0.5_1000000000",
            },
        ),
        (
            ["rl.kl={type: reward, coef: 0.01}", "rl.importance=null"],
            {
                f"{ACTOR}.use_kl_loss": False, "algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.01,
                "algorithm.rollout_correction.rollout_is": None,
            },
        ),
    ],
)  # fmt: skip
def test_the_parameters_as_verls_settings(overrides: list[str], expected: dict[str, Any]) -> None:
    made = settings(*overrides)
    assert {name: made.get(name, "missing") for name in expected} == expected


def test_a_run_goes_on_from_the_named_checkpoint() -> None:
    made = settings(resume=Path("/checkpoints/global_step_20"))
    assert (made["trainer.resume_mode"], made["trainer.resume_from_path"]) == (
        "resume_path", "/checkpoints/global_step_20",
    )  # fmt: skip


def test_settings_are_written_as_hydra_reads_them() -> None:
    written = hydra_overrides({"a": "x y=1, 'z'", "b": {"eps": 1e-8}, "c": [True, None]}, ["d=2"])
    assert written == ["a='x y=1, \\'z\\''", "b={eps:1e-08}", "c=[true,null]", "d=2"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rl.engine.overrides=[trainer.save_freq=5]"], r"trainer.save_freq=5: mathrl sets trainer.save_freq"),
        (["rl.engine.overrides=[++data.shuffle=true]"], r"mathrl sets data.shuffle from its own parameters"),
        (["run.processes=3"], r"= 512 must be a multiple of run.processes x rl.engine.nodes = 3"),
        (["rollout.vllm.tensor_parallel=4"], r"= 2 must be a multiple of rollout.vllm.tensor_parallel = 4"),
    ],
)
def test_what_cannot_be_shared_out_or_is_set_twice_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings(*overrides)


def problem(name: str, question: str) -> Problem:
    return Problem(id=name, question=question, answers=("3",), source=f"source {name}", split="rl")


PROBLEMS = [problem("p", "ab="), problem("q", "a="), problem("long", "a" * 9)]
RUN = ("rl.steps=3", "rl.prompts_per_step=2", "rl.group_size=2", "rl.max_tokens=8", "prompt.max_tokens=5",
       "run.processes=1")  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> VerlFiles:
    return VerlFiles(tmp_path / "model", tmp_path / "rows", tmp_path / "checkpoints")


def rows_of(files: VerlFiles, *overrides: str, dev: list[Problem] | None = None) -> tuple[RowProblems, Params, int]:
    params = params_of(*RUN, *overrides)
    own = sampler("b", start=True)
    prompts = [*(own.prompt_tokens(each) for each in PROBLEMS[:2]), None]
    numbers, longest = write_rows(own, PROBLEMS, prompts, PROBLEMS[:1] if dev is None else dev, params, files)
    write_reward_settings(params, [1], files)
    return RowProblems(numbers, PROBLEMS, prompts), params, longest


def test_a_row_per_prompt_of_the_run_with_mathrls_text(files: VerlFiles) -> None:
    of, _, longest = rows_of(files)
    rows = pyarrow.parquet.read_table(files.train).to_pylist()
    assert [row["extra_info"]["index"] for row in rows] == list(range(6))
    assert [row["extra_info"]["id"] for row in rows] == [PROBLEMS[number].id for number in of.numbers]
    assert {*of.numbers} == {0, 1}, "the long prompt is left out"
    texts = {"p": "<s>ab=b", "q": "<s>a=b"}
    assert all(row["prompt"] == [{"role": "user", "content": texts[row["extra_info"]["id"]]}] for row in rows)
    assert longest == 4  # <s> ab = b
    (dev,) = pyarrow.parquet.read_table(files.dev).to_pylist()
    assert (dev["extra_info"]["split"], dev["extra_info"]["index"]) == ("dev", 0)


def test_verl_gets_a_row_where_no_dev_problem_fits(files: VerlFiles) -> None:
    rows_of(files, dev=[])
    assert pyarrow.parquet.read_table(files.dev).num_rows == 1


def test_the_start_token_stands_in_the_text_once() -> None:
    own = sampler(start=True)
    tokens = own.prompt_tokens(PROBLEMS[0])
    assert tokens == [0, 5, 4]
    assert PromptTexts(own, "verl", adds_start=False).text(PROBLEMS[0], tokens) == "<s>ab="
    with pytest.raises(UserError, match="problem p: verl reads its prompt as other tokens than mathrl"):
        PromptTexts(own, "verl", adds_start=False).text(PROBLEMS[0], [5, 4])


def grade(files: VerlFiles, row: dict[str, Any], response: str, tokens: list[int]) -> dict[str, float]:
    extra = row["extra_info"] | {"response_tokens": tokens}
    return compute_score(row["data_source"], response, "3", extra, settings=str(files.reward))


REWARD = (
    "reward.extraction=lenient",
    "reward.parts=[{type: accuracy}, {type: overlong, weight: 0.5, options: {buffer: 4}}]",
)


def test_a_part_called_score_is_not_what_verl_trains_on(files: VerlFiles) -> None:
    rows_of(files, "reward.extraction=lenient", "reward.parts=[{type: accuracy, name: score, weight: 0.25}]")
    row = pyarrow.parquet.read_table(files.train).to_pylist()[0]
    assert grade(files, row, "= 3", [2, 1]) == {"score": 0.25, "acc": 1.0}


def one_more(response: str, ground_truth: str, **row: Any) -> dict[str, float]:
    return {"score": 0.5, response: 1.0}


def test_verl_gets_the_same_keys_of_every_response(files: VerlFiles) -> None:
    own = f"{{type: function, name: own, options: {{path: {__name__}.one_more}}}}"
    routes = f"reward.routes={{source p: [{{type: overlong, options: {{buffer: 4}}}}, {own}, {{type: accuracy}}]}}"
    of, _, _ = rows_of(files, "reward.extraction=lenient", f"reward.parts=[{{type: accuracy}}, {own}]", routes)
    rows = pyarrow.parquet.read_table(files.train).to_pylist()
    assert {*of.numbers} == {0, 1}, "one problem has a route"
    graded = [grade(files, row, response, [2, 1]) for row in rows for response in ("= 3", "= 4")]
    assert {tuple(sorted(each)) for each in graded} == {("acc", "accuracy", "own", "score")}
    on_record = [set(each["parts"]) for folder in files.graded_folder.iterdir() for each in take_graded(folder)]
    assert any("overlong" in parts for parts in on_record) and not all("overlong" in parts for parts in on_record)


def test_the_reward_sees_tokens_and_truncation_and_its_parts_are_on_record(files: VerlFiles) -> None:
    of, params, _ = rows_of(files, *REWARD)
    rows = pyarrow.parquet.read_table(files.train).to_pylist()
    # Six tokens, two of them beyond 8 - 4: overlong -0.5, half of which counts.
    assert grade(files, rows[2], "= 3", [2, 2, 2, 2, 2, 1]) == {
        "score": 0.75, "acc": 1.0, "accuracy": 1.0, "overlong": -0.5,
    }  # fmt: skip
    assert grade(files, rows[2], "4", [2] * 8)["score"] == -0.5
    assert grade(files, rows[3], "= 3", [2, 1])["score"] == 1.0
    assert grade(files, rows[3], "5", [3, 1])["score"] == 0.0
    (dev,) = pyarrow.parquet.read_table(files.dev).to_pylist()
    grade(files, dev, "= 3", [2, 2, 1])
    assert sorted(folder.name for folder in files.graded_folder.iterdir()) == ["dev", "step-2"]

    graded = take_graded(files.graded_folder / "step-2")
    assert [row["truncated"] for row in graded] == [False, True, False, False]
    figures, sampled = step_figures(graded, of, params.rl)
    assert sampled == 6 + 8 + 2 + 2 and figures["trained_tokens"] == sampled + 2 * sum(
        len(of.prompts[of.numbers[index]] or ()) for index in (2, 3)
    )
    assert figures["reward/overall"] == pytest.approx((0.75 - 0.5 + 1.0 + 0.0) / 4)
    assert figures["reward/accuracy"] == 0.5 and figures["reward/overlong"] == pytest.approx((-0.5 - 1.0) / 4)
    assert figures["response_length"] == 4.5 and figures["rollout/truncated_share"] == 0.25
    assert figures["verifier/graded"] == 4
    # A batch whose problems have two sources: order is random, so both rows may be of one problem.
    assert ("source/source p/accuracy" in figures) == (0 in of.numbers[2:4])
    assert dev_figures(take_graded(files.graded_folder / "dev")) == {"dev/accuracy": 1.0, "dev/response_length": 3.0}
    assert list(files.graded_folder.iterdir()) == [], "what is read is removed"


def test_verls_figures_under_mathrls_names() -> None:
    row = {"actor/loss": 0.5, "actor/grad_norm": None, "actor/pg_clipfrac": 0.1, "timing_s/step": 4.0,
           "perf/mfu/actor": 0.3, "training/rollout_probs_diff_mean": 0.01}  # fmt: skip
    figures = verl_figures(row, gpus=2)
    assert math.isnan(figures.pop("grad_norm"))
    assert figures == {
        "actor_loss": 0.5, "clip_fraction": 0.1, "time/step": 4.0, "time/verl/perf/mfu/actor": 0.3,
        "verl/training/rollout_probs_diff_mean": 0.01,
    }  # fmt: skip


def test_a_resumed_run_counts_on(files: VerlFiles) -> None:
    of, params, _ = rows_of(files, *REWARD)
    rows = pyarrow.parquet.read_table(files.train).to_pylist()
    steps = VerlSteps(of, params, files, {"sampled": 100.0, "trained": 200.0, "accuracy": 0.25})
    grade(files, rows[2], "= 3", [2, 1])
    first = steps.figures(2, {"actor/lr": 2.5e-4})
    assert "lr_factor" not in first and "verl/actor/lr" not in first
    assert steps.values()["sampled"] == 102 and steps.values()["accuracy"] == 0.25
    for each in (steps, VerlSteps(of, params, files, steps.values())):
        grade(files, rows[4], "= 3", [2, 1])
        assert each.figures(3, {"actor/lr": 5e-4})["lr_factor"] == 0.5, "verl logs the rate of the next step"


def write_checkpoint(folder: Path, step: int, world: int = 2) -> Path:
    actor = folder / f"global_step_{step}" / "actor"
    actor.mkdir(parents=True)
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 1, "world_size": world}))
    for kind in ("model", "optim", "extra_state"):
        for rank in range(world):
            (actor / f"{kind}_world_size_{world}_rank_{rank}.pt").write_bytes(b"")
    (actor.parent / "data.pt").write_bytes(b"")
    return actor.parent


def test_the_newest_whole_checkpoint_on_record_is_resumed(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path, {5}) is None
    for step in (5, 10, 15):
        write_checkpoint(tmp_path, step)
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    tracker.write_text("15")
    newest = latest_checkpoint(tmp_path, {5, 10, 15})
    assert newest is not None and newest.step == 15 and newest.actor == tmp_path / "global_step_15/actor"
    # Step 15 was not logged before the kill, and a shard of step 10 is missing.
    (tmp_path / "global_step_10/actor/optim_world_size_2_rank_1.pt").unlink()
    with pytest.warns(UserWarning, match=r"global_step_10: actor/optim_world_size_2_rank_1.pt is missing"):
        newest = latest_checkpoint(tmp_path, {5, 10})
    assert newest is not None and newest.step == 5
    assert sorted(path.name for path in tmp_path.glob("global_step_*")) == ["global_step_5"]


def test_verl_asks_for_flash_attention_only_where_its_python_has_it(tmp_path: Path) -> None:
    """verl's own default is flash_attention_2, with which its model does not load without the package."""
    name = "actor_rollout_ref.model.override_config.attn_implementation"
    python = tmp_path / "python"
    for missing, expected in (("flash_attn", "sdpa"), ("", "flash_attention_2")):
        python.write_text(f"#!/bin/sh\necho {missing}\n")
        python.chmod(0o755)
        assert attention_of(str(python)) == expected
    assert attention_of(sys.executable) == "sdpa", "the development environment has none"
    made = settings()
    assert made[f"+{name}"] == "sdpa" and made["actor_rollout_ref.actor.strategy"] == "fsdp2"
    assert f"+{name}" not in settings(f"rl.engine.overrides=['+{name}=eager']"), "a person's choice stays"


def test_a_checkpoint_that_verl_did_not_finish_is_removed(tmp_path: Path) -> None:
    unfinished = write_checkpoint(tmp_path, 5)
    with pytest.warns(UserWarning, match="not written to its end"):
        assert latest_checkpoint(tmp_path, {5}) is None
    assert not unfinished.exists()


def test_a_python_without_verl_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MATHRL_VERL_PYTHON", str(tmp_path / "python"))
    with pytest.raises(UserError, match=r"python does not run .* set MATHRL_VERL_PYTHON to its Python"):
        verl_python()
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setenv("MATHRL_VERL_PYTHON", str(bare))
    with pytest.raises(UserError, match="bare cannot find verl and ray and transfer_queue and mathrl: install verl"):
        verl_python()


def test_a_training_that_fails_shows_its_last_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    metrics, log = tmp_path / "metrics.jsonl", tmp_path / "verl.log"
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')  # finds no package, so the driver fails
    bare.chmod(0o755)
    told = r"the training of verl ended with exit status 1; its output is in .*verl.log"
    with VerlTraining(str(bare), ["a=1"], metrics, log) as training, pytest.raises(UserError, match=told):
        list(training.rows())
    assert "No module named" in capfd.readouterr().err
    assert json.loads((tmp_path / "overrides.json").read_text()) == ["a=1"]


def test_what_verl_refuses_is_one_line(tmp_path: Path) -> None:
    log = tmp_path / "verl.log"
    log.write_text("noise\nerror: verl refuses its configuration: Key 'x' is not in struct\nmore noise\n")
    with pytest.raises(UserError, match=r"^verl refuses its configuration: Key 'x' is not in struct; its output"):
        check_ended(2, log, "the training of verl")
    log.write_text(
        "\x1b[36m(TaskRunner pid=7)\x1b[0m ValueError: no GPUs found!\n/verl/x.py:3: UserWarning: ImportError('a') b\n"
    )
    with pytest.raises(UserError, match=r"exit status 1: ValueError: no GPUs found!; its output"):
        check_ended(1, log, "the training of verl")
    log.write_text("")
    with pytest.raises(UserError, match="ended with signal 9; its"):
        check_ended(-9, log, "the training of verl")
    check_ended(0, log, "the training of verl")
