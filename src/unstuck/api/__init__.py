"""The HTTP APIs: one route table, one dispatcher, and a module per service."""
