"""The papers' tables: what they claim, the runs and protocols behind them, and whether they hold.

`nearfar reproduce` and `nearfar transfer` live here, in a package that uses `nearfar` and that
`nearfar` does not know.
"""
