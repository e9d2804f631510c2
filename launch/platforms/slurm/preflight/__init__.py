"""Checks of a Slurm job: of its description anywhere, of the cluster and its nodes on a host that
submits.
"""
