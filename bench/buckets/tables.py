"""Tables of bench/accounts_vertex.py: epochs beside the account's, the usual ways beside
segtrain's, and CPU time.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from buckets.sides import (
    ACCOUNT,
    ACCOUNT_BUCKET,
    ACCOUNT_IMAGES,
    BATCH,
    BUCKET_SOURCES,
    CACHED,
    SOURCES,
)
from page import spread

Results = list[dict[str, Any]]
TITLES = {
    "local": "local files",
    "local shards": "local shards",
    "mount": "bucket, files through a FUSE mount",
    "files": "bucket, single files",
    "shards": "bucket, shards",
    **{source: f"bucket, {source}" for source in CACHED},
}


def line(result: dict[str, Any]) -> str:
    """The result of one side, for the screen."""
    head = f"round {result['round']}  {result['case']:6} {result['name']:18} {result['source']:13}"
    if "error" in result:
        return f"{head} {result['error']}"
    if result["case"] == "bound":
        return f"{head} {result['cpu_ms']:6.2f} CPU ms  {result['rate']:7.1f}/s"
    return f"{head} {epoch_s(result):7.0f} s per epoch  {result['cpu_ms']:6.2f} CPU ms  others {result['others']:.2f} cores"


def epoch_s(result: dict[str, Any]) -> float:
    """Seconds of an epoch of the account's images, by the time of a step."""
    return result["step_s"] * ACCOUNT_IMAGES / (BATCH * result["ranks"])


def results_of(results: Results, case: str, name: str, source: str) -> dict[int, dict[str, Any]]:
    """Round -> result of a side."""
    wanted = (case, name, source)
    return {
        r["round"]: r
        for r in results
        if (r["case"], r["name"], r["source"]) == wanted and "error" not in r
    }


def ratios(results: Results, name: str, source: str) -> list[float]:
    """Speed of a source relative to local files, in each round."""
    base, other = (results_of(results, "spare", name, key) for key in ("local", source))
    return [base[number]["step_s"] / other[number]["step_s"] for number in base if number in other]


def spare_table(results: Results) -> list[str]:
    """Epochs with cores to spare, strategy by strategy."""
    table = [
        "| strategy | data | epoch, s | of local speed | CPU ms per sample | cores of other programs | account: epoch, s | account: of local speed |",
        "|---" * 8 + "|",
    ]
    for name, (gpus, local) in ACCOUNT.items():
        for source in (*SOURCES, *(CACHED if name == "single" else ())):
            rows = results_of(results, "spare", name, source)
            account = local if source == "local" else ACCOUNT_BUCKET.get((name, source))
            if name == "dp" and not rows and not account:
                continue
            account_cells = (
                f"{account} ({gpus} GPU{'s' * (gpus > 1)}) | {local / account:.0%}"
                if account
                else " | "
            )
            if rows:
                figures = (
                    f"{spread(map(epoch_s, rows.values()), '.0f')} | {spread(ratios(results, name, source), '.1%')} | "
                    f"{spread((r['cpu_ms'] for r in rows.values()), '.2f')} | {spread((r['others'] for r in rows.values()), '.1f')}"
                )
            elif name == "dp":
                figures = "needs two GPUs | | | "
            else:
                figures = f"{failure(results, 'spare', name, source)} | | | "
            table.append(f"| {name} | {TITLES[source]} | {figures} | {account_cells} |")
    return table


def failure(results: Results, case: str, name: str, source: str) -> str:
    """Why a side has no figures."""
    wanted = (case, name, source)
    errors = [
        r["error"]
        for r in results
        if (r["case"], r["name"], r["source"]) == wanted and "error" in r
    ]
    return errors[-1] if errors else "not measured"


def naive_table(results: Results) -> list[str]:
    """Other ways to read the same server on the device of ``single``, beside segtrain's."""
    table = [
        "| reader | data | epoch, s | of local speed | CPU ms per sample |",
        "|---" * 5 + "|",
    ]
    sides = [("spare", "single", source) for source in SOURCES]
    sides += list(
        dict.fromkeys((r["case"], r["name"], r["source"]) for r in results if r["case"] == "naive")
    )
    own = results_of(results, "naive", "torch DataLoader", "local")
    for case, name, source in sides:
        rows = results_of(results, case, name, source)
        base = (
            results_of(results, "spare", "single", "local") if case == "spare" or not own else own
        )
        reader = "**segtrain**" if case == "spare" else name
        if not rows:
            table.append(
                f"| {reader} | {TITLES[source]} | {failure(results, case, name, source)} | | |"
            )
            continue
        part = [
            base[number]["step_s"] / row["step_s"] for number, row in rows.items() if number in base
        ]
        table.append(
            f"| {reader} | {TITLES[source]} | {spread(map(epoch_s, rows.values()), '.0f')} | {spread(part, '.0%')} | "
            f"{spread((r['cpu_ms'] for r in rows.values()), '.1f')} |"
        )
    return table


def bound_table(results: Results) -> list[str]:
    """CPU time of the loader alone; what the bucket adds is formed within a round."""
    table = [
        "| images | data | CPU ms per sample | more than local, ms | samples/s | server's CPU ms per request | cores of other programs |",
        "|---" * 7 + "|",
    ]
    for name in dict.fromkeys(r["name"] for r in results if r["case"] == "bound"):
        for source, base in (
            ("local", ""),
            ("local shards", ""),
            *(
                (source, "local shards" if "shards" in source else "local")
                for source in BUCKET_SOURCES
            ),
        ):
            rows, against = (
                results_of(results, "bound", name, source),
                results_of(results, "bound", name, base),
            )
            if "cold" in source and name == "streets":
                continue
            if not rows:
                table.append(
                    f"| {name} | {TITLES[source]} | {failure(results, 'bound', name, source)} | | | | |"
                )
                continue
            more = [
                row["cpu_ms"] - against[number]["cpu_ms"]
                for number, row in rows.items()
                if number in against
            ]
            bucket = (
                [row for row in rows.values() if row["requests"]]
                if source in BUCKET_SOURCES
                else []
            )
            server = (1000 * row["server_cpu_s"] / row["requests"] for row in bucket)
            others = spread((row["others"] for row in rows.values()), ".1f")
            table.append(
                f"| {name} | {TITLES[source]} | {spread((r['cpu_ms'] for r in rows.values()), '.2f')} | {spread(more, '+.2f')} | "
                f"{spread((r['rate'] for r in rows.values()), '.0f')} | {spread(server, '.2f')} | {others} |"
            )
    return table


def verdict(results: Results) -> str:
    """The last line: the median of the rounds' ratios, over the strategies."""
    speeds = [ratio for name in ACCOUNT for ratio in ratios(results, name, "shards")]
    return (
        f"shards from the bucket: {median(speeds):.1%} of local speed".replace("%", " %")
        if speeds
        else ""
    )


def lines(results: Results, ranks: int) -> list[str]:
    """The results as Markdown."""
    return [
        "Medians of the rounds, with the least and the most where there were several. Ratios are formed "
        "within a round.",
        "",
        "## Cores to spare",
        "",
        f"The device's step is the account's. The account had 4 GPUs in dp, ddp, and fsdp; here are {ranks} ranks.",
        "",
        *spare_table(results),
        "",
        "## The usual ways on the same server",
        "",
        "The device of `single`. Rivals are compared with the torch DataLoader on local files.",
        "",
        *naive_table(results),
        "",
        "## Core-bound",
        "",
        "The loader alone. The server's CPU time is not part of the other columns.",
        "",
        *bound_table(results),
        "",
        verdict(results),
    ]
