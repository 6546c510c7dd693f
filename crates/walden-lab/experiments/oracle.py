"""Runs statements on an Oracle and prints what each one logged, as JSON.

Reads from standard input: {"dsn": "user/password@host:port/service", "setup": [SQL], "statements": [{"name", "sql"}]}.
The statistics are those of the session, so the user needs SELECT on v$mystat and v$statname.
Needs the driver `oracledb` (pip install oracledb), in its thin mode.

UNTESTED: there was no Oracle to try it with.
"""

import json
import re
import sys

COUNTERS = ("redo size", "undo change vector size", "redo entries", "db block changes")


def counters(cursor):
    cursor.execute(
        "SELECT n.name, s.value FROM v$mystat s JOIN v$statname n ON n.statistic# = s.statistic#"
        " WHERE n.name IN (:1, :2, :3, :4)",
        COUNTERS,
    )
    return dict(cursor.fetchall())


def main():
    try:
        import oracledb
    except ImportError:
        sys.exit("Python's package oracledb is not installed (pip install oracledb)")
    job = json.load(sys.stdin)
    parts = re.fullmatch(r"([^/]+)/(.*)@([^@]+)", job["dsn"])
    if not parts:
        sys.exit("USER/PASSWORD@HOST:PORT/SERVICE is expected")
    user, password, place = parts.groups()
    results = {}
    with oracledb.connect(user=user, password=password, dsn=place) as connection:
        cursor = connection.cursor()
        try:
            for sql in job["setup"]:
                cursor.execute(sql)
            connection.commit()
            for statement in job["statements"]:
                before = counters(cursor)
                cursor.execute(statement["sql"])
                connection.commit()
                after = counters(cursor)
                results[statement["name"]] = {name: after[name] - before[name] for name in COUNTERS}
        finally:
            cursor.execute("DROP TABLE demo PURGE")
    json.dump(results, sys.stdout)


main()
