"""Two network namespaces as two machines: torchrun on both, gloo between them, one visible GPU per rank."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ALLOWED = shutil.which("unshare") and not subprocess.run(["unshare", "-rn", "true"], check=False).returncode
pytestmark = pytest.mark.skipif(not (ALLOWED and shutil.which("ip")), reason="network namespaces are not allowed here")
SCRIPT = r"""
set -e
ip link set lo up
unshare -n sleep 900 &
other=$!
# Until it has a network of its own, both ends would be in this one.
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.05; done
ip link add machine0 type veth peer name machine1 netns $other
ip addr add 10.77.0.1/24 dev machine0; ip link set machine0 up
on_other="nsenter -t $other -n"
$on_other ip link set lo up; $on_other ip addr add 10.77.0.2/24 dev machine1; $on_other ip link set machine1 up
torchrun="$PYTHON -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --master-addr 10.77.0.1 --master-port 29511"
start() {
    GLOO_SOCKET_IFNAME=machine$1 CUDA_VISIBLE_DEVICES=$1 $2 $torchrun --node-rank $1 "$RANK_SCRIPT" "$OUT" \
        > "$OUT/$1.log" 2>&1 &
}
start 0 ""
start 1 "$on_other"
until [ -e "$OUT/first-0.json" ] && [ -e "$OUT/first-1.json" ]; do sleep 0.1; done
ip link set machine0 down
touch "$OUT/cut"
wait
"""


def test_ranks_of_two_machines_exchange_and_name_a_network_that_breaks(tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nprintf 'GPU 0: H100 (UUID: GPU-a)\\nGPU 1: H100 (UUID: GPU-b)\\n'\n")
    smi.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(HERE.parents[1]),
        "PYTHON": sys.executable,
        "RANK_SCRIPT": str(HERE / "two_machines.py"),
        "OUT": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    machines = subprocess.Popen(["unshare", "-rn", "bash", "-c", SCRIPT], env=environment, start_new_session=True)
    messages = [tmp_path / f"second-{rank}.txt" for rank in (0, 1)]
    try:
        deadline = time.monotonic() + 800
        while not all(file.exists() for file in messages):
            logs = "\n".join(file.read_text()[-3000:] for file in tmp_path.glob("*.log"))
            assert machines.poll() is None and time.monotonic() < deadline, logs
            time.sleep(0.1)
    finally:
        os.killpg(machines.pid, signal.SIGKILL)
        machines.wait()
    for rank in (0, 1):
        first = json.loads((tmp_path / f"first-{rank}.json").read_text())
        assert first == {"sum": 2.0, "gpus": 1, "gpu": 0, "gathered": ["0", "1"]}
    assert re.match(r"rank 0 waited \d+ s in `main` \(two_machines\.py, line ", messages[0].read_text())
    assert "but rank 1 did not come" in messages[0].read_text()
    assert re.match(r"rank 1 waited \d+ s in ", messages[1].read_text())
