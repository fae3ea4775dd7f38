"""The release across hospitals: sites on hosts of their own, and nobody who must be trusted."""
