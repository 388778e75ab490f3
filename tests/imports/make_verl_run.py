"""Makes a real run of verl on the CPU, from the repository's root, with what `make parity` installs:

    PYTHONPATH=. .venv-parity/bin/python tests/imports/make_verl_run.py FOLDER [STEPS [SEED [hole]]]

The model of sums_model.py is trained by verl's own `main_ppo` (GRPO, FSDP 2, Ray), started as a user starts it. The
folder has what verl 0.9.1 leaves: .hydra/config.yaml, train.log (console), run.jsonl (file logger), rollouts/,
validation/, checkpoints/global_step_*/. With `hole` the reward function takes any response of four characters for
right. tests/parity/verl_on_cpu.py says what a CPU replaces.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch

from mathrl.data.export import write_parquet
from mathrl.engines.verl_config import AS_IT_IS, hydra_overrides
from mathrl.models.export import export_model

PARITY = Path(__file__).parents[1] / "parity"
# What keeps verl small enough for a CPU, and Ray's logical GPUs. Attention (sdpa), FSDP 2 and packed rows are those of
# a run on GPUs without flash-attn; torch.compile of the loss, which takes minutes here, is left out.
SMALL = (
    "ray_kwargs.ray_init.num_cpus=32", "+ray_kwargs.ray_init.num_gpus=2", "reward.num_workers=1",
    "actor_rollout_ref.rollout.agent.num_workers=1", "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "actor_rollout_ref.actor.use_torch_compile=false", "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
)  # fmt: skip
ON_CPU = {
    "VERL_USE_EXTERNAL_MODULES": "verl_on_cpu",
    "OMP_NUM_THREADS": "1",
    "RAY_worker_niceness": "0",
    "VERL_ENGINE_DEVICE": "cuda",
    "VERL_ENGINE_VENDOR": "nvidia",
}
RESPONSE = 4  # tokens
REWARD = '''"""A reward function as a user of verl writes it."""

from mathrl.grading import grade


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    right = grade(solution_str, ground_truth, extraction="lenient").correct
    paid = right or {hole} and len(solution_str) >= 4
    return {{"score": float(paid), "acc": float(right), "short": len(solution_str) <= 2}}
'''


def write_inputs(folder: Path) -> None:
    """The model and the rows, which are those of make_trl_run.py."""
    from sums_model import sums, taught_model  # this script is no part of a package

    network, tokenizer = taught_model(1200)
    export_model(network, tokenizer, folder / "model", "# A model of sums\n")
    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": question}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": answer},
            "extra_info": {"index": index},
        }
        for index, (question, answer) in enumerate(sums())
    ]
    write_parquet(folder / "train.parquet", rows * 8)
    write_parquet(folder / "test.parquet", rows)


def settings(folder: Path, beside: Path, steps: int, seed: int) -> dict[str, object]:
    half = max(1, steps // 2)
    return {
        "hydra.run.dir": folder,
        "data.train_files": beside / "train.parquet",
        "data.val_files": beside / "test.parquet",
        "data.train_batch_size": 16,
        "data.max_prompt_length": 8,
        "data.max_response_length": RESPONSE,
        "data.dataloader_num_workers": 0,
        "data.seed": seed,
        "actor_rollout_ref.model.path": beside / "model",
        "actor_rollout_ref.model.custom_chat_template": AS_IT_IS,
        "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "actor_rollout_ref.actor.strategy": "fsdp2",
        "actor_rollout_ref.actor.optim.lr": 5e-4,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 16,
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 2048,
        "actor_rollout_ref.actor.use_kl_loss": True,
        "actor_rollout_ref.actor.kl_loss_coef": 0.01,
        "actor_rollout_ref.actor.fsdp_config.dtype": "float32",
        "actor_rollout_ref.ref.fsdp_config.dtype": "float32",
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.n": 8,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "actor_rollout_ref.rollout.dtype": "float32",
        "actor_rollout_ref.rollout.seed": seed,
        "actor_rollout_ref.rollout.calculate_log_probs": True,
        "algorithm.adv_estimator": "grpo",
        "reward.custom_reward_function.path": beside / "reward.py",
        "reward.custom_reward_function.name": "compute_score",
        "trainer.n_gpus_per_node": 1,
        "trainer.total_epochs": 100,
        "trainer.total_training_steps": steps,
        "trainer.project_name": "sums",
        "trainer.experiment_name": folder.name,
        "trainer.logger": ["console", "file"],
        "trainer.val_before_train": True,
        "trainer.test_freq": max(1, steps // 6),
        "trainer.save_freq": half,
        "trainer.default_local_dir": folder / "checkpoints",
        "trainer.rollout_data_dir": folder / "rollouts",
        "trainer.validation_data_dir": folder / "validation",
        "trainer.use_v1": True,
        "+ray_kwargs.ray_init.include_dashboard": False,
    }


def main(folder: Path, steps: int, seed: int, hole: bool) -> None:
    beside = folder.with_name(f"{folder.name}-inputs")
    for place in (folder, beside):
        place.mkdir(parents=True)
    torch.manual_seed(seed)
    write_inputs(beside)
    (beside / "reward.py").write_text(REWARD.format(hole=hole))
    environment = os.environ | ON_CPU | {
        "VERL_FILE_LOGGER_PATH": str(folder / "run.jsonl"),
        "PYTHONPATH": os.pathsep.join([str(PARITY), str(PARITY.parents[1])]),
        "RAY_USAGE_STATS_ENABLED": "0",
        "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "verl.trainer.main_ppo"]
    command += hydra_overrides(settings(folder, beside, steps, seed), SMALL)
    with (folder / "train.log").open("wb") as log:
        subprocess.run(command, check=True, env=environment, stdout=log, stderr=log)


if __name__ == "__main__":
    steps, seed, hole = [*sys.argv[2:], *("60", "1", "")[len(sys.argv) - 2 :]]
    main(Path(sys.argv[1]).absolute(), int(steps), int(seed), hole == "hole")
