"""The papers' tables: what they claim, the runs and protocols behind them, and whether they hold.

`nearfar reproduce` and `nearfar transfer` live here, in a second package that uses the public
interface of `nearfar`, which finds these commands and the report's section on detectors by entry
points.
"""

from nearfar_papers.reproduction import reproduce
from nearfar_papers.transfer_evaluation import transfer

__all__ = ["reproduce", "transfer"]
