"""The papers' tables: what they claim, the runs and protocols behind them, and whether they hold.

`nearfar reproduce` and `nearfar transfer` live here. This room may import all others, and none
imports it.
"""
