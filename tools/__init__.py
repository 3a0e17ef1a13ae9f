"""Commands for the developers of nearfar; not part of the package."""
