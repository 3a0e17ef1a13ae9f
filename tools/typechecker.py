"""The check of types and shapes that tests/conftest.py puts around every annotated function of
nearfar.
"""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int will do for a float
