"""The archive of an instance's log: what is in it without a gap, and which moments can be restored. Pure.

It knows no datastore: positions are strings that sort as they follow one another (``positions.py``).
"""
