"""The `mathrl` command as a person meets it: help, mistakes, a dry run, the doctor."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mathrl.cli.main import COMMANDS, GROUPS, MOVED, app, help_line, import_command
from mathrl.cli.output import print_lines, print_table
from mathrl.cli.run import _print_parameters, print_made
from mathrl.compose.load import read_layers
from mathrl.core.errors import UserError
from mathrl.core.files import write_json
from mathrl.params.load import parse_yaml
from mathrl.params.schema import SECTIONS

ROOT = Path(__file__).parents[2]
RUN = "from mathrl.cli import main; main()"


def process(python: str | Path, *words: str, cwd: Path = ROOT, **env: str) -> "subprocess.CompletedProcess[str]":
    given = {name: value for name, value in os.environ.items() if not name.startswith(("MATHRL_", "MLFLOW_"))}
    return subprocess.run(
        [python, "-c", RUN, *words], cwd=cwd, env=given | env, capture_output=True, text=True, check=False, timeout=800
    )


Mathrl = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def mathrl(warm_python: Path) -> Mathrl:
    """Runs the command in a process that has made its imports."""
    return partial(process, warm_python / "python")


def test_help_names_every_command_and_imports_nothing_heavy(mathrl: Mathrl) -> None:
    done = mathrl("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert f" {command} " in done.stdout
    titles = [line for line in done.stdout.splitlines() if line.startswith("╭─")]
    assert [title.split("─ ")[1].split(" ─")[0] for title in titles] == ["Options", *GROUPS]
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", RUN, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stderr
    modules = {line.rpartition("|")[2].strip() for line in loaded.splitlines()}
    heavy = {"torch", "transformers", "prefect", "mlflow", "dvc", "pandas", "numpy", "pydantic", "datasets"}
    assert modules & heavy == set()
    own = {module for module in modules if module.startswith("mathrl.cli.")}
    assert not own - {"mathrl.cli.main", "mathrl.cli.output"}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_list_of_commands_has_the_first_line_of_each_commands_help(command: str) -> None:
    (first, *_) = (import_command(command).help or "").splitlines()
    assert help_line(command) == first and first.endswith(".")


def test_help_of_a_command_imports_no_framework() -> None:
    code = (
        "import sys; from mathrl.cli.main import COMMANDS, import_command; [*map(import_command, COMMANDS)]; "
        "print({'torch', 'transformers', 'prefect', 'mlflow', 'dvc', 'pandas', 'sklearn'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_an_unknown_command_is_answered_by_the_nearest(mathrl: Mathrl) -> None:
    done = mathrl("recpie")
    assert done.returncode == 2 and "Did you mean 'recipe'" in done.stderr


def test_a_command_that_was_moved_works_under_its_old_name_with_a_warning() -> None:
    for old, (new, _) in MOVED.items():
        said, told = (CliRunner().invoke(app, [*words, "--help"]) for words in ((old,), new.split()))
        assert said.exit_code == told.exit_code == 0
        assert f"`mathrl {old}` is now `mathrl {new}`" in said.stderr and told.stderr == ""
        assert said.stdout.partition("\n\n")[2].split() == told.stdout.partition("\n\n")[2].split()
        assert old not in COMMANDS
    assert len(COMMANDS) <= 18


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "rl", "--set", "rl.optimizer.lr=5"], "rl.optimizer.lr"),
        (["evaluate", "--model", "no/such/folder", "--benchmark", "nonsense"], "nonsense"),
        (["grade", "missing.jsonl", "--output", "out.jsonl"], "missing.jsonl: no such file"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(mathrl: Mathrl, words: list[str], message: str) -> None:
    # The others start Python anew: what a framework prints as it is imported is noticed.
    done = mathrl(*words) if words[0] == "run" else process(sys.executable, *words)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: ") and message in line


# Ends the process where it first imports torch, and says how the threads of torch's library would wait.
AT_TORCH = """
import os, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch":
            print("waits", os.environ.get("OMP_WAIT_POLICY"), flush=True)
            os._exit(0)
