"""Guests in containers: podman makes them, the kernel's control groups say which of them live."""
