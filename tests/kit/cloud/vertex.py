"""A server of Vertex AI's REST interface on loopback: metadata store, experiments, TensorBoards,
and a token endpoint.

It stores what it gets, refuses fields and ids that the API does not know, answers lists by filters
and in pages, and names resources by the number of the project, as Google does.
"""

from __future__ import annotations

import json
import re
import threading
import time
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

TOKEN = "token-of-the-test"
STATES = ("STATE_UNSPECIFIED", "PENDING", "LIVE")
VALUE_TYPES = ("VALUE_TYPE_UNSPECIFIED", "SCALAR", "TENSOR", "BLOB_SEQUENCE")
ENUMS = {"state": STATES, "valueType": VALUE_TYPES}
_OUTPUT = {"name", "createTime", "updateTime", "etag"}
_NODE = {"displayName", "labels", "schemaTitle", "schemaVersion", "metadata", "description"}
# Collection -> (the parameter of a new id, the fields of a resource).
KINDS = {
    "metadataStores": ("metadataStoreId", {"description", "encryptionSpec"}),
    "contexts": ("contextId", {*_NODE, "parentContexts"}),
    "artifacts": ("artifactId", {*_NODE, "uri", "state"}),
    "executions": ("executionId", {*_NODE, "state"}),
    "tensorboards": (
        "",
        {"displayName", "description", "labels", "isDefault", "blobStoragePathPrefix", "runCount"},
    ),
    "experiments": ("tensorboardExperimentId", {"displayName", "description", "labels", "source"}),
    "runs": ("tensorboardRunId", {"displayName", "description", "labels"}),
    "timeSeries": (
        "tensorboardTimeSeriesId",
        {"displayName", "description", "valueType", "pluginName", "pluginData", "metadata"},
    ),
}
MOST_METADATA = 200_000  # bytes
MOST_POINTS = 5000


