"""Checks of a Vertex AI job: offline, which need no account, and online, by calls that only
read.
"""
