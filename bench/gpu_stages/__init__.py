"""The stages of bench/gpu.py. Each file has run(rig)."""
