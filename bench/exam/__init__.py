"""Predictions of jobs that publications describe, by the formulas of `segtrain plan`."""
