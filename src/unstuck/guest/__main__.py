"""``python -m unstuck.guest``: the agent in a database's guest."""

from __future__ import annotations

from unstuck.guest.main import main

if __name__ == "__main__":
    main()
