"""Benchmarks: real processes, figures as ratios where they can be (``make bench``)."""
