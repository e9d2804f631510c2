"""Rules for a loop that waits for a bucket: for failed requests, for its bandwidth, or for its
latency.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from segtrain.base.units import ms, rounded
from segtrain.bucket.faults import PASSING
from segtrain.insight.diagnose.verdict import Fix, Verdict
from segtrain.insight.diagnose.windows import BucketReads

if TYPE_CHECKING:
    from segtrain.insight.diagnose.data_rules import Starved

LOST = 0.3  # share of the time of all requests above which retries are the cause
# bandwidth is the cause if more than this share of a request's time grows with size or number of
# requests
MOSTLY = 0.5
SEPARATE = 1.2  # requests per sample: more means that image and mask are requested separately
PACK = "segtrain data pack"
PACKED = Fix(advice=f"cheaper files: {PACK}, whose --estimate says what each form saves")
NEARER = Fix({"data.cache": "disk"}, "from the second epoch on, if the disk has room", (PACKED,))
SHARDS = f"image and mask in one request: {PACK}"
RANKS = "more ranks or hosts: each rank has its own requests in flight"
# What helps against faults, by their kind.
AGAINST = {
    "throttled": (
        "fewer requests: pack single files into shards (segtrain data pack), or ask for "
        "a higher limit"
    ),
    "server": "look at the state of the service, or copy the data to another bucket",
}
NETWORK = "check the network between the hosts and the bucket, and whether both are in one region"


def bucket_verdict(starved: Starved, reads: BucketReads) -> Verdict:
    """The verdict on a loop whose samples wait for a bucket."""
    if reads.lost > LOST:
        return _faults(starved, reads)
    now = starved.now
    read = starved.samples.stages["read"]
    each = reads.seconds / max(1.0, reads.answered)
    rate = f"{rounded(reads.bytes / max(reads.wall, 1e-9) / 1e6)} MB/s"
    why = (
        f"reading takes {ms(read)} of the {ms(starved.samples.wall)} of a sample: "
        f"{rounded(reads.in_flight, 2)} requests are in flight"
    )
    sure = "high" if reads.by_size is not None else "medium"
    grows = max(reads.by_size or 0.0, reads.by_number)
    if grows > MOSTLY:
        by_size = reads.by_size is not None and reads.by_size > MOSTLY
        how = (
            "its size"
            if by_size
            else f"the number in flight (the first ones took {ms(reads.first)})"
        )
        why += f" and bring {rate}, and {grows:.0%} of the {ms(each)} of a request grows with {how}"
        then = replace(now, wall=now.wall - read)
        return starved.verdict(
            "storage-bandwidth", why, NEARER, then, "high" if by_size else "medium"
        )
    limit = ", as many as a rank may send," if reads.at_most else ""
    why += f"{limit} and each takes {ms(each)}, whatever its size"
    # Both the requests and the samples include those of evaluations.
    per_sample = reads.answered / max(1.0, starved.samples.made * starved.rank.steps)
    if per_sample > SEPARATE:
        packed = Fix(advice=SHARDS, alternatives=NEARER.choices)
        then = replace(now, wall=now.wall - read * (1 - 1 / per_sample))
        return starved.verdict(
            "storage-latency", why, packed, then, sure if reads.at_most else "low"
        )
    fix = replace(NEARER, alternatives=(Fix(advice=RANKS), *NEARER.alternatives))
    return starved.verdict(
        "storage-latency",
        why,
        fix,
        replace(now, wall=now.wall - read),
        sure if reads.at_most else "low",
    )


def _faults(starved: Starved, reads: BucketReads) -> Verdict:
    kinds = sorted(reads.retry_s, key=lambda kind: -reads.retry_s[kind])
    why = (
        f"the bucket failed {failures(reads)}: retries and the pauses after them take "
        f"{reads.lost:.0%} of the time of the requests ({rounded(reads.retry_seconds)} s)"
    )
    fix = Fix(advice=AGAINST.get(kinds[0], NETWORK), alternatives=NEARER.choices)
    then = replace(starved.now, wall=starved.now.wall - starved.samples.stages["read"] * reads.lost)
    return starved.verdict("storage-faults", why, fix, then, "high")


def failures(reads: BucketReads) -> str:
    """The share of requests that failed, and why."""
    kinds = sorted(reads.retries, key=lambda kind: -reads.retries[kind])
    parts = ", ".join(f"{PASSING.get(kind, kind)}: {reads.retries[kind]:,.0f}" for kind in kinds)
    return f"{reads.failed / reads.requests:.1%} of {reads.requests:,.0f} requests ({parts})"
