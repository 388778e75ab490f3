"""Every command that prints a result has --json: one document on stdout, of the type that the reference describes."""

import json
import re
import signal
import subprocess
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from typer.main import get_command

import mathrl
from mathrl.cli.documents import DOCUMENTS, SERVERS, ErrorDocument
from mathrl.cli.main import app
from mathrl.core.errors import EXIT_INTERRUPTED
from mathrl.core.files import write_jsonl
from mathrl.registry.reproduction import Certificate, StageCheck

pytestmark = pytest.mark.timeout(900)
Checkout = Any


def faults(value: Any, kind: Any, where: str = "document") -> list[str]:
    """What of the value is not as the type says."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return []
    if origin in (Annotated, NotRequired):
        return faults(value, inner[0], where)
    if origin in (Union, UnionType):
        return [] if any(not faults(value, each) for each in inner) else [f"{where}: {value!r} is no {kind}"]
    if is_typeddict(kind):
        if not isinstance(value, dict):
            return [f"{where}: {value!r} is no object"]
        hints = get_type_hints(kind, include_extras=True)
        optional = {name for name, hint in hints.items() if get_origin(hint) is NotRequired}
        wrong = sorted((hints.keys() - optional - value.keys()) | (value.keys() - hints.keys()))
        return [f"{where}.{name}: missing or unknown" for name in wrong] + [
            fault
            for name in hints.keys() & value.keys()
            for fault in faults(value[name], hints[name], f"{where}.{name}")
        ]
    if origin is list:
        return (
            [fault for each in value for fault in faults(each, inner[0], f"{where}[]")]
            if isinstance(value, list)
            else [f"{where}: {value!r} is no list"]
        )
    if origin is dict:
        return (
            [fault for name, each in value.items() for fault in faults(each, inner[1], f"{where}.{name}")]
            if isinstance(value, dict)
            else [f"{where}: {value!r} is no object"]
        )
    kinds = (int, float) if kind is float else (kind,)
    right = isinstance(value, kinds) and (kind is bool or not isinstance(value, bool))
    return [] if right else [f"{where}: {value!r} is no {kind.__name__}"]


def test_the_checker_of_this_file_notices_faults() -> None:
    good = {"error": "x"}
    assert faults(good, ErrorDocument) == []
    assert faults({"error": 1}, ErrorDocument) and faults({}, ErrorDocument) and faults(good | {"b": 1}, ErrorDocument)
    assert faults(None, float) and not faults(1, float) and faults(True, int) and not faults(None, NoneType)


def commands(command: Any, words: tuple[str, ...] = ()) -> dict[str, Any]:
    """Every command that runs, by its words."""
    if not hasattr(command, "commands"):
        return {" ".join(words): command}
    own = {" ".join(words): command} if command.invoke_without_command and words else {}
    inner = [commands(command.get_command(None, name), (*words, name)) for name in command.list_commands(None)]
    return own | {name: each for group in inner for name, each in group.items()}


def test_every_command_has_a_document_or_serves() -> None:
    every = commands(get_command(app))
    with_json = {name for name, command in every.items() if any("--json" in p.opts for p in command.params)}
    assert with_json == set(DOCUMENTS)
    assert set(every) - with_json == set(SERVERS)
    for kinds in DOCUMENTS.values():
        for kind in kinds:
            assert kind.__doc__ and "mathrl " in kind.__doc__, kind


TRAINING = '[{"id": "a", "question": "What is 12 plus 7 times 3 minus 4 in all?", "answer": "29"}]'
# The words after `mathrl`, in an order in which one makes what another reads; {} is a folder for files.
WORDS = (
    "init {}/mine --data data/curated/rl.jsonl --field answer_key=answers --model models/sft",
    "inspect data/curated/rl.jsonl --field answer_key=answers",
    "doctor",
    "plan",
    "plan evaluate --difference 0.1 --pilot sft --pilot rl",
    "run pipeline",
    "run mix --dry-run",
    "recipe --list",
    "recipe study --dry-run",
    "sweep run --trials 2",
    "sweep show",
    "sweep compare --set sweep.fresh_seeds=1",
    "sweep promote",
    "runs controls rl --only thinking --seeds 1 --dry-run",
    "launch rl --slurm --output {}/job --nodes 1 --ranks-per-node 1",
    "recipe study --graph",
    "evaluate --model models/rl --benchmark test --limit 4 --samples 2 --output {}/evaluated",
    "evaluate --model models/rl --benchmark test --limit 4 --samples 1 --vary evaluate.temperature=[0,1] --output {}/v",
    "compare sft rl",
    "compare models/sft models/rl --looks 2",
    "grade {}/responses.jsonl --output {}/graded.jsonl",
    "import {}/theirs --name theirs",
    "grade imported-theirs",
    "runs audit evaluate --model rl --size 6 --labels {}/labels.jsonl",
    "models alignment models/rl --limit 2",
    "runs",
    "runs remove all",
    "runs health rl",
    "runs report",
    "models lineage mathrl-chain",
    "models lineage --dataset data/curated/test.jsonl",
    "runs sync",
    "data sources",
    "data decontaminate --train {}/train.jsonl --against {}/train.jsonl --output {}/clean.jsonl --report {}/hits.jsonl",
    "data decide {}/hits.jsonl --decisions {}/decisions.jsonl --high 1",
    "data export data/curated/rl.jsonl --output {}/rows.jsonl",
    "models promote mathrl-chain",
)


def test_each_command_prints_one_document(small_checkout: Checkout, no_champion: None, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "responses.jsonl", [{"response": "\\boxed{12}", "answer": "12"}])
    write_jsonl(tmp_path / "train.jsonl", json.loads(TRAINING))
    write_jsonl(tmp_path / "labels.jsonl", [])
    theirs = {"step": 1, "input": "2+2?", "output": "\\boxed{4}", "gts": "4", "score": 1.0}
    write_jsonl(tmp_path / "theirs" / "rollouts" / "1.jsonl", [theirs])
    small_checkout.git("checkout", "-q", "--", "params")
    seen: dict[str, set[type]] = {}
    wrong: list[str] = []
    for text in WORDS:
        words = text.replace("{}", str(tmp_path)).split()
        done = small_checkout.mathrl(*words, "--json", ok=False)
        name = " ".join(words[:2]) if " ".join(words[:2]) in DOCUMENTS else words[0]
        if done.returncode not in (0, 1):
            wrong.append(f"{text}: {done.returncode}\n{done.stdout}\n{done.stderr[-2000:]}")
            continue
        found = {kind: faults(json.loads(done.stdout), kind) for kind in DOCUMENTS[name]}
        right = [kind for kind, misfits in found.items() if not misfits]
        wrong += [] if right else [f"{text}: {found}"]
        seen.setdefault(name, set()).update(right)
    assert not wrong, "\n\n".join(wrong)
    # A hub (test_push.py), all stages in a clone, an earlier champion, and a run with other parameters are not here.
    assert set(DOCUMENTS) - set(seen) == {"models push", "models reproduce", "models rollback", "runs adopt"}


def test_a_certificate_is_its_document() -> None:
    check = StageCheck("sft", "4f2c", "a4ce", expected={"models/sft": "9b"}, found={"models/sft": "9b"})
    certificate = Certificate("mathrl-chain", "1", "f8", "a4ce", {}, [check], {"python": "3.11"})
    row = json.loads(json.dumps(certificate.to_row() | {"page": "certificate.html"}))
    assert faults(row, DOCUMENTS["models reproduce"][0]) == []


def test_an_error_is_a_document_too(small_checkout: Checkout) -> None:
    for words, said in ((("run", "rx"), "no stage 'rx'"), (("compare",), "command line is wrong")):
        done = small_checkout.mathrl(*words, "--json", ok=False)
        assert done.returncode == 2 and done.stderr
        document = json.loads(done.stdout)
        assert faults(document, ErrorDocument) == [] and said in document["error"]


def test_ctrl_c_ends_a_command_with_130(small_checkout: Checkout) -> None:
    words = [small_checkout.executable, "-c", "from mathrl.cli import main; main()", "audit", "evaluate", "--json"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(words, cwd=small_checkout.folder, env=small_checkout.env, text=True, **pipes) as command:
        assert command.stdin is not None and command.stdout is not None and command.stderr is not None
        while "accepted:" not in command.stderr.readline():  # it asks for a label then
            pass
        command.send_signal(signal.SIGINT)
        printed = command.stdout.read()
    assert command.returncode == EXIT_INTERRUPTED
    assert json.loads(printed) == {"error": "the command ended with exit status 130"}


def test_the_version(small_checkout: Checkout) -> None:
    # Of a checkout with several environments each has the version of its own installation.
    printed = small_checkout.mathrl("--version").stdout
    assert re.fullmatch(r"mathrl \d+\.\d+\S*\n", printed) and re.match(r"\d+\.\d+", mathrl.__version__)
