"""What would the cloud make of this request? The very request, run here: hosts, network, S3, channels, checkpoints, faults."""
