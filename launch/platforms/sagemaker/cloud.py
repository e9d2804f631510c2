"""Connection of a job to SageMaker: the account, its role and bucket, the upload, and the
submission.

boto3 is imported inside the functions, so that a dry run works without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.parse import urlsplit

from launch.platforms.sagemaker.aws_errors import CREDENTIALS, explain, explained, passing
from launch.platforms.sagemaker.job import COMMAND, SageMakerJob
from segtrain.errors import ConfigError, SegtrainError

SERVICE = "sagemaker.amazonaws.com"


@dataclass(frozen=True)
class AwsClients:
    """boto3's clients, each made when it is first used.

    ``endpoint_url`` None: AWS's own endpoints, or those that the variables AWS_ENDPOINT_URL_...
    set.
    """

    region: str
    endpoint_url: str | None = None

    @cached_property
    def session(self) -> Any:
        import boto3

        return boto3.Session(region_name=self.region)

    def _client(self, service: str) -> Any:
        from botocore.config import Config

        # The mode "standard" retries throttled and broken calls with exponential backoff.
        config = Config(
            retries={"mode": "standard", "total_max_attempts": 5},
            connect_timeout=10,
            read_timeout=60,
        )
        return self.session.client(service, endpoint_url=self.endpoint_url, config=config)

    @cached_property
    def sagemaker(self) -> Any:
        return self._client("sagemaker")

    @cached_property
    def s3(self) -> Any:
        return self._client("s3")

    @cached_property
    def logs(self) -> Any:
        return self._client("logs")

    @cached_property
    def sts(self) -> Any:
        return self._client("sts")

    @cached_property
    def iam(self) -> Any:
        return self._client("iam")

    @cached_property
    def ec2(self) -> Any:
        return self._client("ec2")

    @cached_property
    def fsx(self) -> Any:
        return self._client("fsx")

    @cached_property
    def quotas(self) -> Any:
        return self._client("service-quotas")

    @cached_property
    def ecr(self) -> Any:
        return self._client("ecr")

    @cached_property
    def identity(self) -> dict[str, str]:
        """Account and Arn of the caller. Raises SegtrainError where the credentials are not
        accepted.
        """
        with explained("the account of these credentials"):
            return dict(self.sts.get_caller_identity())


def connect(region: str = "", endpoint_url: str | None = None) -> AwsClients:
    """Clients for ``region``; if that is empty, for AWS_DEFAULT_REGION or the region of the
    profile.

    At most the credentials are refreshed here. Raises ConfigError that says exactly what to install
    or to set.
    """
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError, ProfileNotFound
        from botocore.session import Session as BareSession
    except ImportError:
        raise ConfigError(
            "a job on SageMaker needs the package 'boto3': pip install 'segtrain[sagemaker]' "
            "(--dry-run works without it)",
            code="boto3-missing",
        ) from None
    try:
        session = boto3.Session(region_name=region or None)
        credentials, place = session.get_credentials(), session.region_name
        if credentials is not None:
            # finds an expired sign-in now instead of at the first call
            credentials.get_frozen_credentials()
    except ProfileNotFound as error:
        profiles = ", ".join(BareSession().available_profiles) or "none"
        raise ConfigError(
            f"AWS_PROFILE: {error}; there are: {profiles}: {CREDENTIALS}", code="profile-missing"
        ) from None
    # a sign-in that has expired, a role that may not be assumed
    except (BotoCoreError, ClientError) as error:
        raise ConfigError(
            str(explain(error, "AWS credentials")), code="credentials-refused"
        ) from None
    if credentials is None:
        raise ConfigError(
            f"no AWS credentials were found: {CREDENTIALS} (--dry-run and --rehearse need none)",
            code="credentials-missing",
        )
    if not place:
        raise ConfigError(
            "no AWS region is set: --region us-east-1, or set AWS_DEFAULT_REGION",
            code="region-missing",
        )
    return AwsClients(place, endpoint_url)


def account(clients: AwsClients) -> str:
    return clients.identity["Account"]


def default_bucket(clients: AwsClients) -> str:
    """The account's default bucket, the same as that of AWS's own SDK. Only the first upload
    creates it.
    """
    return f"sagemaker-{clients.region}-{account(clients)}"


def fill(job: SageMakerJob, clients: AwsClients) -> SageMakerJob:
    """The job with region, role, and output filled in from the account if they are empty. Its calls
    only read.
    """
    output = job.output or f"s3://{default_bucket(clients)}/segtrain"
    return replace(
        job, region=job.region or clients.region, role=_role(job.role, clients), output=output
    )


def _role(name_or_arn: str, clients: AwsClients) -> str:
    """The ARN of the execution role: of the role that was given, else of the caller's own role,
    else of the only role that SageMaker may assume.
    """
    if name_or_arn.startswith("arn:"):
        return name_or_arn
    if name_or_arn:
        return _arn(name_or_arn, clients)
    caller = clients.identity["Arn"]
    # a notebook or a Studio space runs as the role that its jobs use
    if ":assumed-role/" in caller:
        own = _look(caller.split("/")[1], clients)
        if own and _trusts(own):
            return str(own["Arn"])
    try:
        pages = clients.iam.get_paginator("list_roles").paginate()
        roles = [role for page in pages for role in page["Roles"] if _trusts(role)]
    except Exception as error:
        raise ConfigError(
            "no execution role is set, and the roles cannot be listed "
            f"({explain(error, 'iam:ListRoles')}): "
            "give --role arn:aws:iam::ACCOUNT:role/NAME or set SAGEMAKER_ROLE",
            code="roles-not-listed",
        ) from None
    if len(roles) != 1:
        names = ", ".join(sorted(role["Arn"] for role in roles)[:8])
        candidates = (
            f"{len(roles)} roles are possible ({names})" if roles else "the account has none"
        )
        raise ConfigError(
            f"no execution role is set, and {candidates}: give --role ARN of a role that "
            f"{SERVICE} may assume, or set SAGEMAKER_ROLE",
            code="role-unclear",
        )
    return str(roles[0]["Arn"])


def _look(name: str, clients: AwsClients) -> dict[str, Any] | None:
    try:
        return dict(clients.iam.get_role(RoleName=name)["Role"])
    except Exception:
        # the caller may lack the right to read its own role: the list of all roles is tried next
        return None


def _arn(name: str, clients: AwsClients) -> str:
    try:
        return str(clients.iam.get_role(RoleName=name)["Role"]["Arn"])
    except Exception as error:
        raise ConfigError(
            f"{explain(error, f'--role {name}')}: give the whole ARN, "
            f"arn:aws:iam::ACCOUNT:role/{name}",
            code="role-missing",
        ) from None


def _trusts(role: Mapping[str, Any]) -> bool:
    """May SageMaker assume the role? Service-linked roles may not be passed to a job."""
    if str(role.get("Path", "")).startswith("/aws-service-role/"):
        return False
    return trusts(role.get("AssumeRolePolicyDocument") or {})


def trusts(policy: Mapping[str, Any]) -> bool:
    """Whether a trust policy lets SageMaker assume the role."""
    statements = policy.get("Statement", [])
    for statement in [statements] if isinstance(statements, Mapping) else statements:
        principal = statement.get("Principal", {})
        services = principal.get("Service", []) if isinstance(principal, Mapping) else []
        actions = statement.get("Action", [])
        if (
            statement.get("Effect") == "Allow"
            and SERVICE in ([services] if isinstance(services, str) else services)
            and {"sts:AssumeRole", "sts:*", "*"}
            & set([actions] if isinstance(actions, str) else actions)
        ):
            return True
    return False


def split_uri(uri: str) -> tuple[str, str]:
    """``s3://bucket/a/b`` -> (bucket, ``a/b``). Raises ConfigError."""
    parts = urlsplit(uri)
    if parts.scheme != "s3" or not parts.netloc:
        raise ConfigError(f"{uri!r} is not an S3 address: write s3://BUCKET/KEY", code="uri-not-s3")
    return parts.netloc, uri.split("/", 3)[3] if uri.count("/") > 2 else ""


