"""`mathrl launch`: what it refuses, and the job files that it writes; the batch script is run with a small Slurm."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from mathrl.cli.launch import LaunchStep, Machines, job_file, job_values, plan_steps
from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.params import Params
from tests.cli.test_command import process
from tests.platform.conftest import make_checkout

ROOT = Path(__file__).parents[2]
SLURM = {  # what the script asks of Slurm and DVC, each call a line of `calls`
    "scontrol": 'echo "scontrol $*" >> "$TRIAL/calls"; [ "$1" = show ] && printf "a1\\na2\\na3\\n" || true',
    "squeue": 'cat "$TRIAL/state"',
    "dvc": 'echo "dvc $*" >> "$TRIAL/calls"; [ "$1 $3" != "status rl" ]',
    "scancel": 'echo "scancel $*" >> "$TRIAL/calls"; kill -TERM "$(cat "$TRIAL/step")"',
    "srun": 'echo "srun $*" >> "$TRIAL/calls"; [ -e "$TRIAL/long" ] || exit 0; '
    'trap "kill %1; exit 1" TERM; set -m; sleep 60 & echo $$ > "$TRIAL/aside"; mv "$TRIAL/aside" "$TRIAL/step"; wait',
}


def params(*overrides: str, preset: str | None = None) -> Params:
    return load_params(ROOT / "params", preset=preset, overrides=overrides)


def written(target: str, machines: Machines, given: Params, **values: Any) -> str:
    steps = plan_steps(target, given, servers=machines.sampler_nodes > 0)
    described = {
        "verl_python": "/shared/verl/bin/python",
        "name": "mathrl-x",
        "command": "mathrl launch …",
        "settings": "--set rl.optimizer.lr=1",
        "file": "job file",
    }
    values = {**described, "folder": "/shared/my work/runs/x", "slurm": not machines.image, **values}
    return job_file(machines, job_values(target, steps, machines, given) | values)


def script(target: str, machines: Machines, given: Params, **values: Any) -> str:
    return written(target, machines, given, bin="/shared/bin", log="/shared/x-%j.log", **values)


def jobset(target: str, machines: Machines, given: Params) -> dict[str, Any]:
    loaded: dict[str, Any] = YAML(typ="safe").load(written(target, machines, given, mount="/shared", mlflow="http://m"))
    return loaded


def test_stages_that_train_alternate_with_those_of_one_machine() -> None:
    whole = [
        LaunchStep("curate", False),
        LaunchStep("sft", True),
        LaunchStep("mix", False),
        LaunchStep("rl", True),
        LaunchStep("register", False),
    ]
    assert plan_steps("pipeline", params(), servers=False) == whole
    assert plan_steps("rl", params(), servers=False) == whole[:4]
    no_sft = params("sft.steps=0")
    assert plan_steps("rl", no_sft, servers=False) == [LaunchStep("mix", False), LaunchStep("rl", True)]
    cut = [LaunchStep("sft", False), LaunchStep("mix", False), LaunchStep("rl", True)]
    assert plan_steps("rl", no_sft, servers=True) == cut, "the servers start before difficulty samples"


@pytest.mark.parametrize(
    ("target", "servers", "overrides", "why"),
    [
        (
            "curate",
            False,
            [],
            "for what trains: sft, difficulty, mix, rl, evaluate, register or pipeline, not 'curate'",
        ),
        ("pages", False, [], "not 'pages'"),
        ("dpo", False, [], "not 'dpo'"),
        ("mix", False, ["sft.steps=0"], "for what trains: rl, evaluate, register or pipeline"),
        ("sft", True, [], "--sampler-nodes: nothing samples up to the stage sft"),
    ],
)
def test_a_stage_without_ranks_or_samples_is_refused(
    target: str, servers: bool, overrides: Sequence[str], why: str
) -> None:
    with pytest.raises(UserError, match=why):
        plan_steps(target, params(*overrides), servers=servers)


def test_the_nodes_follow_from_the_ranks() -> None:
    large = params(preset="dapo-32b")
    values = job_values("rl", [], Machines(), large)
    assert (values["nodes"], values["gpus"], values["servers"]) == (16, 8, 0)
    halves = params("rollout.vllm.tensor_parallel=2")
    assert job_values("rl", [], Machines(nodes=1, sampler_nodes=3), halves)["servers"] == 12
    with pytest.raises(UserError, match=r"run\.processes=2 does not fill nodes of 8 ranks: give --nodes"):
        job_values("rl", [], Machines(), params())
    with pytest.raises(UserError, match=r"--ranks-per-node 3 is no multiple of rollout\.vllm.tensor_parallel=2"):
        job_values("rl", [], Machines(nodes=1, ranks_per_node=3), halves)


def test_the_batch_script_says_what_was_asked_for() -> None:
    text = script("rl", Machines(nodes=2, ranks_per_node=4, sampler_nodes=1, time="2-00"), params())
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    options = {line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")}
    assert {"nodes=3", "gpus-per-node=4", "time=2-00", "signal=B:TERM@120", "requeue"} <= options
    assert "cd '/shared/my work/runs/x'\n" in text
    assert "--nnodes 2 --nproc-per-node 4 " in text and "--ntasks=4 --nodelist" in text
    order = text[text.rindex("}\n") :].split()
    assert order[:9] == [
        "}",
        "first_node",
        "curate",
        "all_nodes",
        "sft",
        "start_servers",
        "first_node",
        "mix",
        "all_nodes",
    ]
    plain = script("rl", Machines(nodes=2, ranks_per_node=1), params("run.device=cpu"))
    assert "gpus" not in plain and "start_servers" not in plain


def small_slurm(folder: Path, state: str) -> "subprocess.Popen[str]":
    """The batch script of SFT and RL on two nodes, started with stand-ins for Slurm's commands and DVC's."""
    text = script("rl", Machines(nodes=2, ranks_per_node=1), params("run.device=cpu"), folder=str(folder))
    for name, body in SLURM.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    (folder / "state").write_text(f"{state}\n")
    job = text.replace("export PATH=/shared/bin:", f"export PATH={folder}:")
    environment = os.environ | {"TRIAL": str(folder), "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a[1-3]"}
    return subprocess.Popen(
        ["bash", "-c", job], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def test_the_batch_script_runs_each_stage_that_is_out_of_date(tmp_path: Path) -> None:
    job = small_slurm(tmp_path, "RUNNING")
    assert job.communicate(timeout=300)[0].endswith("== done\n") and job.returncode == 0
    show, *curate_and_sft, mix, rl, ranks, commit = calls(tmp_path)
    assert show == "scontrol show hostnames a[1-3]"
    assert curate_and_sft == ["dvc repro curate", "dvc status --quiet sft"], "SFT is up to date"
    assert (mix, rl, commit) == ("dvc repro mix", "dvc status --quiet rl", "dvc commit --force rl")
    assert "--nodelist=a1,a2 " in ranks and "--rdzv-endpoint a1:29407 -m mathrl.stages.rl" in ranks


@pytest.mark.parametrize(("state", "requeued"), [("RUNNING", True), ("COMPLETING", False)])
def test_a_warned_job_ends_its_ranks_and_goes_back_into_the_queue(tmp_path: Path, state: str, requeued: bool) -> None:
    """Cancelled or requeued by Slurm itself, it is no longer running, and does not requeue itself."""
    (tmp_path / "long").touch()
    job = small_slurm(tmp_path, state)
    deadline = time.monotonic() + 300
    while not (tmp_path / "step").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(job.pid, signal.SIGTERM)
    if not requeued:
        os.kill(int((tmp_path / "step").read_text()), signal.SIGTERM)
    job.communicate(timeout=300)
    assert job.returncode == 75
    ended = ["scancel --signal=TERM 7", "scontrol requeue 7"]
    assert [line for line in calls(tmp_path) if line in ended] == (ended if requeued else [])
    assert "dvc commit --force rl" not in calls(tmp_path)


def verl_params(*overrides: str) -> Params:
    verl = ("rl.engine=verl", "rl.ema=null", "rl.optimizer.type=adamw", "rl.optimizer.schedule=constant",
            "rl.optimizer.warmup_steps=0", "rl.optimizer.lr=1e-6", "rl.engine.ray_address=auto",
            "rl.engine.nodes=2", "run.processes=8")  # fmt: skip
    return params(*verl, *overrides)


def test_verl_starts_once_on_ray_nodes_in_both_job_files() -> None:
    steps = plan_steps("pipeline", verl_params(), servers=False)
    assert [(step.stage, step.ranks, step.ray) for step in steps][-3:] == [
        ("mix", False, False), ("rl", False, True), ("register", False, False),
    ]  # fmt: skip
    text = script("rl", Machines(), verl_params("sft.steps=0"))
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert text[text.rindex("}\n") :].split()[1:5] == ["first_node", "mix", "ray_nodes", "rl"]
    assert "#SBATCH --nodes=2\n" in text and text.count("start --head") == 1
    jobs = jobset("rl", Machines(image="r/mathrl:1"), verl_params())["spec"]["replicatedJobs"]
    (rl,) = [job for job in jobs if job["name"] == "rl"]
    assert rl["template"]["spec"]["completions"] == 2 and jobs[-1]["name"] == "rl", "dvc repro commits it"
    (container,) = rl["template"]["spec"]["template"]["spec"]["containers"]
    assert "torchrun" not in container["args"][0] and container["args"][0].count("dvc repro rl") == 1
    assert subprocess.run(["bash", "-n"], input=container["args"][0], text=True, check=False).returncode == 0


def test_the_ray_of_the_batch_script_has_every_node_before_the_stage_starts_and_ends_with_it(tmp_path: Path) -> None:
    """With stand-ins for Slurm, DVC and Ray's commands; srun starts a process per node, as Slurm does."""
    text = script("rl", Machines(), verl_params("sft.steps=0"), folder=str(tmp_path), verl_python=f"{tmp_path}/python")
    starts = 'for node in a1 a2; do SLURMD_NODENAME=$node "${@:4}" & done; wait'
    node = 'echo "ray $*" >> "$TRIAL/calls"; [ "$1" = start ] || { [ -e "$TRIAL/head" ]; exit; }; '
    node += 'case "$*" in *--head*) touch "$TRIAL/head";; *) touch "$TRIAL/joined";; esac; exec sleep 60'
    commands = SLURM | {
        "srun": starts, "ray": node, "python": '[ -e "$TRIAL/joined" ]',
        "dvc": 'echo "dvc $*, $RAY_ADDRESS, $RAY_AUTH_MODE, ${#RAY_AUTH_TOKEN}" >> "$TRIAL/calls"; [ "$1" != status ]',
    }  # fmt: skip
    for name, body in commands.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "state").write_text("RUNNING\n")
    job = text.replace("export PATH=/shared/bin:", f"export PATH={tmp_path}:")
    environment = os.environ | {"TRIAL": str(tmp_path), "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a[1-2]"}
    done = subprocess.run(
        ["bash", "-c", job], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0 and done.stdout.endswith("== done\n"), done.stdout + done.stderr
    lines = calls(tmp_path)
    head = "ray start --head --node-ip-address=a1 --port=29407 --num-gpus=8 --include-dashboard=false --block"
    assert lines.count(head) == 1
    assert lines.count("ray start --address a1:29407 --node-ip-address=a2 --num-gpus=8 --block") == 1
    assert lines[-1] == "dvc repro rl, a1:29407, token, 64" and lines.count(lines[-1]) == 1


def test_the_job_set_has_a_job_per_step_and_each_waits_for_the_one_before() -> None:
    given = Machines(nodes=2, ranks_per_node=4, sampler_nodes=1, image="r/mathrl:1")
    spec = jobset("rl", given, params("rollout.vllm.tensor_parallel=2"))["spec"]
    jobs = {job["name"]: job for job in spec["replicatedJobs"]}
    assert [*jobs] == ["curate", "sft", "samplers", "mix", "rl", "end"]
    waits = [(job["dependsOn"][0]["name"], job["dependsOn"][0]["status"]) for job in [*jobs.values()][1:]]
    complete = [(name, "Ready" if name == "samplers" else "Complete") for name in [*jobs][:-1]]
    assert waits == complete and "dependsOn" not in jobs["curate"]
    assert spec["successPolicy"]["targetReplicatedJobs"] == ["end"], "the samplers never complete"
    pods = {name: job["template"]["spec"]["template"]["spec"] for name, job in jobs.items()}
    assert [job["template"]["spec"]["completions"] for job in jobs.values()] == [1, 2, 2, 1, 2, 1]
    gpus = {name: pod["containers"][0].get("resources") for name, pod in pods.items()}
    assert gpus["rl"] == {"limits": {"nvidia.com/gpu": "4"}} and gpus["samplers"] == {"limits": {"nvidia.com/gpu": "2"}}
    assert gpus["end"] is None
    for name, pod in pods.items():
        (container,) = pod["containers"]
        assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
        assert pod["terminationGracePeriodSeconds"] > 30 and pod["restartPolicy"] == "Never"
        (text,) = container["args"]
        assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0, name
        variables = {each["name"]: each.get("value") for each in container["env"]}
        urls = ",".join(f"http://mathrl-x-samplers-0-{number}.mathrl-x:8001" for number in (0, 1))
        assert variables.get("MATHRL_SERVERS") == (None if name == "samplers" else urls)
    (trains,) = pods["rl"]["containers"][0]["args"]
    assert "--rdzv-endpoint mathrl-x-rl-0-0.mathrl-x:29400 -m mathrl.stages.rl" in trains
    assert "dvc commit --force sft" in pods["mix"]["containers"][0]["args"][0]


def test_a_pod_of_one_machine_commits_what_the_ranks_made_and_marks_what_is_up_to_date(tmp_path: Path) -> None:
    spec = jobset("pipeline", Machines(nodes=2, image="r/mathrl:1"), params())["spec"]
    (mix,) = [job for job in spec["replicatedJobs"] if job["name"] == "mix"]
    (text,) = mix["template"]["spec"]["template"]["spec"]["containers"][0]["args"]
    (tmp_path / ".dvc" / "tmp").mkdir(parents=True)
    (tmp_path / "dvc").write_text('#!/bin/bash\necho "$*" >> calls\n')
    (tmp_path / "dvc").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for expected in (["commit --force sft", "repro mix", "status --quiet rl"], ["repro mix", "status --quiet rl"]):
        (tmp_path / "calls").unlink(missing_ok=True)
        subprocess.run(["bash", "-c", text], cwd=tmp_path, env=environment, check=True)
        assert calls(tmp_path) == expected
        (tmp_path / ".dvc/tmp/up-to-date-sft").touch()  # as the pod before it does when nothing is to be trained
    assert (tmp_path / ".dvc/tmp/up-to-date-rl").exists()


def test_the_command_prepares_the_worktree_in_which_the_job_runs(tmp_path: Path, warm_python: Path) -> None:
    checkout = make_checkout(tmp_path / "checkout", replaced=())
    checkout.use_python(warm_python)
    words = ("--nodes", "2", "--sampler-nodes", "1", "--set", "rl.optimizer.lr=0.002")
    done = checkout.mathrl("launch", "rl", "--slurm", *words)
    file, where, submit = done.stdout.splitlines()
    (folder,) = (checkout.folder / "runs").iterdir()
    assert where == f"it runs in {folder}; submit it with:" and submit == f"sbatch {file}"
    assert f"\ncd {folder}\n" in Path(file).read_text() and Path(file).parent == checkout.home / "launch"
    given = load_params(folder / "params")
    weights = checkout.home / "state" / "weights"
    assert given.rl.optimizer.lr == 0.002 and given.rollout.engine == "vllm_server"
    assert given.rollout.servers.folder == str(weights) and weights.is_dir()
    assert given.rollout.servers.weights == "auto", "NCCL where the nodes have GPUs"


def test_the_command_refuses_in_one_sentence_and_writes_nothing(tmp_path: Path, warm_python: Path) -> None:
    for words, why in (
        ([], "error: give either --slurm or --kubernetes\n"),
        (["--kubernetes"], "error: --kubernetes needs --image, such as "),
        (["--slurm", "--time", "soon"], "error: --time soon: write hours as 24:00:00 or days as 2-00:00:00\n"),
    ):
        command = (warm_python / "python", "launch", "rl", *words, "--output", str(tmp_path / "job"))
        done = process(*command, MATHRL_HOME=str(tmp_path))
        assert done.returncode == 2 and done.stderr.startswith(why) and done.stderr.count("\n") == 1
    assert not (tmp_path / "job").exists()
