"""What other trainers call parameters and metrics: each name leads to one that exists, on the page and in `--set`."""

from pathlib import Path

import pytest

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.params.other_trainers import OTHERS, TRAINERS, metric_names, ours, parameter_names
from tests.docs.test_named import exists
from tests.test_house import load_tool

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "coming_from.md"
SOURCE = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "mathrl").rglob("*.py"))
# The keys of the four trainers' own examples that are set most often.
MOST_USED = {
    "verl": """data.train_files data.train_batch_size data.max_prompt_length data.max_response_length
        actor_rollout_ref.model.path actor_rollout_ref.actor.optim.lr actor_rollout_ref.actor.ppo_mini_batch_size
        actor_rollout_ref.rollout.n actor_rollout_ref.rollout.gpu_memory_utilization algorithm.adv_estimator
        actor_rollout_ref.actor.kl_loss_coef trainer.total_epochs trainer.test_freq""",
    "TRL": """model_name_or_path learning_rate num_generations max_prompt_length max_completion_length beta
        per_device_train_batch_size gradient_accumulation_steps num_train_epochs use_vllm loss_type reward_funcs""",
    "RLinf": """cluster.num_nodes runner.max_epochs algorithm.group_size algorithm.n_minibatches algorithm.kl_beta
        algorithm.ratio_clip_eps rollout.model.model_path data.train_data_paths data.rollout_batch_size actor.optim.lr
        data.apply_chat_template data.prompt_key""",
    "OpenRLHF": """actor.model_name_or_path data.prompt_dataset data.apply_chat_template rollout.batch_size
        rollout.n_samples_per_prompt train.batch_size train.micro_batch_size actor.adam.lr algo.kl.init_coef
        algo.advantage.estimator vllm.num_engines ds.zero_stage""",
    "prime-rl": "max_steps orchestrator.batch_size orchestrator.group_size trainer.optim.lr",
    "tinker": "learning_rate max_tokens dataset_builder.group_size dataset_builder.batch_size lora_rank",
    "NeMo-RL": """grpo.num_prompts_per_step grpo.num_generations_per_prompt grpo.max_num_steps
        policy.optimizer.kwargs.lr
        loss_fn.reference_policy_kl_penalty""",
}
METRICS = {
    "verl": "actor/entropy actor/pg_loss actor/kl_loss critic/rewards/mean critic/score/mean response_length/mean",
    "TRL": "reward completions/mean_length kl entropy frac_reward_zero_std clip_ratio/region_mean",
    "RLinf": "rollout/rewards rollout/response_length train/entropy_loss train/actor/grad_norm",
    "OpenRLHF": "policy_loss reward return kl response_length critic_loss",
    "prime-rl": "entropy/all/mean mismatch_kl/all/mean train/all/<agent>/reward/mean",
    "tinker": "env/all/reward/total optim/entropy env/all/by_group/frac_mixed",
    "NeMo-RL": "train/reward train/token_mult_prob_error validation/accuracy",
}


def test_every_name_leads_to_a_parameter_that_exists() -> None:
    assert {row.trainer for row in parameter_names()} == {*TRAINERS, OTHERS}
    for row in parameter_names():
        assert not row.ours or exists(row.ours), f"{row.trainer}: {row.name}: no parameter {row.ours}"
        assert row.ours or row.note, f"{row.trainer}: {row.name}: say why there is none, or what to do"
    assert not exists("rl.kl.coeff")


def test_every_metric_leads_to_one_that_is_written() -> None:
    for row in metric_names():
        written = "<" in row.ours or f'"{row.ours}"' in SOURCE
        assert not row.ours or written, f"{row.trainer}: {row.name}: no metric {row.ours}"
        assert row.ours or row.note, f"{row.trainer}: {row.name}: say why there is none, or what to look at"


def test_the_page_has_the_tables_and_what_a_reader_searches_for() -> None:
    page, tool = PAGE.read_text(encoding="utf-8"), load_tool("coming_from")
    assert tool.up_to_date(page) == page, "run: python tools/coming_from.py"
    for trainer in TRAINERS:
        own = page.partition(f"## {trainer}\n")[2].partition("\n## ")[0]
        for name in (*MOST_USED[trainer].split(), *METRICS[trainer].split()):
            row = next((line for line in own.splitlines() if f"`{name}`" in line.split(" | ")[0]), "")
            assert " | `" in row, f"{trainer}: {name} is not on the page, or leads nowhere"
    for word in ("apply_chat_template", "rollout/rewards", "train/entropy_loss", "kl_loss_coef", "num_generations"):
        assert word in page


def test_the_file_repeats_nothing_that_an_engines_table_says() -> None:
    tool = load_tool("coming_from")
    assert tool.repeated() == []


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("rl.num_generations=16", "did you mean group_size?"),
        ("rl.kl_loss_coef=0.001", "did you mean kl.coef?"),
        ("sft.learning_rate=1e-5", "did you mean optimizer.lr?"),
        ("rl.optimizer.learning_rate=1e-5", "did you mean lr?"),
        ("prompt.apply_chat_template=true", "did you mean template?"),
        ("rl.clip_ratio_c=3", "did you mean loss.dual?"),
        ("num_generations=8", "rl.group_size=8"),
    ],
)
def test_set_knows_the_names(override: str, hint: str) -> None:
    with pytest.raises(UserError) as raised:
        load_params(ROOT / "params", overrides=[override])
    assert hint in str(raised.value)


def test_a_last_part_that_means_several_things_means_nothing() -> None:
    assert ours("gpu_memory_utilization") == "rollout.vllm.memory_share", "in verl, RLinf and OpenRLHF"
    assert ours("name") == "", "one word alone, which rollout.name of verl ends with, says too little"
    assert ours("max_epochs") == "", "passes over the data in RLinf, over the rollouts in OpenRLHF"
    assert ours("batch_size") == "rl.prompts_per_step", "two things as a last part, one as a whole name"
    assert ours("xyz") == ""
