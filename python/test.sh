#!/usr/bin/env bash
# Builds the package's wheel in the workspace's target folder, installs it into an environment under target/,
# and runs its tests, with those of Spark if Java is installed. The arguments are pytest's; --environment alone
# only installs the packages that the tests need. Tests without their requirements are skipped, or fail if
# WALDEN_REQUIRE names the requirement: all, or a list of walden, moto, sail, spark (tests/conftest.py).
#
# With WALDEN_PYTHON_LIBRARY=../target/debug/lib_walden.so, which `cargo build --workspace` builds, the package
# is assembled from that library. A wheel needs other features of the dependencies, so half of them would be
# built again.
set -euo pipefail
cd "$(dirname "$0")"
environment=../target/python
[ -x "$environment/bin/python" ] || python3 -m venv "$environment"

packages=('maturin>=1.9,<2' duckdb mypy pandas pandas-stubs polars pyarrow pytest)
# An object store in memory; moto[server] also has Amazon's other services, and three times the size.
packages+=('moto[s3]' flask flask-cors)
command -v java >/dev/null && packages+=('pyspark>=4.1,<5')
"$environment/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"
[ "${1:-}" != --environment ] || exit 0

if [ -n "${WALDEN_PYTHON_LIBRARY:-}" ]; then
  "$environment/bin/pip" uninstall --quiet --yes walden
  package=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/walden
  rm -rf "$package"
  cp -r python/walden "$package"
  cp "$WALDEN_PYTHON_LIBRARY" "$package/_walden.abi3.so"
else
  rm -rf ../target/python-wheels
  "$environment/bin/maturin" build --quiet --profile dev --locked --out ../target/python-wheels
  "$environment/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps ../target/python-wheels/walden-*.whl
fi

exec "$environment/bin/python" -m pytest --quiet "$@"
