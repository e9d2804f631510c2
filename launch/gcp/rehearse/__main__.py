"""Runs a rehearsal inside its namespaces: ``python -m launch.gcp.rehearse ORDERS``, where ORDERS is a file. Started by
``launch.rehearse.apart.perform``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from launch.gcp.rehearse.play import play
from launch.gcp.rehearse.replicas import Orders
from launch.gcp.rehearse.report import save
from launch.rehearse.apart import played

if __name__ == "__main__":
    sys.exit(played(Path(sys.argv[1]), Orders, play, save))
