"""A rehearsal of the very request that would be sent to SageMaker: containers, S3, channels, checkpoints, and faults,
here.
"""
