"""The list of 1,000 runs: processor time of `mathrl runs`, and seconds until MLflow has drawn the view Results.

    python benchmarks/run_list.py [--runs 1000]

The runs have the parameters, figures and tags of real ones (mathrl/tracking/parent.py), in sqlite. The page is opened
in a headless Chromium, where one is installed; its time is the clock's.
"""

import argparse
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
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))


def fill(client: Any, place: str, runs: int) -> None:
    from mathrl.core.records import RunRecord
    from mathrl.core.run_name import run_name
    from mathrl.params import load_params
    from mathrl.tracking.batches import Batches, Point
    from mathrl.tracking.parent import parent_params
    from mathrl.tracking.upload import flatten

    sections, drawn, batches = (
        load_params(ROOT / "params").model_dump(mode="json", by_alias=True),
        random.Random(0),
        Batches(client),
    )
    for number in range(runs):
        lr = round(10 ** drawn.uniform(-4, -2), 6)
        record = RunRecord(Path(f"bench-{number}"), pipeline_params=sections, changed={"rl.lr": lr})
        tags = {"mathrl.role": "pipeline", "mathrl.pipeline": str(number), "health": "green"}
        run = client.create_run(
            place, run_name=run_name("pipeline", changed=record.changed), tags=tags, start_time=number
        )
        accuracy = drawn.random()
        figures = {f"{model}/pass_at_1{end}": accuracy for model in ("sft", "rl") for end in ("", "_low", "_high")}
        figures |= {"dev/best": accuracy, "sampled_tokens": 2e6, "minutes": 2.0}
        batches.metrics(run.info.run_id, [Point(name, value, number) for name, value in figures.items()])
        batches.params(run.info.run_id, flatten(parent_params(record)))
        client.set_terminated(run.info.run_id, "FINISHED", number + 1000)


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


def drawn_after(url: str, place: str, name: str) -> float:
    """Seconds until the best run's name is in the page; the page's scripts are loaded by then."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.set_default_timeout(300_000)
        page.goto(f"{url}/#/experiments")
        page.get_by_text("mathrl").first.wait_for()
        began = time.time()
        page.goto(f"{url}/#/experiments/{place}/runs?workflowType=machine_learning&viewStateShareKey=mathrl-results")
        page.get_by_text(name, exact=True).first.wait_for()
        return time.time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mathrl-runs-") as folder:
        os.environ["MATHRL_HOME"] = folder
        from benchmarks.mlflow_compare import serve
        from mathrl.tracking.client import connect, experiment
        from mathrl.tracking.run_list import list_runs

        client = connect()
        place = experiment(client)
        fill(client, place, options.runs)
        seconds = processor_seconds("runs", "--sort", "rl")
        print(f"mathrl runs --sort rl, {options.runs} runs: {seconds:.1f} s of processor time", flush=True)
        best = max(list_runs(client), key=lambda row: row.figures["rl/pass_at_1"])
        if shutil.which("chromium") is None:
            return
        process, url = serve(Path(folder))
        try:
            print(f"MLflow's view Results: {drawn_after(url, place, best.name):.1f} s")
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


if __name__ == "__main__":
    main()
