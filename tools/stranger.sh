#!/usr/bin/env bash
# A stranger's machine: builds the wheel, installs it into an empty environment without this repository on the path, and
# makes two projects at the same time. The demo is run to its table. A project of own rows, an own model and an own
# reward is run to a registered model, gets a comment in the package (nothing runs again), is moved to another folder
# (nothing runs again), is reproduced, and is upgraded to a release with other results of RL (RL and what follows run
# again; with --keep nothing does).
#   tools/stranger.sh [FOLDER]      FOLDER is made, and must not exist; default: a temporary one, removed at the end
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
place=${1:-$(mktemp -d)/stranger}
test ! -e "$place" || { echo "error: $place exists"; exit 2; }
mkdir -p "$place"
place=$(cd "$place" && pwd)
uv=$(command -v uv || echo "$root/.venv/bin/uv")
python=${PYTHON:-$root/.venv/bin/python}
demo=""
ended() {
    if [ -n "$demo" ]; then kill -- "-$demo" 2>/dev/null && wait "$demo" || true; fi
    if [ -z "${1:-}" ]; then rm -rf "$(dirname "$place")"; fi
}
trap 'ended "${1:-}"' EXIT

step() { echo; echo "== $* ($SECONDS s)"; }
clean() {
    env -i PATH="$place/env/bin:/usr/bin:/bin" HOME="$place/home" ${OMP_NUM_THREADS:+OMP_NUM_THREADS="$OMP_NUM_THREADS"} "$@"
}
logged() {  # LOG COMMAND…: the log is shown where the command fails
    local log=$1
    shift
    "$@" >"$log" 2>&1 || { tail -30 "$log"; echo "FAILED: $*"; exit 1; }
}
ran() { grep -oE "^Running stage '[a-z]+'" "$1" | cut -d"'" -f2 | grep -vE '^(code|resolve)$' | tr '\n' ' ' || true; }
expect() { test "$2" = "$3" || { echo "FAILED: $1: expected '$3', found '$2'"; exit 1; }; echo "ok: $1: ${2:-nothing}"; }
few() { expect "$(git ls-files | wc -l) files in the project, at most 30" "$(test "$(git ls-files | wc -l)" -le 30 && echo yes)" yes; }
install() { "$uv" pip install --quiet --python "$place/env/bin/python" -c "$root/constraints.txt" "mathrl[platform] @ file://$(ls "$1"/*.whl)"; }

step "build the wheel"
git clone --quiet "$root" "$place/source"
build() { SETUPTOOLS_SCM_PRETEND_VERSION=$1 "$uv" build --quiet --wheel --out-dir "$2" "$place/source"; }
build 0.1.0 "$place/wheels"

step "install it into an empty environment"
"$uv" venv --quiet --python "$python" "$place/env"
install "$place/wheels"
tops=$(cd "$place/env"/lib/python*/site-packages && (ls -d mathrl flows tasks 2>/dev/null || true) | tr '\n' ' ')
expect "packages of mathrl's at the top of site-packages" "$tops" "mathrl "
package=$(echo "$place"/env/lib/python*/site-packages/mathrl)

step "the demo project, which goes on beside what follows"
cd "$place"
clean mathrl init demo --demo
cd demo
few
set -m  # with a process group of its own, which the end of this script ends
clean mathrl run pipeline >../demo.log 2>&1 &
demo=$!
set +m

step "a project of own rows, an own model of random weights and an own reward"
cd "$place"
clean python - <<'PYTHON'
import json
from pathlib import Path

from mathrl.models.base import make_base
from mathrl.params.run import FreshModel, Model

rows = [{"problem": f"{a}+{b}=", "answer": str(a + b)} for a in range(20) for b in range(20)]
Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
make_base(Model(base=FreshModel(hidden_size=32, intermediate_size=64, layers=1, heads=2), precision="float32"), Path("model"), 0)
PYTHON
logged init.log clean mathrl init own --data rows.jsonl --model model
cd own
few
clean python - <<'PYTHON'
from mathrl.compose import load_params, write_params

lengths = [f"{stage}.max_tokens=128" for stage in ("rl", "difficulty", "evaluate")]
sizes = ["difficulty.max_problems=32", "rl.steps=2", "rl.prompts_per_step=4", "rl.group_size=4", "run.processes=1"]
starts = ["rl.min_pass_at_8=0", "mix.components=[{source: own, weight: 1.0, band: [0.0, 1.0]}]"]
short = "{type: function, name: short, weight: 0.1, options: {path: own.rewards.short}}"
overrides = [*lengths, *sizes, *starts, "prompt.template=plain", f"reward.parts=[{{type: accuracy}}, {short}]"]
write_params(load_params(), load_params(overrides=overrides))
PYTHON
git add params
git -c user.name=a -c user.email=a@b.c commit --quiet --message "A small run with a reward of our own"
logged ../own.log clean mathrl run pipeline
grep registered ../own.log
expect "what ran" "$(ran ../own.log)" "curate sft difficulty mix rl evaluate register "

step "a comment in the installed package, then a plain dvc repro"
echo "# A comment." >>"$package/stages/rl.py"
logged ../comment.log clean dvc repro
expect "what ran" "$(ran ../comment.log)" ""

step "the project in another folder"
mv "$place/own" "$place/elsewhere"
cd "$place/elsewhere"
logged ../moved.log clean mathrl run pipeline
expect "what ran" "$(ran ../moved.log)" ""

step "reproduce the registered model"
logged ../reproduced.log clean mathrl models reproduce "$(sed -n 's/^registered: \([^ ]*\) .*/\1/p' ../own.log)"
grep "reproduced to the bit" ../reproduced.log

step "the demo's table"
wait "$demo" || { tail -30 "$place/demo.log"; exit 1; }
demo=""
grep -A8 'pass@1' "$place/demo.log"
expect "what ran" "$(ran "$place/demo.log")" "curate sft difficulty mix rl evaluate register "
expect "registered" "$(grep -c '^registered: ' "$place/demo.log")" 1
figures() { LC_ALL=C.UTF-8 sed -nE 's/^[|│] *\**(base|sft|rl)[^|│]*[|│] *\**([0-9.]+)\** [|│].*/\1 \2/Ip' "$1" | tr '[:upper:]' '[:lower:]' | head -3 | tr '\n' ' '; }
if [ "$(figures "$place/demo.log")" = "$(figures "$root/README.md")" ]; then
    echo "ok: the table is the README's"
else
    echo "the README's table is another: $(figures "$root/README.md"), here $(figures "$place/demo.log"); processors differ a little"
fi

step "an upgrade that changes the results of RL"
results=$place/source/mathrl/stages/results.toml
awk '/^rl = / { $3 += 1 } { print }' "$results" >"$results.new" && mv "$results.new" "$results"
sed -i 's/correction=ddof) + eps)/correction=ddof) + eps + 0.01)/' "$place/source/mathrl/algorithms/advantages.py"
expect "files of the release that differ" "$(git -C "$place/source" diff --name-only | wc -l)" 2
build 0.9.0 "$place/newer"
install "$place/newer"
clean mathrl run rl --dry-run 2>&1 | grep "code that has changed"
cp -r . ../kept
(cd ../kept && logged ../kept.log clean mathrl run pipeline --keep)
expect "what ran with --keep" "$(ran ../kept.log)" ""
logged ../upgrade.log clean dvc repro
expect "what ran without" "$(ran ../upgrade.log)" "rl evaluate register "
echo
echo "all of it worked ($SECONDS s)"
