"""S3 for a rehearsal: moto's server in a thread, on a loopback or bridge address. Real HTTP, but no AWS account."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

from launch.aws.cloud import split_uri
from segtrain.errors import MissingExtra

SECRET = "rehearsal"  # moto accepts any access key and secret


class S3Server:
    """A local S3 server, as a context manager. ``url`` is the value for AWS_ENDPOINT_URL."""

    def __init__(self, address: str, region: str) -> None:
        try:
            import boto3
            import botocore.config
            from moto.server import ThreadedMotoServer
        except ImportError as error:
            raise MissingExtra(error.name or "moto", "rehearse", "--rehearse") from None
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else it logs a line for each request
        self._server = ThreadedMotoServer(address, 0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.url, self.region = f"http://{host}:{port}", region
        self.client: Any = boto3.client(
            "s3", region_name=region, endpoint_url=self.url, aws_access_key_id=SECRET, aws_secret_access_key=SECRET,
            config=botocore.config.Config(s3={"addressing_style": "path"}),
        )  # fmt: skip
        self._buckets: set[str] = set()

    def __enter__(self) -> S3Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def environment(self) -> dict[str, str]:
        """Variables with which AWS's toolkit and any boto3 in a container find this server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "S3_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": SECRET,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def put(self, path: Path, uri: str) -> None:
        bucket, key = split_uri(uri)
        if bucket not in self._buckets:
            place = {} if self.region == "us-east-1" else {"LocationConstraint": self.region}
            self.client.create_bucket(Bucket=bucket, **({"CreateBucketConfiguration": place} if place else {}))
            self._buckets.add(bucket)
        # The file is read first: if it grew during the upload, it would not match its checksum. It is sent in one
        # request: a multipart upload, with its threads, costs more here than it saves.
        self.client.put_object(Bucket=bucket, Key=key, Body=path.read_bytes())

    def put_folder(self, folder: Path, uri: str) -> int:
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        for path in files:
            self.put(path, f"{uri.rstrip('/')}/{path.relative_to(folder).as_posix()}")
        return len(files)

    def keys(self, uri: str) -> list[str]:
        """Every key that begins with the prefix, as in SageMaker: ``s3://b/run-1`` finds ``run-10/`` too."""
        bucket, prefix = split_uri(uri)
        if bucket not in self._buckets:
            return []
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return sorted(item["Key"] for page in pages for item in page.get("Contents", []))

    def get_folder(self, uri: str, folder: Path, share: tuple[int, int] = (0, 1)) -> int:
        """Download the keys below a prefix. ``share`` is (first, step): every ``step``-th key, from index ``first``."""
        bucket, prefix = split_uri(uri)
        keys = self.keys(uri)[share[0] :: share[1]]
        for key in keys:
            path = folder / (key[len(prefix) :].lstrip("/") or Path(key).name)  # the prefix may be a whole key
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                shutil.copyfileobj(self.client.get_object(Bucket=bucket, Key=key)["Body"], file)
        return len(keys)
