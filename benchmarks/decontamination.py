"""Recall of decontamination at five distances, at equal precision, beside allenai/decon.

    python benchmarks/decontamination.py DATA [--peer PYTHON] [--embedding MODEL | --lsa]

DATA is a folder with files of gsm8k, math, svamp and minerva_math. PYTHON is an interpreter that has decon
(`pip install decontaminate`, Python 3.12 or later). Evaluation questions are those of GSM8K test and MATH test, and
twelve of decontamination_texts.py. Training texts are those of GSM8K train, SVAMP and Minerva, which are other problems
(MATH train is not: hundreds of its questions are variants of MATH test's), and changed copies of evaluation questions:
verbatim, respelled, with other words, with other numbers, and translated (the twelve, in three languages).
With an embedding pass, questions that no n-gram finds at its threshold (NGRAM_SHARE) are ranked after the others, by
their cosine. MODEL is a folder or hub id of model2vec's format. `--lsa` makes such a model from the texts of GSM8K
train and MATH train, by latent semantic analysis: it knows their words, but less of language than a trained model.
Each tool scores every training text; its threshold is the lowest with a precision of at least 99 %, so a tool with many
false hits pays in recall. Processor time is that of scoring alone, without the index.
"""

import argparse
import json
import random
import re
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from decontamination_texts import SYNONYMS, TRANSLATED
from model2vec import StaticModel
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import NFKC, Lowercase
from tokenizers.normalizers import Sequence as InOrder
from tokenizers.pre_tokenizers import Split

from mathrl.core.files import read_jsonl, write_jsonl
from mathrl.core.types import Problem
from mathrl.curation.decontaminate import EvaluationIndex, SimilarQuestions, find_hits
from mathrl.data.grams import grams
from mathrl.params.data import Embedding

EVALUATION = ("gsm8k_test.jsonl", "math_test.jsonl.gz")
CLEAN = ("gsm8k_train.jsonl.gz", "svamp_test.jsonl", "minerva_math_test.jsonl")
PLANTED = 1000  # copies per distance, but for translations
PRECISION = 0.99
NGRAM_SHARE = 0.1  # the threshold of coverage alone, from which an n-gram hit comes before the embeddings
LEAST_COSINE = {True: 0.3, False: 0.8}  # below every threshold that the precision allows
LSA_TEXTS, LSA_SIZE = ("gsm8k_train.jsonl.gz", "math_train.jsonl.gz"), 256
PEER = """
import decon, json, sys
decon.detect(decon.Config(training_dir=sys.argv[1], evals_dir=sys.argv[2], report_output_dir=sys.argv[3],
                          contamination_score_threshold=0.01, worker_threads=1, **json.loads(sys.argv[4])))
"""
SHORT = {"eval_min_token_length": 0, "eval_min_unique_word_count": 0}  # by default decon leaves out short questions
Changed = Callable[[str, random.Random], str]


def respelled(text: str, rng: random.Random) -> str:
    r"""Other capitals, spaces, punctuation and LaTeX spellings: $\frac{1}{2}$ → $ \dfrac {1}{2} $."""
    text = text.replace(r"\frac", r"\dfrac").replace(r"\left", "").replace(r"\right", "").replace("%", " percent")
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text).replace("'", "’").replace("$", " $ ")
    text = re.sub(r"([+=<>])", r" \1 ", text)
    return "".join(c for c in text.upper() if c not in ",;?!" or rng.random() < 0.5) if rng.random() < 0.3 else text


def other_words(text: str, rng: random.Random) -> str:
    """Synonyms for every word that has one."""
    return re.sub(r"[A-Za-z]+", lambda word: SYNONYMS.get(word[0].lower(), word[0]), text)


def other_numbers(text: str, rng: random.Random) -> str:
    """Every whole number plus 1 to 9."""
    return re.sub(r"\d+", lambda number: str(int(number[0]) + rng.randint(1, 9)), text)


def verbatim(text: str, rng: random.Random) -> str:
    return text


DISTANCES: dict[str, Changed] = {
    "verbatim": verbatim, "respelled": respelled, "other words": other_words, "other numbers": other_numbers,
}  # fmt: skip


def ours(share: str) -> Callable[[Sequence[str], Sequence[str]], tuple[list[float], float]]:
    def score(evaluation: Sequence[str], training: Sequence[str]) -> tuple[list[float], float]:
        index = EvaluationIndex(10, share)  # type: ignore[arg-type]
        for number, text in enumerate(evaluation):
            index.add(str(number), "question", text)
        problems = [Problem("", text, ("1",), "training", "rl") for text in training]
        start = time.process_time()
        hits = [hit for _, hit in find_hits(problems, index)]
        seconds = time.process_time() - start
        return [hit.share if hit else 0.0 for hit in hits], seconds

    return score


def lsa(data: Path, folder: Path) -> str:
    """A static embedding model: words' vectors from a singular value decomposition of TF-IDF, weighted by IDF."""
    texts = [f"{row['question']} {row['solution']}" for name in LSA_TEXTS for row in read_jsonl(data / name)]
    weights = TfidfVectorizer(analyzer=grams, min_df=2, sublinear_tf=True)
    decomposed = TruncatedSVD(LSA_SIZE, random_state=0).fit(weights.fit_transform(texts))
    words = weights.get_feature_names_out().tolist()
    vectors = np.vstack([np.zeros(LSA_SIZE), decomposed.components_.T * weights.idf_[:, None]]).astype(np.float32)
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(["[UNK]", *words])}, unk_token="[UNK]"))
    tokenizer.normalizer = InOrder([NFKC(), Lowercase()])
    tokenizer.pre_tokenizer = Split(Regex(r"\\[a-z]+|\d+(?:\.\d+)?|\p{Han}|\p{L}+"), "removed", invert=True)
    StaticModel(vectors, tokenizer).save_pretrained(folder)
    return str(folder)


