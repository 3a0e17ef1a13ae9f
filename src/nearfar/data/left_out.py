"""Reasons for which images of a data set are left out, in one vocabulary, and the line that counts
them.

A reason is a kind, or "kind: details". Files that are no images by their name and content are
counted too, unless they are what usually lies beside images: texts, tables, notes of programs.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from PIL import Image

from nearfar.messages import lacking

CUT_OFF, EMPTY, NOT_AN_IMAGE = "cut off", "empty", "not an image of a known format"
TOO_MANY_PIXELS = "too many pixels"
NO_SPLIT = "in none of the splits"
NO_FILE, NO_PATH = "there is no such file", "this row has no path"
NO_DATA = "no image data here"
NO_IMAGE = "a label without an image"
UNKNOWN = "unknown files"
PIPE = "not a file"
LINKED = "a link to a folder that is read already"
OTHER_KEY = "an array under another key"
OTHERS = "not read"  # other files than most of a folder

_RAW = "raw photographs are not read"
_DRAWINGS, _DOCUMENTS = "drawings are not read", "documents are not read"
_VIDEOS, _ARCHIVES = "videos are not read", "archives are not unpacked"
ARRAYS, _FORMATS = "arrays among images are not read", "formats that are not read"
_ENDINGS = {
    _RAW: "dng cr2 cr3 crw nef nrw arw srf sr2 raf orf rw2 rwl pef ptx srw x3f 3fr fff iiq "
    "mos mrw kdc "
    "dcr erf mef gpr raw",
    _DRAWINGS: "svg svgz eps ai wmf emf cdr dxf",
    _DOCUMENTS: "pdf doc docx ppt pptx xls xlsx odt ods odp djvu",
    _VIDEOS: "mp4 mov avi mkv webm m4v mpg mpeg wmv 3gp mts m2ts flv",
    _ARCHIVES: "zip 7z rar gz tgz bz2 tbz xz zst lz4 cbz cbr",
    ARRAYS: "npy npz mat h5 hdf5 nc zarr",
    _FORMATS: "jxl jxr wdp exr hdr pic xcf kra ora psb flif bpg dpx cin pcd fits fit fts "
    "nii mha mhd "
    "nrrd czi nd2 lif oib oif svs ndpi scn vsi mrxs bif qptiff ims",
}
_KIND = {f".{ending}": kind for kind, words in _ENDINGS.items() for ending in words.split()}
_BESIDE_IMAGES = """
txt csv tsv json jsonl ndjson geojson xml yaml yml toml ini cfg conf html htm css js md rst log list
py pyc ipynb r sh bat xmp aae lnk url md5 sha1 sha256 sfv db lock names tfw jgw pgw wld prj srt bib
"""
_SIDECARS = {f".{ending}" for ending in _BESIDE_IMAGES.split()}
_LIKE_AN_IMAGE = re.compile(r"[.](jpe?g|png|gif|tiff?|webp|bmp|heic|heif|dcm)")
_BY_ENDING = (*_ENDINGS, UNKNOWN)  # kinds whose files are counted by their endings
_WORDS = {
    NOT_AN_IMAGE: "not images",
    NO_FILE: "missing",
    NO_PATH: "without a path",
    NO_DATA: "without image data",
    NO_IMAGE: "labels without an image",
    OTHERS: "of another kind than most",
    LINKED: "links to folders that are read already",
    OTHER_KEY: "arrays under other keys",
    TOO_MANY_PIXELS: "with too many pixels (`max_pixels`)",
}
_CHOSEN = {
    *_BY_ENDING,
    OTHERS,
    LINKED,
    OTHER_KEY,
    NO_SPLIT,
    TOO_MANY_PIXELS,
}  # kinds that are no damage
_MOST_KINDS, _MOST_ENDINGS, _LONGEST = 6, 4, 60
_MAGIC: tuple[bytes, ...] = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"GIF87a",
    b"GIF89a",
    b"II*\0",
    b"MM\0*",
)
_MAGIC += (b"II+\0", b"MM\0+", b"8BPS", b"qoif", b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
_IMAGE_BRANDS = (b"heic", b"heix", b"mif1", b"msf1", b"hevc", b"heim", b"heis", b"avif", b"avis")
_PACKED = (
    b"PK\x03\x04",
    b"\x1f\x8b",
    b"7z\xbc\xaf",
    b"Rar!",
    b"BZh",
    b"\xfd7zXZ",
    b"\x28\xb5\x2f\xfd",
)
# what tifffile says of codecs, and pydicom of its plug-ins
_NEEDS_PACKAGE = re.compile(r"requires the '\w+' package|missing dependencies|please install")
LOOKED_AT = 512  # bytes of a file that tell what it is


def by_name(name: str) -> str | None:
    """Why a file that is no image by its ending is left out; "" for one that is not counted; None:
    its bytes say.
    """
    base = os.path.basename(name).lower()
    ending = os.path.splitext(base)[1]
    if ending in _SIDECARS or base in ("thumbs.db", "desktop.ini"):
        return ""
    return _KIND.get(ending)


def by_content(name: str, head: bytes) -> str | None:
    """The same for a file of an unknown ending, by its first bytes; None for an image."""
    if _is_image(head):
        return None
    if head.startswith(_PACKED):
        return _ARCHIVES
    if head.startswith(b"%PDF"):
        return _DOCUMENTS
    if head[4:8] == b"ftyp":
        return _RAW if head[8:11] == b"crx" else _VIDEOS
    if head.startswith(b"\x93NUMPY"):
        return ARRAYS
    if _LIKE_AN_IMAGE.search(os.path.basename(name).lower()):
        return NOT_AN_IMAGE if head else EMPTY
    return "" if _is_text(head) or head.startswith(b"SQLite format") else UNKNOWN


def _is_image(head: bytes) -> bool:
    if head.startswith(_MAGIC) or head[128:132] == b"DICM":
        return True
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return True
    if head[:2] == b"BM" and head[6:10] == bytes(4) and head[14:18] in _BMP_HEADERS:
        return True
    return head[4:8] == b"ftyp" and head[8:12] in _IMAGE_BRANDS


_BMP_HEADERS = tuple(size.to_bytes(4, "little") for size in (12, 40, 52, 56, 64, 108, 124))


def _is_text(head: bytes) -> bool:
    """Return whether the beginning of a file reads as text; so does an empty one."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):  # UTF-16
        return True
    return not any(byte < 32 and byte not in b"\t\n\v\f\r\x1b" for byte in head)


