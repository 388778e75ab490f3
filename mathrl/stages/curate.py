"""curate: from sources to disjoint splits. `python -m mathrl.stages.curate`.

Writes data/curated/{sft,rl,dev,test}.jsonl, manifest.json, dropped.jsonl, variants.jsonl, quality.jsonl,
rejected.jsonl, hits.jsonl, and the report in reports/curate/.
"""

import shutil
from dataclasses import asdict
from pathlib import Path

from mathrl.core.files import write_json, write_jsonl, written_aside
from mathrl.core.hashing import sha256_jsonl
from mathrl.curation import curation
from mathrl.curation import curation_account as curation_report
from mathrl.curation.decisions import decisions_file
from mathrl.curation.decontaminate import model_folder
from mathrl.params import Params
from mathrl.params.evaluate import TEST
from mathrl.reading.sources import INPUTS, link, of_sources, resolve_benchmark
from mathrl.stages.command import main
from mathrl.stages.stage_run import StageRun

CURATED, REPORT = Path("data/curated"), Path("reports/curate")


def resolve(params: Params) -> list[str]:
    """The sources that curate, rl and evaluate would read, one line per source: for a dry run.

    Raises:
        UserError: a file, a folder, a generator or a name that does not exist.
    """
    evaluated = [(name, params.evaluate.data_folder) for name in params.evaluate.benchmarks]
    while_training = [(each.name, None) for each in params.rl.eval_benchmarks]  # the stage rl reads $MATHRL_DATA alone
    named = [(name, folder) for name, folder in (*evaluated, *while_training) if name != TEST]
    lines = [f"benchmark {resolve_benchmark(name, folder).describe()}" for name, folder in named]
    return curation.plan(params.curate).describe() + list(dict.fromkeys(lines))


def files(params: Params) -> dict[str, Path]:
    """The files outside the checkout that curate reads, by the names of their links in data/inputs."""
    planned = curation.plan(params.curate)
    further = {f"quality/{planned.samples.name}": planned.samples} if planned.samples else {}
    clean = params.curate.decontaminate
    if clean and (decided := decisions_file(clean)):
        further["decisions.jsonl"] = decided
    if clean and clean.embedding and (model := model_folder(clean.embedding.model)):
        further |= {f"embedding/{file.name}": file for file in model.iterdir() if file.is_file()}
    return of_sources((*planned.sources, *planned.evaluation)) | further


def work(run: StageRun, *, splits: Path = CURATED, report: Path = REPORT) -> None:
    """The splits of the sources of `curate`, to the folder `splits`, and the report, to `report`."""
    params = run.params
    planned = curation.plan(params.curate)
    curated = curation.run(params.curate, params.run.seed, planned, run.state / "rows")
    with written_aside(report) as folder:
        curation_report.write_report(folder, curated, params.curate, params.run.seed)
        for file in folder.iterdir():
            shutil.copy(file, run.artifacts / file.name)
    with written_aside(splits) as folder:
        folder.mkdir()
        for split, problems in curated.splits.items():
            with (folder / f"{split}.jsonl").open("wb") as stream:
                stream.writelines(problems.lines())
        write_jsonl(folder / "dropped.jsonl", map(asdict, curated.dropped))
        write_jsonl(folder / "quality.jsonl", map(asdict, curated.broken))
        write_jsonl(folder / "variants.jsonl", (group.to_row() for group in curated.variants))
        write_jsonl(folder / "rejected.jsonl", (r.to_row() for r in curated.rejected))
        clean = params.curate.decontaminate
        by_share = sorted(range(len(curated.hits)), key=[-hit.share for hit in curated.hits].__getitem__)
        hits = (curated.hits[at].to_row(clean.min_share if clean else 0) for at in by_share)
        write_jsonl(folder / "hits.jsonl", hits)
        outputs = {file.name: sha256_jsonl(file) for file in sorted(folder.iterdir())}
        account = curation_report.manifest(curated, planned, params.curate, params.run.seed, outputs)
        write_json(folder / "manifest.json", account)
    for source in (*planned.sources, *planned.evaluation):
        for file, label in source.labels.items():
            run.dataset(f"{source.name}/{label}", file)
    for split, problems in curated.splits.items():
        if problems:
            run.dataset(split, splits / f"{split}.jsonl")
    sizes = {f"problems_{split}": float(len(rows)) for split, rows in curated.splits.items()}
    run.summary({**sizes, "dropped": float(len(curated.dropped)), "rejected": float(len(curated.rejected))})


if __name__ == "__main__":
    main(
        "curate",
        work,
        inputs=[INPUTS / "curate"],
        outputs=[CURATED, REPORT],
        before=lambda params: link("curate", files(params)),
    )
