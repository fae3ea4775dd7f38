"""Networks, and their training: an initialisation, a teacher and a student are three uses of it."""
