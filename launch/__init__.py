"""How is a job described once, and started on SageMaker and other platforms? Imports no torch: a laptop can launch."""
