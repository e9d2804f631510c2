"""Faults of requests to a bucket: which ones are worth another try, and the errors for the
others.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from segtrain.bucket import CLOUDS, scheme_of
from segtrain.errors import EXIT_RESUMABLE, DataError, SegtrainError, file_error

# Kind of a temporary fault -> its description. Retries are counted by these kinds.
PASSING = {
    "throttled": "the bucket asks for fewer requests",
    "server": "the server has an internal error",
    "connection": "no connection, or it was reset",
    "timeout": "no answer in time",
    "cut": "the answer was cut off",
    "checksum": "the checksum of the answer is not that of the packed data",
    "wrong": "the answer holds other bytes than were asked for",
}
_STATUS = re.compile(r"status code: (\d{3})")
_KIND = re.compile(r"\bkind: (\w+)")
_KINDS = {
    "Connect": "connection",
    "Request": "connection",
    "Timeout": "timeout",
    "Interrupted": "cut",
    "Body": "cut",
}
_THROTTLED = ("429", "503")
# If the body of a request arrives too slowly, S3 answers 400 with this code, and Google Cloud
# Storage answers 408.
_STALLED = "<Code>RequestTimeout</Code>"
# Codes of S3 and Google Cloud Storage, and of Azure, in an answer with the status 404.
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")


class RequestError(DataError):
    """A request failed for a reason that says nothing about its object, such as an outage,
    credentials, or a signal.
    """


@contextlib.contextmanager
def ignoring_file_faults() -> Iterator[list[DataError]]:
    """Suppress a DataError about a file, and add it to the list. A RequestError is raised."""
    faults = list[DataError]()
    try:
        yield faults
    except RequestError:
        raise
    except DataError as error:
        faults.append(error)


class WrongLength(Exception):
    """An answer that is longer or shorter than what was asked for."""


def passing_kind(error: Exception) -> str:
    """The kind of a temporary fault, a key of PASSING; "" for an error that a retry would only
    repeat.
    """
    if isinstance(error, WrongLength):
        return "wrong"
    if (
        isinstance(error, (FileNotFoundError, SegtrainError))
        or type(error).__name__ != "GenericError"
    ):
        return ""
    text, _, source = str(error).partition("Debug source")
    status = _STATUS.search(text)
    if status and (status[1] == "408" or _STALLED in text):
        return "timeout"
    if status:
        return "throttled" if status[1] in _THROTTLED else "server" if status[1] >= "500" else ""
    # The server sent another range than the requested one, or the whole object.
    if ("Requested" in text and ", got " in text) or "non-partial response" in text:
        return "wrong"
    kinds = (_KINDS.get(kind) for kind in _KIND.findall(source))
    return next((kind for kind in kinds if kind), "")


def no_login(error: Exception) -> bool:
    """Whether the error is about credentials. If none are set, obstore asks a metadata server
    (169.254.169.254).
    """
    return "169.254.169.254" in str(error) or "credential" in str(error).lower()


def reason_of(error: Exception) -> str:
    """The first sentence of an error of obstore, without URL and time."""
    text = " ".join(str(error).partition("Debug source")[0].split())
    code = re.search(r"<Code>(\w+)</Code>", text)
    # the XML that the server sent
    text = re.sub(r":? ?<\??[a-zA-Z].*", f" ({code[1]})" if code else "", text)
    return text.rpartition("s - ")[2][:300].strip().rstrip(".") or type(error).__name__


def lasting(path: str, error: Exception) -> SegtrainError:
    """The error for a request that would fail again."""
    if isinstance(error, SegtrainError):
        return error
    reason, match = reason_of(error), _STATUS.search(str(error))
    status = match[1] if match else ""
    if status == "404" or isinstance(error, FileNotFoundError):
        if any(code in str(error) for code in _NO_BUCKET):
            return _refused(
                path, "there is no such bucket", "check its name in the URL", "bucket-missing"
            )
        fix = "check the bucket and the name, or upload it"
        return file_error(path, f"is not in the bucket: {fix}", code="object-missing")
    if status in ("401", "403") or no_login(error):
        problem = (
            "no credentials were found" if no_login(error) else "these credentials may not do this"
        )
        fix = "use a URL that carries its signature"
        if cloud := CLOUDS.get(scheme_of(path)):
            variable = cloud.variables["skip_signature"][0]
            fix = f"{cloud.sign_in}; {variable}=true for a public {cloud.bucket.lower()}"
        return _refused(path, reason, f"{problem}: {fix}", "bucket-denied")
    if "empty path segment" in reason or "illegal character sequence" in reason:
        fix = (
            "the name of an object has two slashes in a row, or a part '.' or '..': rename or "
            "remove this object"
        )
        return file_error(path, f"{reason}: {fix}", code="object-name-invalid", found=reason)
    if "redirect" in reason:
        fix = "the bucket is probably in another region: set AWS_REGION"
        return _refused(path, reason, fix, "bucket-region-wrong")
    fix = "check the URL and the variables of the bucket's credentials, region, and endpoint"
    return _refused(path, reason, fix, "bucket-refused")


def _refused(path: str, reason: str, fix: str, code: str) -> RequestError:
    return RequestError(f"{path}: {reason}: {fix}", code=code, file=path, found=reason)


def outage(path: str, kind: str, tries: int, seconds: float, limit: float) -> RequestError:
    """The error for a bucket that did not answer for ``limit`` seconds."""
    return RequestError(
        f"{path}: {PASSING[kind]} ({tries} requests in {seconds:.0f} s): check the network and the "
        f"bucket, and start the same command again, or set data.outage_s above {limit:g}",
        code="bucket-unreachable",
        file=path,
        kind=kind,
        tries=tries,
        limit=limit,
    )


class StoppedInOutage(RequestError):
    """A signal arrived while a bucket did not answer. The run can continue from its newest
    checkpoint.
    """

    exit_code = EXIT_RESUMABLE


def stopped(path: str, kind: str, seconds: float) -> StoppedInOutage:
    """The error for a signal after ``seconds`` without an answer. The process ends without waiting
    any longer.
    """
    return StoppedInOutage(
        f"{path}: {PASSING[kind]} ({seconds:.0f} s), and a signal stopped this process: the same "
        "command continues from the newest checkpoint",
        code="stopped-in-outage",
        file=path,
        kind=kind,
    )


def changed(path: str, expected: str) -> DataError:
    """The error for an object that was replaced after the data set was opened."""
    message = f"the object has changed while it was in use: its etag was {expected}: "
    message += "start again, and do not write to a data set in use"
    return file_error(path, message, code="object-changed", expected=expected)


def ends_early(path: str, size: int, needed: int) -> DataError:
    """The error for a requested range that goes beyond the end of an object."""
    message = (
        f"the object ends at byte {size:,}, but is read up to byte {needed:,}: upload it again"
    )
    return file_error(path, message, code="file-ends-early", found=size, expected=needed)


def died(path: str, failure: BaseException) -> RequestError:
    """The error for a request that ended with something other than an ordinary exception."""
    reason = f"{type(failure).__name__}: {failure}"
    return _refused(path, f"the request failed ({reason})", "start again", "request-failed")
