"""pages: mathematical pages out of a corpus, in rounds; a step of recipes.

Writes one folder: kept.jsonl, contaminated.jsonl, domains.json, rounds.json, and the report in report/.
"""

import shutil
import sys
from pathlib import Path

from mathrl.core.files import write_json, write_jsonl, written_aside
from mathrl.core.hashing import sha256_file, sha256_jsonl
from mathrl.corpus import account as pages_report
from mathrl.corpus.classifier import check_model
from mathrl.corpus.corpus import Corpus
from mathrl.corpus.page_files import check_readers, page_files, read_evaluation, read_seeds
from mathrl.corpus.rounds import clean, collect, domains
from mathrl.params import Params
from mathrl.reading.row_files import labels
from mathrl.reading.sources import link, of_pages, resolve_evaluation
from mathrl.stages.command import main
from mathrl.stages.stage_run import StageRun


def resolve(params: Params) -> dict[str, list[Path]]:
    """The files that would be read, by parameter: for a dry run.

    Raises:
        UserError: no file named, or one that is not there.
    """
    settings = params.pages
    files_read = {
        "files": page_files(settings.files, "files"),
        "positives": page_files(settings.positives.files, "positives.files"),
    }
    check_readers(files_read["files"])
    if settings.classifier.type == "fasttext":
        files_read["classifier"] = [check_model(settings.classifier)]
    if settings.negatives.files or not settings.random_negatives:
        files_read["negatives"] = page_files(settings.negatives.files, "negatives.files")
    return files_read


def files(params: Params) -> dict[str, Path]:
    """The files outside the checkout that pages reads, by the names of their links in data/inputs."""
    clean = params.pages.decontaminate
    evaluation = resolve_evaluation(clean.benchmarks, clean.files, clean.data_folder) if clean else []
    return of_pages(resolve(params), evaluation)


def work(run: StageRun, *, out: Path) -> None:
    """The kept pages of `pages.files`, to the folder `out`."""
    settings, seed = run.params.pages, run.params.run.seed
    read = resolve(run.params)
    positives = read_seeds(settings.positives, "positives", seed)
    negatives = read_seeds(settings.negatives, "negatives", seed) if "negatives" in read else []
    evaluation = read_evaluation(settings.decontaminate, seed) if settings.decontaminate else None
    corpus = Corpus(read["files"], settings, run.state / "corpus")
    collected = collect(corpus, positives, negatives, settings, seed)
    if evaluation and settings.decontaminate:
        clean(collected, corpus, evaluation[0], settings.decontaminate.min_share)
    account = pages_report.account(collected, corpus, settings, seed) | {
        "inputs": {
            name: {label: _digest(file, name) for file, label in labels(files).items()} for name, files in read.items()
        },
        "evaluation_sets": evaluation[1] if evaluation else [],
    }
    with written_aside(out) as folder:
        folder.mkdir(parents=True)
        pages_report.write_report(folder / "report", collected, corpus, settings)
        for file in (folder / "report").iterdir():
            shutil.copy(file, run.artifacts / file.name)
        write_jsonl(folder / "kept.jsonl", pages_report.kept_rows(collected, corpus))
        hits = sorted(collected.hits, key=lambda hit: -hit.share)
        write_jsonl(folder / "contaminated.jsonl", (hit.to_row() for hit in hits))
        write_json(folder / "domains.json", domains(collected, corpus))
        write_json(folder / "rounds.json", account)
    for name, files in read.items():
        for file, label in labels(files).items():
            run.dataset(f"{name}/{label}", file)
    for warning in pages_report.warnings(collected):
        print(f"pages: warning: {warning}", file=sys.stderr, flush=True)
    best = collected.rounds[collected.best]
    measured = {name: v for name in ("precision", "recall", "f1") if (v := getattr(best, name)) is not None}
    figures = {
        "kept": len(collected.kept),
        "contaminated": len(collected.hits),
        "rounds": len(collected.rounds),
        "best_round": best.number,
    }
    run.summary({**measured, **{name: float(value) for name, value in figures.items()}})


def _digest(file: Path, name: str) -> dict[str, str | int]:
    return {"sha256": sha256_file(file)} if name == "classifier" else sha256_jsonl(file)


if __name__ == "__main__":
    main("pages", work, before=lambda params: link("pages", files(params)))
