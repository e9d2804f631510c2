"""Times and costs of training jobs, predicted before a machine is rented."""
