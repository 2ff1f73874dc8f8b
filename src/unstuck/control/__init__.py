"""The controllers: place, sweep, finish deletes. Loops over the port; the decisions are in the core."""
