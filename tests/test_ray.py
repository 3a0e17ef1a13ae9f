"""Ray as an engine: the numbers of one process, bit for bit, whoever dies on the way."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from pyarrow.csv import read_csv
from pyarrow.parquet import read_table
from sklearn.datasets import load_sample_images

import nearfar
from nearfar.data.table import cache_folder
from nearfar.embeddings.untrained import encoder_for_copies
from nearfar.engine import each
from nearfar.evaluation import extract
from nearfar.neighbours import approximate, approximate_rows
from nearfar.ray import engine_named
from tests.pictures import encoded
from tests.ray_pieces import reciprocal, squared, squared_and_killed

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'nearfar[ray]'")


def write_photos(folder, count, copied):
    """Smooth colours of 20 px; the first ones again, smaller, as JPEG or as they are; two damaged."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(count):
        small = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8))
        image = small.resize((20, 20), Image.Resampling.BICUBIC)
        image.save(folder / f"{number:05}.png")
        if number >= copied:
            continue
        if number % 3 == 0:
            image.resize((16, 16)).save(folder / f"{number:05}-smaller.png")
        if number % 3 == 1:
            image.save(folder / f"{number:05}-again.jpg", quality=90)
        if number % 3 == 2:
            (folder / f"{number:05}-copy.png").write_bytes(encoded(image))
    (folder / "00003.png").write_bytes((folder / "00004.png").read_bytes()[:100])
    (folder / "none.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """The cache of this file's tests, which compute by one thread, as workers do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
        patch.chdir(tmp_path_factory.mktemp("pages"))
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("photos") / "photos", 270, copied=60)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("many") / "many", 9801, copied=201)


@pytest.fixture(scope="module")
def expected(photos, many, tmp_path_factory):
    """Results of one process, and the folder of its embeddings."""
    folder = tmp_path_factory.mktemp("one")
    nearfar.embed(photos, out=folder / "embed.parquet", encoder="nearfar")
    problems, copies = dict(nearfar.check(photos)), dict(nearfar.duplicates(many))
    return Expected(folder, problems, copies, nearest())


