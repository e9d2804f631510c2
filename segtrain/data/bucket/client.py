"""Requests to one bucket through obstore, repeated until they succeed or an outage lasts too long.

obstore repeats nothing by itself here: so each fault is seen, counted by its kind, and bounded by one time limit.
Each process makes its own clients, because obstore hangs in a forked child.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from segtrain.data.bucket import faults
from segtrain.data.bucket.tally import RequestTally
from segtrain.errors import ConfigError, DataError, MissingExtra

T = TypeVar("T")

# Seconds: pauses before another try, doubled from the first to the last and then shortened at random.
_FIRST_PAUSE, _LAST_PAUSE = 0.01, 2.0
# A request without an answer, or without its next bytes, for so long is repeated; large ones may take longer.
_OPTIONS = {"connect_timeout": "5s", "read_timeout": "30s", "timeout": "3600s"}
_PAGE = 1000  # objects per page of a listing
_TRUE = ("1", "true", "yes")
# Etags that no server accepts as a condition: weak ones, and times in place of an etag.
_WEAK = ("W/", "@")


def etag_of(meta: Any) -> str:
    """What changes with an object's content: its etag, or "@" and its time if the server gives none."""
    return meta.get("e_tag") or f"@{meta['last_modified'].timestamp()}"


class Answer(NamedTuple):
    """Bytes of an object (a buffer without a copy), with the size and the etag of the whole object."""

    content: Any
    size: int
    etag: str


class Stopped(DataError):
    """The pass that needed a request was closed. Nobody waits for the sample any more."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: the pass was closed", code="pass-closed", file=path)


@dataclass
class Client:
    """A bucket: ``base`` is ``s3://BUCKET``, and keys are below it. Any thread may call any method."""

    base: str
    store: Any
    tally: RequestTally = field(default_factory=RequestTally)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _down_since: float | None = None
    _failed_at: float = 0.0
    _answered: bool = False

    def get(
        self, key: str, span: tuple[int, int] | None, etag: str, outage_s: float, stop: threading.Event | None = None
    ) -> Answer:
        """Bytes of ``span`` (begin, end; None: all) of an object whose etag must be ``etag`` ("": any).

        Raises DataError: missing, denied, changed, ends early, or no answer for ``outage_s``; Stopped after ``stop``.
        """
        return self._repeated(key, partial(self._get, key, span, etag), outage_s, stop)

    def _get(self, key: str, span: tuple[int, int] | None, etag: str) -> Answer:
        import obstore

        began, options = time.perf_counter(), dict[str, Any]()
        if span:
            options["range"] = span
        if etag and not etag.startswith(_WEAK):
            options["if_match"] = etag
        try:
            result = obstore.get(self.store, key, options=options)  # type: ignore[arg-type]
            size, found = result.meta["size"], etag_of(result.meta)
            content = result.bytes()
        except obstore.exceptions.PreconditionError:
            raise faults.changed(f"{self.base}/{key}", self._etag(key), etag) from None
        # Some servers ignore If-Match.
        if etag and found != etag:
            raise faults.changed(f"{self.base}/{key}", found, etag)
        if span and size < span[1]:
            raise faults.ends_early(f"{self.base}/{key}", size, span[1])
        self.tally.answered(len(content), time.perf_counter() - began)
        return Answer(content, size, found)

    def _etag(self, key: str) -> str:
        """The etag of an object now, for a message; "" if it cannot be had at once."""
        import obstore

        try:
            return etag_of(obstore.head(self.store, key))
        except (OSError, obstore.exceptions.BaseError):
            return ""

    def head(self, key: str, outage_s: float) -> Answer:
        """Size and etag of an object."""
        import obstore

        meta = self._repeated(key, lambda: obstore.head(self.store, key), outage_s)
        return Answer(b"", meta["size"], etag_of(meta))

    def folder(self, prefix: str, outage_s: float) -> tuple[list[Any], list[str]]:
        """The objects directly in a folder, as obstore's dictionaries, and the keys of the folders in it."""
        import obstore

        found = self._repeated(prefix, lambda: obstore.list_with_delimiter(self.store, prefix or None), outage_s)
        return list(found["objects"]), list(found["common_prefixes"])

    def below(self, prefix: str, outage_s: float) -> Iterator[list[Any]]:
        """Pages of all objects below a folder, in the order of keys, as obstore's dictionaries."""
        import obstore

        last, stream = "", None

        def page() -> list[Any]:
            nonlocal stream
            # A failed page ends the stream: the next one begins behind the last key that came.
            stream = stream or iter(obstore.list(self.store, prefix or None, offset=last or None, chunk_size=_PAGE))
            try:
                return list(next(stream, ()))
            except Exception:
                stream = None
                raise

        while found := self._repeated(prefix, page, outage_s):
            last = found[-1]["path"]
            yield found

    def _repeated(self, key: str, attempt: Callable[[], T], outage_s: float, stop: threading.Event | None = None) -> T:
        """The result of ``attempt``, which is called again after faults that may pass. Raises DataError."""
        path, first, tries = f"{self.base}/{key}", 0.0, 0
        while True:
            began = time.monotonic()
            try:
                result = attempt()
            except Exception as error:
                kind = faults.passing_kind(error)
                # A login that has worked before may fail for a moment.
                if not kind or (faults.no_login(error) and not self._answered):
                    raise faults.lasting(path, error) from None
            else:
                self._down_since, self._answered = None, True
                return result
            tries, first, now = tries + 1, first or began, time.monotonic()
            lasted = now - min(first, self._failed(began, now, outage_s))
            if lasted >= outage_s:
                raise faults.outage(path, kind, tries, lasted, outage_s)
            pause = min(_LAST_PAUSE, _FIRST_PAUSE * 2 ** min(tries - 1, 20)) * random.uniform(0.5, 1)
            self.tally.retried(kind, now - began + pause)
            if stop is None:
                time.sleep(pause)
            elif stop.wait(pause):
                raise Stopped(path)

    def _failed(self, began: float, now: float, outage_s: float) -> float:
        """Note a failure; returns the start of the time without any success. After a long silence it starts again."""
        with self._lock:
            since = self._down_since
            if since is None or now - self._failed_at > outage_s:
                since = self._down_since = began
            self._failed_at = now
            return since


