"""Requests that google-cloud-aiplatform sends for custom jobs, captured on loopback without an
account.

    python -m venv /tmp/aiplatform && /tmp/aiplatform/bin/pip install google-cloud-aiplatform==2.7.0
    /tmp/aiplatform/bin/python tests/contracts/vertex/capture.py

writes the JSON files beside this one again. tests/platforms/test_vertex_contracts.py compares ours
with them.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROJECT, REGION = "123456789012", "us-central1"
PARENT = f"projects/{PROJECT}/locations/{REGION}"
IMAGE = "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-4.py310:latest"
ACCOUNT = "trainer@my-project.iam.gserviceaccount.com"
L4 = {"machine_type": "g2-standard-48", "accelerator_type": "NVIDIA_L4", "accelerator_count": 4}
T4 = {
    "machine_type": "n1-standard-32",
    "accelerator_type": "NVIDIA_TESLA_T4",
    "accelerator_count": 4,
}
HOUR = {"timeout": 3600}


def pool(machine: dict[str, Any], replicas: int = 1, **other: Any) -> dict[str, Any]:
    """A worker pool as the launcher fills it."""
    return {
        "machine_spec": machine,
        "replica_count": replicas,
        "disk_spec": {"boot_disk_type": "pd-ssd", "boot_disk_size_gb": 100},
        "container_spec": {
            "image_uri": IMAGE,
            "command": ["python3", "-c", "START"],
            "args": [
                "configs/scenes.yaml",
                'data.root="gs://seg-data/city"',
                'parallel.strategy="ddp"',
            ],
            "env": [
                {
                    "name": "SEGTRAIN_BUNDLE",
                    "value": "gs://seg-out/jobs/job-1/source/bundle.tar.gz",
                },
                {"name": "SEGTRAIN_JOB", "value": "job-1"},
            ],
        },
        **other,
    }


def cases() -> dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[Any], None] | None]]:
    """Name, arguments of CustomJob, arguments of submit, and what is set on the specification by
    hand.
    """
    from google.cloud.aiplatform_v1 import types
    from google.cloud.aiplatform_v1.types import Scheduling

    strategy = Scheduling.Strategy

    def in_ranges(spec: Any) -> None:  # submit has no argument for these
        spec.reserved_ip_ranges = ["vertex-range"]

    reserved = {
        "reservation_affinity": {
            "reservation_affinity_type": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": ["projects/my-project/zones/us-central1-a/reservations/l4s"],
        }
    }
    nfs = [{"server": "10.0.0.2", "path": "/data", "mount_point": "data"}]
    lustre = [
        {
            "filesystem": "lfs",
            "instance_ip": "10.0.0.3",
            "volume_handle": "projects/p/locations/us-central1-a/instances/i",
            "mount_point": "fast",
        }
    ]
    attachment = f"projects/my-project/regions/{REGION}/networkAttachments/mine"
    standard = {"scheduling_strategy": strategy.STANDARD, **HOUR}
    one = [pool(L4)]
    return {
        "one_host": ({"worker_pool_specs": one}, standard, None),
        "cpu_host": (
            {"worker_pool_specs": [pool({"machine_type": "n2-standard-16"})]},
            standard,
            None,
        ),
        "spot_five_hosts": (
            {"worker_pool_specs": [pool(T4), pool(T4, 4)], "labels": {"team": "seg"}},
            {"scheduling_strategy": strategy.SPOT, **HOUR},
            None,
        ),
        "flex_start": (
            {"worker_pool_specs": one},
            {"scheduling_strategy": strategy.FLEX_START, "max_wait_duration": 7200, **HOUR},
            None,
        ),
        "network": (
            {"worker_pool_specs": one},
            {
                **standard,
                "network": f"projects/{PROJECT}/global/networks/mine",
                "service_account": ACCOUNT,
            },
            in_ranges,
        ),
        "psc": (
            {"worker_pool_specs": one},
            {
                **standard,
                "psc_interface_config": types.PscInterfaceConfig(network_attachment=attachment),
            },
            None,
        ),
        "tensorboard": (
            {"worker_pool_specs": one},
            {**standard, "service_account": ACCOUNT, "tensorboard": f"{PARENT}/tensorboards/42"},
            None,
        ),
        "experiment": (
            {"worker_pool_specs": one},
            {
                **standard,
                "service_account": ACCOUNT,
                "experiment": "streets",
                "experiment_run": "first",
            },
            None,
        ),
        "persistent": (
            {"worker_pool_specs": one},
            {**standard, "persistent_resource_id": "my-cluster"},
            None,
        ),
        "mounts": (
            {"worker_pool_specs": [pool(L4, nfs_mounts=nfs, lustre_mounts=lustre)]},
            standard,
            None,
        ),
        "protected": (
            {
                "worker_pool_specs": one,
                "encryption_spec_key_name": f"projects/p/locations/{REGION}/keyRings/r/cryptoKeys/k",
            },
            {**standard, "restart_job_on_worker_restart": True, "enable_web_access": True},
            None,
        ),
        "reserved": (
            {"worker_pool_specs": [pool({**L4, **reserved})]},
            {**standard, "disable_retries": True},
            None,
        ),
    }


class Google(http.server.BaseHTTPRequestHandler):
    """Answers the calls that a submission makes, and keeps the bodies of customJobs.create."""

    sent: list[tuple[str, Any]] = []  # noqa: RUF012

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if "customJobs" in self.path:
            self.sent.append((self.path.partition("?")[0], body))
        self._answer({**body, "name": f"{PARENT}/customJobs/1"})

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].removeprefix("/v1/").removeprefix("/v1beta1/")
        found: dict[str, Any] = {"name": name}
        if "/artifacts/" in name:  # the run has no TensorBoard of its own
            return self._answer(
                {"error": {"code": 404, "message": "not found", "status": "NOT_FOUND"}}, 404
            )
        if "/contexts/" in name:
            run = name.endswith("-first")
            found["schemaTitle"] = "system.ExperimentRun" if run else "system.Experiment"
            found["schemaVersion"] = "0.0.1"
            found["metadata"] = {} if run else {"experiment_deleted": False}
            found["parentContexts"] = [name.removesuffix("-first")] if run else []
        return self._answer(found)

    def _answer(self, content: Any, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


def main() -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import aiplatform

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Google) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        aiplatform.init(
            project=PROJECT,
            location=REGION,
            credentials=AnonymousCredentials(),
            api_endpoint=f"http://127.0.0.1:{server.server_port}",
            api_transport="rest",
            staging_bucket="gs://seg-out",
        )
        for name, (arguments, submission, by_hand) in cases().items():
            labels = {**arguments.pop("labels", {}), "segtrain-job": "job-1"}
            output = "gs://seg-out/jobs/job-1"
            job = aiplatform.CustomJob("job-1", **arguments, labels=labels, base_output_dir=output)
            if by_hand is not None:
                by_hand(job.job_spec)
            job.submit(**submission)
            path, body = Google.sent[-1]
            assert path == f"/v1/{PARENT}/customJobs", path
            HERE.joinpath(f"{name}.json").write_text(
                json.dumps(body, indent=2) + "\n", encoding="utf-8"
            )
            print(f"{name}.json")
        server.shutdown()


if __name__ == "__main__":
    main()