def with_embeddings(
    model: str, same_numbers: bool
) -> Callable[[Sequence[str], Sequence[str]], tuple[list[float], float]]:
    def score(evaluation: Sequence[str], training: Sequence[str]) -> tuple[list[float], float]:
        index = EvaluationIndex(
            10,
            similar=SimilarQuestions(
                Embedding(model=model, min_similarity=LEAST_COSINE[same_numbers], same_numbers=same_numbers)
            ),
            min_share=NGRAM_SHARE,
        )
        for number, text in enumerate(evaluation):
            index.add(str(number), "question", text)
        index.look_up("", "load the model")
        problems = [Problem("", text, ("1",), "training", "rl") for text in training]
        start = time.process_time()
        hits = [hit for _, hit in find_hits(problems, index)]
        seconds = time.process_time() - start
        return [0.0 if hit is None else hit.share + (not hit.semantic) for hit in hits], seconds

    return score


def peer(python: str, options: dict[str, int]) -> Callable[[Sequence[str], Sequence[str]], tuple[list[float], float]]:
    def run(folder: Path, texts: Sequence[str], name: str) -> tuple[dict[int, float], float]:
        (folder / name).mkdir()
        write_jsonl(folder / name / "t.jsonl", ({"text": text} for text in texts))
        report = folder / f"{name}-report"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [python, "-c", PEER, str(folder / name), str(folder / "evals"), str(report), json.dumps(options)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        scores: dict[int, float] = {}
        for file in report.glob("*.jsonl"):
            for row in read_jsonl(file):
                line = row["training_line"]
                scores[line] = max(scores.get(line, 0.0), row["contamination_score"])
        return scores, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def score(evaluation: Sequence[str], training: Sequence[str]) -> tuple[list[float], float]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "evals").mkdir()
            names = {"eval_key": "eval", "split": "test", "answer": "", "passage": None, "is_correct": None}
            rows = (
                {**names, "eval_instance_index": i, "doc_id": i, "question": text, "fingerprint": str(i)}
                for i, text in enumerate(evaluation)
            )
            write_jsonl(folder / "evals" / "e.jsonl", rows)
            _, start_up = run(folder, training[:1], "one")
            scores, seconds = run(folder, training, "all")
        return [scores.get(i, 0.0) for i in range(len(training))], seconds - start_up

    return score


def threshold(planted: Sequence[float], clean: Sequence[float]) -> float:
    """The lowest score above 0 from which at least PRECISION of the hits are planted; infinite if there is none."""
    best = float("inf")
    right = wrong = 0
    ranked = sorted([(s, True) for s in planted if s] + [(s, False) for s in clean if s], reverse=True)
    for number, (score, is_planted) in enumerate(ranked):
        right, wrong = right + is_planted, wrong + (not is_planted)
        last = number + 1 == len(ranked) or ranked[number + 1][0] < score
        if last and right >= PRECISION * (right + wrong):
            best = score
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--peer", help="Python interpreter with decon.")
    parser.add_argument("--embedding", help="Folder or hub id of a static embedding model in model2vec's format.")
    parser.add_argument("--lsa", action="store_true", help="Make an embedding model from training sets, and use it.")
    given = parser.parse_args()
    (test, train) = (
        [row["question"] for name in names for row in read_jsonl(given.data / name)] for names in (EVALUATION, CLEAN)
    )
    rng = random.Random(0)
    planted: dict[str, list[str]] = {
        name: [changed(text, rng) for text in rng.sample(test, PLANTED)] for name, changed in DISTANCES.items()
    }
    planted["translated"] = [text for texts in TRANSLATED for text in texts[1:]]
    evaluation = [*test, *(texts[0] for texts in TRANSLATED)]
    training = [*train, *(text for texts in planted.values() for text in texts)]
    tools = {"mathrl, coverage": ours("coverage"), "mathrl, words": ours("words")}
    folder = tempfile.TemporaryDirectory()
    model = lsa(given.data, Path(folder.name)) if given.lsa else given.embedding
    if model:
        tools["mathrl, coverage, then embeddings"] = with_embeddings(model, True)
        tools["mathrl, coverage, then embeddings, other numbers too"] = with_embeddings(model, False)
    if given.peer:
        tools |= {"decon": peer(given.peer, {}), "decon, short questions too": peer(given.peer, SHORT)}
    print(
        f"{len(evaluation):,} evaluation questions, {len(train):,} clean texts, {len(training) - len(train):,} planted"
    )
    print(f"| tool | threshold | false hits | {' | '.join(planted)} | µs per text |\n|{'---|' * (len(planted) + 4)}")
    for name, score in tools.items():
        scores, seconds = score(evaluation, training)
        clean = scores[: len(train)]
        least = threshold(scores[len(train) :], clean)
        recalls, at = [], len(train)
        for texts in planted.values():
            recalls.append(sum(s >= least for s in scores[at : at + len(texts)]) / len(texts))
            at += len(texts)
        shown = " | ".join(f"{recall:.3f}" for recall in recalls)
        false = sum(s >= least for s in clean)
        print(f"| {name} | {least:.2f} | {false} | {shown} | {1e6 * seconds / len(training):.0f} |", flush=True)


if __name__ == "__main__":
    main()
