"""A small cloud for servers and managed databases in which nothing gets stuck."""

__version__ = "0.1.0"
