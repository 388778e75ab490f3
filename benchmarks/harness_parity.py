r"""mathrl's evaluation beside lm-evaluation-harness and lighteval: the same responses in, which scores come out?

    python benchmarks/harness_parity.py [--rows 20] [--prompts]

runs in an environment with lm-eval and lighteval beside mathrl (docs/explanation/other_harnesses.md). GSM8K, MATH-500
and AIME 2024 come from $MATHRL_DATA, MMLU's rows are made here. The harnesses run whole, with their own task files,
few-shot samplers, filters and metrics: only `datasets.load_dataset` is replaced, and in lm-eval the model by one that
replays responses. A response of each form is made of a row's true answer, and of a wrong one. `--prompts` prints the
prompts. At the end a small model of random weights answers greedily through lm-eval's `HFLM` and through mathrl.
"""

import argparse
import json
import logging
import os
import random
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from mathrl.compose import load_params
from mathrl.core.files import read_jsonl
from mathrl.core.types import Problem
from mathrl.data.templates import prompt_text
from mathrl.evaluation.benchmark import benchmark_problems, prompt_of
from mathrl.evaluation.evaluate_model import next_question
from mathrl.grading import grade
from mathrl.models.base import make_base
from mathrl.models.load import load_model, load_tokenizer
from mathrl.params.rollout import Rollout
from mathrl.params.run import FreshModel, Model
from mathrl.rollout.engine import Sampling
from mathrl.rollout.torch_engine import TorchEngine

Row = dict[str, Any]
REASONING = "We work it out step by step."
MATH_FORMS = {
    "#### A": "{reasoning}\n#### {answer}",
    "The answer is A.": "{reasoning}\nThe answer is {answer}.",
    r"\boxed{A}": r"{reasoning} So we get \boxed{{{answer}}}.",
    "Final Answer: ... $A$. I hope": "{reasoning}\nFinal Answer: The final answer is ${answer}$. I hope it is correct.",
    r"Therefore, ... $\boxed{A}$. I hope": "{reasoning}\nTherefore, the final answer is: $\\boxed{{{answer}}}$. "
    "I hope it is correct",
    "ANSWER: A": "{reasoning}\nANSWER: {answer}",
    "A alone": " {answer}",
    "in running text": "{reasoning} That makes ${answer}$ as asked.",
    "<answer>A</answer>": "<think>{reasoning}</think><answer>{answer}</answer>",
    "box, then a question": "{reasoning} So \\boxed{{{answer}}}.\n\nQuestion: What is 3 + 4?\nAnswer: It is "
    "\\boxed{{7}}.",
    "sentence, then a question": "{reasoning}\nThe answer is {answer}.\n\nQuestion: What is 3 + 4?\nAnswer: "
    "{reasoning}\nThe answer is 7.",
    "####, then a question": "{reasoning}\n#### {answer}\n\nQuestion: What is 3 + 4?\nAnswer: {reasoning}\n#### 7",
    "two answers, the last one A": "{reasoning} So \\boxed{{{other}}}. No: \\boxed{{{answer}}}.",
}
GSM8K_FORMS = {"#### $A": "{reasoning}\n#### ${answer}", "#### A.00": "{reasoning}\n#### {answer}.00"}
CHOICE_FORMS = {
    " B": " {letter}",
    "B.": "{letter}.",
    "(B)": "({letter})",
    "B. text": "{letter}. {text}",
    "text": "{text}",
    "The answer is B.": "The answer is {letter}.",
    "The answer is (B).": "{reasoning} The answer is ({letter}).",
    r"\boxed{B}": r"{reasoning} \boxed{{{letter}}}",
    "B, then a question": " {letter}\n\nQuestion: What is 3 + 4?\nA. 6\nB. 7\nC. 8\nD. 9\nAnswer: B",
}
# Made for this comparison: cais/mmlu's columns.
MMLU = (
    ("What is the order of the cyclic group Z_12?", ["6", "12", "24", "1"], 1),
    ("Find the degree of Q(sqrt(2), sqrt(3)) over Q.", ["2", "3", "4", "6"], 2),
    ("How many generators does Z_8 have?", ["4", "2", "8", "7"], 0),
    ("The characteristic of the ring 2Z is", ["2", "3", "1", "0"], 3),
    ("Which of these is a field?", ["Z_4", "Z_6", "Z_5", "Z_9"], 2),
    ("What is the identity of a group under *?", ["0", "e with e * a = a", "1", "a"], 1),
)