def upload(clients: AwsClients, path: Path, uri: str) -> None:
    """Upload one file. Creates the account's default bucket if it is missing; any other bucket must
    exist.
    """
    bucket, key = split_uri(uri)
    owner = {}
    if bucket == default_bucket(clients):
        # Anyone can guess this name: nothing is sent to a bucket of this name that belongs to
        # another account.
        owner = {"ExpectedBucketOwner": account(clients)}
        _make(clients, bucket, owner)
    with explained(f"upload of {path.name} to {uri}"), path.open("rb") as stream:
        clients.s3.put_object(Bucket=bucket, Key=key, Body=stream, **owner)


def _make(clients: AwsClients, bucket: str, owner: Mapping[str, str]) -> None:
    place = {} if clients.region == "us-east-1" else {"LocationConstraint": clients.region}
    with explained(f"the bucket {bucket}"):
        try:
            clients.s3.head_bucket(Bucket=bucket, **owner)
            return
        except clients.s3.exceptions.ClientError as error:
            if error.response["Error"]["Code"] not in ("404", "NoSuchBucket"):
                raise
        clients.s3.create_bucket(
            Bucket=bucket, **({"CreateBucketConfiguration": place} if place else {})
        )


def submit(clients: AwsClients, request: Mapping[str, Any]) -> str:
    """Sends the job and returns its ARN. Raises SegtrainError with AWS's message and a fix, with
    the code ``job-maybe-sent`` if it is not known whether the job runs.
    """
    name = request["TrainingJobName"]
    try:
        return str(clients.sagemaker.create_training_job(**request)["TrainingJobArn"])
    except Exception as error:
        # An attempt may have succeeded although its response was lost: then the existing job is
        # this one.
        taken = isinstance(error, clients.sagemaker.exceptions.ResourceInUse)
        again = taken and getattr(error, "response", {}).get("ResponseMetadata", {}).get(
            "RetryAttempts"
        )
        if (again or passing(error)) and (arn := _same(clients, request)):
            return arn
        problem = explain(error, f"CreateTrainingJob of {name}")
        if not passing(error):
            raise problem from None
        raise SegtrainError(
            f"{name} may have been sent, and is billed if it runs ({problem}). Stop it: {COMMAND} "
            f"--stop {quote(name)} --region {clients.region}",
            code="job-maybe-sent",
            name=name,
            reason=str(problem),
        ) from None


def _same(clients: AwsClients, request: Mapping[str, Any]) -> str:
    """The ARN of the existing job of the request's name if it was made by this request; else ""."""
    try:
        there = clients.sagemaker.describe_training_job(TrainingJobName=request["TrainingJobName"])
    except Exception:
        return ""  # the error of the submission is reported instead
    keys = ("RoleArn", "HyperParameters", "OutputDataConfig")
    return (
        str(there["TrainingJobArn"])
        if all(there.get(key) == request.get(key) for key in keys)
        else ""
    )
