"""Connections to a bucket: endpoint, region, credentials, and time limits of obstore's stores."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from segtrain.bucket import CLOUDS, scheme_of

# A request is retried if no answer, or no more bytes of it, arrive for this long. The wait for the
# answer includes the time to send the body: a request with a large body gets SENDING.
SILENT, SENDING = "30s", "300s"
_CONNECT = "5s"
_LONGEST = "3600s"
# boto3 renews credentials with less than 10 to 15 minutes left, but only when it is asked for them:
# ask this often.
_KEEP_LOGIN = timedelta(minutes=10)
_TRUE = ("1", "true", "yes")


def settings_of(base: str) -> dict[str, Any]:
    """Endpoint, region, and anonymous access, read from environment variables. obstore itself reads
    all others.
    """
    cloud = CLOUDS.get(scheme_of(base))
    settings: dict[str, Any] = {}
    for setting, variables in cloud.variables.items() if cloud else ():
        values = (os.environ.get(variable) for variable in variables)
        if value := next(filter(None, values), None):
            settings[setting] = value
    if settings.pop("skip_signature", "").lower() in _TRUE:
        settings["skip_signature"] = True
    host = settings.get("base_url", "")
    if host and "://" not in host:
        settings["base_url"] = f"http://{host}"
    return settings


def connected(
    base: str,
    settings: dict[str, Any],
    repeats: int,
    timeout: str = _LONGEST,
    silent: str | None = None,
) -> Any:
    """An obstore store that itself retries a request up to ``repeats`` times. ``settings``: with
    the login.

    A request ends after ``timeout``, or after ``silent`` (None: SILENT) without an answer.
    """
    from obstore import store

    settings = {**settings}
    plain = any(str(value).startswith("http://") for value in (base, *settings.values()))
    options: Any = {
        "client_options": {
            "connect_timeout": _CONNECT,
            "read_timeout": silent or SILENT,
            "timeout": timeout,
            "allow_http": plain,
        },
        "retry_config": {"max_retries": repeats},
    }
    if scheme_of(base) not in CLOUDS:
        return store.HTTPStore.from_url(base, **options)
    # An emulator of Google's service needs anonymous access, but GCSStore asks for credentials when
    # it writes: give it a made-up token.
    if "base_url" in settings and settings.pop("skip_signature", False):
        options["credential_provider"] = lambda: {"token": "anonymous", "expires_at": None}
    return store.from_url(base, **settings, **options)


def aws_login(base: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Credentials and region that boto3 finds, for example in a profile or a sign-in. Empty if
    there are none.

    obstore itself finds credentials in environment variables and in roles of the machine.
    """
    if (
        not base.startswith("s3://")
        or settings.get("skip_signature")
        or os.environ.get("AWS_ACCESS_KEY_ID")
    ):
        return {}
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return {}
    session = boto3.Session()
    if session.get_credentials() is None:
        return {}
    region = (
        {} if "region" in settings or not session.region_name else {"region": session.region_name}
    )
    return {"credential_provider": Boto3CredentialProvider(session, ttl=_KEEP_LOGIN), **region}