class Refused(Exception):
    """An error as Google words it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class VertexServer(ThreadingHTTPServer):
    """``resources`` by full name, ``points`` {time series: {step: value}}, ``asked``: (method,
    path, query, body).

    down: close every connection. proxy: answer with a page of HTML. busy: answer so many requests
    with 503. deny: answer all with 403. page: most items in a page. now: seconds to add to the
    clock.
    """

    daemon_threads = True

    def __init__(
        self, project: str = "streets", number: str = "123456789012", region: str = "us-central1"
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.project, self.number, self.region = project, number, region
        self.resources: dict[str, dict[str, Any]] = {}
        self.points: dict[str, dict[int, float]] = {}
        self.attributed: dict[str, list[str]] = {}
        self.asked: list[tuple[str, str, dict[str, Any], Any]] = []
        self.down, self.busy, self.deny, self.page, self.now, self._last = (
            False,
            0,
            False,
            1000,
            0.0,
            0,
        )
        self.proxy = False
        self.lock = threading.RLock()
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def parent(self) -> str:
        return f"projects/{self.number}/locations/{self.region}"

    def environment(self, folder: Path) -> dict[str, str]:
        """Variables that send segtrain here, with the key of a service account that this server
        knows.
        """
        return {
            "GOOGLE_APPLICATION_CREDENTIALS": str(key_file(folder / "key.json", self.url)),
            "NO_PROXY": "127.0.0.1",
            "GOOGLE_CLOUD_PROJECT": self.project,
            "GOOGLE_CLOUD_REGION": self.region,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_AIPLATFORM": self.url,
        }

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that went away

    def time(self) -> str:
        return (
            datetime.fromtimestamp(time.time() + self.now, timezone.utc)
            .isoformat()
            .replace("+00:00", "Z")
        )

    def new_id(self) -> str:
        self._last += 1
        return str(4_000_000_000_000 + self._last)

    def context(self, name: str) -> dict[str, Any]:
        return self.resources[f"{self.parent}/metadataStores/default/contexts/{name}"]

    def series(self, tensorboard: str, experiment: str, run: str) -> dict[str, dict[int, float]]:
        """Points by the display name of their time series."""
        start = f"{tensorboard}/experiments/{experiment}/runs/{run}/timeSeries/"
        return {
            item["displayName"]: self.points.get(name, {})
            for name, item in self.resources.items()
            if name.startswith(start)
        }

    def answer(self, method: str, path: str, query: dict[str, Any], body: Any) -> dict[str, Any]:
        """The answer to one request. Raises Refused."""
        name, _, verb = path.partition(":")
        name = re.sub(rf"projects/{self.project}(?=/|$)", f"projects/{self.number}", name)
        if not name.startswith(f"projects/{self.number}/"):
            raise Refused(
                403,
                "PERMISSION_DENIED",
                f"Permission denied on resource project {name.split('/')[1]}.",
            )
        if verb:
            return self._verb(name, verb, query["timeSeries"] if verb == "batchRead" else body)
        parts = name.split("/")
        if parts[-2] == "operations":
            made = self._known("/".join(parts[:-2]))
            kind = {"metadataStores": "MetadataStore", "tensorboards": "Tensorboard"}[parts[-4]]
            answer = {
                "@type": f"type.googleapis.com/google.cloud.aiplatform.v1.{kind}",
                "name": made["name"],
            }
            return {"name": name, "done": True, "response": answer}
        if len(parts) % 2 == 0:
            known = self._known(name)
            if method == "GET":
                return known
            if method == "DELETE":
                del self.resources[name]
                return {"name": f"{name}/operations/1", "done": True}
            return self._changed(known, body)
        if method == "GET":
            return self._list(name, query)
        return self._created(name, query, body)

    def _known(self, name: str) -> dict[str, Any]:
        if name not in self.resources:
            raise Refused(404, "NOT_FOUND", f"The requested resource {name} was not found.")
        return self.resources[name]

    def _checked(self, kind: str, body: dict[str, Any], least: int = 0) -> dict[str, Any]:
        if unknown := set(body) - KINDS[kind][1] - _OUTPUT:
            raise Refused(
                400,
                "INVALID_ARGUMENT",
                f'Invalid JSON payload received. Unknown name "{min(unknown)}"',
            )
        if len(json.dumps(body.get("metadata", {}))) > MOST_METADATA:
            raise Refused(400, "INVALID_ARGUMENT", "The metadata field exceeds 200KB.")
        enums = {key: ENUMS[key][body[key]] for key in ENUMS if isinstance(body.get(key), int)}
        return {key: value for key, value in body.items() if key in KINDS[kind][1]} | enums

    def _created(
        self, collection: str, query: dict[str, str], body: dict[str, Any]
    ) -> dict[str, Any]:
        parent, _, kind = collection.rpartition("/")
        if parent != self.parent:
            self._known(parent)
        id = query.get(KINDS[kind][0]) or self.new_id()
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,127}", id) or (
            kind == "contexts" and len(id) < 4
        ):
            raise Refused(
                400,
                "INVALID_ARGUMENT",
                f"{KINDS[kind][0]} {id} is invalid: 4-128 characters of [a-z][0-9]-",
            )
        name = f"{collection}/{id}"
        if name in self.resources:
            raise Refused(409, "ALREADY_EXISTS", f"{name} already exists.")
        now = self.time()
        made = {
            "name": name,
            "createTime": now,
            "updateTime": now,
            "etag": "1",
            **self._checked(kind, body),
        }
        self.resources[name] = made
        if kind in ("metadataStores", "tensorboards"):
            return {"name": f"{name}/operations/1", "done": False}
        return made

    def _changed(self, known: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        if body.get("etag", known["etag"]) != known["etag"]:
            said = f"Specified Context `etag`: `{body['etag']}` does not match server `etag`: `{known['etag']}`"
            raise Refused(409, "ABORTED", said)
        fields = self._checked(known["name"].split("/")[-2], body)
        known.update({**fields, "updateTime": self.time(), "etag": str(int(known["etag"]) + 1)})
        return known

    def _list(self, collection: str, query: dict[str, str]) -> dict[str, Any]:
        parent, _, kind = collection.rpartition("/")
        if parent != self.parent:
            self._known(parent)
        found = [
            item
            for name, item in self.resources.items()
            if name.rpartition("/")[0] == collection and self._fits(item, query.get("filter", ""))
        ]
        size = min(int(query.get("pageSize") or 100), self.page)
        at = int(query.get("pageToken") or 0)
        more = {"nextPageToken": str(at + size)} if at + size < len(found) else {}
        page = {} if not found else {_answer_key(collection, kind): found[at : at + size]}
        return page | more

    def _fits(self, item: dict[str, Any], filter: str) -> bool:
        """Whether ``item`` passes a filter, whose conditions are replaced by True and False."""
        conditions = {
            r'schema_title="([^"]*)"': lambda wanted: item.get("schemaTitle") == wanted,
            r'display_name="([^"]*)"': lambda wanted: item.get("displayName") == wanted,
            r'parent_contexts:"([^"]*)"': lambda wanted: wanted in item.get("parentContexts", ()),
            r'in_context\("([^"]*)"\)': lambda wanted: (
                item["name"] in self.attributed.get(wanted, ())
            ),
            r"is_default=(true)": lambda wanted: item.get("isDefault") is True,
        }
        for pattern, holds in conditions.items():
            filter = re.sub(pattern, lambda match, holds=holds: str(holds(match[1])), filter)
        if not re.fullmatch(r"(True|False|AND|OR|[() ])*", filter):
            raise Refused(400, "INVALID_ARGUMENT", f"Invalid filter: {filter}")
        return bool(eval(filter.replace("AND", "and").replace("OR", "or") or "True"))

    def _verb(self, name: str, verb: str, body: Any) -> dict[str, Any]:
        number = re.compile(rf"projects/{self.project}(?=/)")
        if verb == "batchRead":
            return {"timeSeriesData": [self._data(series) for series in body]}
        self._known(name)
        if verb == "addContextChildren":
            for child in (
                number.sub(f"projects/{self.number}", child) for child in body["childContexts"]
            ):
                parents = self._known(child).setdefault("parentContexts", [])
                parents += [name] * (name not in parents)
        elif verb == "addContextArtifactsAndExecutions":
            self.attributed.setdefault(name, []).extend(
                [*body.get("artifacts", ()), *body.get("executions", ())]
            )
        elif verb == "batchCreate":
            series = [
                self._created(f"{item['parent']}/timeSeries", {}, item["tensorboardTimeSeries"])
                for item in body["requests"]
            ]
            return {"tensorboardTimeSeries": series}
        elif verb == "write":
            self._write(name, body["timeSeriesData"])
        else:
            raise Refused(404, "NOT_FOUND", f"no method {verb}")
        return {}

    def _write(self, run: str, data: list[dict[str, Any]]) -> None:
        if sum(len(item["values"]) for item in data) > MOST_POINTS:
            raise Refused(400, "INVALID_ARGUMENT", f"more than {MOST_POINTS} data points")
        for item in data:
            name = f"{run}/timeSeries/{item['tensorboardTimeSeriesId'].rpartition('/')[2]}"
            series = self._known(name)
            if item["valueType"] not in (
                series["valueType"],
                VALUE_TYPES.index(series["valueType"]),
            ):
                raise Refused(400, "INVALID_ARGUMENT", f"{name} has other values")
            points = {
                int(value.get("step", 0)): float(value["scalar"]["value"])
                for value in item["values"]
            }
            self.points.setdefault(name, {}).update(points)
            assert all(
                re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", value["wallTime"]) for value in item["values"]
            )

    def _data(self, series: str) -> dict[str, Any]:
        name = re.sub(rf"projects/{self.project}(?=/)", f"projects/{self.number}", series)
        values = [
            {"step": str(step), "wallTime": self.time(), "scalar": {"value": value}}
            for step, value in sorted(self.points.get(name, {}).items())
        ]
        known = self._known(name)
        return {
            "tensorboardTimeSeriesId": name.rpartition("/")[2],
            "valueType": known["valueType"],
            "values": values,
        }


def _answer_key(collection: str, kind: str) -> str:
    """The key of the items in the answer to a list."""
    if "/tensorboards/" not in collection:
        return kind
    return {
        "experiments": "tensorboardExperiments",
        "runs": "tensorboardRuns",
        "timeSeries": "tensorboardTimeSeries",
    }[kind]


class _Handler(BaseHTTPRequestHandler):
    server: VertexServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        server, place = self.server, urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if server.down:
            self.close_connection = True
            self.connection.close()
            return
        if place.path == "/token":
            return self._send(
                200, {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}
            )
        if server.proxy:
            self.send_response(200)
            self.send_header("Content-Length", "19")
            self.end_headers()
            self.wfile.write(b"<html>Log in</html>")
            return None
        pairs = parse_qsl(place.query)
        query: dict[str, Any] = {
            **dict(pairs),
            "timeSeries": [value for key, value in pairs if key == "timeSeries"],
        }
        query = {key: value for key, value in query.items() if value}
        # The SDK polls operations below /ui.
        path = re.sub(r"^/(?:v1|ui)/", "", unquote(place.path))
        body = json.loads(raw) if raw else None
        with server.lock:
            server.asked.append((self.command, path, query, body))
            try:
                token = self.headers.get("Authorization", "").removeprefix("Bearer ")
                # The SDK signs a token of its own in place of one from the token endpoint.
                if token != TOKEN and token.count(".") != 2:
                    raise Refused(
                        401, "UNAUTHENTICATED", "Request had invalid authentication credentials."
                    )
                if server.deny:
                    raise Refused(
                        403,
                        "PERMISSION_DENIED",
                        "Permission 'aiplatform.contexts.get' denied on resource.",
                    )
                if server.busy:
                    server.busy -= 1
                    raise Refused(503, "UNAVAILABLE", "The service is currently unavailable.")
                answer = server.answer(self.command, path, query, body)
            except Refused as error:
                text = {
                    "error": {"code": error.status, "message": error.message, "status": error.code}
                }
                return self._send(error.status, text)
            as_numbers = "enum-encoding=int" in query.get("$alt", "")
            self._send(200, _as_numbers(answer) if as_numbers else answer)

    do_POST = do_PATCH = do_DELETE = do_GET

    def _send(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _as_numbers(answer: Any) -> Any:
    if isinstance(answer, list):
        return [_as_numbers(item) for item in answer]
    if not isinstance(answer, dict):
        return answer
    return {
        key: ENUMS[key].index(value) if key in ENUMS and value in ENUMS[key] else _as_numbers(value)
        for key, value in answer.items()
    }


def key_file(path: Path, url: str) -> Path:
    """A service account's key, made here, whose tokens come from ``url``."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    private = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    content = {
        "type": "service_account",
        "project_id": "project-of-the-key",
        "private_key_id": "1",
        "private_key": private.decode(),
        "client_email": "test@example.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": f"{url}/token",
    }
    path.write_text(json.dumps(content))
    return path
