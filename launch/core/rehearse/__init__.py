"""Parts of a rehearsal on this machine that all platforms share: hosts with their own networks,
data, disks, and faults.
"""
