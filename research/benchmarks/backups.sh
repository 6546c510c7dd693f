#!/bin/bash
# Compares `walden backup create` with pgBackRest: the first backup, and one after a part of the database has changed.
#
# Usage, as the user that runs PostgreSQL: backups.sh WALDEN BIN FOLDER [SCALE]
#   WALDEN   the program
#   BIN      the folder with initdb, pg_ctl, psql and pgbench
#   FOLDER   a missing folder, which holds the server and all repositories
#   SCALE    of pgbench, 15 MB each [default: 60]
#
# Prints a row for each backup: wall-clock seconds, processor seconds of the client and its processes, processor seconds of the server's
# sessions, and bytes in the repository that the backup has added. The server and the repositories are on the same machine.
set -euo pipefail
walden=$1 bin=$2 folder=$3 scale=${4:-60}
mkdir "$folder"
data=$folder/data
export PGHOST=$folder PGPORT=5432 PGDATABASE=postgres
dsn="host=$folder port=5432 user=$(id -un)"
methods="protocol jobs1 jobs2"
push=true
for method in $methods; do
    "$walden" archive init --repo "$folder/$method" -o "$folder/$method.toml" >/dev/null
    push="$push && $walden archive push --repo $folder/$method %p"
done
"$bin/initdb" -D "$data" --no-sync --data-checksums --auth=trust >/dev/null
cat >>"$data/postgresql.conf" <<END
unix_socket_directories = '$folder'
listen_addresses = ''
shared_buffers = '256MB'
max_wal_size = '8GB'
checkpoint_timeout = '1h'
autovacuum = off
archive_mode = on
archive_command = '$push'
END
"$bin/pg_ctl" -D "$data" -l "$folder/log" -w start >/dev/null
trap '"$bin/pg_ctl" -D "$data" -m immediate stop >/dev/null' EXIT
"$bin/pgbench" -i -q -s "$scale" >/dev/null 2>&1
"$bin/psql" -qc CHECKPOINT -c 'SELECT pg_switch_wal()' >/dev/null
cat >"$folder/pgbackrest.conf" <<END
[global]
repo1-path=$folder/pgbackrest
log-path=$folder
lock-path=$folder
spool-path=$folder
compress-type=zst
compress-level=3
start-fast=y
archive-check=n
process-max=2
[main]
pg1-path=$data
pg1-socket-path=$folder
END
backrest="pgbackrest --config=$folder/pgbackrest.conf --stanza=main"
$backrest stanza-create >/dev/null

# The processor time of the server's sessions that have ended, in ticks.
sessions() { awk '{print $16 + $17}' "/proc/$(head -1 "$data/postmaster.pid")/stat"; }
bytes() { du -sb "$1" | cut -f1; }
ticks=$(getconf CLK_TCK)
measure() { # NAME REPOSITORY COMMAND...
    local name=$1 repo=$2
    shift 2
    local before after stored times
    stored=$(bytes "$repo") before=$(sessions)
    times=$({ TIMEFORMAT='%R %U %S'; time "$@" >"$folder/output" 2>&1; } 2>&1) || { cat "$folder/output"; exit 1; }
    sleep 1
    after=$(sessions)
    read -r wall user system <<<"$times"
    awk -v name="$name" -v wall="$wall" -v client="$(echo "$user $system" | awk '{print $1 + $2}')" \
        -v server="$(((after - before)))" -v ticks="$ticks" -v bytes="$(($(bytes "$repo") - stored))" \
        'BEGIN { printf "| %s | %.1f | %.1f | %.1f | %.0f |\n", name, wall, client, server / ticks, bytes / 1e6 }'
}
create() { # METHOD JOBS
    "$walden" backup create "$dsn" --repo "$folder/$1" --jobs "$2" --threads 2 --checkpoint fast --wait-for-wal 0 || [ $? = 1 ]
}
# The WAL of all backups before is not part of a measurement.
settle() {
    "$bin/psql" -qc CHECKPOINT -c 'SELECT pg_switch_wal()' >/dev/null
    while ls "$data/pg_wal/archive_status" | grep -q ready; do sleep 1; done
    cat "$data"/base/*/* >/dev/null
}
round() { # NAME KIND
    settle; measure "$1, --jobs 0 (BASE_BACKUP)" "$folder/protocol/base" create protocol 0
    settle; measure "$1, --jobs 1" "$folder/jobs1/base" create jobs1 1
    settle; measure "$1, --jobs 2" "$folder/jobs2/base" create jobs2 2
    settle; measure "$1, pgBackRest $2, process-max=2" "$folder/pgbackrest" $backrest backup --type="$2"
}
mkdir -p "$folder"/{protocol,jobs1,jobs2}/base
echo "database: $("$bin/psql" -Atc "SELECT pg_size_pretty(sum(pg_database_size(oid))) FROM pg_database"), $("$walden" --version | head -1), $(pgbackrest version), $("$bin/postgres" --version), $(nproc) cores"
echo "| backup | wall s | client s | server s | stored MB |"
echo "|---|---|---|---|---|"
round first full
"$bin/psql" -qc "UPDATE pgbench_accounts SET abalance = 1 WHERE aid <= $scale * 1000"
round "second, 1 % of the rows changed" incr
round "third, nothing changed" incr
