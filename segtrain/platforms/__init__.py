"""The contracts of the containers in which a cloud runs a training."""