@dataclass(frozen=True)
class Set:
    """A benchmark by its names in mathrl, lm-eval and lighteval, with the columns of the rows on the hub."""

    name: str
    lm_eval: str
    lighteval: str
    forms: Mapping[str, str]


SETS = (
    Set("gsm8k", "gsm8k", "gsm8k:gsm8k", MATH_FORMS | GSM8K_FORMS),
    Set("math500", "minerva_math500", "math_500:math_500", MATH_FORMS),
    Set("aime24", "aime24", "aime:aime24", MATH_FORMS),
    Set("mmlu", "mmlu_abstract_algebra_generative", "mmlu:mmlu_abstract_algebra", CHOICE_FORMS),
)


def mmlu_rows(split: str) -> list[Row]:
    rows = [
        {"question": question, "choices": choices, "answer": answer, "subject": "abstract_algebra"}
        for question, choices, answer in MMLU
    ]
    return [row | {"question": f"For practice: {row['question']}"} for row in rows[:5]] if split == "dev" else rows


def write_data(folder: Path, count: int) -> None:
    """The first rows of each set under the names that mathrl reads."""
    data = Path(os.environ["MATHRL_DATA"])
    for name, most in (("gsm8k_test", count), ("math500_test", count), ("aime24_test", count), ("gsm8k_train", 50),
                       ("math_train", 50)):  # fmt: skip
        file = next(data.glob(f"{name}.jsonl*"))
        rows = [row for row, _ in zip(read_jsonl(file), range(most), strict=False)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "mmlu_test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in mmlu_rows("test")))


def hub_rows(folder: Path, path: str, split: str) -> list[Row]:
    """The rows as the hub has them, under its columns."""
    if path.endswith("mmlu"):
        return mmlu_rows(split)
    if "gsm8k" in path:
        rows = list(read_jsonl(folder / f"gsm8k_{split}.jsonl"))
        return [{"question": row["question"], "answer": row["solution"]} for row in rows]
    stem = "math500" if "MATH" in path else "aime24"
    rows = list(read_jsonl(folder / f"{stem}_test.jsonl"))
    both = [{"problem": row["question"], "solution": row["solution"], "answer": row["answer"]} for row in rows]
    return [row | {"Problem": row["problem"], "Answer": row["answer"]} if stem == "aime24" else row for row in both]


@contextmanager
def local_hub(folder: Path) -> Iterator[None]:
    """Within it `datasets.load_dataset` gives the rows of the folder."""
    import datasets

    def load(path: str, *_: Any, **__: Any) -> Any:
        splits = {"gsm8k": ("train", "test"), "mmlu": ("test", "dev"), "MATH-500": ("test",)}.get(
            path.rpartition("/")[2], ("train", "test")
        )
        return datasets.DatasetDict(
            {split: datasets.Dataset.from_list(hub_rows(folder, path, split)) for split in splits}
        )

    with mock.patch("datasets.load_dataset", load):
        yield


def wrong_answer(problem: Problem, problems: Sequence[Problem]) -> str:
    """Another answer of the set's, or the number after the true one."""
    right = problem.answers[0]
    if re.fullmatch(r"-?\d+", right):
        return str(int(right) + 1)
    others = [other.answers[0] for other in problems if not grade(rf"\boxed{{{other.answers[0]}}}", right).correct]
    return random.Random(problem.id).choice(others)


def responses(of: Set, form: str, problems: Sequence[Problem], rows: Sequence[Row]) -> dict[bool, list[str]]:
    """The responses of a form to each problem, right ones and wrong ones."""
    made: dict[bool, list[str]] = {True: [], False: []}
    for problem, row in zip(problems, rows, strict=True):
        for right in made:
            if of.name == "mmlu":
                place = row["answer"] if right else (row["answer"] + 1) % 4
                given = {"letter": "ABCD"[place], "text": row["choices"][place]}
            else:
                pair = [problem.answers[0], wrong_answer(problem, problems)]
                given = dict(zip(("answer", "other"), pair if right else pair[::-1], strict=True))
            made[right].append(of.forms[form].format(reasoning=REASONING, **given))
    return made


def lm_eval_scores(of: Set, texts: Sequence[str]) -> tuple[dict[str, list[float]], list[str]]:
    """Each filter's or metric's scores of the responses, and the prompts."""
    from lm_eval import simple_evaluate
    from lm_eval.api.model import LM

    class Replay(LM):  # type: ignore[misc]
        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
            return [cut(texts[request.doc_id], request.args[1]["until"]) for request in requests]

        def loglikelihood(self, requests: Any) -> Any:
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

    done = simple_evaluate(
        model=Replay(), tasks=[of.lm_eval], task_manager=_tasks(), bootstrap_iters=0, log_samples=True,
        num_fewshot=5 if of.name == "mmlu" else None,
    )  # fmt: skip
    (samples,) = done["samples"].values()
    scores: dict[str, list[float]] = {}
    prompts: dict[int, str] = {}
    for sample in sorted(samples, key=lambda sample: sample["doc_id"]):
        prompts[sample["doc_id"]] = sample["arguments"][0][0]
        for metric in sample["metrics"]:
            kind = "" if sample["filter"] in ("none", "get_response") else f" {sample['filter']}"
            scores.setdefault(f"lm-eval {metric}{kind}", []).append(float(sample[metric]))
    return scores, list(prompts.values())


@cache
def _tasks() -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager()


def cut(text: str, until: Sequence[str]) -> str:
    """The text before the first stop string, as lm-eval's models give it."""
    return min((text.split(stop)[0] for stop in until if stop), key=len, default=text)


def lighteval_scores(of: Set, folder: Path, texts: Sequence[str]) -> tuple[dict[str, list[float]], list[str]]:
    """The scores of the task's first metric, and the prompts."""
    import importlib

    from lighteval.metrics import apply_metric
    from lighteval.models.model_output import ModelResponse
    from lighteval.tasks.lighteval_task import LightevalTask
    from lighteval.tasks.prompt_manager import PromptManager

    module, _, name = of.lighteval.partition(":")
    config = getattr(importlib.import_module(f"lighteval.tasks.tasks.{module}"), name)
    task = LightevalTask(config)
    split = config.evaluation_splits[0]
    docs = [config.prompt_function(row, of.name) for row in hub_rows(folder, config.hf_repo, split)]
    shots = 5 if of.name in ("gsm8k", "mmlu") else 0
    if shots:
        pool = [config.prompt_function(row, of.name) for row in hub_rows(folder, config.hf_repo, task.fewshot_split)]
        for doc in docs:
            doc.fewshot_samples = pool[:shots]
    stops = [*config.stop_sequence] if config.stop_sequence else []
    answers = [ModelResponse(text=[cut(text, stops)]) for text in texts]
    figures = apply_metric(docs=docs, responses=answers, metrics=task.metrics[:1])
    return (
        {"lighteval": [float(next(iter(figure.values()))) for figure in figures]},
        [PromptManager().prepare_prompt(doc) for doc in docs],
    )


def our_scores(problems: Sequence[Problem], texts: Sequence[str], stops: Sequence[str] = ()) -> dict[str, list[float]]:
    """mathrl's scores of the responses, each up to the first of `stops`, by both ways to read an answer."""
    pairs = [(cut(text, stops), problem.answers) for text, problem in zip(texts, problems, strict=True)]
    return {
        "mathrl strict": [float(grade(text, answers, "strict").correct) for text, answers in pairs],
        "mathrl lenient": [float(grade(text, answers, "lenient").correct) for text, answers in pairs],
    }


def greedy_texts(folder: Path, count: int = 8, length: int = 24) -> tuple[list[str], list[str]]:
    """What a small model of random weights answers to GSM8K's first questions: by lm-eval's `HFLM`, and by mathrl."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from torch import manual_seed, no_grad
    from transformers import AutoModelForCausalLM

    model = Model(base=FreshModel(hidden_size=64, intermediate_size=176, layers=2, heads=2), precision="float32")
    make_base(model, folder / "model", 0)
    tokenizer = load_tokenizer(folder / "model", model)
    network = AutoModelForCausalLM.from_pretrained(folder / "model")
    manual_seed(0)
    with no_grad():
        for weight in network.parameters():
            weight.normal_(0, 0.4)  # at the usual 0.02 it repeats one token
    network.save_pretrained(folder / "model")
    done = simple_evaluate(
        model=HFLM(network, tokenizer=tokenizer, batch_size=4),
        tasks=["gsm8k"], task_manager=_tasks(), num_fewshot=0, limit=count, bootstrap_iters=0,
        gen_kwargs={"max_gen_toks": length, "until": ["Question:"]},
    )  # fmt: skip
    samples = {sample["doc_id"]: sample for sample in done["samples"]["gsm8k"]}
    prompts = [samples[number]["arguments"][0][0] for number in sorted(samples)]
    engine = TorchEngine(load_model(folder / "model", model, "cpu"), tokenizer, Rollout())
    groups = engine.generate([tokenizer.encode(text) for text in prompts], Sampling(1, 0.0, length), 0)
    return [samples[number]["resps"][0][0] for number in sorted(samples)], [group[0].text for group in groups]


@dataclass(frozen=True)
class Compared:
    """The scores of a form's right and wrong responses by every judge, and each harness's first prompt."""

    scores: Mapping[str, Mapping[bool, Sequence[float]]]
    prompts: Mapping[str, str]


def compare_form(of: Set, form: str, folder: Path) -> Compared:
    params = load_params(overrides=["evaluate.prompts=published", f"evaluate.data_folder={folder}"])
    problems = benchmark_problems(of.name, params)
    asked, shots = prompt_of(of.name, params, problems)
    rows = mmlu_rows("test") if of.name == "mmlu" else [{}] * len(problems)
    scores: dict[str, dict[bool, list[float]]] = {}
    prompts = {"mathrl": prompt_text(problems[0], asked.prompt, None, shots)}
    for right, texts in responses(of, form, problems, rows).items():
        theirs, lm_prompts = lm_eval_scores(of, texts)
        lighteval, light_prompts = lighteval_scores(of, folder, texts)
        prompts |= {"lm-eval": lm_prompts[0], "lighteval": light_prompts[0]}
        for judge, values in (our_scores(problems, texts, next_question(asked)) | theirs | lighteval).items():
            scores.setdefault(judge, {})[right] = values
    return Compared(scores, prompts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20, help="Rows of each set.")
    parser.add_argument("--sets", nargs="+", default=[of.name for of in SETS])
    parser.add_argument("--prompts", action="store_true", help="Print the prompts.")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name, local_hub(Path(name)):
        write_data(Path(name), options.rows)
        for of in SETS:
            if of.name not in options.sets:
                continue
            print(f"\n## {of.name}\n\naccepted of the right responses / of the wrong ones\n")
            for number, form in enumerate(of.forms):
                found = compare_form(of, form, Path(name))
                if number == 0:
                    if options.prompts:
                        for judge, text in found.prompts.items():
                            print(f"--- {judge}\n{text}<<<")
                    print(f"| response | {' | '.join(found.scores)} |\n|---|{'---|' * len(found.scores)}")
                cells = [f"{sum(pair[True]):.0f} / {sum(pair[False]):.0f}" for pair in found.scores.values()]
                print(f"| {form} | {' | '.join(cells)} |", flush=True)
        theirs, ours = greedy_texts(Path(name))
        equal = sum(map(str.__eq__, theirs, ours))
        print(f"\nA small model's greedy responses by lm-eval's HFLM and by mathrl: {equal} of {len(ours)} are equal")


if __name__ == "__main__":
    main()
