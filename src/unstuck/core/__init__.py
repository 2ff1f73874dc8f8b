"""The pure core: frozen data, planners and status functions. No I/O, no clock, no randomness."""
