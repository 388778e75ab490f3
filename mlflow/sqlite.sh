#!/bin/sh
# MLflow on this machine over the sqlite file that runs without a server write to: mlflow/sqlite.sh [port]
# Further words go to `mlflow server`; one that listens to others (mlflow/README.md) must ask for a login.
set -eu
. "$(dirname "$0")/login.sh"
port="${1:-5000}"
[ $# -eq 0 ] || shift
home="${MATHRL_HOME:-$(git rev-parse --path-format=absolute --git-common-dir)/../.mathrl}"
mkdir -p "$home/artifacts"
home="$(cd "$home" && pwd)"
export MLFLOW_DISABLE_TELEMETRY=true DO_NOT_TRACK=1 MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false
exec python -m mlflow server --host 127.0.0.1 --port "$port" --workers 1 \
  --backend-store-uri "sqlite:///$home/mlflow.db" --artifacts-destination "file://$home/artifacts" "$@"
