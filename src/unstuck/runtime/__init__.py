"""What every long-running process of Unstuck shares: the production port, barriers, locks, logs, files."""
