"""Times and costs of jobs, predicted before a machine is rented."""
