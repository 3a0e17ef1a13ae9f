"""Processes as an engine: the results of this process, and nothing stays when they are not needed."""

import os
import subprocess
import sys

import pytest

from nearfar.data.processes import ONE_PROCESS, in_processes
from nearfar.data.resources import cpu_seconds, in_order, usable_cores
from nearfar.engine import each, engine
from tests.pieces import killed, own_process, reciprocal, squared

pytestmark = pytest.mark.skipif(usable_cores() == 1, reason="one core: nothing to divide")


def test_results_come_in_order_from_other_processes():
    before = cpu_seconds()
    with in_processes(100, least=100):
        chunks = [[1, 2], [3], [4, 5]]
        made = [
            int(result["square"][0]) for part in in_order(chunks, squared, 2) for result in part
        ]
        processes = set(each(own_process, range(20)))
    assert made == [1, 4, 9, 16, 25]
    assert os.getpid() not in processes and len(processes) <= usable_cores()
    assert not any(os.path.exists(f"/proc/{process}") for process in processes)
    assert engine() is None and cpu_seconds() > before + 0.1


def test_an_error_is_raised_here_and_a_dead_process_is_named():
    with pytest.raises(ZeroDivisionError), in_processes(100, least=100):
        list(each(reciprocal, [1, 0]))
    with pytest.raises(ChildProcessError, match="died"), in_processes(100, least=100):
        list(each(killed, [1]))
    assert engine() is None


def test_none_is_started_for_a_few_things_or_where_none_may_be():
    with in_processes(99, least=100):
        assert engine() is None
    token = ONE_PROCESS.set(True)
    with in_processes(100, least=100):
        assert engine() is None
    ONE_PROCESS.reset(token)


SCRIPT = """
from nearfar.data.processes import in_processes
from nearfar.engine import each

class Doubled:  # a class of the script, as of a notebook
    def __call__(self, number):
        return 2 * number

print("once")
with in_processes(2, least=1):
    print(list(each(Doubled(), range(4))))
"""


def test_a_script_needs_no_guard(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    done = subprocess.run([sys.executable, file], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("once\n[0, 2, 4, 6]\n", "")
