"""Bytes outside the store: images, and later chunks and manifests."""
