#!/usr/bin/env bash
# Makes a release: the changelog's section, CITATION.cff, a commit, its tag, and the wheel, which is checked and installed into an
# empty environment. It pushes nothing: `git push --follow-tags` and the upload of the wheel are a person's.
#   tools/release.sh VERSION [FOLDER]      such as 0.2.0; the wheel lands in FOLDER, by default dist
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "error: $*" >&2; exit 2; }
version=${1:-}
out=${2:-dist}
[[ "$version" =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "give a version such as 0.2.0, not '$version'"
test -z "$(git status --porcelain)" || fail "there are uncommitted changes: commit or stash them"
! git rev-parse -q --verify "refs/tags/v$version" >/dev/null || fail "the tag v$version exists already"
uv=$(command -v uv || echo .venv/bin/uv)
python=${PYTHON:-.venv/bin/python}

"$python" tools/release_notes.py "$version"
git commit --quiet -am "Release $version"
git tag --annotate "v$version" --message "mathrl $version"
undo() { git tag --delete "v$version" >/dev/null; git reset --quiet --hard HEAD~1; fail "$1; nothing was released"; }

rm -rf "$out/mathrl-$version"*
"$uv" build --quiet --wheel --out-dir "$out" . || undo "the wheel cannot be built"
rm -rf build/lib
wheel="$out/mathrl-$version-py3-none-any.whl"
test -f "$wheel" || undo "the build made another version than $version: $(ls "$out")"
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
"$uv" venv --quiet --python "$python" "$empty/env" || undo "an empty environment cannot be made"
"$uv" pip install --quiet --python "$empty/env/bin/python" -c constraints.txt "$wheel" || undo "the wheel cannot be installed"
said=$(cd "$empty" && env -i PATH="$empty/env/bin:/usr/bin:/bin" HOME="$empty" mathrl --version) || undo "the installed mathrl does not start"
test "$said" = "mathrl $version" || undo "the installed wheel says '$said'"
graded=$(cd "$empty" && env -i PATH="$empty/env/bin:/usr/bin:/bin" HOME="$empty" python -c 'import mathrl; print(mathrl.grade("\\boxed{1/2}", ["0.5"]).correct)')
test "$graded" = True || undo "the installed verifier does not grade"
echo "$wheel is built and was tried. Next: tools/stranger.sh, git push --follow-tags, and the upload."
