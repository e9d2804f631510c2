"""What would go wrong on SageMaker? Found on the laptop: offline without an account, online by calls that only read."""