def nearest():
    """Approximate neighbours of rows, and of queries, in three partitions."""
    rows = torch.randn(6000, 16, generator=torch.Generator().manual_seed(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(approximate, "PARTITION", 4 * 16 * 2000)
        patch.setattr(approximate, "PART", 1500)
        return [approximate_rows(rows, queries, 8) for queries in (None, rows[:100] + 0.1)]


class Expected(NamedTuple):
    folder: Path
    problems: dict
    copies: dict
    nearest: list

    @property
    def embeddings(self):
        return read_table(self.folder / "embed.parquet")


@pytest.fixture(scope="module")
def ray(expected):
    """A session of Ray with two workers, which the tests share; it ends without a trace."""
    shutil.rmtree(cache_folder())
    with engine_named("ray", 2) as engine:
        yield engine
    for _ in range(300):  # a worker that was just starting ends a little later
        if running():
            time.sleep(0.1)
    assert running() == {}


def running(parent=None):
    """The processes of Ray that this process, or another, started, by number: their command lines."""
    parent = os.getpid() if parent is None else parent
    parents, lines = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")")[1].split()[1])
            lines[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:  # it ended
            continue

    def ours(process):
        while process > 1 and process != parent:
            process = parents.get(process, 0)
        return process == parent

    own = [process for process in lines if process != parent and ours(process)]
    return {process: lines[process] for process in own if "ray" in lines[process]}


def heard_outside(processes):
    """Addresses on which these processes listen for other machines than this one."""
    sockets = set()
    for process in processes:
        with suppress(OSError):  # it ended, or closed one
            sockets |= {os.readlink(file) for file in Path(f"/proc/{process}/fd").iterdir()}
    local = ("0100007F", "0000000000000000FFFF00000100007F", 24 * "0" + "01000000")
    heard = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            address, listens = words[1].split(":")[0], words[3] == "0A"
            if listens and f"socket:[{words[9]}]" in sockets and address not in local:
                heard.append(words[1])
    return heard


def kept():
    """Files of finished pieces; one that is being written begins with a dot."""
    return sorted(cache_folder().glob("*/[!.]*.npz"))


def of_pieces(made):
    return [int(piece["square"][0]) for piece in made]


def called(*words):
    return subprocess.Popen([sys.executable, "-m", "nearfar", *map(str, words)])


def by_ray(out, workers):
    return ["--out", out, "--engine", "ray", "--workers", workers]


@contextmanager
def killing(times, every):
    """Kill a random worker so many times; yields those that were killed."""
    rng, killed, ended = np.random.default_rng(0), list[int](), threading.Event()

    def kill():
        while len(killed) < times and not ended.wait(every):
            alive = [process for process, line in running().items() if line.startswith("ray::_")]
            if alive:
                killed.append(int(rng.choice(alive)))
                with suppress(ProcessLookupError):
                    os.kill(killed[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield killed
    finally:
        ended.set()
        killer.join()


def test_pieces_of_work_come_back_in_order_whoever_dies(ray, tmp_path, capfd):
    """And Ray listens on this machine alone, and says nothing."""
    work = partial(squared_and_killed, tmp_path)
    assert of_pieces(each(work, range(6))) == [number**2 for number in range(6)]
    assert sorted(map(int, os.listdir(tmp_path))) == [0, 3]
    with pytest.raises(ZeroDivisionError):
        list(each(reciprocal, [1, 0]))
    assert heard_outside(running()) == []
    assert [ray.spent[name].done for name in ("squared_and_killed", "reciprocal")] == [6, 1]
    assert capfd.readouterr() == ("", "")


def test_a_job_goes_on_from_what_an_earlier_one_kept(ray):
    with pytest.raises(KeyboardInterrupt), engine_named("ray"):
        made = each(squared, range(10), "of {}".format)
        assert of_pieces([next(made) for _ in range(4)]) == [0, 1, 4, 9]
        raise KeyboardInterrupt
    files = kept()
    assert len(files) == 4
    files[0].write_bytes(files[0].read_bytes()[:-40] + bytes(40))
    with engine_named("ray") as engine:
        assert of_pieces(each(squared, range(10), "of {}".format)) == [n**2 for n in range(10)]
        assert engine.spent["squared"][:2] == (7, 3)
    assert kept() == []


class Interrupted:
    """Is sent Ctrl-C while it is removed, where Python drops every exception."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_stop_that_python_drops_stops_the_job_all_the_same(ray):
    before, results = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), engine_named("ray"):
        assert signal.getsignal(signal.SIGINT) != before
        for made in each(squared, range(10)):
            results.append(made)
            Interrupted()
    assert len(results) == 1
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_is_stopped_ends_what_it_started(photos, tmp_path, sent):
    out = tmp_path / "stopped.parquet"
    job = called("embed", photos, "--encoder", "nearfar", *by_ray(out, 1))
    while not any(line.startswith("ray::_done") for line in running(job.pid).values()):
        assert job.poll() is None
        time.sleep(0.05)
    started = set(running(job.pid))
    job.send_signal(sent)
    code = job.wait()
    # a request to end that meets Ray at some moments makes it abort
    assert code == 130 or (sent, code) == (signal.SIGTERM, -signal.SIGABRT)
    assert not out.exists()
    for _ in range(100):
        if not any(Path(f"/proc/{process}").exists() for process in started):
            break
        time.sleep(0.1)
    assert not [process for process in started if Path(f"/proc/{process}").exists()]


def test_the_approximate_search_is_that_of_one_process(expected, ray):
    with engine_named("ray") as engine:
        divided = nearest()
    for (ours, share), (whole, expected_share) in zip(divided, expected.nearest, strict=True):
        assert torch.equal(ours.index, whole.index) and share == expected_share
        assert torch.equal(ours.distance, whole.distance)
    assert engine.spent["Partition"].done == 3 * (4 + 1)
    assert kept() == []


def test_embeddings_are_those_of_one_process(photos, expected, ray, tmp_path):
    out = tmp_path / "embed.parquet"
    nearfar.embed(photos, out=out, encoder="nearfar", engine="ray")
    assert read_table(out).equals(expected.embeddings) and len(expected.embeddings) == 329
    assert kept() == []


def test_images_whose_pixels_are_not_stored_are_the_same(photos, ray):
    """Workers decode them, once to see whether they can be and once more for their features."""
    several = [nearfar.data.open_images(photos, cache=stored) for stored in (False, True)]
    encoder = encoder_for_copies(several[0])
    features = [extract(encoder, images, batch_size=64) for images in several]
    assert [images.stored for images in several] == [False, True]
    assert several[0].skipped == several[1].skipped and len(several[0].skipped) == 2
    assert several[0].mean == several[1].mean
    assert torch.equal(*features)
    assert torch.equal(features[0][:64], encoder(several[1].pixels[:64]))


@pytest.mark.parametrize("edits", [None, True])
def test_edited_copies_are_those_of_one_process(edits, ray, tmp_path):
    """Crops of parts of two photographs; 13 others stand between them."""
    pytest.importorskip("cv2")
    for number in range(16):
        whole = Image.fromarray(load_sample_images().images[number % 2])
        x, y = 50 * number % 400, 30 * number % 250
        whole.crop((x, y, x + 160, y + 120)).save(tmp_path / f"{number:02}.png")
        if number % 5 == 0:
            crop = whole.crop((x + 10, y + 8, x + 150, y + 110))
            crop.save(tmp_path / f"{number:02}-crop.png")
    expected = dict(nearfar.duplicates(tmp_path, edits=edits))
    with engine_named("ray") as engine:
        assert dict(nearfar.duplicates(tmp_path, edits=edits)) == expected
    assert engine.spent["Edits"].done >= 1
    assert expected["kind"].count("edited copy") >= 4


def test_a_check_says_what_one_process_says(photos, expected, ray):
    assert dict(nearfar.check(photos, engine="ray")) == expected.problems


def test_groups_of_ten_thousand_images_are_the_same_while_workers_are_killed(many, expected, ray):
    with killing(2, every=1.5) as killed:
        copies = nearfar.duplicates(many, engine="ray")
    assert dict(copies) == expected.copies
    assert len(killed) == 2 and len(copies.photos) == 10_001
    assert Counter(copies["kind"]) == {"first": 200, "copy": 133, "same file": 67}


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 4])
def test_any_number_of_workers_writes_the_same(photos, many, expected, tmp_path, count):
    shutil.rmtree(cache_folder())
    out, beside = tmp_path / "embed.parquet", tmp_path / "duplicates.html"
    assert called("embed", photos, "--encoder", "nearfar", *by_ray(out, count)).wait() == 0
    assert read_table(out).equals(expected.embeddings)
    assert called("duplicates", many, *by_ray(beside, count)).wait() == 0
    table = read_csv(beside.with_suffix(".csv"))
    assert table["name"].to_pylist() == expected.copies["name"]
    assert table["group"].to_pylist() == expected.copies["group"]


@pytest.mark.slow
def test_a_killed_job_reads_no_finished_part_again(photos, expected, tmp_path, capfd):
    shutil.rmtree(cache_folder())
    out = tmp_path / "embed.parquet"
    words = ["embed", photos, "--encoder", "nearfar", *by_ray(out, 1)]
    job = called(*words)
    while len(kept()) < 2:
        assert job.poll() is None
        time.sleep(0.01)
    job.kill()
    job.wait()
    finished = len(kept())
    assert not out.exists() and 2 <= finished < 6
    assert called(*words).wait() == 0
    assert f"{finished} pieces of work were done already" in capfd.readouterr().out
    assert read_table(out).equals(expected.embeddings)


@pytest.mark.slow
def test_a_killed_job_compares_no_finished_pairs_again(many, expected, ray, tmp_path):
    job = called("duplicates", many, *by_ray(tmp_path / "killed.html", 2))
    while sum(list(np.load(file)) == ["kinds"] for file in kept()) < 2:
        assert job.poll() is None
        time.sleep(0.02)
    job.kill()
    job.wait()
    with engine_named("ray") as engine:
        assert dict(nearfar.duplicates(many)) == expected.copies
    assert engine.spent["kinds"].known >= 2


def test_an_engine_is_named_with_one_clear_line(monkeypatch):
    with pytest.raises(ValueError, match="there is no engine 'spark'"):
        nearfar.embed("digits", engine="spark")
    with pytest.raises(ValueError, match="`workers`"):
        nearfar.embed("digits", workers=2)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'nearfar\[ray\]'"):
        nearfar.embed("digits", engine="ray")
