"""Database instances: what is wanted of one, what its guest agent sees, and what comes next."""
