"""What finished or running runs show: diagnosis, report, table of runs, plan, and the benches of
this machine.
"""
