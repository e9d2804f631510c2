"""Access to S3: listing a prefix, reading objects, and explaining errors. The only file that calls AWS.

Region, credentials and endpoint are those that boto3 finds (AWS_PROFILE, AWS_DEFAULT_REGION, AWS_ENDPOINT_URL, ...).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from segtrain.errors import ConfigError, DataError, MissingExtra, SegtrainError
from segtrain.files import replacing

PARALLEL = 16  # files at once: most are small, and their time is that of an answer
MOST_OBJECTS = 300_000  # a listing of more takes minutes, and is a bucket rather than a run
HEAD = 1 << 16  # bytes of the beginning that are kept of a file whose newest part is read
SIGN_IN = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or sign in with `aws sso login`"
_CURES = {
    **dict.fromkeys(
        ("AccessDenied", "AccessDeniedException", "403", "Forbidden"),
        "this identity may not read it: it needs s3:ListBucket on the bucket and s3:GetObject on its objects (for sagemaker:JOB "
        "also sagemaker:DescribeTrainingJob): another AWS_PROFILE, or ask the bucket's owner",
    ),
    "NoSuchKey": "it was there a moment ago: start again",
    "NoSuchBucket": "there is no such bucket: look at its name with `aws s3 ls`",
    **dict.fromkeys(("ExpiredToken", "ExpiredTokenException"), f"the credentials have expired: {SIGN_IN}"),
    **dict.fromkeys(
        ("InvalidAccessKeyId", "InvalidClientTokenId", "UnrecognizedClientException"),
        f"AWS does not know these credentials: {SIGN_IN}",
    ),
    **dict.fromkeys(
        ("SignatureDoesNotMatch", "InvalidSignatureException"),
        "the secret key is not the one of the access key, or the clock of this machine is wrong",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Object:
    """``key`` of a bucket; ``etag`` changes with the content; ``modified``: Unix time."""

    bucket: str
    key: str
    size: int
    etag: str
    modified: float

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


def split(uri: str) -> tuple[str, str]:
    """``s3://bucket/a/b/`` -> (bucket, ``a/b``). Raises ConfigError."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    if not uri.startswith("s3://") or not bucket:
        raise ConfigError(f"{uri!r} is no place in S3: s3://BUCKET/PREFIX")
    return bucket, prefix.strip("/")


class Account:
    """boto3's clients, each made when it is first used; ``region`` "": the one that boto3 finds. Errors are one line with a cure."""

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
        session = self._session  # before botocore, which comes with boto3: its error says what to install
        from botocore.config import Config

        # standard: throttled and broken calls are repeated after growing pauses.
        retries: Any = {"mode": "standard", "total_max_attempts": 5}
        config = Config(retries=retries, connect_timeout=10, read_timeout=60, max_pool_connections=PARALLEL)
        return session.client(service, config=config)

    @cached_property
    def _s3(self) -> Any:
        return self._client("s3")

    def list(self, uri: str) -> list[Object]:
        """Every object below the folder ``uri``, in the order of keys; none where there is nothing. Raises SegtrainError."""
        bucket, prefix = split(uri)
        found: list[Object] = []
        try:
            # With the slash: run-1 must not bring the files of run-10.
            pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix and f"{prefix}/")
            for page in pages:
                found += [
                    Object(bucket, item["Key"], item["Size"], item["ETag"], item["LastModified"].timestamp())
                    for item in page.get("Contents", ())
                    if not item["Key"].endswith("/")
                ]
                if len(found) > MOST_OBJECTS:
                    raise DataError(f"{uri} holds more than {MOST_OBJECTS} objects: name the prefix of one run")
        except SegtrainError:
            raise
        except Exception as error:
            raise explain(error, uri) from None
        return found

    def stream(self, item: Object, first: int | None = None, last: int | None = None) -> Any:
        """The object's bytes as a stream; so many of its first or its last alone where given. Raises SegtrainError."""
        parts = {} if first is None else {"Range": f"bytes=0-{first - 1}"}
        parts = parts if last is None else {"Range": f"bytes=-{last}"}
        try:
            return self._s3.get_object(Bucket=item.bucket, Key=item.key, **parts)["Body"]
        except Exception as error:
            raise explain(error, item.uri) from None

    def fetch(self, item: Object, target: Path, most: int) -> None:
        """Into a file, whole or not at all; of one larger than ``most`` bytes, which must be of lines, the first and the newest lines."""
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with replacing(target) as partial:
                with partial.open("wb") as file:
                    if item.size > most:
                        with self.stream(item, first=HEAD) as stream:
                            head = stream.read()
                            file.write(head[: head.rfind(b"\n") + 1])
                    with self.stream(item, last=most if item.size > most else None) as stream:
                        if item.size > most:
                            stream.readline()  # most likely the end of a line
                        while block := stream.read(1 << 20):
                            file.write(block)
                # The age of a journal tells whether its run is alive.
                os.utime(partial, (item.modified, item.modified))
        except SegtrainError:
            raise
        except OSError as error:
            raise DataError(
                f"cannot write {target}: {error.strerror or error}: set SEGTRAIN_CACHE to a folder with room"
            ) from None
        except Exception as error:  # the connection broke in the middle
            raise explain(error, item.uri) from None

    def training_job(self, name: str) -> Mapping[str, Any]:
        """DescribeTrainingJob. Raises SegtrainError."""
        try:
            answer = self._client("sagemaker").describe_training_job(TrainingJobName=name)
        except SegtrainError:
            raise
        except Exception as error:
            where = self._session.region_name
            if "not found" in str(error):
                raise DataError(
                    f"sagemaker:{name}: there is no such training job in {where}: `aws sagemaker list-training-jobs` lists them; of "
                    "another region: set AWS_DEFAULT_REGION, or give the job's ARN"
                ) from None
            raise explain(error, f"sagemaker:{name}") from None
        return dict(answer)


def explain(error: Exception, what: str) -> SegtrainError:
    """An error of boto3 as one line with its cure. ``what``: the URI."""
    from botocore import exceptions as known

    response = getattr(error, "response", None)
    if isinstance(response, dict):
        code = str(response.get("Error", {}).get("Code", ""))
        said = str(response.get("Error", {}).get("Message", "")).strip().rstrip(".")
        return DataError(f"{what}: {code}: {_CURES.get(code) or said}")
    if isinstance(error, (known.NoCredentialsError, known.PartialCredentialsError, known.CredentialRetrievalError)):
        return ConfigError(f"{what}: no AWS credentials were found ({error}): {SIGN_IN}")
    if isinstance(error, (known.SSOError, known.TokenRetrievalError, known.UnauthorizedSSOTokenError)):
        return ConfigError(f"{what}: the sign-in has expired ({error}): aws sso login")
    if isinstance(error, known.ProfileNotFound):
        return ConfigError(f"{what}: AWS_PROFILE: {error}: {SIGN_IN}")
    if isinstance(error, known.NoRegionError):
        return ConfigError(f"{what}: no AWS region is set: set AWS_DEFAULT_REGION, or give the job's ARN")
    if isinstance(error, known.ParamValidationError):
        return ConfigError(f"{what}: {' '.join(str(error).split())}")
    if isinstance(error, (known.HTTPClientError, known.ConnectionError)):
        return SegtrainError(
            f"{what}: AWS cannot be reached ({error}): look at the network, a proxy, and AWS_ENDPOINT_URL"
        )
    return SegtrainError(f"{what}: {type(error).__name__}: {error}")
