"""docs/kubernetes against Prefect's own description of a Kubernetes work pool; no cluster is asked."""

import json
import re
import shlex
import subprocess
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from prefect.utilities.schema_tools.validation import ValidationError, validate
from ruamel.yaml import YAML

from mathrl.tasks import prefect_server as slots

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "kubernetes"
TEMPLATE: dict[str, Any] = json.loads((FOLDER / "job-template.json").read_text())
DEPLOYMENTS: list[dict[str, Any]] = YAML(typ="safe").load(FOLDER / "prefect.yaml")["deployments"]


def own_template() -> Any:
    """What `prefect work-pool create --type kubernetes` would take."""
    known = files("prefect.server.api") / "collections_data" / "views" / "aggregate-worker-metadata.json"
    return json.loads(known.read_text())["prefect-kubernetes"]["kubernetes"]["default_base_job_configuration"]


def test_the_job_template_is_prefects_with_a_volume_a_gpu_and_time_for_a_checkpoint() -> None:
    own = own_template()
    jsonschema.Draft7Validator.check_schema(TEMPLATE["variables"])
    assert own["variables"]["properties"].keys() <= TEMPLATE["variables"]["properties"].keys()
    assert own["job_configuration"].keys() == TEMPLATE["job_configuration"].keys()
    wanted = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(TEMPLATE["job_configuration"])))
    assert wanted <= TEMPLATE["variables"]["properties"].keys()
    pod = TEMPLATE["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "{{ gpus }}"
    assert pod["terminationGracePeriodSeconds"] > 8  # mathrl.learners.preemption: GRACE_SECONDS
    assert {each["name"] for each in pod["containers"][0]["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    # The checkout lies on a volume, wherever it is named.
    checkout = TEMPLATE["variables"]["properties"]["env"]["default"]["MATHRL_WORKSPACE"]
    assert Path(checkout).parent in {Path(each["mountPath"]) for each in pod["containers"][0]["volumeMounts"]}
    assert f"PYTHONPATH={checkout}\n" in (FOLDER / "Dockerfile").read_text()
    assert f"directory: {checkout}\n" in (FOLDER / "prefect.yaml").read_text()
    own_pod = own["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
    assert own_pod.keys() - pod.keys() == set()
    (login,) = pod["containers"][0]["envFrom"]
    page = (ROOT / "docs" / "how_to" / "team.md").read_text()
    assert f"kubectl create secret generic {login['secretRef']['name']} " in page


@pytest.mark.parametrize("gpu", ["", "1"])
def test_the_image_installs_what_make_installs(gpu: str) -> None:
    """With and without GPU=1 the shell makes of the Dockerfile's words a lock file and extras that exist."""
    text = (FOLDER / "Dockerfile").read_text()
    words = re.findall(r'-c ("[^"]+") \\\n\s*("[^"]+")', text)
    (line,) = [" ".join(pair) for pair in words]
    shell = subprocess.run(["bash", "-c", f"printf '%s\\n' {line}"], env={"GPU": gpu}, capture_output=True, text=True)
    lock, wanted = shell.stdout.split()
    assert (ROOT / Path(lock).name).is_file() and (Path(lock).name == "constraints-gpu.txt") == bool(gpu)
    extras = re.fullmatch(r"/opt/mathrl\[(.*)\]", wanted)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras is not None and set(extras[1].split(",")) <= project.keys()
    assert ({"vllm", "deepspeed"} <= set(extras[1].split(","))) == bool(gpu)
    copied = [word for names in re.findall(r"^COPY (?!--)(.*) /opt", text, re.M) for word in names.split()]
    assert all((ROOT / name).exists() for name in copied) and Path(lock).name in copied


def test_the_page_makes_the_limit_that_flows_wait_for(warm_python: Path) -> None:
    page = (ROOT / "docs" / "how_to" / "team.md").read_text()
    (line,) = re.findall(r"^    (prefect gcl create .*?)(?: +#.*)?$", page, re.M)
    words = shlex.split(line)
    assert words[3:] == [slots.SLOTS, "--limit", "4"]
    command = [warm_python / "python", "-m", *words[:3], "--help"]
    known = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--limit" in known.stdout and "NAME" in known.stdout


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda each: each["entrypoint"])
def test_a_deployment_fits_the_template_and_is_a_flow_of_this_machine_too(deployment: dict[str, Any]) -> None:
    here = YAML(typ="safe").load(ROOT / "prefect.yaml")["deployments"]
    assert deployment["entrypoint"] in {each["entrypoint"] for each in here}
    given = deployment["work_pool"]["job_variables"]
    assert given.keys() <= TEMPLATE["variables"]["properties"].keys()
    validate(given, TEMPLATE["variables"], raise_on_error=True)
    with pytest.raises(ValidationError, match="gpus"):
        validate(given | {"gpus": "one"}, TEMPLATE["variables"], raise_on_error=True)
