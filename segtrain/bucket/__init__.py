"""Buckets of S3, Google Cloud Storage, and Azure: what is true of each cloud, and how to recognize
URLs.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from segtrain.errors import ConfigError


@dataclass(frozen=True)
class Cloud:
    """What is true of all buckets of one cloud.

    ``bucket``: its word for a bucket. ``variables``: setting of an obstore store -> environment
    variables, of which the first that is set counts; they say where a bucket is and whether it is
    public, and hold no secret. ``sorted_listing``: whether it lists objects in the order of their
    keys, and can start after any key. The commands are templates for ``command_of``.
    """

    bucket: str
    variables: Mapping[str, tuple[str, ...]]
    sorted_listing: bool
    sign_in: str
    list_command: str
    print_command: str
    # Where a pattern of names can be excluded, checkpoints are not copied.
    copy_command: str


# Scheme of its URLs -> a cloud whose buckets can be listed and written.
CLOUDS = {
    "s3": Cloud(
        bucket="BUCKET",
        variables={
            "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
            "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
            "skip_signature": ("AWS_SKIP_SIGNATURE",),
        },
        sorted_listing=True,
        sign_in="set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        list_command="aws s3 ls",
        print_command="aws s3 cp {url} -",
        copy_command="aws s3 sync {url} FOLDER --exclude checkpoints/*",
    ),
    "gs": Cloud(
        bucket="BUCKET",
        variables={
            "base_url": ("STORAGE_EMULATOR_HOST",),
            "skip_signature": ("GOOGLE_SKIP_SIGNATURE",),
        },
        sorted_listing=True,
        sign_in="run `gcloud auth application-default login`, or set "
        "GOOGLE_APPLICATION_CREDENTIALS",
        list_command="gcloud storage ls",
        print_command="gcloud storage cat {url}",
        copy_command=r"gcloud storage rsync -r --exclude=.*\.pt$ {url} FOLDER",
    ),
    "az": Cloud(
        bucket="CONTAINER",
        variables={
            "account_name": ("AZURE_STORAGE_ACCOUNT_NAME",),
            "skip_signature": ("AZURE_SKIP_SIGNATURE",),
        },
        sorted_listing=False,
        sign_in="set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        list_command="az storage blob list -c CONTAINER",
        print_command="az storage blob download -c {bucket} -n {key} --no-progress",
        copy_command="az storage blob download-batch -s {bucket} -d FOLDER --pattern {key}/*",
    ),
}
# Schemes of all places that are read by requests.
SCHEMES = (*CLOUDS, "https", "http")
# Variables and commands that a shell would have replaced. A name may hold a dollar, as in a$b.
_UNEXPANDED = r"\$[({]|^(\$[A-Za-z_]|%\w+%|`)"
_UNEXPANDED_IN_URL = r"\$[({]|(?<![A-Za-z0-9])\$[A-Za-z_]"


def scheme_of(place: str) -> str:
    """The scheme of a URL; "" for a path."""
    return place.partition("://")[0] if "://" in place else ""


def is_bucket(place: str) -> bool:
    """Whether a path or URL names a place in a bucket rather than on the disk.

    Raises ConfigError for a misspelled URL such as ``s3:/bucket``, and for one of an unknown
    scheme, such as ``gcs://bucket`` or ``dbfs:/folder``: each would become the name of a local
    folder.
    """
    if scheme_of(place) in SCHEMES:
        return True
    scheme, _, rest = place.partition(":")
    if scheme.lower() in SCHEMES and rest.startswith("/"):
        raise ConfigError(
            f"{place} is not a URL of a bucket: write {scheme.lower()}://{rest.lstrip('/')}",
            code="bucket-url-misspelled",
            found=place,
        )
    if rest.startswith("/") and re.fullmatch(r"[A-Za-z][\w+.-]+", scheme):
        raise ConfigError(
            f"{place}: {scheme}: is not supported: write a path, {url_forms('FOLDER')}",
            code="bucket-scheme-unknown",
            found=scheme,
        )
    return False


def typed_place(text: str, schemes: Collection[str] | None = ()) -> str:
    """A path or URL that a user has typed, with ``~`` replaced, which no shell does in a file, nor
    in ``key=~/folder``.

    ``schemes``: of the URLs that can be used here; None: any. Raises ValueError for a text that
    would become the name of a folder, but was meant otherwise. The name of a folder that exists is
    right.
    """
    place = os.path.expanduser(text)
    variable = re.search(_UNEXPANDED_IN_URL if "://" in place else _UNEXPANDED, place)
    wrong = ""
    if any(unicodedata.category(character) == "Cc" for character in place):
        wrong = "must not contain a line break or another control character"
    elif place != place.strip():
        wrong = "must not begin or end with white space"
    elif place.startswith("~"):
        wrong = "no user has this name: write the path"
    elif variable or os.path.expandvars(place) != place:
        wrong = (
            "variables are not replaced here: write the value, or give it on the command line, "
            "where the shell replaces them"
        )
    elif (
        schemes is not None
        and re.match(r"[A-Za-z][\w+.-]+:/", place)
        and not re.match(rf"({'|'.join(schemes)})://[^/]", place)
    ):
        wrong = f"must be a folder, {url_forms('FOLDER')}" if schemes else "must be a path, no URL"
    named = re.match(r".*[$%`][^/]*", place)  # the part up to the last variable
    if wrong and not os.path.exists(named[0] if named else place):
        raise ValueError(wrong)
    return place


def typed_name(text: str) -> str:
    """A name that a user has typed, as a part of the name of a folder. Raises ValueError where it
    would lead to another folder.
    """
    if re.search(r"[/\\]|^~|^\.\.?$", text):
        raise ValueError("must be a plain name, without / and \\; out= and --output choose folders")
    return typed_place(text)


def split_url(url: str) -> tuple[str, str]:
    """``gs://BUCKET/A/B/`` -> (``gs://BUCKET``, ``A/B``). Raises ConfigError without a bucket."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if not bucket:
        raise ConfigError(
            f"{url} names no bucket: write {scheme}://BUCKET/FOLDER",
            code="bucket-name-missing",
            found=url,
        )
    return f"{scheme}://{bucket}", key.strip("/")


def url_forms(folder: str) -> str:
    """The forms of the URLs of a folder: ``s3://BUCKET/FOLDER, ..., or az://CONTAINER/FOLDER``."""
    *forms, last = (f"{scheme}://{cloud.bucket}/{folder}" for scheme, cloud in CLOUDS.items())
    return f"{', '.join(forms)}, or {last}"


def command_of(template: str, url: str) -> str:
    """A command of a cloud, quoted for a shell.

    In ``template``, the words {url}, {bucket}, and {key} stand for ``url`` and its parts.
    """
    base, key = split_url(url)
    parts = {"url": url, "bucket": base.partition("://")[2], "key": key}
    return shlex.join(word.format(**parts) for word in template.split())


def key_in(base: str, path: str) -> str:
    """The key of ``path``, a file or folder in the bucket ``base``. The path may hold ``./`` and
    ``../``.
    """
    key = path.removeprefix(base).strip("/")
    return posixpath.normpath(key) if "./" in key else key
