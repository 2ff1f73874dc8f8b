"""The ``unstuck`` command."""
