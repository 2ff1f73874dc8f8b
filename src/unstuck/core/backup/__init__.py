"""Backups of database instances: what is wanted of one, what was seen of it, and what comes next."""
