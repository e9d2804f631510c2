"""Import path of earlier versions, kept for scripts: see segtrain/insight/runs/."""
