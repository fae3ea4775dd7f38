"""The student: reads a release and its own data, nothing else."""
