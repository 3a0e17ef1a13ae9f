"""`python -m nearfar`: the command line."""

import sys

from nearfar.cli import main

sys.exit(main())
