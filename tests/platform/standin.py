"""A stage that takes milliseconds and stands in for a real one in the platform tests.

Copied over mathrl/stages/<stage>.py of a temporary checkout, with the real stage's inputs and outputs filled
in. What it writes depends on its inputs and parameters, as the real one's does. Environment variables make it
misbehave: STANDIN_SILENT=<stage> prints nothing, ignores SIGINT and SIGTERM and sleeps for ten minutes;
STANDIN_FAIL=<stage> ends with a user's error after half of the work; STANDIN_SLOW=<stage> takes a second a
step. @FILE in the stage's place: the file names it.
"""

import os
import signal
import sys
import time
from pathlib import Path

from mathrl.core.environment import rank
from mathrl.core.errors import UserError
from mathrl.core.files import write_json, write_jsonl, write_text, written_aside
from mathrl.core.hashing import digest, digest_path
from mathrl.core.metrics import progress
from mathrl.stages.stage_run import StageRun, run_stage

STAGE = Path(__file__).stem
INPUTS: list[str] = []
OUTPUTS: list[str] = []
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc000000301"
    "0100c9fe92ef0000000049454e44ae426082"
)
FIGURES = {"pass_at_1": 0.5, "pass_at_1_low": 0.4, "pass_at_1_high": 0.6, "pass_at_8": 0.9,
           "pass_at_8_low": 0.8, "pass_at_8_high": 1.0, "maj_at_8": 0.7, "maj_at_8_low": 0.6,
           "maj_at_8_high": 0.8, "response_length": 20.0, "problems": 10,
           "samples": 8, "truncated_share": 0.0,
           "no_answer_share": 0.1, "by_level": {}, "by_subject": {}}  # fmt: skip

FINDING = {
    "rule": "truncated",
    "colour": "yellow",
    "first": 2,
    "last": 3,
    "evidence": "10 % | cut off",
    "cause": "no room",
    "remedy": "more room",
}
RESPONSE = {"problem_id": "p1", "benchmark": "test", "question": "1+1=", "answers": ["2"], "extracted": "2",
            "response": "<script>document.title='run'</script>", "sample": 0, "length": 2, "truncated": False,
            "rule": "answer_tag"}  # fmt: skip


def misbehaves(how: str) -> bool:
    given = os.environ.get(f"STANDIN_{how}", "")
    if given.startswith("@"):
        given = Path(given[1:]).read_text() if Path(given[1:]).exists() else ""
    return given == STAGE


def work(run: StageRun) -> None:
    if rank() != 0:
        return
    if misbehaves("SILENT"):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        (run.state / "checkpoint").write_text("step 7")
        write_text(Path(os.environ["STANDIN_PIDS"]), str(os.getpid()))
        time.sleep(600)
    done = 3 if (run.state / "checkpoint").exists() else 0
    sink = run.open_metrics(done or None)
    with progress(STAGE, total=6, done=done) as bar:
        for step in range(done + 1, 7):
            sink.log(step, {"loss": 1 / step, "reward/accuracy": step / 10, "odd@name": 1.0})
            bar.advance()
            (run.state / "checkpoint").write_text(f"step {step}")
            if step == 3 and STAGE == "rl":  # a resumed run has not said anything of it
                run.health({"colour": "yellow", "steps": 3, "findings": [FINDING]})
            if step == 3 and misbehaves("FAIL"):
                raise UserError(f"{STAGE}: made to fail; take STANDIN_FAIL away")
            time.sleep(1.0 if misbehaves("SLOW") else 0)
            while misbehaves("HELD"):  # by a file with the stage's name (@FILE), until it is removed
                time.sleep(0.05)
    own = getattr(run.params, STAGE + "_" * (STAGE == "register")).model_dump(mode="json")
    said = digest([STAGE, own, {path: digest_path(Path(path)) for path in INPUTS}])
    (run.artifacts / f"{STAGE}_curve.png").write_bytes(PIXEL)
    write_json(run.artifacts / "examples.json", [{"problem": "1+1=", "response": "2"}] * 20)
    for output in map(Path, OUTPUTS):
        if output.suffix == ".json":
            figures = FIGURES | {"response_length": 20 + int(said[:2], 16) / 256}
            if output.name == "metrics.json":
                write_json(output, {"rl": {"response_length": figures["response_length"]}})
                continue
            write_json(
                output,
                {
                    "models": dict.fromkeys(("base", "sft", "rl"), figures),
                    "benchmark": "test",
                    "comparisons": {},
                    "verdict": f"rl is better than sft ({said})",
                },
            )
            continue
        with written_aside(output) as folder:
            folder.mkdir()
            for name in ("sft", "rl", "dev", "test", "train", "pass_rates"):
                write_text(folder / f"{name}.jsonl", f"{said} {name}\n")
            write_json(folder / "summary.json", {"said": said, "benchmark": "test"})
            write_text(folder / "metrics.jsonl", '{"step": 1, "loss": 0.5}\n')
            responses = [RESPONSE | {"model": name, "correct": name == "rl"} for name in ("base", "sft", "rl")]
            write_jsonl(folder / "responses.jsonl", responses)
            (folder / "curve.png").write_bytes(PIXEL)
            write_text(folder / "report.md", f"# {STAGE}\n")
    measured = {f"{model}/{name}": value for model in ("sft", "rl") for name, value in FIGURES.items()}
    numbers = {name: value for name, value in measured.items() if isinstance(value, float)}
    run.summary({"loss": 0.1, **(numbers if STAGE == "evaluate" else {})})


if __name__ == "__main__":
    print(f"{STAGE} stands in", file=sys.stderr)
    run_stage(STAGE, work, inputs=INPUTS, outputs=OUTPUTS)
