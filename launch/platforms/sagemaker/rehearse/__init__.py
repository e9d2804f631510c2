"""A rehearsal, on this machine, of the request that would be sent to SageMaker: containers, S3,
channels, checkpoints, and faults.
"""
