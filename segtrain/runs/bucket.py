"""Reads S3 and SageMaker with boto3: lists of objects, their content, training jobs, and explanations of errors.

boto3 finds the region, the credentials, and the endpoint (AWS_PROFILE, AWS_DEFAULT_REGION, AWS_ENDPOINT_URL, ...).
"""

from __future__ import annotations

import contextlib
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from segtrain.errors import ConfigError, DataError, MissingExtra, SegtrainError, file_error
from segtrain.files import replacing

PARALLEL = 16  # files fetched at the same time: most are small, and take one round trip
MOST_OBJECTS = 300_000  # Listing more takes minutes, and so many objects are a whole bucket rather than one run.
HEAD = 1 << 16  # bytes fetched from the start of a file that is too large to be fetched whole
TRIES = 3  # tries to read both parts of an object from one version, if the object is replaced at the same time
SIGN_IN = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or sign in with `aws sso login`"
_DENIED = (
    "this identity may not read it: it needs s3:ListBucket on the bucket and s3:GetObject on its objects "
    "(for sagemaker:JOB also sagemaker:DescribeTrainingJob): use another AWS_PROFILE, or ask the owner of the bucket"
)  # fmt: skip
_UNKNOWN = f"AWS does not know these credentials: {SIGN_IN}"
_EXPIRED = f"the credentials have expired: {SIGN_IN}"
_SIGNATURE = "the secret key does not belong to the access key, or the clock of this machine is wrong"
_FIXES = {
    **dict.fromkeys(("AccessDenied", "AccessDeniedException", "403", "Forbidden"), _DENIED),
    "NoSuchKey": "it was removed just now: start again",
    "NoSuchBucket": "there is no such bucket: `aws s3 ls` lists yours",
    **dict.fromkeys(("ExpiredToken", "ExpiredTokenException"), _EXPIRED),
    **dict.fromkeys(("InvalidAccessKeyId", "InvalidClientTokenId", "UnrecognizedClientException"), _UNKNOWN),
    **dict.fromkeys(("SignatureDoesNotMatch", "InvalidSignatureException"), _SIGNATURE),
}


@dataclass(frozen=True)
class Object:
    """An object of a bucket; ``etag`` changes with its content; ``modified``: Unix time."""

    bucket: str
    key: str
    size: int
    etag: str
    modified: float
    scheme: str = "s3"

    @property
    def base(self) -> str:
        return f"{self.scheme}://{self.bucket}"

    @property
    def uri(self) -> str:
        return f"{self.base}/{self.key}"


@dataclass(frozen=True)
class WantedFile:
    """An object to fetch.

    If it has more than ``most`` + HEAD bytes, only its first lines and its last ``most`` bytes are fetched.
    """

    item: Object
    most: int

    @property
    def mark(self) -> str:
        """A text that identifies the bytes to fetch: if it is equal to an earlier one, they have not changed."""
        return f"{self.item.etag} {self.bytes} {self.item.size}"

    @property
    def cut(self) -> bool:
        return self.item.size > self.most + HEAD

    @property
    def bytes(self) -> int:
        return self.most if self.cut else self.item.size


