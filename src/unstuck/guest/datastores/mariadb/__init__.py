"""MariaDB, by its own tools and over its own socket."""
