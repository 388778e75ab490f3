"""1,000 runs: processor time of `mathrl runs sync` and `mathrl runs`, and seconds until MLflow has drawn them.

    python benchmarks/run_list.py [--runs 1000] [--folder DIR]

Each run is a pipeline, whose stages rl and evaluate leave the records of real ones; `mathrl runs sync` uploads them by
the code of the mirror, into sqlite. "again" is what a mirror does at its start when nothing is new. The pages, the view
Results and the list by time, are opened in a headless Chromium, where one is installed; their time is the clock's. A
named folder is kept, and a store that it already has is opened.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
STEPS = 20


def write_records(runs: int) -> None:
    """Records of pipelines, as their stages rl and evaluate leave them: parameters, metrics, figures, digests."""
    from mathrl.compose import load_params
    from mathrl.core.records import RunRecord, records_folder
    from mathrl.params.schema import READS

    sections, drawn = load_params(ROOT / "params").model_dump(mode="json", by_alias=True), random.Random(0)
    for number in range(runs):
        lr, accuracy = round(10 ** drawn.uniform(-4, -2), 6), drawn.random()
        pipeline = sections | {"rl": sections["rl"] | {"optimizer": sections["rl"]["optimizer"] | {"lr": lr}}}
        model, summary = f"model-{number}", f"summary-{number}"
        for stage, inputs, outputs, figures in (
            ("rl", {"data/mixture/train.jsonl": "aa", "models/sft": "bb"}, {"models/rl": model}, {"dev/best": accuracy,
             "sampled_tokens": 2e6}),
            ("evaluate", {"models/rl": model, "models/sft": "bb"}, {"reports/summary.json": summary},
             {f"{kind}/pass_at_1{end}": accuracy for kind in ("sft", "rl") for end in ("", "_low", "_high")}),
        ):  # fmt: skip
            started = 1.7e9 + 200 * number + 100 * (stage == "evaluate")
            record = RunRecord(records_folder() / f"{stage}-{number:06d}-1", stage=stage)
            record.folder.mkdir(parents=True)
            if stage == "rl":
                rows = [{"step": step, "at": started + step, "reward/accuracy": accuracy * step / STEPS}
                        for step in range(1, STEPS + 1)]  # fmt: skip
                record.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            record.update(
                key=f"{stage}-{number}", pipeline=f"pipeline-{number}", pipeline_params=pipeline,
                changed={"rl.optimizer.lr": lr},
                params={name: pipeline[name] for name in READS[stage]}, inputs=inputs, outputs=outputs,
                summary=figures, git={"commit": "0" * 40}, status="finished", started=started, ended=started + 60,
                health={"colour": "green", "steps": STEPS, "findings": []} if stage == "rl" else None,
            )  # fmt: skip


def processor_seconds(*command: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", "from mathrl.cli import main; main()", *command],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def show(url: str, place: str, names: dict[str, str], folder: Path) -> None:
    """Print the seconds until the run that stands first is in each page; the pages' scripts are loaded by then."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.set_default_timeout(300_000)
        page.goto(f"{url}/#/experiments")
        page.get_by_text("mathrl").first.wait_for()
        for title, (query, name) in {
            "the view Results": ("viewStateShareKey=mathrl-results", names["best"]),
            "the list by time": ("", names["newest"]),
        }.items():
            page.goto("about:blank")
            began = time.time()
            page.goto(f"{url}/#/experiments/{place}/runs?workflowType=machine_learning&{query}")
            page.get_by_text(name, exact=True).first.wait_for()
            print(f"MLflow, {title}: {time.time() - began:.1f} s", flush=True)
            page.screenshot(path=folder / f"{title.split()[-1]}.png")


def measure(folder: Path, runs: int) -> None:
    from benchmarks.mlflow_compare import serve
    from mathrl.tracking.client import connect, experiment
    from mathrl.tracking.run_list import list_runs

    if not (folder / "records").exists():
        write_records(runs)
        print(
            f"sync, {runs} runs of two stages: {processor_seconds('runs', 'sync'):.1f} s of processor time", flush=True
        )
    print(f"mathrl runs sync again: {processor_seconds('runs', 'sync'):.1f} s of processor time", flush=True)
    for words in (["runs"], ["runs", "--sort", "rl"]):
        print(f"mathrl {' '.join(words)}: {processor_seconds(*words):.1f} s of processor time", flush=True)
    client = connect()
    rows = list(list_runs(client))
    names = {"best": max(rows, key=lambda row: row.figures["rl/pass_at_1"]).name, "newest": rows[0].name}
    if shutil.which("chromium") is None:
        return
    process, url = serve(folder)
    try:
        show(url, experiment(client), names, folder)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="Folder for the store and the pictures; it is kept.")
    options = parser.parse_args()
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="mathrl-runs-"))).absolute()
    os.environ["MATHRL_HOME"] = str(folder)
    try:
        measure(folder, options.runs)
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
