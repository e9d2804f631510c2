"""What stands in for the cloud in tests: strict servers on loopback."""
