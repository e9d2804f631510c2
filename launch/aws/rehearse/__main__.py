"""The program that run.py starts in a rehearsal's Linux namespaces: ``python -m launch.aws.rehearse orders.json``."""

from __future__ import annotations

import sys
from pathlib import Path

from launch.aws.rehearse.play import Orders, play
from launch.aws.rehearse.report import save
from launch.rehearse.apart import played

if __name__ == "__main__":
    sys.exit(played(Path(sys.argv[1]), Orders, play, save))
