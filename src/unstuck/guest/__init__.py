"""The agent inside a database guest: it asks its host, keeps the database as it is wanted, makes backups."""
