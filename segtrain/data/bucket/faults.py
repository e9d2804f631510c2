"""Faults of requests to a bucket: which ones are worth another try, and the errors for the others."""

from __future__ import annotations

import re

from segtrain.errors import DataError, SegtrainError, file_error

# Kind of a fault that may pass -> its words. Counts of retries use these kinds.
PASSING = {
    "throttled": "the bucket asks for fewer requests",
    "server": "the server has an internal error",
    "connection": "no connection, or it was reset",
    "timeout": "no answer in time",
    "cut": "the answer was cut off",
}
_STATUS = re.compile(r"status code: (\d{3})")
_KIND = re.compile(r"\bkind: (\w+)")
_KINDS = {
    "Connect": "connection", "Request": "connection", "Timeout": "timeout", "Interrupted": "cut", "Body": "cut",
}  # fmt: skip
_THROTTLED = ("429", "503")
_SIGN_IN = {
    "s3": "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; "
    "AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS; "
    "GOOGLE_SKIP_SIGNATURE=true for a public bucket",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY; "
    "AZURE_SKIP_SIGNATURE=true for a public container",
}


def passing_kind(error: Exception) -> str:
    """The kind of a fault that may pass, a key of PASSING; "" for an error that another try would only repeat."""
    if isinstance(error, (FileNotFoundError, SegtrainError)) or type(error).__name__ != "GenericError":
        return ""
    text, _, source = str(error).partition("Debug source")
    status = _STATUS.search(text)
    if status:
        return "throttled" if status[1] in _THROTTLED else "server" if status[1] >= "500" else ""
    # The server sent another range than the one it was asked for.
    if "Requested" in text and ", got " in text:
        return "cut"
    kinds = (_KINDS.get(kind) for kind in _KIND.findall(source))
    return next((kind for kind in kinds if kind), "")


def no_login(error: Exception) -> bool:
    """Whether the credentials could not be had, rather than the object: without any, a cloud's own address is asked."""
    return "169.254.169.254" in str(error) or "credential" in str(error).lower()


def reason_of(error: Exception) -> str:
    """The first sentence of an error of obstore, without URL and time."""
    text = " ".join(str(error).partition("Debug source")[0].split())
    return text.rpartition("s - ")[2][:300].strip().rstrip(".") or type(error).__name__


def lasting(path: str, error: Exception) -> SegtrainError:
    """The error for a request that another try would only repeat."""
    if isinstance(error, SegtrainError):
        return error
    reason, scheme, found = reason_of(error), path.partition("://")[0], _STATUS.search(str(error))
    status = found[1] if found else ""
    if status == "404" or isinstance(error, FileNotFoundError):
        what = "there is no such bucket" if "NoSuchBucket" in str(error) else "is not in the bucket"
        return file_error(path, f"{what}: check data.root and the name, or upload it", code="object-missing")
    if status in ("401", "403") and not no_login(error):
        fix = f"these credentials may not read it: {_SIGN_IN.get(scheme, 'use a URL that carries its signature')}"
        return file_error(path, f"{reason}: {fix}", code="bucket-denied", found=reason)
    if "redirect" in reason:
        fix = "the bucket is probably in another region: set AWS_REGION"
        return file_error(path, f"{reason}: {fix}", code="bucket-region-wrong", found=reason)
    if no_login(error):
        fix = f"no credentials were found: {_SIGN_IN.get(scheme, 'sign the URL')}"
        return file_error(path, f"{reason}: {fix}", code="bucket-denied", found=reason)
    fix = "check data.root and the variables of the bucket's credentials, region, and endpoint"
    return file_error(path, f"{reason}: {fix}", code="bucket-refused", found=reason)


def outage(path: str, kind: str, tries: int, seconds: float, limit: float) -> DataError:
    """The error for a bucket that did not answer for ``limit`` seconds."""
    return DataError(
        f"{path}: {PASSING[kind]} ({tries} requests in {seconds:.0f} s): check the network and the bucket, and start "
        f"the same command again, or set data.outage_s above {limit:g}",
        code="bucket-unreachable", file=path, kind=kind, tries=tries, limit=limit,
    )  # fmt: skip


def changed(path: str, found: str, expected: str) -> DataError:
    """The error for an object that was replaced after the data set was opened."""
    says = f"the object has changed while it was in use: its etag is {found or 'unknown'}, and was {expected}: "
    return file_error(
        path, f"{says}start again, and do not write to a data set in use", code="object-changed", found=found,
        expected=expected,
    )  # fmt: skip


def ends_early(path: str, size: int, needed: int) -> DataError:
    """The error for a range across the end of an object."""
    says = f"the object ends at byte {size:,}, but is read up to byte {needed:,}: upload it again"
    return file_error(path, says, code="file-ends-early", found=size, expected=needed)
