"""The table of runs for Python; the code is in segtrain/insight/runs/."""
