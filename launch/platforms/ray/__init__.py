"""Training on a Ray cluster: its job, the checks of job and cluster, and the start of its ranks by
Ray Train.
"""
