"""The inside of a SageMaker job: the entry point, hosts, and helping hosts."""
