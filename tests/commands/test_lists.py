"""The verbs that list images, on a folder of digits with planted copies."""

import csv
import json
import re
import shlex
import shutil
import subprocess

import numpy as np
import pandas
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_digits

import nearfar
from nearfar.cli import main
from nearfar.data import cache
from nearfar.embeddings import embeddings, sources
from nearfar.tools.result import paths_for_stdout

pytestmark = pytest.mark.usefixtures("known_speed")

ODD = "copy of\n'000' $HOME.png"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Eighty digits of 32 px, and copies of four: the same file, the same pixels, encoded again,
    and larger.
    """
    folder = tmp_path_factory.mktemp("digits") / "my pictures"
    folder.mkdir()
    for number, digit in enumerate(load_digits().images[:80]):
        image = Image.fromarray((digit * 255 / 16).astype(np.uint8))
        image.resize((32, 32), Image.Resampling.BICUBIC).save(folder / f"{number:03d}.png")
    shutil.copy(folder / "000.png", folder / ODD)
    Image.open(folder / "001.png").save(folder / "001 again.png", compress_level=0)
    Image.open(folder / "002.png").save(folder / "002.jpg", quality=60)
    Image.open(folder / "003.png").resize((48, 48), Image.Resampling.BICUBIC).save(
        folder / "003 large.png"
    )
    return folder


@pytest.fixture(scope="module")
def run(pictures, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "a run"
    options = dict(
        epochs=4, batch_size=32, held_out=8, image_size=32, encoder="small", method="simclr"
    )
    return nearfar.pretrain(pictures, out=out, **options)


def test_planted_copies_are_found_and_told_apart(run, pictures):
    duplicates = pandas.DataFrame(run.duplicates())
    copies = duplicates[duplicates.kind != "near-duplicate"]
    pairs = [list(zip(rows.name, rows.kind, strict=True)) for _, rows in copies.groupby("group")]
    large, small = sorted(
        ["002.jpg", "002.png"], key=lambda name: -(pictures / name).stat().st_size
    )
    assert sorted(pairs) == [
        [("000.png", "first"), (ODD.replace("\n", "\\n"), "same file")],
        [("001 again.png", "first"), ("001.png", "same pixels")],  # the larger file
        [(large, "first"), (small, "copy")],
        [("003 large.png", "first"), ("003.png", "copy")],  # the most pixels
    ]
    assert duplicates.kept.tolist() == [kind != "same file" for kind in duplicates.kind]
    sizes = [(pictures / path).stat().st_size for path in duplicates.path]
    assert duplicates.bytes.tolist() == sizes
    with open(run.path / "duplicates.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == duplicates.path.tolist()


def test_of_equal_files_the_shortest_name_is_kept(run, pictures, tmp_path):
    folder = tmp_path / "named"
    folder.mkdir()
    for name in ("copy of img.png", "img.png", "other.png"):
        shutil.copy(pictures / ("001.png" if name == "other.png" else "000.png"), folder / name)
    duplicates = nearfar.duplicates(run, folder, out=tmp_path / "named.html")
    assert list(zip(duplicates["name"], duplicates["kept"], strict=True))[:2] == [
        ("img.png", True),
        ("copy of img.png", False),
    ]


def test_what_has_the_bytes_of_a_copy_is_told_from_the_copy(run, pictures, tmp_path):
    folder = tmp_path / "twice"
    folder.mkdir()
    for name in ("003 large.png", "003.png", "005.png"):
        shutil.copy(pictures / name, folder)
    shutil.copy(folder / "003.png", folder / "003 again.png")
    duplicates = run.duplicates(folder, out=tmp_path / "twice.html")
    assert list(zip(duplicates["name"], duplicates["kind"], duplicates["kept"], strict=True))[
        :3
    ] == [
        ("003 large.png", "first", True),
        ("003.png", "copy", True),
        ("003 again.png", "same file", False),
    ]
    places = [str(folder.resolve() / name) for name in ("003 large.png", "003.png")]
    assert duplicates["of"][:3] == ["", *places]  # what `kind` refers to
    assert (tmp_path / "twice.list").read_bytes() == bytes(
        folder.resolve() / "003 again.png"
    ) + b"\0"


def invoice(chance):
    """An invoice of one template: its number, a name, a date and amounts differ."""
    page = Image.new("L", (200, 240), 255)
    draw = ImageDraw.Draw(page)
    draw.rectangle((10, 10, 60, 30), fill=60)
    draw.rectangle((10, 90, 190, 104), fill=220)
    for x, y, text in ((110, 10, "INVOICE"), (12, 91, "Item"), (140, 91, "Amount")):
        draw.text((x, y), text, font=ImageFont.load_default(12), fill=0)
    words = [
        f"No. {chance.integers(10**6):06d}",
        f"{chance.integers(1, 29)}.{chance.integers(1, 13)}.2024",
    ]
    words += [f"{chance.integers(10**5) / 100:.2f}" for _ in range(6)]
    for line, text in enumerate(words):
        draw.text(
            (140, 20 + 17 * (line + 4 * (line > 1))), text, font=ImageFont.load_default(11), fill=0
        )
    return page


def drawn(number):
    """Three digits, black on white."""
    page = Image.new("L", (64, 64), 255)
    ImageDraw.Draw(page).text((8, 16), f"{number:03d}", font=ImageFont.load_default(26), fill=0)
    return page


@pytest.mark.parametrize("kind", ["invoices", "digits"])
@pytest.mark.slow
def test_documents_of_one_template_are_no_copies(kind, run, tmp_path, log):
    folder, chance = tmp_path / kind, np.random.default_rng(0)
    folder.mkdir()
    for number in range(60 if kind == "invoices" else 15):
        page = invoice(chance) if kind == "invoices" else drawn(number)
        page.save(folder / f"{number:02d}.png")
    page.save(folder / "copy.jpg", quality=75)  # of the last
    small = page.resize((page.width // 2, page.height // 2), Image.Resampling.LANCZOS)
    small.save(folder / "half.png")
    duplicates = run.duplicates(folder, distance=2, out=tmp_path / "page.html")
    copies = {
        name
        for name, kind in zip(duplicates["name"], duplicates["kind"], strict=True)
        if kind != "near-duplicate"
    }
    assert copies == {f"{number:02d}.png", "copy.jpg", "half.png"} and all(duplicates["kept"])
    text = log.text
    assert "2 of" in text and "0 the same file" in text and "nothing was removed" in text
    assert "rm --" not in text and (tmp_path / "page.list").read_bytes() == b""


@pytest.mark.slow
def test_images_of_five_channels_and_sixteen_bits(tmp_path):
    """Bright spots must not hide what is faint: all but the copies differ by a twentieth of the
    range.
    """
    tifffile = pytest.importorskip("tifffile")
    chance, folder = np.random.default_rng(0), tmp_path / "bands"
    folder.mkdir()
    common = np.kron(chance.integers(0, 3000, (5, 6, 6)), np.ones((8, 8)))
    for number in range(24):
        own = common + np.kron(chance.integers(0, 300, (5, 12, 12)), np.ones((4, 4)))
        own[:, 5, 5] = 60000
        tifffile.imwrite(
            folder / f"{number:02d}.tif", own.astype(np.uint16), photometric="minisblack"
        )
    tifffile.imwrite(
        folder / "same.tif", own.astype(np.uint16), photometric="minisblack", compression="zlib"
    )
    noise = chance.integers(-4, 5, own.shape)
    tifffile.imwrite(
        folder / "noise.tif", (own + noise).clip(0).astype(np.uint16), photometric="minisblack"
    )
    options = dict(
        epochs=1,
        batch_size=8,
        held_out=4,
        image_size=32,
        encoder="small",
        method="simclr",
    )
    run = nearfar.pretrain(folder, channels=5, out=tmp_path / "run", **options)
    duplicates = run.duplicates(distance=2)
    copies = {
        name: kind
        for name, kind in zip(duplicates["name"], duplicates["kind"], strict=True)
        if kind != "near-duplicate"
    }
    assert set(copies) == {"23.tif", "same.tif"}  # lossless files that differ are no copies
    assert sorted(copies.values()) == ["first", "same pixels"]


def test_the_command_that_is_printed_archives_and_removes_identical_files_alone(
    run, pictures, tmp_path, log
):
    folder = shutil.copytree(pictures, tmp_path / "it's")
    (folder / "0.png").symlink_to("000.png")  # another name of one file, which counts once
    before = {path.name for path in folder.iterdir()}
    duplicates = nearfar.duplicates(run, folder, out=tmp_path / "the list.html")
    assert {path.name for path in folder.iterdir()} == before
    command = re.search(r"byte for byte: (.*)", log.text)[1]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    gone = [
        path for path, kept in zip(duplicates["path"], duplicates["kept"], strict=True) if not kept
    ]
    left = {path.name for path in folder.iterdir()}
    assert len(gone) == 1 and before - left == {path.rpartition("/")[2] for path in gone}
    assert {ODD} == before - left and {"0.png", "000.png"} <= left
    packed = subprocess.run(
        ["tar", "-tf", tmp_path / "the list.tar"], check=True, capture_output=True, text=True
    )
    assert packed.stdout.count("\n") == 1


def test_the_middle_of_a_picture_is_no_copy_of_it(run, tmp_path):
    """Encoders see the centre square: what lies beside it would be lost."""
    folder = tmp_path / "wide"
    folder.mkdir()
    for number, digit in enumerate(load_digits().images[:12]):
        image = Image.fromarray((digit * 255 / 16).astype(np.uint8)).resize(
            (64, 64), Image.Resampling.BICUBIC
        )
        wide = Image.new("L", (96, 64), 40)
        wide.paste(image, (16, 0))
        wide.save(folder / f"{number}.png")
    wide.crop((16, 0, 80, 64)).save(folder / "middle.png")
    wide.transpose(Image.Transpose.ROTATE_90).save(folder / "turned.png", exif=_turned())
    duplicates = run.duplicates(folder, distance=1e-4, out=tmp_path / "wide.html")
    pairs = list(zip(duplicates["name"], duplicates["kind"], strict=True))
    assert ("middle.png", "near-duplicate") in pairs and all(duplicates["kept"])
    copies = {
        name: kind for name, kind in pairs if kind != "near-duplicate"
    }  # the one that EXIF turns back
    assert set(copies) == {"11.png", "turned.png"} and set(copies.values()) == {
        "first",
        "same pixels",
    }


def _turned():
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def test_the_distance_decides_what_is_alike_and_pixels_what_is_a_copy(run, tmp_path):
    near_duplicates = []
    for number, distance in enumerate((0, None, 2)):
        duplicates = run.duplicates(distance=distance, out=tmp_path / f"{number}.html")
        assert (
            len([kind for kind in duplicates["kind"] if kind not in ("first", "near-duplicate")])
            == 4
        )
        near_duplicates.append(duplicates["kind"].count("near-duplicate"))
    assert near_duplicates[0] == 0 <= near_duplicates[1] < near_duplicates[2]


def test_by_default_alike_are_images_a_tenth_as_far_apart_as_any_two(run, tmp_path, log):
    embedded = np.load(nearfar.embed(run, out=tmp_path / "rows.npz").path)["embedding"]
    rows = embedded / np.linalg.norm(embedded, axis=1, keepdims=True)
    usual = np.median((1 - rows @ rows.T)[np.triu_indices(len(rows), 1)])
    run.duplicates(out=tmp_path / "page.html")
    distance = float(re.search(r"distance of up to (\S+)", log.text)[1])
    assert distance == pytest.approx(usual / 10, rel=0.1)


def test_search_finds_what_all_pairs_find(run, pictures, tmp_path):
    embedded = np.load(nearfar.embed(run, out=tmp_path / "rows.npz").path)
    names = embedded["name"].tolist()
    unit = torch.nn.functional.normalize(torch.from_numpy(embedded["embedding"]).double(), dim=1)
    row = names.index("005.png")
    cosine = unit @ unit[row]
    cosine[row] = -1
    expected = cosine.topk(4)
    (tmp_path / "asked.txt").write_text(f"005.png\n{pictures / '005.png'}\n")
    stranger = tmp_path / "stranger.png"
    shutil.copy(pictures / "007.png", stranger)
    nearest = run.search([str(tmp_path / "asked.txt"), str(stranger)], k=4)
    assert nearest["name"][:4] == nearest["name"][4:8] == [names[i] for i in expected.indices]
    assert nearest["distance"][:4] == pytest.approx((1 - expected.values).tolist(), rel=1e-3)
    assert nearest["name"][8] == "007.png" and nearest["distance"][8] < 1e-6
    assert nearest["rank"] == [1, 2, 3, 4] * 3 and nearest["path"][8] == str(
        pictures.resolve() / "007.png"
    )
    pixels = np.array(Image.open(pictures / "007.png"))[None]
    assert run.search(pixels, k=1)["name"] == ["007.png"]


def test_verbs_decode_nothing_that_pretraining_has_decoded(pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options = dict(epochs=1, batch_size=32, held_out=8, encoder="small", method="simclr")
    run = nearfar.pretrain(pictures, out=tmp_path / "run", **options)
    monkeypatch.setattr(cache, "decode", None)  # every decoding would be an image that is skipped
    monkeypatch.setattr(cache, "_build", None)
    nearfar.embed(run, out=tmp_path / "rows.npz")
    assert len(run.search("005.png", k=2)["name"]) == 2


def test_only_new_images_are_computed_and_removed_ones_disappear(
    run, pictures, tmp_path, monkeypatch, log
):
    """A folder that grows and shrinks gets the features and results of a run folder that has none
    yet.
    """
    folder = tmp_path / "pictures"
    shutil.copytree(pictures, folder)
    own = nearfar.Run(tmp_path / "own")
    shutil.copytree(run.path, own.path)
    (own.path / "features.safetensors").unlink(missing_ok=True)
    moved = sorted(folder.glob("*.png"))[12:21]
    for file in moved:
        file.rename(tmp_path / file.name)
    nearfar.embed(own, folder, out=tmp_path / "few.npz")
    computed = []
    real = nearfar.embeddings.embeddings.compute_features
    watched = lambda net, images, *rest: computed.append(images.names) or real(net, images, *rest)  # noqa: E731
    monkeypatch.setattr(embeddings, "compute_features", watched)
    for file in moved[:7]:
        (tmp_path / file.name).rename(file)
    removed = sorted(folder.glob("*.png"))[-1]
    removed.unlink()
    nearfar.embed(own, folder, out=tmp_path / "grown.npz")
    assert computed == [[file.name for file in moved[:7]]]
    assert re.search(r"7 of \d+ images", log.text)
    own.search(moved[0].name, data=folder, k=3)
    own.map(folder, out=tmp_path / "m.html", epochs=5)
    assert len(computed) == 1
    (own.path / "features.safetensors").unlink()
    nearfar.embed(own, folder, out=tmp_path / "whole.npz")
    grown, whole = np.load(tmp_path / "grown.npz"), np.load(tmp_path / "whole.npz")
    assert grown["name"].tolist() == whole["name"].tolist()
    assert removed.name not in grown["name"] and moved[0].name in grown["name"]
    assert np.allclose(grown["embedding"], whole["embedding"], atol=1e-5)


def test_features_are_computed_once_for_an_encoder_and_data(run, pictures, tmp_path, monkeypatch):
    computed = []
    real = nearfar.embeddings.embeddings.compute_features
    monkeypatch.setattr(
        embeddings,
        "compute_features",
        lambda *given: computed.append(1) or real(*given),
    )
    (run.path / "features.safetensors").write_bytes(b"damaged")
    rows = np.load(nearfar.embed(run, out=tmp_path / "rows.npz").path)["embedding"]
    run.search("005.png")
    run.select(n=3)
    again = np.load(nearfar.embed(run, out=tmp_path / "again.npz").path)["embedding"]
    assert np.array_equal(rows, again)
    run.cluster()
    assert len(computed) == 1
    run.select(n=3, data=load_digits().images.astype(np.uint8)[:30])
    assert len(computed) == 2
    weights = (run.path / "encoder.safetensors").read_bytes()
    run.select(n=3)
    (run.path / "encoder.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    run.select(n=3)
    (run.path / "encoder.safetensors").write_bytes(weights)
    assert len(computed) == 4


@pytest.mark.parametrize("by", ["diverse", "typical", "outlier"])
def test_a_selection_is_written_and_the_command_packs_it(by, run, tmp_path, log):
    page = tmp_path / "to label.html"
    chosen = run.select(n=7, by=by, out=page)
    assert len(set(chosen["name"])) == 7 and chosen["rank"] == list(range(1, 8))
    assert (tmp_path / "to label.list").read_bytes().decode().split("\0")[:-1] == chosen["path"]
    subprocess.run(
        ["sh", "-c", re.search(r"archive: (.*)", log.text)[1]],
        check=True,
        capture_output=True,
    )
    packed = subprocess.run(
        ["tar", "-tf", tmp_path / "to label.tar"], check=True, capture_output=True, text=True
    )
    assert packed.stdout.count("\n") == 7
    assert page.read_text().count("<figure>") == 7


@pytest.mark.parametrize("by", ["diverse", "typical", "outlier", "near"])
def test_what_is_labelled_is_not_chosen_again(by, run, tmp_path):
    done = tmp_path / "done.txt"
    done.write_text("005.png\n007.png\n010.png\n")
    images = ("012.png",) if by == "near" else ()
    chosen = run.select(images, by=by, n=40, labelled=done, out=tmp_path / "next.html")
    assert len(set(chosen["name"])) == 40 and not {"005.png", "007.png", "010.png"} & set(
        chosen["name"]
    )
    with pytest.raises(ValueError, match=r"'05\.png' .*did you mean"):
        run.select(by="diverse", n=5, labelled=["05.png"], out=tmp_path / "no.html")


def test_near_chooses_the_nearest_to_any_of_the_images(run, tmp_path):
    chosen = run.select(["005.png", "007.png"], by="near", n=5, out=tmp_path / "near.html")
    each = run.search(["005.png", "007.png"], k=20)
    nearest = {}
    for name, distance in zip(each["name"], each["distance"], strict=True):
        nearest[name] = min(distance, nearest.get(name, 2))
    expected = sorted(set(nearest) - {"005.png", "007.png"}, key=nearest.get)[:5]
    assert chosen["name"] == expected


def test_clusters_hold_every_image_once_and_can_be_counted(run, tmp_path):
    groups = pandas.DataFrame(run.cluster(clusters=6, out=tmp_path / "six.html"))
    assert len(groups) == 84 and groups.name.is_unique
    sizes = groups.cluster.value_counts()
    assert sorted(sizes.index) == [1, 2, 3, 4, 5, 6] and sizes.sort_index().is_monotonic_decreasing
    assert pandas.read_csv(tmp_path / "six.csv").cluster.tolist() == groups.cluster.tolist()


def test_paths_alone_go_to_a_pipe(run, pictures, capfdbinary):
    assert main(["search", str(run.path), "--k", "2", "000.png", "--null"]) == 0
    output = capfdbinary.readouterr()
    assert (
        output.out.split(b"\0")[0] == str(pictures.resolve() / ODD).encode()
        and output.out.count(b"\0") == 2
    )
    assert b"distance" in output.err
    assert main(["duplicates", str(run.path)]) == 0
    piped = capfdbinary.readouterr().out.decode()
    assert piped == (run.path / "duplicates.list").read_bytes().decode().replace(
        "\n", "\\n"
    ).replace("\0", "\n")
    assert main(["select", str(run.path), "--n", "3", "--by", "near", "007.png", "008.png"]) == 0
    assert capfdbinary.readouterr().out.count(b"\n") == 3


def test_what_the_page_of_duplicates_holds(run, tmp_path):
    run.duplicates(distance=0.001, out=tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    out = shlex.quote(str(tmp_path / "page-new.html"))
    assert f"nearfar duplicates {shlex.quote(str(run.path))} --out {out}" == data["command"]
    assert [link[0] for link in data["links"]] == sorted(link[0] for link in data["links"])
    assert max(link[0] for link in data["links"]) <= 0.002


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["search", "RUN"], "name the images"),
        (["search", "RUN", "005.pn"], "did you mean '005.png'"),
        (["search", "RUN", "000.png", "--k", "84"], "--k must be 1 to 83"),
        (["select", "RUN", "--n", "85"], "--n must be 1 to 84"),
        (["select", "RUN", "--by", "nearst"], 'Did you mean "near"?'),
        (["select", "RUN", "--by", "near"], "--by near needs images"),
        (["select", "RUN", "000.png"], "--by near needs images"),
        (["select", "RUN", "--k", "3"], "--k goes with --by outlier"),
        (["select", "RUN", "--approximate"], "--approximate goes with --by outlier"),
        (["cluster", "RUN", "--clusters", "85"], "85 are needed"),
    ],
)
def test_a_mistake_is_one_line(words, says, run, complaint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (run.path / "features.safetensors").unlink(missing_ok=True)
    assert says in complaint(*(run.path if word == "RUN" else word for word in words))
    assert not list(tmp_path.iterdir())
    assert not (run.path / "features.safetensors").exists()  # noticed before the work


@pytest.mark.parametrize("more", [{"by": "near"}, {"k": 3}, {"approximate": True}])
def test_a_mistake_in_a_selection_is_told_before_anything_is_opened(more, run, monkeypatch):
    monkeypatch.setattr(sources, "open_images", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(ValueError, match="by='"):
        nearfar.select(run.path, **more)


def test_a_name_with_a_line_break_stays_one_line_but_before_a_zero_byte():
    names = ["a\nb \udcff.png", "c.png", "c.png"]
    assert paths_for_stdout(names, "\n") == b"a\\nb \\xff.png\nc.png\n"
    assert paths_for_stdout(names, "\0") == b"a\nb \xff.png\0c.png\0"


def test_a_folder_that_safetensors_cannot_write_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="is not text in UTF-8"):
        nearfar.export(run, to="timm", out="x\udcff")
    assert not list(tmp_path.iterdir())
