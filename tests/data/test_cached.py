"""What the cache holds, and how it is emptied: nearfar's own data sets, and nothing else."""

from nearfar.data import cache, cached


def data_set(folder, name, **files):
    (folder / name).mkdir(parents=True)
    for file, size in files.items():
        (folder / name / file.replace("_", ".")).write_bytes(bytes(size))
    return folder / name


def test_only_data_sets_of_the_cache_are_counted_and_removed(tmp_path):
    one, two, killed = cache.key(1), cache.key(2), f"{cache.key(3)}.part-ab_c1"
    data_set(tmp_path, one, entry_json=10, pixels_u8=100)
    data_set(tmp_path, two, entry_json=5)
    data_set(tmp_path, killed, pixels_u8=1000)
    others = [
        data_set(tmp_path, "runs", entry_json=1),
        data_set(tmp_path, cache.key(4), entry_json=1, notes_txt=1),
        data_set(tmp_path, cache.key(5)[:31], entry_json=1),
    ]
    (tmp_path / cache.key(6)).symlink_to(others[0])
    assert cached.sizes(tmp_path) == {tmp_path / one: 110, tmp_path / two: 5, tmp_path / killed: 1000}
    assert cached.empty(tmp_path) == 1115
    assert cached.sizes(tmp_path) == {} and all(path.is_dir() and list(path.iterdir()) for path in others)


def test_what_is_being_built_stays(tmp_path):
    name = cache.key("photos")
    with cache.building(tmp_path / name):
        part = data_set(tmp_path, f"{name}.part-x", pixels_u8=7)
        assert cached.empty(tmp_path) == 0 and part.is_dir()
    assert cached.empty(tmp_path) == 7 and not part.exists()


def test_a_cache_that_is_not_there_is_empty(tmp_path):
    assert cached.sizes(tmp_path / "nothing") == {} and cached.empty(tmp_path / "nothing") == 0
