"""Addresses of S3 and ECR, and times, for several checks."""

from __future__ import annotations

import re

# The source of the API's limits. botocore's service model has them too, but botocore may not be installed.
API = "CreateTrainingJob in the SageMaker API reference (botocore 1.44.5)"

BUCKET_RULE = "s3://BUCKET/PREFIX/; a bucket's name has 3 to 63 lowercase letters, digits, dots and hyphens"
_S3 = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/(?P<key>.*))?")


# The address of an image in ECR.
IMAGE = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr(-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?/(?P<name>[^:@]+)"
    r"(:(?P<tag>[^@]+))?(@(?P<digest>sha256:[0-9a-f]{64}))?"
)


def s3_parts(uri: str) -> tuple[str, str] | None:
    """Bucket and key of ``s3://bucket/key``; None if ``uri`` is not an S3 address."""
    match = _S3.fullmatch(uri)
    return (match["bucket"], match["key"] or "") if match else None


def folder(uri: str) -> str:
    """The S3 address with a slash at its end."""
    return uri if uri.endswith("/") else uri + "/"


def hours(seconds: int) -> str:
    """A time in the largest unit that divides it: ``90 s``, ``36 h``, ``5 days``."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds // size} {unit if seconds != 86400 else 'day'}"
    return f"{seconds} s"
