"""One model on one benchmark: sampled and graded. Imports torch; a finished evaluation is read without it."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mathrl.core.hashing import derive_seed
from mathrl.core.types import EvalRow, Problem
from mathrl.evaluation.benchmark import EvaluatedModel
from mathrl.evaluation.responses import eval_row
from mathrl.params.run import Reward
from mathrl.params.schema import Params
from mathrl.rewards.cascade import merged_counters
from mathrl.rewards.compose import build_reward
from mathrl.rollout.endpoint import EndpointSampler
from mathrl.rollout.engine import Sampling
from mathrl.rollout.ranks import gather
from mathrl.rollout.sample_problems import sample_problems, usable
from mathrl.rollout.sampler import Sampler, open_sampler

# A base model goes on with a question of its own.
NEXT_QUESTION = ("\nQuestion:",)


def next_question(params: Params) -> tuple[str, ...]:
    """Texts at which a response ends: a base model's next question, where it is asked in words and not in a chat.

    In words are the template question_answer and, with plain or boxed, an instruction (AIME, MMLU). A bare question is
    how a model is asked that was trained so, and one that is asked in turns ends by itself.
    """
    prompt, endpoint = params.prompt, params.evaluate.endpoint
    if prompt.template == "question_answer":
        return NEXT_QUESTION
    in_words = prompt.template == "boxed" or (prompt.template == "plain" and prompt.instruction is not None)
    return NEXT_QUESTION if in_words and not (endpoint and endpoint.api == "chat") else ()


def evaluate_model(
    folder: Path | str,
    benchmark: str,
    problems: Sequence[Problem],
    params: Params,
    *,
    label: str,
    few_shot: Sequence[Problem] = (),
    state: Path | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> EvaluatedModel | None:
    """Sample and grade the model of a folder, or that at evaluate.endpoint; None at ranks other than 0.

    Reads the sections run, model, prompt, rollout and evaluate. Grading is by correctness alone, with the
    extraction and the judge model of `evaluate`: the section reward, which a model was trained on, has no part in
    it. The same parameters, folder and number of processes give the same results. Finished chunks are kept in `state`,
    a folder for this model, these problems and these parameters, and a later call starts after them.

    Raises:
        UserError: the folder holds no model, every prompt is too long, or the judge model cannot be asked.
    """
    settings = params.evaluate
    if settings.endpoint is not None:
        sampler: Sampler = EndpointSampler(settings.endpoint, params, "evaluate", few_shot)
    else:
        sampler = open_sampler(folder, params, "evaluate", few_shot)
    stop = next_question(params)
    sampling = Sampling(settings.samples, settings.temperature, settings.max_tokens, settings.top_p, stop)
    reward = build_reward(Reward(extraction=settings.extraction, model_verifier=settings.model_verifier))
    samples = sample_problems(
        sampler,
        problems,
        sampling,
        reward,
        seed=derive_seed(params.run.seed, "evaluate", benchmark),
        name=benchmark,
        state=state,
        on_progress=on_progress,
    )
    counters = gather(reward.counters()) if settings.model_verifier else None
    if samples is None:
        return None
    usable(problems, samples)
    rows: list[EvalRow] = []
    responses: list[dict[str, Any]] = []
    for problem, group in zip(problems, samples, strict=True):
        if group is None:
            continue
        columns = {
            "model": label,
            "benchmark": benchmark,
            "problem_id": problem.id,
            "question": problem.question,
            "answers": list(problem.answers),
            "level": problem.level,
            "subject": problem.subject,
        }
        responses_of = [{"sample": number, **columns, **sample} for number, sample in enumerate(group)]
        responses += responses_of
        rows.append(eval_row(responses_of))
    judged = {name: value for name, value in merged_counters(counters or ()).items() if not name.startswith("time/")}
    dropped = sum(group is None for group in samples)
    remote = sampler if isinstance(sampler, EndpointSampler) else None
    for note in remote.notes() if remote else ():
        print(note, file=sys.stderr, flush=True)
    return EvaluatedModel(
        label, benchmark, rows, responses, dropped, judged or None, remote.account() if remote else None
    )