sys.meta_path.insert(0, Finder)
"""


@pytest.mark.parametrize(
    "start",
    [
        "from mathrl.cli import main; main()",
        "from mathrl.stages.stage_run import run_stage; run_stage('mix', lambda run: None, inputs=[], outputs=[], "
        "before=lambda params: __import__('torch'))",
    ],
)
def test_threads_of_torch_sleep_while_they_wait(start: str, tmp_path: Path) -> None:
    """They would take the core of the thread that they wait for: 479 tokens per second were left of 22,000."""
    command = [sys.executable, "-c", AT_TORCH + start, "doctor", "--model", str(tmp_path)]
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    env |= {"MATHRL_HOME": str(tmp_path), "MATHRL_MIRROR": "none"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("waits PASSIVE\n"), done.stdout + done.stderr


def test_a_hub_that_does_not_answer_is_asked_once() -> None:
    code = """
from mathrl.cli.run import _print_parameters
from mathrl.core.errors import UserError
from mathrl.compose import load_params
from mathrl.params.load import parse_yaml
from mathrl.params.schema import SECTIONS
from mathrl.evaluation.benchmark import benchmark_problems
from mathrl.models.load import load_tokenizer
from mathrl.compose import load_params
for read in (lambda: load_tokenizer("no/such-model"), lambda: benchmark_problems("gsm8k", load_params())):
    try:
        read()
    except UserError as error:
        print(error)
