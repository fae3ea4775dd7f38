"""The report: what a run found, as one page that needs nothing else."""
