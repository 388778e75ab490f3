"""The curate stage as a process: equal bytes wherever and however it runs, nothing finished after a kill."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mathrl.core.files import write_jsonl
from mathrl.data.export import export
from mathrl.generators import generate

ROOT = Path(__file__).parents[2]
CURATE = """sources:
  - {type: file, name: jsonl, path: DATA/own.jsonl, split: rl, id_key: id, solution_key: solution}
  - {type: file, name: verl, path: DATA/verl.parquet, format: verl, split: rl}
  - {type: file, name: choice, path: DATA/choice.csv, format: multiple_choice, prompt_key: Question,
     answer_key: Correct Answer, split: rl}
  - {type: file, name: limited, path: DATA/more.jsonl.gz, split: rl, limit: 50, level_key: level}
  - {type: file, name: held_out, path: DATA/test.jsonl, split: test, id_key: id}
  - {type: generated, name: made, generator: countdown, counts: {rl: 30, test: 10}}
on_bad_row: reject
deduplicate: {exact: true, near: {ngram: 3, threshold: 0.6}}
decontaminate: {against: [dev, test], ngram: 8}
dev_share: 0.1
sft_share: 0.2
"""
# The stage, killed before it renames or opens a path that ends as the last argument, a pattern, says.
KILLED = """
import os, re, runpy, signal, sys
place = re.compile(sys.argv.pop())
def kill(event, given):
    if event in ("open", "os.rename") and place.search(str(given[event == "os.rename"])):
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(kill)
runpy.run_module("mathrl.stages.curate", run_name="__main__")
"""
ANOTHER_MACHINE = {
    "PYTHONHASHSEED": "4711", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "TZ": "Pacific/Auckland",
    "OMP_NUM_THREADS": "2",
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, code_digests: Path) -> Path:
    """Rows of every shape, Chinese and LaTeX among them, with duplicates, conflicts, leaks and bad rows."""
    folder = tmp_path_factory.mktemp("data")
    shutil.copy(code_digests, folder)
    words = list(generate("word_problem", {"rl": 250, "test": 60, "dev": 40}, {}, seed=1))
    rows = [{"id": p.id, "question": p.question, "answer": p.answers[0], "solution": p.solution} for p in words]
    own = rows[100:250] + [{**row, "id": f"again/{i}"} for i, row in enumerate(rows[150:170])]
    own += [{**row, "id": f"other/{i}", "answer": "0"} for i, row in enumerate(rows[180:190])]
    own += [{**row, "id": f"near/{i}", "question": f"{row['question']} 请作答。"} for i, row in enumerate(rows[:30])]
    own += [{"id": "latex", "question": r"Für $\frac{1}{2}+x=3½$: $x$?", "answer": r"\frac52"}, {"id": "bad"}]
    write_jsonl(folder / "own.jsonl", own)
    write_jsonl(folder / "test.jsonl", rows[:60])
    export(words[260:290], "verl", folder / "verl.parquet")
    more = [
        {"question": p.question, "answer": p.answers[0], "level": p.level}
        for p in generate("fractions", {"rl": 100}, {}, seed=2)
    ]
    write_jsonl(folder / "more.jsonl.gz", more)
    with (folder / "choice.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["Question", "Correct Answer", *(f"Incorrect Answer {i}" for i in (1, 2, 3))])
        writer.writerows([f"Welche Größe hat Teil {i}?", f"{i} µm", "1 Å", "zwei", "drei"] for i in range(20))
    return folder


def project(folder: Path, data: Path) -> Path:
    """A folder in which the stage can run, without git and DVC."""
    (folder / "data" / "inputs" / "curate").mkdir(parents=True)
    (folder / "home").mkdir()
    shutil.copy(data / "code-digests.json", folder / "home")
    shutil.copytree(ROOT / "params", folder / "params")
    (folder / "params" / "curate.yaml").write_text(CURATE.replace("DATA", str(data)))
    return folder


def start(folder: Path, *words: str, python: str = sys.executable, **env: str) -> "subprocess.Popen[bytes]":
    own = {"MATHRL_HOME": str(folder / "home"), "MATHRL_MIRROR": "none", "OMP_NUM_THREADS": "1"}
    command = [python, *(words or ("-m", "mathrl.stages.curate"))]
    return subprocess.Popen(command, cwd=folder, env={**os.environ, **own, **env}, stderr=subprocess.PIPE)


def finish(process: "subprocess.Popen[bytes]") -> None:
    _, said = process.communicate(timeout=800)
    assert process.returncode == 0, said.decode()


def outputs(folder: Path) -> dict[str, bytes]:
    files = [*(folder / "data" / "curated").iterdir(), *(folder / "reports" / "curate").iterdir()]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def expected(data: Path, tmp_path_factory: pytest.TempPathFactory, warm_python: Path) -> dict[str, bytes]:
    folder = project(tmp_path_factory.mktemp("one"), data)
    finish(start(folder, python=str(warm_python / "python"), PYTHONPATH=str(ROOT)))
    return outputs(folder)


def test_the_example_leaves_no_step_out(expected: dict[str, bytes]) -> None:
    manifest = json.loads(expected["data/curated/manifest.json"])
    assert set(manifest["dropped"]) == {"duplicate", "conflicting answers", "contaminated"}
    assert manifest["rejected"] == 1 and all(each["problems"] for each in manifest["splits"].values())


def test_killed_runs_leave_nothing_finished_and_the_next_gives_equal_bytes_anywhere(
    data: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """Whatever its processes, hashes, language, zone and folder are."""
    folder = project(tmp_path / "an other place ü" / "deeper", data)
    (folder / "params" / "run.yaml").write_text("processes: 1\n")  # of the composition: 2
    killed = (r"state/curate-[^/]+/rows/", "home/state/curate-*/"), (r"data/curated$", "data/.curated.*.partial")
    for place, left in killed:
        process = start(folder, "-c", KILLED, place, **ANOTHER_MACHINE)
        _, said = process.communicate(timeout=800)
        assert process.returncode == -signal.SIGKILL, said.decode()
        assert list(folder.glob(left)) and not (folder / "data" / "curated").exists(), place
    finish(start(folder, **ANOTHER_MACHINE))
    found = outputs(folder)
    assert set(found) == set(expected)
    assert [name for name in expected if found[name] != expected[name]] == []
    remain = [*(folder / "data").glob(".*"), *(folder / "reports").glob(".*"), *(folder / "home/state").glob("*/")]
    assert remain == [], "what a killed run began is removed"
