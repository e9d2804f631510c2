"""AWS's regions: the account with AWS's images, the partition, and the regions in which EC2 offers
a GPU type.
"""

from __future__ import annotations

import re

ACCOUNT = "763104351884"  # the account whose registry most regions read
_COMMON = """
ap-northeast-1 ap-northeast-2 ap-south-1 ap-southeast-1 ap-southeast-2 ca-central-1 eu-central-1
eu-north-1 eu-west-1 eu-west-2 eu-west-3 sa-east-1 us-east-1 us-east-2 us-west-1 us-west-2
"""
OTHER_ACCOUNTS = {
    "af-south-1": "626614931356",
    "ap-east-1": "871362719292",
    "ap-east-2": "975050140332",
    "ap-northeast-3": "364406365360",
    "ap-south-2": "772153158452",
    "ap-southeast-3": "907027046896",
    "ap-southeast-4": "457447274322",
    "ap-southeast-5": "550225433462",
    "ap-southeast-6": "633930458069",
    "ap-southeast-7": "590183813437",
    "ca-west-1": "204538143572",
    "cn-north-1": "727897471807",
    "cn-northwest-1": "727897471807",
    "eu-central-2": "380420809688",
    "eu-south-1": "692866216735",
    "eu-south-2": "503227376785",
    "il-central-1": "780543022126",
    "me-central-1": "914824155844",
    "me-south-1": "217643126080",
    "me-west-1": "124382933778",
    "mx-central-1": "637423239942",
    "us-gov-east-1": "446045086412",
    "us-gov-west-1": "442386744353",
}
ACCOUNTS = {**dict.fromkeys(_COMMON.split(), ACCOUNT), **OTHER_ACCOUNTS}
ACCOUNTS_FROM = (
    "aws/deep-learning-containers 18d714e0 (read 2026-11-22), "
    "docs/reference/region_availability.md; sagemaker 2.257.7, image_uri_config/pytorch.json"
)

_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")


def is_region(name: str) -> bool:
    """Does the name have the form of a region? Whether there is such a region is not known here."""
    return _REGION.fullmatch(name) is not None


def partition(region: str) -> str:
    """The partition of AWS that a region belongs to, as it appears in ARNs. Accounts, roles, and
    buckets of one partition do not exist in another.
    """
    for start, name in (
        ("cn-", "aws-cn"),
        ("us-gov-", "aws-us-gov"),
        ("us-isob-", "aws-iso-b"),
        ("us-iso-", "aws-iso"),
    ):
        if region.startswith(start):
            return name
    return "aws"


# SageMaker cannot start a type that EC2 does not offer. Key: a type, or the prefix of all sizes of
# a family.
OFFERED_FROM = "EC2 DescribeInstanceTypeOfferings of 30 regions, as moto 5.2.5 ships it, 2026-11"
_ASKED = """
af-south-1 ap-east-1 ap-northeast-1 ap-northeast-2 ap-northeast-3 ap-south-1 ap-south-2
ap-southeast-1 ap-southeast-2 ap-southeast-3 ap-southeast-4 ap-southeast-5 ca-central-1 ca-west-1
eu-central-1 eu-central-2 eu-north-1 eu-south-1 eu-south-2 eu-west-1 eu-west-2 eu-west-3
il-central-1 me-central-1 me-south-1 sa-east-1 us-east-1 us-east-2 us-west-1 us-west-2
"""
OFFERED: dict[str, str] = {
    "ml.p3dn.": """
        ap-northeast-1 eu-west-1 us-east-1 us-west-2
    """,
    "ml.p4d.": """
        ap-northeast-1 ap-northeast-2 ap-south-1 ap-southeast-2 ca-central-1 eu-central-1 eu-north-1
        eu-west-1 eu-west-2 sa-east-1 us-east-1 us-east-2 us-west-2
    """,
    "ml.p4de.": """
        ap-northeast-1 ap-southeast-1 eu-central-1 il-central-1 us-east-1 us-west-2
    """,
    "ml.p5.4xlarge": """
        ap-northeast-1 ap-south-1 ap-southeast-2 ap-southeast-3 eu-north-1 eu-west-2 sa-east-1
        us-east-1 us-east-2 us-west-2
    """,
    "ml.p5.48xlarge": """
        ap-northeast-1 ap-northeast-2 ap-south-1 ap-southeast-2 ap-southeast-3 ca-central-1
        eu-north-1 eu-west-2 sa-east-1 us-east-1 us-east-2 us-west-1 us-west-2
    """,
    "ml.p5e.": """
        ap-southeast-2 ap-southeast-3 eu-north-1 eu-west-2 sa-east-1 us-east-2 us-west-2
    """,
    "ml.p5en.": """
        ap-northeast-1 ap-northeast-2 ap-south-1 ap-southeast-3 eu-north-1 eu-south-2 me-central-1
        us-east-1 us-east-2 us-west-1 us-west-2
    """,
    "ml.p6-b200.": """
        ap-south-1 ap-south-2 eu-north-1 eu-west-3 us-east-1 us-east-2 us-west-2
    """,
    "ml.p6-b300.": """
        ap-northeast-2 ap-south-2 ap-southeast-3 sa-east-1 us-east-1 us-west-2
    """,
    "ml.g4dn.": """
        af-south-1 ap-east-1 ap-northeast-1 ap-northeast-2 ap-northeast-3 ap-south-1 ap-southeast-1
        ap-southeast-2 ca-central-1 eu-central-1 eu-north-1 eu-south-1 eu-west-1 eu-west-2 eu-west-3
        me-south-1 sa-east-1 us-east-1 us-east-2 us-west-1 us-west-2
    """,
    "ml.g5.": """
        ap-east-1 ap-northeast-1 ap-northeast-2 ap-south-1 ap-southeast-2 ap-southeast-3
        ca-central-1 eu-central-1 eu-north-1 eu-south-2 eu-west-1 eu-west-2 eu-west-3 il-central-1
        me-central-1 sa-east-1 us-east-1 us-east-2 us-west-2
    """,
    "ml.g6.": """
        ap-northeast-1 ap-northeast-2 ap-south-1 ap-south-2 ap-southeast-2 ap-southeast-5
        ca-central-1 eu-central-1 eu-central-2 eu-north-1 eu-south-2 eu-west-2 eu-west-3
        me-central-1 sa-east-1 us-east-1 us-east-2 us-west-2
    """,
    "ml.g6e.": """
        ap-northeast-1 ap-northeast-2 ap-northeast-3 ap-south-1 ap-south-2 eu-central-1 eu-north-1
        eu-south-2 me-central-1 us-east-1 us-east-2 us-west-2
    """,
    "ml.g7.": """
        eu-central-1 eu-north-1 eu-south-2 us-east-1 us-east-2 us-west-2
    """,
    "ml.g7e.": """
        ap-northeast-1 ap-northeast-2 ap-south-1 ap-southeast-3 eu-central-1 eu-north-1 eu-south-2
        eu-west-2 us-east-1 us-east-2 us-west-2
    """,
}


def offered(name: str, region: str) -> bool | None:
    """Does EC2 offer the type in that region? None if the type or the region is not in the
    table.
    """
    key = next(
        (key for key in OFFERED if name == key or (key.endswith(".") and name.startswith(key))),
        None,
    )
    if key is None or region not in _ASKED.split():
        return None
    return region in OFFERED[key].split()


def regions_of(name: str) -> list[str]:
    """The regions of the table that offer the type."""
    return [region for region in _ASKED.split() if offered(name, region)]