_clients: dict[tuple[Any, ...], Client] = {}
_making = threading.Lock()


def client_of(base: str) -> Client:
    """The client of a bucket in this process; the variables of the environment are read when it is first used.

    Raises MissingExtra without obstore, and ConfigError for settings that obstore refuses.
    """
    try:
        import obstore  # noqa: F401
    except ImportError:
        raise MissingExtra("obstore", "buckets", f"reading {base}") from None
    settings = _settings(base)
    key = os.getpid(), base, repr(sorted(settings.items()))
    with _making:
        if key not in _clients:
            try:
                _clients[key] = Client(base, _connected(base, settings))
            except Exception as error:
                reason = faults.reason_of(error)
                says = f"data.root={base}: the bucket cannot be used ({reason}): check the URL and its variables"
                raise ConfigError(says, code="bucket-settings", key="data.root", found=reason) from None
        return _clients[key]


def _settings(base: str) -> dict[str, Any]:
    """Endpoint, region, and anonymous access by the variables of the clouds' own tools. obstore reads the others."""
    environ, scheme = os.environ, base.partition("://")[0]
    prefix = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}.get(scheme, "")
    found: dict[str, Any] = {}
    if prefix and environ.get(f"{prefix}_SKIP_SIGNATURE", "").lower() in _TRUE:
        found["skip_signature"] = True
    if scheme == "s3":
        endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
        found |= {"endpoint": endpoint} if endpoint else {}
        region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
        found |= {"region": region} if region else {}
    elif scheme == "gs" and environ.get("STORAGE_EMULATOR_HOST"):
        host = environ["STORAGE_EMULATOR_HOST"]
        found["base_url"] = host if "://" in host else f"http://{host}"
    return found


def _connected(base: str, settings: dict[str, Any]) -> Any:
    from obstore import store

    scheme, _, name = base.partition("://")
    plain = any(str(value).startswith("http://") for value in (base, *settings.values()))
    options: Any = {"client_options": {**_OPTIONS, "allow_http": plain}, "retry_config": {"max_retries": 0}}
    if scheme == "s3":
        return store.S3Store(name, **settings, **options, **_aws_login(settings))
    if scheme == "gs":
        return store.GCSStore(name, **settings, **options)
    if scheme == "az":
        return store.AzureStore(name, **settings, **options)
    return store.HTTPStore.from_url(base, **options)


def _aws_login(settings: dict[str, Any]) -> dict[str, Any]:
    """Credentials and region of a profile or sign-in, if boto3 finds some; obstore itself reads variables and roles."""
    if settings.get("skip_signature") or os.environ.get("AWS_ACCESS_KEY_ID"):
        return {}
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return {}
    session = boto3.Session()
    if session.get_credentials() is None:
        return {}
    region = {} if "region" in settings or not session.region_name else {"region": session.region_name}
    return {"credential_provider": Boto3CredentialProvider(session), **region}
