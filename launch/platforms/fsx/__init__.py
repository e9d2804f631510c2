"""File systems of FSx for Lustre."""
