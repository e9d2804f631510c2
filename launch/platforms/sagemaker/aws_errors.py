"""Meanings and fixes of AWS errors and of the reasons why jobs fail.

The keys and patterns below are AWS's own words: error codes of the API, and texts of
DescribeTrainingJob's FailureReason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from segtrain.errors import ConfigError, SegtrainError, one_line

CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE to a profile of `aws "
    "configure`, or sign in with `aws sso login`"
)
_QUOTA = (
    "ask for more in the AWS console (Service Quotas, Amazon SageMaker, '<type> for training job "
    "usage' or '... for spot training job usage'), or take fewer --instances, another --type or "
    "another --region"
)
_ALLOW = (
    "ask the administrator of the account to allow this action for your identity, or use "
    "another AWS_PROFILE"
)
_AGAIN = "AWS could not answer: try again"

# Error code -> cure
CODES = {
    "ResourceLimitExceeded": _QUOTA,
    "ResourceInUse": (
        "start again to get a name with a new time, or follow the job of that name with --attach"
    ),
    "ResourceNotFound": "check the name and --region: `aws sagemaker list-training-jobs`",
    "ValidationException": "fix the setting that it names; --dry-run prints the whole request",
    "CapacityError": "try again later, or take another --type or --region",
    "AccessDeniedException": _ALLOW,
    "AccessDenied": _ALLOW,
    "UnauthorizedOperation": _ALLOW,
    "403": _ALLOW,
    "ExpiredToken": f"the credentials have expired: {CREDENTIALS}",
    "ExpiredTokenException": f"the credentials have expired: {CREDENTIALS}",
    "UnrecognizedClientException": f"AWS does not know these credentials: {CREDENTIALS}",
    "InvalidClientTokenId": f"AWS does not know these credentials: {CREDENTIALS}",
    "InvalidAccessKeyId": f"AWS does not know these credentials: {CREDENTIALS}",
    "InvalidSignatureException": (
        "the secret key does not belong to the access key, or this machine's clock is wrong"
    ),
    "SignatureDoesNotMatch": (
        "the secret key does not belong to the access key, or this machine's clock is wrong"
    ),
    "RequestTimeTooSkewed": "set the clock of this machine",
    "OptInRequired": "the account is not signed up for this region: take another --region",
    "NoSuchBucket": (
        "make the bucket (`aws s3 mb s3://NAME --region REGION`), or name another one with --output"
    ),
    "404": (
        "make the bucket (`aws s3 mb s3://NAME --region REGION`), or name another one with --output"
    ),
    "PermanentRedirect": (
        "the bucket is in another region: take one of the job's region with --output"
    ),
    "301": "the bucket is in another region: take one of the job's region with --output",
    "IllegalLocationConstraintException": (
        "the bucket is in another region: take one of the job's region with --output"
    ),
    "BucketAlreadyExists": (
        "another account has a bucket of that name: name one of your own with --output"
    ),
    "ThrottlingException": _AGAIN,
    "ServiceUnavailable": _AGAIN,
    "ServiceUnavailableException": _AGAIN,
    "InternalFailure": _AGAIN,
    "InternalServerException": _AGAIN,
    "InternalError": _AGAIN,
}

# Pattern of an error message -> a better cure than the one for its code. The first match wins.
_MESSAGES = (
    (
        r"could not assume role|role .*(invalid|not exist|cannot be assumed)|iam:PassRole",
        "the --role must be one that sagemaker.amazonaws.com may assume (its trust policy), and "
        "this identity needs iam:PassRole on it",
    ),
    (r"Requested resource not found", CODES["ResourceNotFound"]),
    (
        r"No S3 objects found|S3 prefix.*not|no objects",
        "upload the data first, or fix the URI of --data: `aws s3 ls URI`",
    ),
    (
        r"closed to new|no longer (available|accept)|new customers",
        (
            "this account cannot use that feature of SageMaker: --profile-ms 0 leaves AWS's "
            "profiler out"
        ),
    ),
    (
        r"instance ?type|InstanceType",
        "AWS does not offer this type for training here: another --type or --region",
    ),
    (
        r"in status (Completed|Failed|Stopped)",
        "the job has ended: --attach NAME fetches what it left",
    ),
)

# Pattern of FailureReason -> cure. The first match wins: root causes come before the general errors
# that contain them.
_FAILURES = (
    (
        r"CapacityError|insufficient .*capacity|Unable to provision",
        "AWS had no free machines of this type: try again later, add --retries 3, or take another "
        "--type or --region",
    ),
    (r"ResourceLimitExceeded|service limit", _QUOTA),
    (
        r"out of memory|OutOfMemoryError",
        "a GPU ran out of memory: lower train.batch_size or data.crop, raise train.accumulate, or "
        "take a --type with more GPU memory",
    ),
    (
        r"Bus error|shared memory|/dev/shm",
        "the container's /dev/shm was full: lower data.workers or data.prefetch",
    ),
    (
        r"No space left|disk (is )?full|ENOSPC",
        (
            "a disk was full: a larger --volume-gb, or read the data with --mode FastFile or "
            "from --fsx"
        ),
    ),
    (
        r"no kernel image is available",
        "the image's torch has no code for this GPU: leave --image out, and the launcher picks one",
    ),
    (r"smdistributed|smddp", "SMDDP does not run on this image or type: --strategy ddp"),
    (
        r"No module named|ModuleNotFoundError|No matching distribution|pip.* install",
        "a package is missing in the container: add it with requirements: FILE in the job, or "
        "reach the package index from the VPC (NAT)",
    ),
    (
        r"NCCL|ncclSystemError|unhandled system error|Connection (refused|reset)"
        r"|timed out.*(collective|rendezvous|store)",
        "the hosts did not reach each other: with --security-groups the group must let in all "
        "traffic from itself",
    ),
    (
        r"FileSystem|\bmount|Lustre|\bEFS\b",
        "the file system could not be mounted: name its subnet in --subnets, open TCP 988 and "
        "1018-1023 in --security-groups, and begin the path with /MOUNTNAME",
    ),
    (
        r"No S3 objects found",
        "the URI of --data is empty: upload the data first, and check it with `aws s3 ls URI`",
    ),
    (
        r"AccessDenied|Access ?Denied|not authorized|Forbidden|\b403\b",
        "the --role lacks a right: s3 on the data, the output and the checkpoints, ecr on the "
        "image, ec2 network interfaces for a VPC",
    ),
    (
        r"pull|\bECR\b|image.*(not (found|exist)|does not exist)",
        "the image cannot be read: check --image, its region, and the role's permissions for ECR",
    ),
    (
        r"(exit ?code|status)\D{0,3}137|SIGKILL|\(-9\)",
        "a host ran out of memory: lower data.workers, or take a --type with more memory",
    ),
    (
        r"heartbeat|InternalServerError|internal error",
        "AWS's own failure: start again, and add --retries 3",
    ),
)
_IN_THE_LOG = "the cause is in the log above; --rehearse runs the same request here"


def cure_of(code: str, message: str) -> str:
    """The fix for an error of the API; "" if none is known."""
    if code in ("ValidationException", "AccessDeniedException", "ResourceNotFound"):
        for pattern, cure in _MESSAGES:
            if re.search(pattern, message, re.IGNORECASE):
                return cure
    return CODES.get(code, "")


def cure_of_failure(reason: str) -> str:
    """What to change after a job failed with this FailureReason."""
    for pattern, cure in _FAILURES:
        if re.search(pattern, reason, re.IGNORECASE):
            return cure
    return _IN_THE_LOG


def code_of(error: BaseException) -> str:
    """The error code in the response of AWS's API; "" for an error without a response."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def passing(error: BaseException) -> bool:
    """Whether an error is transient (the network is down, or AWS is busy), so a read-only call may
    succeed later.
    """
    from botocore import exceptions

    if isinstance(error, (exceptions.HTTPClientError, exceptions.ConnectionError)):
        return True
    response = getattr(error, "response", None)
    status = (
        response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if isinstance(response, dict)
        else 0
    )
    return bool(
        code_of(error) in ("ThrottlingException", "Throttling", "RequestLimitExceeded")
        or status >= 500
    )


