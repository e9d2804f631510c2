"""Requests to Google Cloud's REST APIs, with Application Default Credentials.

google-auth finds the credentials: GOOGLE_APPLICATION_CREDENTIALS, `gcloud auth application-default
login`, or the service account of the machine or job. Every error is a SegtrainError with a one-line
message.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator, Mapping
from typing import Any

from segtrain.errors import ConfigError, DataError, MissingExtra, SegtrainError, one_line

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
# HTTP statuses of temporary failures, after which a request is repeated
_PASSING = (408, 429, 500, 502, 503, 504)
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.5, 30.0
_TIMEOUT_S = 30.0  # seconds without a response, after which an attempt fails
SIGN_IN = (
    "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to the key "
    "file of a service account"
)
_PROJECT = ("GOOGLE_CLOUD_PROJECT", "CLOUD_ML_PROJECT_ID", "CLOUDSDK_CORE_PROJECT")
_REGION = ("GOOGLE_CLOUD_REGION", "CLOUD_ML_REGION", "CLOUDSDK_AI_REGION")


class NotFound(DataError):
    """Google answered that there is no such resource."""


class AlreadyThere(DataError):
    """Google answered that the resource already exists, or has changed since it was read."""


class GoogleApi:
    """Client of a service at ``url``, such as ``https://us-central1-aiplatform.googleapis.com/v1``.
    Not thread-safe.

    ``patience_s``: seconds for which a failing request is repeated. Raises MissingExtra without
    google-auth, and ConfigError without credentials.
    """

    def __init__(self, url: str, patience_s: float = 60.0) -> None:
        try:
            import google.auth
            from google.auth.transport.requests import AuthorizedSession
        except ImportError:
            raise MissingExtra("google-auth", "vertex", f"signing in at {url}") from None
        self.url, self.patience_s = url, patience_s
        try:
            credentials, self.project = google.auth.default(scopes=_SCOPES)
        except google.auth.exceptions.GoogleAuthError as error:
            reason = one_line(error)
            problem = f"no Google credentials were found ({reason}): {SIGN_IN}"
            raise ConfigError(problem, code="google-no-login", reason=reason) from None
        self._session = AuthorizedSession(credentials)

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        return self.call("GET", path, query=query)

    def post(self, path: str, body: Mapping[str, Any] | bytes, **query: Any) -> dict[str, Any]:
        return self.call("POST", path, body, query)

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self.call("PATCH", path, body)

    def pages(self, path: str, key: str, **query: Any) -> Iterator[dict[str, Any]]:
        """All items of a paginated list, which are under ``key`` in each response."""
        token = ""
        while True:
            answer = self.get(path, **query, **({"pageToken": token} if token else {}))
            yield from answer.get(key, ())
            token = answer.get("nextPageToken", "")
            if not token:
                return

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The response to a request, which is repeated after temporary failures of the service or
        the network.

        ``body``: a mapping, which is sent as JSON, or the bytes of a file.

        Raises ConfigError if the sign-in fails, DataError (such as NotFound or AlreadyThere) if the
        request is refused, and SegtrainError if temporary failures last longer than ``patience_s``.
        """
        import requests
        from google.auth import exceptions

        url, first, pause = f"{self.url}/{path}", time.monotonic(), _FIRST_PAUSE_S
        sent: dict[str, Any] = {"json": body}
        if isinstance(body, bytes):
            sent = {"data": body, "headers": {"Content-Type": "application/octet-stream"}}
        while True:
            status = 0
            try:
                answer = self._session.request(
                    method, url, params=query, timeout=_TIMEOUT_S, **sent
                )
                problem = "" if answer.ok else _said(answer)
            except exceptions.RefreshError as error:
                if not error.retryable:
                    raise _sign_in(error) from None
                problem = one_line(error)
            except requests.exceptions.InvalidJSONError as error:  # The body holds infinity or NaN.
                raise DataError(
                    f"{url}: {error}: it was not sent", code="body-not-json", url=url
                ) from None
            except (requests.RequestException, exceptions.TransportError) as error:
                problem = one_line(error)
            else:
                if answer.ok:
                    return _content(url, answer)
                status = answer.status_code
                if status not in _PASSING:
                    raise _refusal(url, status, problem)
            if time.monotonic() + pause - first > self.patience_s:
                if status == 429:
                    raise _refusal(url, status, problem)
                fix = "check the network, a proxy, and the region"
                text = f"{url} did not answer for {self.patience_s:.0f} s ({problem}): {fix}"
                raise SegtrainError(text, code="google-unreachable", url=url, reason=problem)
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, _LAST_PAUSE_S)


def _content(url: str, answer: Any) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        content = answer.json() if answer.content else {}
        if isinstance(content, dict):
            return content
    text = (
        f"{url}: the answer is not a JSON object: check whether a proxy has answered in the "
        "place of Google"
    )
    raise SegtrainError(text, code="google-not-json", url=url)


def vertex_url(region: str) -> str:
    """The URL of Vertex AI in a region, unless gcloud's environment variable sets another
    endpoint.
    """
    other = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_AIPLATFORM", "").rstrip("/")
    return f"{other.removesuffix('/v1') or f'https://{region}-aiplatform.googleapis.com'}/v1"


def known_project() -> str:
    """The project in the environment variables of gcloud or of a Vertex job; "" if none is set."""
    return _first_of(_PROJECT)


def known_region() -> str:
    """The region in the environment variables of gcloud or of a Vertex job; "" if none is set."""
    return _first_of(_REGION)


def _first_of(names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")


def _said(answer: Any) -> str:
    """The status of an answer, and Google's message in one line."""
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = answer.reason or ""
    return f"{answer.status_code} {' '.join(str(message).split())}".strip().rstrip(".")


def _sign_in(error: Exception) -> ConfigError:
    reason = one_line(error)
    return ConfigError(
        f"Google refused to sign in ({reason}): {SIGN_IN}", code="google-no-login", reason=reason
    )


def _refusal(url: str, status: int, said: str) -> SegtrainError:
    if status == 401:
        return ConfigError(
            f"{url}: {said}: {SIGN_IN}", code="google-no-login", url=url, status=status
        )
    if status == 403:
        fix = "give this account a role with that right, and enable the service in the project"
        if "aiplatform" in url:
            fix = (
                "give this account the role roles/aiplatform.user in the project, and enable the "
                "service with `gcloud services enable aiplatform.googleapis.com`"
            )
        return DataError(f"{url}: {said}: {fix}", code="google-denied", url=url, status=status)
    if status == 404:
        return NotFound(f"{url}: {said}", code="google-not-found", url=url, status=status)
    if status == 409:
        return AlreadyThere(f"{url}: {said}", code="google-conflict", url=url, status=status)
    if status == 429:
        fix = "ask for more quota (console: IAM, Quotas), ask for less, or try again later"
        return DataError(f"{url}: {said}: {fix}", code="google-quota", url=url, status=status)
    return DataError(f"{url}: {said}", code="google-refused", url=url, status=status)
