"""Seconds until MLflow has rendered its pages of many runs: 200 runs of 1,000 steps, in a headless Chromium.

    python benchmarks/mlflow_compare.py [--runs 200] [--steps 1000] [--folder DIR] [--open RUN_ID RUN_ID …]

The store is filled by `mathrl.tracking.upload`, as by the mirror, with runs that have the parameters of this
checkout and the field's metrics, one family of curves with noise; the server is started with the arguments of
`mathrl ui`. Timed are the compare page of all runs until its charts are drawn, the experiment's chart view, and
the table of runs. A first, untimed opening of the table loads the page's scripts. Pictures go to the folder; a
named folder is kept, and a store that it already has is opened. The store is sqlite, or what MLFLOW_TRACKING_URI
names (postgresql://…).
"""

import argparse
import json
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
METRICS = ("reward/accuracy", "reward/overall", "response_length", "entropy", "actor_loss", "grad_norm")
CHARTS = (
    "compareRunsMode=CHART&workflowType=machine_learning&orderByAsc=false"
    "&orderByKey=metrics.%60final%2Fdev%2Faccuracy%60"
)


def fill(runs: int, steps: int, metrics: Sequence[str], folder: Path) -> None:
    """Runs of one study, uploaded like records."""
    from mathrl.compose import load_params
    from mathrl.core.records import RunRecord
    from mathrl.params.schema import READS
    from mathrl.tracking.client import connect
    from mathrl.tracking.upload import Upload

    every = load_params(ROOT / "params").model_dump(mode="json", by_alias=True)
    params = {section: every[section] for section in READS["rl"]}
    upload, drawn = Upload(connect()), random.Random(0)
    for number in range(runs):
        lr = 10 ** drawn.uniform(-4, -2)
        record = RunRecord(
            folder / f"bench-{number}",
            stage="rl",
            name=f"bench/lr-{number:03d}",
            recipe="bench",
            key=f"k{number}",
            pipeline="bench",
            params=params | {"rl": params["rl"] | {"lr": lr}},
            git={"commit": "0" * 40},
            inputs={"data/mixture/train.jsonl": "aa"},
            started=1e9 + 100 * number,
            ended=1e9 + 100 * number + steps,
            summary={"dev/accuracy": drawn.random()},
        )
        run, parent = upload.start(record)
        rows = []
        for step in range(1, steps + 1):
            learnt = 1 - math.exp(-step * lr * 1000 / steps)
            values = (learnt, learnt, 10 + 30 * learnt, 1 - learnt, 0.1, 1.0)
            noisy = (value * drawn.uniform(0.9, 1.1) for value in values)
            rows.append({"step": step, "at": record.started + step, **dict(zip(metrics, noisy, strict=False))})
        upload.metrics(run, rows, None)
        upload.finish(run, parent, record, "finished")
        if not (number + 1) % 20:
            print(f"{number + 1} of {runs} runs in the store", flush=True)


def serve(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """MLflow's server with the arguments of `mathrl ui`, and its address."""
    from mathrl.cli.ui import _mlflow, _store

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = os.environ | {"MLFLOW_BACKEND_STORE_URI": _store(), "MLFLOW_DISABLE_TELEMETRY": "true"}
    log = (folder / "server.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", *_mlflow(port, "127.0.0.1")], env=env, stdout=log, stderr=log, start_new_session=True
    )
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{url}/health", timeout=1).close()
            return process, url
        except OSError:
            time.sleep(0.3)
    os.killpg(process.pid, signal.SIGTERM)
    raise SystemExit((folder / "server.log").read_text())


def ask(url: str, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{url}/api/2.0/mlflow/{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--metrics", type=int, default=len(METRICS), help="Number of metrics, from the first.")
    parser.add_argument("--folder", type=Path, help="Folder for the store, pictures and the server's log; it is kept.")
    parser.add_argument("--open", nargs="+", default=[], help="Only these runs of the store.")
    options = parser.parse_args()
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="mathrl-compare-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["MATHRL_HOME"] = str(folder)
    try:
        if not options.open and not (folder / "filled").exists():
            began = time.time()
            fill(options.runs, options.steps, METRICS[: options.metrics], folder)
            (folder / "filled").touch()
            points = options.runs * options.steps * options.metrics
            print(f"{points:,} points uploaded in {time.time() - began:.0f} s")
        process, url = serve(folder)
        try:
            look(url, folder, options.open)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


def look(url: str, folder: Path, only: list[str]) -> None:
    from playwright.sync_api import sync_playwright

    if only:
        runs, place = only, ask_run(url, only[0])["experiment_id"]
    else:
        place = next(
            experiment["experiment_id"]
            for experiment in ask(url, "experiments/search", {"max_results": 100})["experiments"]
            if experiment["name"] == "mathrl/bench"
        )
        runs_found = ask(url, "runs/search", {"experiment_ids": [place], "max_results": 1000})["runs"]
        runs = [
            run["info"]["run_id"] for run in runs_found if any(tag["key"] == "dvc.stage" for tag in run["data"]["tags"])
        ]
    many = json.dumps(runs, separators=(",", ":"))
    pages = {
        "table": (f"/#/experiments/{place}/runs", "[role=row]"),
        "chart view": (f"/#/experiments/{place}/runs?{CHARTS}", ".js-plotly-plot .main-svg"),
        "compare": (f'/#/compare-runs?runs={many}&experiments=["{place}"]', ".js-plotly-plot .main-svg"),
    }
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = chromium.new_page(viewport={"width": 1600, "height": 1200})
        answered = [0.0]
        page.on("response", lambda _: answered.append(time.perf_counter()))
        page.goto(f"{url}{pages['table'][0]}")
        page.wait_for_selector("[role=row]", timeout=120_000)
        for name, (path, drawn) in pages.items():
            page.goto("about:blank")
            began = time.perf_counter()
            page.goto(url + path)
            page.wait_for_selector(drawn, timeout=120_000)
            first = time.perf_counter() - began
            while time.perf_counter() - answered[-1] < 2:  # some requests to other hosts are never answered
                page.wait_for_timeout(100)
            quiet = max(first, answered[-1] - began)
            page.screenshot(path=folder / f"{name.replace(' ', '-')}.png")
            print(f"{name}, {len(runs)} runs: drawn in {first:.2f} s, all in {quiet:.2f} s", flush=True)
        chromium.close()
    print(f"load {os.getloadavg()[0]:.1f}; store {os.environ.get('MLFLOW_TRACKING_URI', 'sqlite')[:10]}")


def ask_run(url: str, run: str) -> Any:
    with urllib.request.urlopen(f"{url}/api/2.0/mlflow/runs/get?run_id={run}") as answer:
        return json.load(answer)["run"]["info"]


if __name__ == "__main__":
    main()
