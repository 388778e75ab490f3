"""`mathrl runs rollouts` over 100,000 responses: seconds to the first rows, and of three clicks in a browser.

    python benchmarks/rollout_page.py [--responses 100000] [--steps 100] [--folder DIR]

Responses of 20 to 60 tokens to chains of arithmetic, in the one parquet file of a run that ended. Each time is given by
the clock, and in processor seconds: of the server, and of a headless Chromium with its driver.
"""

import argparse
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
PROBLEMS = 1000


def write(folder: Path, responses: int, steps: int) -> Path:
    """A run's file of kept rollouts: accuracy rises from 0.1 to 0.9."""
    from mathrl.rollout.rollout_files import WHOLE, RolloutFolder

    drawn, kept = random.Random(0), RolloutFolder(folder, None)
    for step in range(1, steps + 1):
        accuracy = 0.1 + 0.8 * step / steps
        kept.write(step, [row(drawn, step, number, accuracy) for number in range(responses // steps)])
    kept.finish(steps)
    return folder / WHOLE


def row(drawn: random.Random, step: int, number: int, accuracy: float) -> dict[str, Any]:
    right, length = drawn.random() < accuracy, drawn.randint(20, 60)
    problem, answer = drawn.randrange(PROBLEMS), str(drawn.randint(0, 99))
    pieces = [drawn.choice("0123456789+-*=<>/ ") for _ in range(length)]
    extracted = None if drawn.random() < 0.05 else answer
    return {
        "step": step, "problem": f"chain-{problem}", "question": f"{problem}+7-3*4=", "answers": [answer],
        "source": "chain", "level": problem % 5, "response": number, "text": "".join(pieces), "correct": right,
        "extracted": extracted, "rule": drawn.choice(("number", "exact", "value", "nothing extracted")),
        "reward": float(right) - 0.1 * drawn.random(), "parts": [("accuracy", float(right)), ("late", drawn.random())],
        "length": length, "truncated": drawn.random() < 0.02, "repeated": 0.0, "disagrees": None,
        "odd": [] if extracted else ["no answer"], "trained": True, "calls": [], "tokens": list(range(length)),
        "pieces": pieces,
        "logprobs": [-drawn.random() for _ in pieces], "advantages": [float(right) - accuracy] * length,
        "ratios": [drawn.uniform(0.9, 1.1) for _ in pieces],
    }  # fmt: skip


def used(pid: int) -> float:
    """Processor seconds of a process and those below it."""
    process = psutil.Process(pid)
    return sum(sum(one.cpu_times()[:2]) for one in [process, *process.children(recursive=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--responses", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="Folder for the file and a picture; it is kept.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mathrl-rollouts-") as temporary:
        folder = (options.folder or Path(temporary)).absolute()
        file = folder / "rollouts.parquet"
        if not file.exists():
            write(folder, options.responses, options.steps)
        print(f"{file.stat().st_size / 1e6:.0f} MB")
        browse(file, options.steps, folder)


def browse(file: Path, steps: int, folder: Path) -> None:
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto("about:blank")
        (driver,) = psutil.Process().children()  # Playwright's, with Chromium below it
        began = time.perf_counter()
        words = [
            sys.executable,
            "-c",
            "from mathrl.cli import main; main()",
            "runs",
            "rollouts",
            str(file),
            "--no-browser",
        ]
        server = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[0]
            print(f"command to address: {time.perf_counter() - began:.2f} s, processor {used(server.pid):.2f} s")

            @contextmanager
            def timed(what: str) -> Iterator[None]:
                start, before = time.perf_counter(), (used(server.pid), used(driver.pid))
                yield
                seconds, after = time.perf_counter() - start, (used(server.pid), used(driver.pid))
                spent = [now - then for now, then in zip(after, before, strict=True)]
                print(f"{what}: {seconds:.2f} s, processor: server {spent[0]:.2f} s, browser {spent[1]:.2f} s")

            with timed("address to first rows"):
                page.goto(address)
                page.wait_for_selector("#rows tr")
            print(f"command to first rows: {time.perf_counter() - began:.2f} s")
            count = page.locator("#count")
            for what, click in {
                "click on wrong": "[data-facet=verdict][data-label=wrong]",
                "click on a step": f"[aria-label='step {min(20, steps)}']",
            }.items():
                with timed(what):
                    before = count.inner_text()
                    page.click(click)
                    expect(count).not_to_have_text(before)
            with timed("click on a response"):
                page.click("#rows tr")
                page.wait_for_selector("#detail .tokens span")
            page.screenshot(path=folder / "page.png")
            page.click("#clear")
            expect(count).to_have_text(re.compile("^([0-9,]+) of \\1 "))
            with timed("search in all texts"):
                page.fill("#search", "7=1")
                expect(count).not_to_have_text(re.compile("^([0-9,]+) of \\1 "))
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
