"""Measurements on the user's own data and machine: the cost of a sample, and whether the GPUs wait
for samples.
"""
