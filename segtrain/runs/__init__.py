"""Many runs: their table for Python (the code is in segtrain/insight/runs/), and sweeps."""
