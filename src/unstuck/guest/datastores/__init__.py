"""Datastores that a guest can hold."""
