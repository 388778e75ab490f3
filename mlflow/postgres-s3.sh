#!/bin/sh
# MLflow on this machine over PostgreSQL and an S3-compatible store: mlflow/postgres-s3.sh [port]
# Further words go to `mlflow server`; one that listens to others (mlflow/README.md) must ask for a login.
#
# From the environment, so that no secret is in a file of the repository:
#   MLFLOW_POSTGRES         postgresql://USER:PASSWORD@HOST:PORT/DATABASE; the tables are made on the first start
#   MLFLOW_BUCKET           s3://BUCKET/FOLDER
#   MLFLOW_S3_ENDPOINT_URL  such as http://127.0.0.1:9000 (MinIO); empty: AWS
#   AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY
# Clients need none of these: the server hands artifacts on (`pip install -e '.[platform,s3]'` is for its machine alone).
set -eu
. "$(dirname "$0")/login.sh"
port="${1:-5000}"
[ $# -eq 0 ] || shift
: "${MLFLOW_POSTGRES:?give it as postgresql://USER:PASSWORD@HOST:PORT/DATABASE}"
: "${MLFLOW_BUCKET:?give it as s3://BUCKET/FOLDER}"
: "${AWS_ACCESS_KEY_ID:?the key of the artifact store}"
: "${AWS_SECRET_ACCESS_KEY:?the secret key of the artifact store}"
# By the environment and not as options: what is in a command line, every user of the machine can read.
export MLFLOW_BACKEND_STORE_URI="postgresql+psycopg2://${MLFLOW_POSTGRES#postgresql://}"
export MLFLOW_DISABLE_TELEMETRY=true DO_NOT_TRACK=1 MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false
exec python -m mlflow server --host 127.0.0.1 --port "$port" --workers 1 \
  --artifacts-destination "$MLFLOW_BUCKET" "$@"
