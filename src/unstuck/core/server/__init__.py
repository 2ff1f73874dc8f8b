"""A server: what is wanted of it, what is seen of it, and the pure functions between the two."""
