"""The store: one function is one transaction, the same on SQLite and PostgreSQL."""