def explain(error: Exception, doing: str) -> SegtrainError:
    """An error of boto3 as one line with its cure. ``doing``: what was tried, such as
    "CreateTrainingJob of NAME".
    """
    from botocore import exceptions

    code = code_of(error)
    if code:
        message = (
            str(getattr(error, "response", {})["Error"].get("Message", "")).strip().rstrip(".")
        )
        cure = cure_of(code, message)
        return SegtrainError(
            f"{doing}: {code}: {message}{f': {cure}' if cure else ''}", code="aws-refused"
        )
    if isinstance(error, exceptions.ParamValidationError):
        return ConfigError(
            f"{doing}: {one_line(error)}: {CODES['ValidationException']}",
            code="aws-request",
        )
    if isinstance(
        error,
        (
            exceptions.NoCredentialsError,
            exceptions.PartialCredentialsError,
            exceptions.CredentialRetrievalError,
        ),
    ):
        return ConfigError(f"{doing}: {error}: {CREDENTIALS}", code="credentials-refused")
    if isinstance(
        error,
        (exceptions.SSOError, exceptions.TokenRetrievalError, exceptions.UnauthorizedSSOTokenError),
    ):
        return ConfigError(
            f"{doing}: the sign-in has expired ({error}): aws sso login", code="sign-in-expired"
        )
    if isinstance(error, (exceptions.HTTPClientError, exceptions.ConnectionError)):
        return SegtrainError(
            f"{doing}: AWS cannot be reached ({error}): look at the network, a proxy, and --region",
            code="aws-unreachable",
        )
    return SegtrainError(f"{doing}: {type(error).__name__}: {error}", code="aws-failed")


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Raise an error of boto3 in the body as ``explain`` tells it."""
    try:
        yield
    except Exception as error:
        raise explain(error, doing) from None