"""
    env = {name: value for name, value in os.environ.items() if name != "MATHRL_DATA"}
    env |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    model, benchmark = done.stdout.splitlines()
    assert model.startswith("no/such-model: no tokenizer can be loaded") and "http://127.0.0.1:9" in model
    assert benchmark.startswith("gsm8k: openai/gsm8k cannot be read from the hub") and "$MATHRL_DATA" in benchmark
    assert done.stderr == ""  # the hub's client adds a line per attempt, and waits half a minute


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run rl --set lr=0.1", "rl.optimizer.lr=0.1 or sft.optimizer.lr=0.1"),
        ("run rll", "no stage 'rll' (did you mean rl?)"),
        ("run rl --set rl.learning_rate=1", "learning_rate: unknown parameter (did you mean optimizer.lr?)"),
        ("run rl --set rl.optimizer.lr", "write section.key=value"),
        ("run rl --preset gsm8", "did you mean gsm8k?"),
        ("runs remove nothing", "no run 'nothing'"),
        ("evaluate --model tests --benchmark gsm8kk", "did you mean gsm8k?"),
        ("evaluate --model tests/modells --benchmark gsm8k", "(did you mean tests/models?)"),
        ("health rll", "(did you mean rl?)"),
        ("report evaluat", "(did you mean evaluate?)"),
        ("rollouts rll", "(did you mean rl?)"),
        ("recipe deepseek", "did you mean deepseek-r1?"),
        ("inspect READNE.md", "READNE.md: no such file or folder (did you mean"),
        (
            "init new --data READNE.md --model tests",
            "--data READNE.md: no such file or folder (did you mean README.md?)",
        ),
    ],
)
def test_a_mistyped_name_is_answered_by_the_nearest(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty_store: Path
) -> None:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path))
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, words.split())
    assert isinstance(done.exception, UserError) and message in str(done.exception), done.output


def test_the_list_of_recipes_is_also_found_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert CliRunner().invoke(app, ["recipe", "list"]).output == CliRunner().invoke(app, ["recipe"]).output != ""


def test_outside_a_git_checkout_the_remedy_is_said(mathrl: Mathrl, tmp_path: Path) -> None:
    done = mathrl("run", "pipeline", cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 2 and "start from `git clone`" in done.stderr


def test_a_dry_run_resolves_everything_but_the_weights_and_runs_nothing(mathrl: Mathrl) -> None:
    done = mathrl("run", "pipeline", "--set", "run.seed=3", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert re.search(r"run.seed: 3 +--set", done.stdout) and "beta1" not in done.stdout  # what differs alone
    assert "composition: data=chain, model=toy, method=grpo, hardware=laptop, preset demo" in done.stdout
    assert "curate -> sft -> difficulty -> mix -> rl" in done.stdout
    assert "fresh qwen2" in done.stdout and "chain" in done.stdout


def test_a_dry_run_prints_what_differs_and_with_verbose_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    layers, settings = read_layers(ROOT / "params"), ["rl.optimizer.lr=0.02"]
    params = layers.params(settings)
    _print_parameters("rl", params, (layers, settings))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["rl.steps:", "50", "preset", "demo"] in lines and ["rl.optimizer.lr:", "0.02", "--set"] in lines
    assert ["rl.optimizer.type:", '"muon"', "model=toy"] in lines and ["rl.max_tokens:", "64", "data=chain"] in lines
    assert not [line for line in lines if line and line[0].startswith(("evaluate.", "rl.temperature"))]
    _print_parameters("rl", params, None)
    assert parse_yaml(capsys.readouterr().out, "printed").keys() == {*SECTIONS}


def test_the_doctor_names_a_server_that_does_not_answer(mathrl: Mathrl) -> None:
    ill = mathrl("doctor", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert ill.returncode == 1
    assert re.search(r"ok +(\d+) of the \1 packages that mathrl imports, at their tested versions", ill.stdout)
    assert "project " in ill.stdout
    (line,) = [line for line in ill.stdout.splitlines() if "127.0.0.1:9" in line]
    assert line.startswith("missing") and "mathrl ui" in line


def test_a_recipe_that_the_parameters_refuse_is_listed_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "experiment.yaml").write_text("presets: [demo]\n")
    (tmp_path / "params" / "rl.yaml").write_text("group_size: 2\n")
    monkeypatch.chdir(tmp_path)
    lines = CliRunner().invoke(app, ["recipe"], catch_exceptions=False).output.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("beyond-objectives"))
    assert "chains -> short_sft ->" in lines[place + 1]
    assert "not in this project" in lines[place + 2] and "group_size must be at least 8" in lines[place + 2]
    assert any(line.startswith("study ") for line in lines)


def test_each_stage_says_what_it_made_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of other settings is in a folder of its own, whose paths are shown from here."""
    run = tmp_path / "runs" / "a"
    curated = {"splits": {"rl": {"problems": 99_305}}, "dropped": {"duplicate": 4_114}, "rejected": 0}
    write_json(run / "data/curated/manifest.json", curated)
    measured = {"problems": 256, "pass_at_1": 0.25, "never_solved": 0.5, "always_solved": 0.0}
    write_json(run / "data/difficulty/summary.json", measured)
    write_json(run / "reports/registered.json", {"name": "mine", "version": 2, "alias": "candidate"})
    (run / "models" / "rl").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    splits = "curated: rl 99,305 problems; dropped: duplicate 4,114; rejected: 0 (runs/a/reports/curate/report.md)"
    rates = "difficulty: 256 problems measured, pass@1 0.250, never solved 50.0%, always solved 0.0%"
    expected = {
        "curate": [splits],
        "difficulty": [splits, rates],
        "rl": ["model: runs/a/models/rl"],
        "register": ["registered: mine version 2 (alias candidate)"],
    }
    for stage, lines in expected.items():
        print_made(stage, run)
        assert capsys.readouterr().out.splitlines() == lines


def test_what_evaluations_and_reports_leave_behind_is_no_matter_for_git(tmp_path: Path) -> None:
    """.gitignore is that of every project."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    shutil.copy(ROOT / ".gitignore", tmp_path)
    made = ["evaluations/m-test/responses.jsonl", "evaluations/m-test/speed.json", "html/mathrl-pipeline.html"]
    paths = [f"reports/{file}" for file in (*made, "summary.json")]
    ignored = subprocess.run(["git", "check-ignore", *paths], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ignored.stdout.splitlines() == paths[:-1]


def test_brackets_and_colons_of_names_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["pipeline lora.targets=[q_proj, v_proj]", "a [/b] c", "hub/set:train:test"]
    print_table("runs", [{"model": text} for text in texts])
    print_lines(texts)
    printed = capsys.readouterr().out
    assert [printed.count(text) for text in texts] == [2, 2, 2]
