"""Records what google-cloud-aiplatform sends for one experiment run:   python tests/contracts/experiments/capture.py

It needs google-cloud-aiplatform, which is not among the test packages. It speaks to tests/kit/cloud/vertex.py on loopback.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests/kit"))
EXPERIMENT, RUN, TENSORBOARD = "streets-2026", "street-1a2b3c4d", "777"
PARAMS = {
    "optim.lr": 0.25,
    "train.batch_size": 8,
    "model.arch": "deeplabv3plus",
    "data.cache": True,
}
METRICS = {"miou": 0.5, "best_step": 20}
POINTS = {20: {"val/miou": 0.5, "train/loss": 1.5}}
NAME = "sdk_2_7.json"


def start(url: str) -> None:
    """Send the SDK to the server; credentials come from the environment."""
    from google.cloud import aiplatform

    aiplatform.init(
        project=os.environ["GOOGLE_CLOUD_PROJECT"],
        location="us-central1",
        api_endpoint=url,
        api_transport="rest",
    )


def write_run(tensorboard: str) -> None:
    """One run with parameters, metrics, and time series."""
    from google.cloud import aiplatform
    from google.cloud.aiplatform.metadata.experiment_resources import Experiment

    experiment = Experiment.get_or_create(EXPERIMENT)
    experiment.assign_backing_tensorboard(tensorboard)
    with aiplatform.ExperimentRun.create(RUN, experiment=experiment) as run:
        run.log_params(PARAMS)
        for step, values in POINTS.items():
            run.log_time_series_metrics(values, step=step)
        run.log_metrics(METRICS)


def main() -> None:
    from cloud.vertex import VertexServer

    server = VertexServer()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(server.environment(Path(folder)))
        start(server.url)
        name = f"{server.parent}/tensorboards/{TENSORBOARD}"
        server.resources[name] = {"name": name, "displayName": "t", "etag": "1"}
        write_run(name)
    requests = [
        {"method": method, "path": path, "query": query, "body": body}
        for method, path, query, body in server.asked
    ]
    (Path(__file__).parent / NAME).write_text(json.dumps(requests, indent=1) + "\n")
    print(f"{len(requests)} requests")
    server.close()


if __name__ == "__main__":
    main()
