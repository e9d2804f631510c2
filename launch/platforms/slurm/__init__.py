"""Jobs on clusters that Slurm schedules: the description of a job, its sbatch script, and its life
in the queue.
"""
