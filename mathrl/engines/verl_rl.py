"""Reinforcement learning by verl (rl.engine: verl), in a process of verl's own Python, on Ray.

mathrl gives it the problems in its own order as rows, its prompts as text, its reward as verl's custom reward function,
and the configuration as one value. It follows verl's metrics while they grow, writes them under the field's names,
judges the run's health, ends verl on a signal, and brings the model of the last checkpoint back. verl samples, computes
the loss and its gradient, and writes the checkpoints.
"""

import math
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download

from mathrl.core.errors import UserError
from mathrl.core.metrics import JsonlSink, progress
from mathrl.curation.prompt_leaks import check_prompts
from mathrl.engines.verl_config import VerlFiles, hydra_overrides, verl_of, verl_settings
from mathrl.engines.verl_process import VerlTraining, attention_of, latest_checkpoint, merge_checkpoint, verl_python
from mathrl.engines.verl_reward import DEV
from mathrl.engines.verl_rows import (
    RowProblems,
    dev_figures,
    step_figures,
    take_graded,
    verl_figures,
    write_reward_settings,
    write_rows,
)
from mathrl.models.load import load_model, load_tokenizer, resolve_folder
from mathrl.models.transformers_import import GenerationConfig
from mathrl.params import Params
from mathrl.rollout.sampler import PromptRenderer
from mathrl.trainers.training_run import RlInputs, RlResult, TrainedModel, TrainingLog, TrainingRun

SHOWN = {"accuracy": "reward/accuracy", "length": "response_length", "loss": "actor_loss"}


class VerlSteps:
    """The steps that verl has done: their metrics on record, and what a resumed run needs to count on from them."""

    def __init__(self, of: RowProblems, params: Params, files: VerlFiles, values: Mapping[str, float]) -> None:
        self.of, self.params, self.files = of, params, files
        self.sampled, self.trained = int(values.get("sampled", 0)), int(values.get("trained", 0))
        self.accuracy = values.get("accuracy")
        self.lr = values.get("lr")  # verl logs the learning rate of the step that follows

    def figures(self, step: int, data: Mapping[str, float | None]) -> dict[str, float]:
        """The row of a step that verl has reported."""
        rl = self.params.rl
        row = verl_figures(data, self.params.run.processes * verl_of(rl).nodes)
        train_figures, sampled = step_figures(take_graded(self.files.graded_folder / f"step-{step}"), self.of, rl)
        self.sampled, self.trained = self.sampled + sampled, self.trained + int(train_figures["trained_tokens"])
        row |= train_figures | dev_figures(take_graded(self.files.graded_folder / DEV))
        self.accuracy = row.get("dev/accuracy", self.accuracy)
        if rl.optimizer.lr and self.lr is not None:
            row["lr_factor"] = self.lr / rl.optimizer.lr
        self.lr = row.pop("verl/actor/lr", None)
        return row

    def values(self) -> dict[str, float]:
        kept = {"sampled": float(self.sampled), "trained": float(self.trained)}
        others = {"accuracy": self.accuracy, "lr": self.lr}
        return kept | {name: value for name, value in others.items() if value is not None}