def kind_of(reason: str) -> str:
    """The kind of a reason, such as "cut off"."""
    kind = reason.partition(": ")[0].partition(" (")[0]
    return NO_SPLIT if kind.startswith(NO_SPLIT) else kind


def is_damage(reason: str) -> bool:
    """Return whether a reason says that something is wrong with a file, and not that it is of
    another kind.
    """
    return kind_of(reason) not in _CHOSEN


def counted(skipped: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Count the (name, reason) of each kind, the most frequent first."""
    return dict(Counter(kind_of(reason) for _, reason in skipped).most_common())


def describe_left_out(skipped: Sequence[tuple[str, str]]) -> str:
    """Describe what is left out, by kinds and endings: "20 .dng and 9 .cr2 (raw photographs are not
    read), 5 cut off".
    """
    names: dict[str, list[str]] = {}
    for name, reason in skipped:
        names.setdefault(kind_of(reason), []).append(name)
    kinds = sorted(names, key=lambda kind: -len(names[kind]))
    parts = [_said(kind, names[kind]) for kind in kinds[:_MOST_KINDS]]
    if others := sum(len(names[kind]) for kind in kinds[_MOST_KINDS:]):
        parts.append(f"{others} for other reasons")
    return ", ".join(parts)


@dataclass(frozen=True)
class Count:
    """Number of images of a source that were read, and (name, reason) of each that was left out.

    split: the one that was read, None for all; splits: those that the source has.
    """

    source: str
    images: int
    skipped: Sequence[tuple[str, str]] = ()
    split: str | None = None
    splits: Sequence[str] = ()

    def __len__(self) -> int:
        return self.images

    @property
    def left_out(self) -> dict[str, int]:
        """Numbers of images left out, by the kind of the reason."""
        return counted(self.skipped)

    @property
    def of_splits(self) -> str:
        """The splits that were read, such as "the split train of train, test"; "" of a source
        without splits.
        """
        if not self.splits:
            return ""
        named = ", ".join(self.splits)
        return f"the splits {named}" if self.split is None else f"the split {self.split} of {named}"

    @property
    def where(self) -> str:
        """The source, and the splits of it that were read."""
        return ", ".join(filter(None, [self.source, self.of_splits]))

    @property
    def line(self) -> str:
        """The same in one line, with kinds and endings of what was left out."""
        line = f"{self.where}: {self.images} image{'' if self.images == 1 else 's'} read"
        if self.skipped:
            line += f", {len(self.skipped)} left out: {describe_left_out(self.skipped)}"
        return line


def _said(kind: str, names: Iterable[str]) -> str:
    names = list(names)
    if kind not in _BY_ENDING:
        if kind in (CUT_OFF, EMPTY, NO_SPLIT) or kind in _WORDS:
            return f"{len(names)} {_WORDS.get(kind, kind)}"
        return f"{len(names)} ({kind[:_LONGEST]})"
    endings = Counter(os.path.splitext(os.path.basename(name))[1].lower() for name in names)
    shown = [
        f"{count} {ending or 'without an ending'}"
        for ending, count in endings.most_common(_MOST_ENDINGS)
    ]
    if others := len(names) - sum(count for _, count in endings.most_common(_MOST_ENDINGS)):
        shown.append(f"{others} of other endings")
    listed = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    return f"{listed} ({kind})"


class PackageMissing(ValueError):
    """An image needs a package that is not installed: another day it may be."""


def is_passing(error: BaseException) -> bool:
    """Return whether an error comes from the machine and not from the image: later the same image
    may be read.

    Too little memory, too many open files, a disk or network that fails, a missing package, and the
    limit on pixels, which can be raised. Errors of the operating system have a number; those that
    Pillow makes of damage have none.
    """
    if isinstance(error, (MemoryError, ImportError, PackageMissing, Image.DecompressionBombError)):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return True
    return bool(lacking(error)) or _NEEDS_PACKAGE.search(str(error).lower()) is not None
