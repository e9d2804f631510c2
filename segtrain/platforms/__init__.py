"""What must be known of the place where a run trains: the contract of each cloud's containers."""
