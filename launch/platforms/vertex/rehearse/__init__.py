"""Rehearsal, on this machine, of the exact request that would be sent to Vertex AI: worker pools,
Cloud Storage, restarts, and faults.
"""