def train(inputs: RlInputs) -> TrainedModel:
    """Train the model of a folder; resumes from verl's last whole checkpoint in the run's state.

    verl runs in a process of its own, whose output goes to verl.log; this one needs no GPU.

    Raises:
        UserError: no prompt fits or verl reads one as other tokens, verl ends with an error, updates are not finite, or
            health ends the run.
        SystemExit: after SIGTERM; verl's last checkpoint is what the run goes on from.
    """
    params, run, start, problems, dev = inputs.params, inputs.run, inputs.start, inputs.problems, inputs.dev
    python, log = verl_python(), inputs.folder / "verl.log"
    inputs.resolved(params.rollout.model_copy(update={"engine": "vllm"}), params.rl)
    rl = params.rl
    tokenizer = load_tokenizer(start, params.model)
    check_prompts([*problems, *dev], params.prompt, tokenizer)
    model = _folder(start, params)
    files = VerlFiles(model, run.state / "verl", run.state / "checkpoints")
    renderer = PromptRenderer(tokenizer, params.prompt, inputs.few_shot)
    prompts = [renderer.prompt_tokens(problem) for problem in problems]
    numbers, longest = write_rows(renderer, problems, prompts, dev, params, files)
    write_reward_settings(params, _ends(tokenizer, model), files)
    shutil.rmtree(files.graded_folder, ignore_errors=True)  # of steps that are done again

    kept = run.state / "values.jsonl"
    recorded = {int(row["step"]): row for row in JsonlSink(kept, resume_after=rl.steps).rows()}
    saved = latest_checkpoint(files.checkpoints, recorded)
    done = saved.step if saved else 0
    resume = saved.folder if saved else None
    settings = verl_settings(params, files, longest_prompt=longest, resume=resume, attention=attention_of(python))
    steps = VerlSteps(RowProblems(numbers, problems, prompts), params, files, recorded.get(done, {}))
    if done < rl.steps:
        overrides = hydra_overrides(settings, verl_of(rl).overrides)
        training = VerlTraining(python, overrides, files.metrics, log)
        _follow(training, steps, done, run, JsonlSink(kept, resume_after=done))
        saved = latest_checkpoint(files.checkpoints, {rl.steps})
    if saved is None or saved.step != rl.steps:
        raise UserError(f"verl ended without a whole checkpoint of step {rl.steps} in {files.checkpoints}; see {log}")
    merged = run.state / "merged"
    shutil.rmtree(merged, ignore_errors=True)
    merge_checkpoint(python, saved.actor, merged, log.with_name("verl-merger.log"))
    network = load_model(merged, params.model, "cpu")
    result = RlResult(rl.steps, steps.sampled, steps.trained, steps.accuracy, rl.steps)
    return TrainedModel(network, tokenizer, result)


def _follow(training: VerlTraining, steps: VerlSteps, done: int, run: TrainingRun, values: JsonlSink) -> None:
    """Run verl to its end, with a row of metrics per step."""
    rl, bad = steps.params.rl, 0
    record = run.open_log(done or None)
    with ExitStack() as stack:
        bar = stack.enter_context(progress("rl", rl.steps, done))
        stack.enter_context(training)
        for reported in training.rows():
            step, data = int(reported["step"]), reported["data"]
            row = steps.figures(step, data)
            _record(record, step, row)
            values.log(step, steps.values())
            bad = bad + 1 if _not_finite(row) else 0
            if bad > steps.params.training.most_bad_updates:
                raise UserError(
                    f"step {step}: {' and '.join(_not_finite(row))} of verl's update is not finite, {bad} steps in a "
                    "row: lower rl.optimizer.lr, set rl.optimizer.clip_norm, look at the rewards, or raise "
                    "training.most_bad_updates"
                )
            bar.advance(1, **{name: row[key] for name, key in SHOWN.items() if key in row})


def _record(record: TrainingLog, step: int, row: Mapping[str, float]) -> None:
    record.write(step, row)
    record.check_health(step, row)


def _not_finite(row: Mapping[str, float]) -> list[str]:
    return [name for name in ("actor_loss", "grad_norm") if not math.isfinite(row.get(name, 0.0))]


def _folder(start: Path, params: Params) -> Path:
    """The folder of the model that `start` is or refers to; verl takes no revision, so one of the hub is downloaded."""
    model, options = resolve_folder(start.resolve(), params.model)
    return Path(model) if Path(model).is_dir() else Path(snapshot_download(model, revision=options.get("revision")))


def _ends(tokenizer: Any, model: Path) -> list[int]:
    """The tokens that end a response in vLLM: the tokenizer's end token and those of the generation configuration."""
    named: Any = None
    if (model / "generation_config.json").exists():
        named = GenerationConfig.from_pretrained(model).eos_token_id
    return sorted({tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])} - {None})
