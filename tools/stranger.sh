#!/usr/bin/env bash
# A stranger's machine: builds the wheel, installs it into an empty environment without this repository on the path, and
# walks through the demo project: run, comment (nothing runs again), upgrade (what the release changes runs again), --keep.
#   tools/stranger.sh [FOLDER]      FOLDER is made, and must not exist; default: a temporary one, removed at the end
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
place=${1:-$(mktemp -d)/stranger}
test ! -e "$place" || { echo "error: $place exists"; exit 2; }
mkdir -p "$place"
test -n "${1:-}" || trap 'rm -rf "$(dirname "$place")"' EXIT
uv=$(command -v uv || echo "$root/.venv/bin/uv")
python=${PYTHON:-$root/.venv/bin/python}

step() { echo; echo "== $*"; }
clean() { env -i PATH="$place/env/bin:/usr/bin:/bin" HOME="$place/home" OMP_NUM_THREADS="${OMP_NUM_THREADS:-}" "$@"; }
ran() { grep -oE "^Running stage '[a-z]+'" "$1" | cut -d"'" -f2 | grep -vE '^(code|resolve)$' | tr '\n' ' ' || true; }
expect() { test "$2" = "$3" || { echo "FAILED: $1: expected '$3', found '$2'"; exit 1; }; echo "ok: $1: ${2:-nothing}"; }

step "build the wheel"
git -C "$root" clone --quiet "$root" "$place/source"
"$uv" build --quiet --wheel --out-dir "$place/wheels" "$place/source"
wheel=$(ls "$place"/wheels/*.whl)

step "install it into an empty environment"
"$uv" venv --quiet --python "$python" "$place/env"
"$uv" pip install --quiet --python "$place/env/bin/python" -c "$root/constraints.txt" "mathrl[platform] @ file://$wheel"
tops=$(cd "$place/env"/lib/python*/site-packages && (ls -d mathrl flows tasks 2>/dev/null || true) | tr '\n' ' ')
expect "packages of mathrl's at the top of site-packages" "$tops" "mathrl "

step "the demo project"
cd "$place"
clean mathrl init demo --demo
cd demo
expect "files, at most 30" "$(test "$(git ls-files | wc -l)" -le 30 && echo yes)" yes
clean mathrl run pipeline >../first.log 2>&1 || { tail -30 ../first.log; exit 1; }
grep -A8 'pass@1' ../first.log
grep registered ../first.log
expect "what ran" "$(ran ../first.log)" "curate sft difficulty mix rl evaluate register "

step "a project of own data and an own model"
cat >../rows.py <<'PYTHON'
import json, sys
rows = [json.loads(line) for line in open("data/curated/rl.jsonl", encoding="utf-8")][:400]
for row in rows:
    print(json.dumps({"problem": row["question"], "answer": row["answers"][0]}))
PYTHON
clean python ../rows.py >../rows.jsonl
clean mathrl init ../own --data ../rows.jsonl --model models/sft >../init.log
(cd ../own && expect "files, at most 30" "$(test "$(git ls-files | wc -l)" -le 30 && echo yes)" yes)
(cd ../own && clean mathrl run pipeline --set prompt.template=plain --set rl.steps=2 --set rl.max_tokens=64 \
    --set difficulty.max_tokens=64 --set evaluate.max_tokens=64 >../own.log 2>&1) || { tail -30 ../own.log; exit 1; }
grep registered ../own.log

step "a comment in the installed package, then a plain dvc repro"
package=$(echo "$place"/env/lib/python*/site-packages/mathrl)
echo "# A comment." >>"$package/stages/sft.py"
clean dvc repro >../comment.log 2>&1
expect "what ran" "$(ran ../comment.log)" ""

step "an upgrade that changes the results of RL"
sed -i 's/^rl = 1$/rl = 2/' "$place/source/mathrl/stages/results.toml"
sed -i 's/correction=ddof) + eps)/correction=ddof) + eps + 0.01)/' "$place/source/mathrl/algorithms/advantages.py"
sed -i 's/^__version__ = "\(.*\)"$/__version__ = "\1.post1"/' "$place/source/mathrl/__init__.py"
"$uv" build --quiet --wheel --out-dir "$place/newer" "$place/source"
"$uv" pip install --quiet --python "$place/env/bin/python" -c "$root/constraints.txt" "mathrl[platform] @ file://$(ls "$place"/newer/*.whl)"
clean mathrl run rl --dry-run 2>&1 | grep "code that has changed"
cp -r . ../kept
(cd ../kept && clean mathrl run pipeline --keep >../kept.log 2>&1)
expect "what ran with --keep" "$(ran ../kept.log)" ""
clean dvc repro >../upgrade.log 2>&1
expect "what ran without" "$(ran ../upgrade.log)" "rl evaluate register "
echo
echo "all of it worked"
