"""Parts of a rehearsal on this machine that no platform owns: hosts with networks of their own, data, disks, and
faults.
"""
