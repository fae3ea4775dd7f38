"""Training at a site: one loop for initialisation, teachers and students; and evaluation."""
