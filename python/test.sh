#!/usr/bin/env bash
# Builds the package's wheel with the workspace's target folder, installs it into an environment under target/, and runs its tests.
# Where there is Java, Spark's too. The arguments are pytest's.
set -euo pipefail
cd "$(dirname "$0")"
environment=../target/python
[ -x "$environment/bin/python" ] || python3 -m venv "$environment"

packages=('maturin>=1.9,<2' duckdb pandas polars pyarrow pytest)
command -v java >/dev/null && packages+=('pyspark>=4.1,<5')
"$environment/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"

rm -rf ../target/python-wheels
"$environment/bin/maturin" build --quiet --profile dev --locked --out ../target/python-wheels
"$environment/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps ../target/python-wheels/walden-*.whl

exec "$environment/bin/python" -m pytest --quiet "$@"
