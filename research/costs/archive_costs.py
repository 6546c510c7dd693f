#!/usr/bin/env python3
"""What keeping WAL in an object store costs a month: objects, requests, bytes, dollars, by program.

    research/costs/archive_costs.py                     print the tables
    research/costs/archive_costs.py --write             write them into research/costs/README.md
    research/costs/archive_costs.py --check             fail if README.md is not what this would write
    research/costs/archive_costs.py --days 90 --gb 500  another retention and volume

Prices are in prices.toml, what each program stores and asks for in layouts.toml. Nothing is rounded before it is printed.
Requests are those of a server that is not behind, which archives one segment after the other; restoring is not counted.
"""

import argparse
import pathlib
import sys
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
README = HERE / "README.md"
BEGIN, END = "<!-- tables: archive_costs.py --write -->\n", "<!-- end of tables -->\n"
SEGMENT = 16 * 1024 * 1024
# S3, Azure and Google bill binary gigabytes.
GB = 1024 * 1024 * 1024
MONTH = 30


def storage_cost(gigabytes, tiers):
    """Dollars per month for so many GB, each tier at its own price."""
    cost, below = 0.0, 0.0
    for limit, price in tiers:
        cost += max(0.0, min(gigabytes, limit) - below) * price
        below = limit
    return cost


def month(layout, store, gigabytes_a_day, days):
    """Objects and GB that are kept, requests of a month, and what they cost."""
    segments_a_day = gigabytes_a_day * GB / SEGMENT
    per_object = layout.get("pack_segments", 1)
    kept = gigabytes_a_day * days * layout["stored"]
    write = segments_a_day * MONTH * layout["write"]
    read = segments_a_day * MONTH * layout["read"]
    storage = storage_cost(kept, store["tiers"])
    requests = write / 1000 * store["write"] + read / 1000 * store["read"]
    return {
        "objects": segments_a_day * days / per_object,
        "kept": kept,
        "write": write,
        "read": read,
        "storage": storage,
        "requests": requests,
    }


def count(number):
    for limit, unit in [(1e9, "G"), (1e6, "M"), (1e3, "k")]:
        if number >= limit:
            return f"{number / limit:.3g} {unit}" if number / limit < 999.5 else f"{number / limit:.0f} {unit}"
    return f"{number:.0f}"


def size(gigabytes):
    for limit, unit in [(1024, "TB"), (1, "GB")]:
        if gigabytes >= limit:
            return f"{gigabytes / limit:.1f} {unit}"
    return f"{gigabytes * 1024:.0f} MB"


def dollars(amount):
    return f"{amount:,.2f}" if amount < 100 else f"{amount:,.0f}"


def tables(prices, layouts, volumes, days):
    lines = []
    for store in prices["store"]:
        lines += [f"### {store['name']}, {store['region']}", "", f"Prices: {store['as_of']}.", ""]
        for volume in volumes:
            lines += [f"{volume:,g} GB of WAL a day, kept for {days} days:", ""]
            lines += ["| program | objects | kept | write, list | read | storage $ | requests $ | $ a month |"]
            lines += ["|---|--:|--:|--:|--:|--:|--:|--:|"]
            for layout in layouts["layout"]:
                of = month(layout, store, volume, days)
                total = of["storage"] + of["requests"]
                cells = [layout["name"], count(of["objects"]), size(of["kept"]), count(of["write"]), count(of["read"])]
                cells += [dollars(of["storage"]), dollars(of["requests"]), f"**{dollars(total)}**"]
                lines.append("| " + " | ".join(cells) + " |")
            lines.append("")
    lines += ["| program | stored | write, list per segment | read per segment | assumptions |"]
    lines += ["|---|--:|--:|--:|---|"]
    for layout in layouts["layout"]:
        figures = f"{layout['stored']:.4f} | {layout['write']:g} | {layout['read']:g}"
        lines.append(f"| {layout['name']} | {figures} | {layout['note']} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, nargs="+", default=[1, 100, 10_000], help="GB of WAL a day")
    parser.add_argument("--days", type=int, default=30, help="days that WAL is kept")
    parser.add_argument("--write", action="store_true", help="write the tables into README.md")
    parser.add_argument("--check", action="store_true", help="fail if README.md has other tables")
    options = parser.parse_args()
    prices = tomllib.loads((HERE / "prices.toml").read_text())
    layouts = tomllib.loads((HERE / "layouts.toml").read_text())
    text = tables(prices, layouts, options.gb, options.days)
    if not (options.write or options.check):
        sys.stdout.write(text)
        return 0
    readme = README.read_text()
    before, rest = readme.split(BEGIN)
    after = rest.split(END)[1]
    wanted = before + BEGIN + "\n" + text + "\n" + END + after
    if options.write:
        README.write_text(wanted)
    elif wanted != readme:
        print(f"{README} is stale: run {pathlib.Path(__file__).name} --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