def split(uri: str) -> tuple[str, str]:
    """``s3://bucket/a/b/`` -> (bucket, ``a/b``). Raises ConfigError."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    if not uri.startswith("s3://") or not bucket:
        raise ConfigError(f"{uri!r} is not a place in S3: name s3://BUCKET/PREFIX", code="not-an-s3-uri", value=uri)
    return bucket, prefix.strip("/")


class Account:
    """The boto3 clients, created when they are first used. Methods raise SegtrainErrors with one line of text.

    ``region``: if it is empty, boto3 finds the region.
    """

    def __init__(self, region: str = "") -> None:
        self.region = region

    @cached_property
    def _session(self) -> Any:
        try:
            import boto3
        except ImportError:
            raise MissingExtra("boto3", "sagemaker", "reading a run from S3 or SageMaker") from None
        return boto3.Session(region_name=self.region or None)

    def _client(self, service: str) -> Any:
        session = self._session  # before importing botocore: if boto3 is missing, ``_session`` says what to install
        from botocore.config import Config

        # The mode "standard" retries throttled and failed calls with exponential backoff.
        retries: Any = {"mode": "standard", "total_max_attempts": 5}
        config = Config(retries=retries, connect_timeout=10, read_timeout=60, max_pool_connections=PARALLEL)
        return session.client(service, config=config)

    @cached_property
    def _s3(self) -> Any:
        return self._client("s3")

    def list(self, uri: str) -> list[Object]:
        """All objects below the folder ``uri``, in the order of keys."""
        bucket, prefix = split(uri)
        found: list[Object] = []
        with explained(uri):
            # With the slash, the prefix run-1 does not match the files of run-10.
            pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix and f"{prefix}/")
            for page in pages:
                found += [
                    Object(bucket, item["Key"], item["Size"], item["ETag"], item["LastModified"].timestamp())
                    for item in page.get("Contents", ())
                    if not item["Key"].endswith("/")
                ]
                if len(found) > MOST_OBJECTS:
                    raise too_many(uri)
        return found

    def stream(self, item: Object) -> Any:
        """The bytes of an object, as a stream."""
        with explained(item.uri):
            return self._s3.get_object(Bucket=item.bucket, Key=item.key)["Body"]

    def _ends(self, wanted: WantedFile) -> tuple[bytes, Any]:
        """The first bytes of an object, and its last bytes as a stream.

        Both are from the same version, even if a run replaces the object meanwhile.
        """
        place = {"Bucket": wanted.item.bucket, "Key": wanted.item.key}
        for left in reversed(range(TRIES)):
            head = self._s3.get_object(**place, Range=f"bytes=0-{HEAD - 1}")
            try:
                tail = self._s3.get_object(**place, Range=f"bytes=-{wanted.most}", IfMatch=head["ETag"])
            except self._s3.exceptions.ClientError as error:
                if not left or error.response["Error"]["Code"] != "PreconditionFailed":
                    raise
                continue
            return head["Body"].read(), tail["Body"]
        raise AssertionError("unreachable")

    def fetch(self, wanted: WantedFile, target: Path) -> None:
        """Copy an object, or the first and the newest lines of a large one, to a file, atomically."""
        item, head = wanted.item, b""
        with explained(item.uri, target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as partial:
                if wanted.cut:
                    head, stream = self._ends(wanted)
                    stream.readline()  # skipped: the range usually begins in the middle of a line
                else:
                    stream = self.stream(item)
                with stream, partial.open("wb") as file:
                    file.write(head[: head.rfind(b"\n") + 1])
                    while block := stream.read(1 << 20):
                        file.write(block)
                # The age of a journal shows whether its run is alive.
                os.utime(partial, (item.modified, item.modified))

    def training_job(self, name: str) -> Mapping[str, Any]:
        """The response of DescribeTrainingJob for the job ``name``. Raises DataError if there is no such job."""
        with explained(f"sagemaker:{name}"):
            client = self._client("sagemaker")
            try:
                return dict(client.describe_training_job(TrainingJobName=name))
            except client.exceptions.ClientError as error:
                if "not found" not in str(error):
                    raise
                region = self._session.region_name
                fix = "`aws sagemaker list-training-jobs` lists them; set AWS_DEFAULT_REGION or give the ARN"
                problem = f"sagemaker:{name}: there is no such training job in {region}: {fix}"
                raise DataError(problem, code="no-training-job", job=name, region=region) from None


def too_many(uri: str) -> DataError:
    problem = f"there are more than {MOST_OBJECTS} objects: name the prefix of one run"
    return file_error(uri, problem, code="too-many-objects")


def unwritable(path: Path, error: OSError) -> DataError:
    """The error for a copy that cannot be written."""
    problem = f"it cannot be written: {error.strerror or error}: set SEGTRAIN_CACHE to a folder with free space"
    return file_error(str(path), problem, code="cache-unwritable")


@contextlib.contextmanager
def explained(what: str, target: Path | None = None) -> Iterator[None]:
    """Turn errors into SegtrainErrors, except those of archives. ``what``: the URI; ``target``: the file to write."""
    try:
        yield
    except (SegtrainError, tarfile.TarError, EOFError, zlib.error):
        raise
    except Exception as error:
        raise _explain(error, what, target) from None


def _explain(error: Exception, what: str, target: Path | None) -> SegtrainError:
    from botocore import exceptions as known

    response = getattr(error, "response", None)
    if isinstance(response, dict):
        answer = response.get("Error", {})
        code, said = str(answer.get("Code", "")), str(answer.get("Message", "")).strip().rstrip(".")
        return DataError(f"{what}: {code}: {_FIXES.get(code) or said}", code="aws-refused", what=what, reason=code)
    text = " ".join(str(error).split())
    if isinstance(error, (known.NoCredentialsError, known.PartialCredentialsError, known.CredentialRetrievalError)):
        text = f"no AWS credentials were found ({text}): {SIGN_IN}"
    elif isinstance(error, (known.SSOError, known.TokenRetrievalError, known.UnauthorizedSSOTokenError)):
        text = f"the sign-in has expired ({text}): aws sso login"
    elif isinstance(error, known.ProfileNotFound):
        text = f"AWS_PROFILE: {text}: {SIGN_IN}"
    elif isinstance(error, known.NoRegionError):
        text = "no AWS region is set: set AWS_DEFAULT_REGION, or give the ARN of the job"
    elif isinstance(error, (known.HTTPClientError, known.ConnectionError)):
        text = f"AWS cannot be reached ({text}): check the network, a proxy, and AWS_ENDPOINT_URL"
        return SegtrainError(f"{what}: {text}", code="aws-unreachable", what=what)
    elif isinstance(error, OSError) and target is not None:
        return unwritable(target, error)
    elif not isinstance(error, known.ParamValidationError):
        return SegtrainError(f"{what}: {type(error).__name__}: {text}", code="aws-failed", what=what)
    return ConfigError(f"{what}: {text}", code="aws-settings", what=what)
