"""Scenarios on a real Slurm whose nodes have networks of their own (make test-slurm): they vanish
without a FIN or RST.

Each ends with the checkpoint of an undisturbed run of two ranks, bit for bit.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_slurm import Cluster, lacking
from node_networks import UPLINK, NodeNetworks, NoNetwork
from slurm_jobs import Run, assert_same, private_slurm

pytestmark = pytest.mark.slurm
SLURMS_DEFAULT_S = 300  # SlurmdTimeout


@contextlib.contextmanager
def networked(folder: Path, **how: Any) -> Iterator[Cluster]:
    """A cluster with a network of each node. Skips the test where no namespaces can be made."""
    if why := lacking():
        pytest.skip(why)
    try:
        networks = NodeNetworks().__enter__()
    except NoNetwork as why_not:
        pytest.skip(f"no network namespaces here: {why_not}")
    with contextlib.ExitStack() as stack:
        stack.push(networks.__exit__)
        yield stack.enter_context(private_slurm(folder, networks=networks, **how))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of an undisturbed run of two ranks."""
    with networked(tmp_path_factory.mktemp("slurm")) as cluster:
        return submitted(cluster, tmp_path_factory.mktemp("whole"), "whole").ends().folder


def submitted(cluster: Cluster, output: Path, name: str, **keys: Any) -> Run:
    return Run(cluster, output, name, interface=UPLINK, **keys).submit()


@pytest.mark.parametrize("node", ["n1", "n2"])  # n1 runs the job's script, and rank 0
def test_a_node_that_vanishes_and_comes_back(whole, tmp_path, node):
    with networked(tmp_path / "slurm") as cluster:
        run = submitted(cluster, tmp_path, "vanished").trains()
        cluster.lose(node)
        run.until(lambda: cluster.states()[node].startswith("down"))
        assert "has lost another rank" not in run.log()  # nobody has told the other rank
        cluster.slurmd(node)
        run.again().ends()
    assert_same(run.folder, whole)


def test_a_node_that_is_back_before_slurm_notices(whole, tmp_path):
    """srun goes on waiting for its rank: the script ends srun."""
    with networked(tmp_path / "slurm", down_s=SLURMS_DEFAULT_S) as cluster:
        run = submitted(cluster, tmp_path, "blinked", settings={"parallel.timeout_s": 20}).trains()
        cluster.lose("n2")
        time.sleep(3)
        cluster.slurmd("n2")
        run.again().ends()
    assert "srun waits for ranks that are gone" in run.history
    assert "1 x 76" in run.history
    assert_same(run.folder, whole)


def test_a_network_that_fails_for_a_while(whole, tmp_path):
    with networked(tmp_path / "slurm", down_s=SLURMS_DEFAULT_S) as cluster:
        run = submitted(cluster, tmp_path, "unplugged").trains()
        assert cluster.networks
        cluster.networks.connect("n2", False)
        time.sleep(5)
        step = run.step()
        time.sleep(3)
        assert run.step() == step
        cluster.networks.connect("n2", True)
        run.ends()
        assert run.shown["Restarts"] == "0"
    assert_same(run.folder, whole)
