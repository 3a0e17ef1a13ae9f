"""The command that writes the features of images to a table.

nearfar embed runs/photos --out photos.parquet
nearfar embed runs/photos others/ --out others.csv
nearfar embed photos/ --out photos.parquet
nearfar embed runs/photos --out photos.parquet --map
nearfar embed runs/photos --out photos.parquet --mirrored
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from nearfar.atomic import check_output, replacing
from nearfar.isolation import isolated

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from torch import Tensor, nn

FORMATS = (".parquet", ".csv", ".npz")


@isolated()
def embed(
    run: Any,
    data: Any = None,
    *,
    out: str | Path,
    split: str | None = None,
    label_column: str | None = None,
    map: bool = False,
    mirrored: bool = False,
    encoder: str | nn.Module | None = None,
    console: Console | None = None,
) -> Path:
    """Write the embedding of every image to a .parquet, .csv or .npz file.

    Args:
        run: run folder; or, without one, the data itself, which gets the best features at hand
            (docs/starting-weights.md).
        data: images to embed, of one or more sources; columns of a table of paths are copied.
            Default: the data of the run.
        out: file to write; it must not exist.
        split: part of the data; "all" for everything. Default: that of the run, of other data its
            training split.
        label_column: column of the data with the labels. Default: one of a usual name, such as
            label.
        map: add coordinates on the run's map, x and y, a thumbnail of each image and its 15
            nearest, as embedding-atlas and Hugging Face datasets take them; .parquet alone, after
            nearfar map RUN.
        mirrored: average the features of each image and its mirror image, in twice the time; not
            with `map`. A linear classifier of photographs gains up to 1.6 points; where left and
            right differ, it loses.
        encoder: for data without a run: a timm model by name, hf:owner/name, pretrained, nearfar or
            a folder. Default: the best features at hand. In Python also the trained module of a
            run, if it was an object of your own.
        console: console for progress and messages.

    Returns:
        The file that was written.

    >>> nearfar.embed("runs/photos", out="photos.parquet").name
    'photos.parquet'
    """
    from torch.nn import Sequential
    from torchvision.transforms.v2 import RandomHorizontalFlip

    from nearfar.maps import find_map, load_map, origin
    from nearfar.pages.map import IMAGE, table_columns
    from nearfar.run import Run
    from nearfar.run_features import features_shown, open_featured, run_or_data

    run, console, path = run_or_data(run), console or Console(), Path(out)
    check_output(path, FORMATS[:1] if map else FORMATS)
    if map and mirrored:
        raise ValueError(
            "--map has the features that the map was drawn from: leave out --mirrored, or --map"
        )
    if map and not isinstance(run, Run):
        raise ValueError(f"--map adds the map of a run, and {run.path} is none: leave --map out")
    file = find_map("map", run.path)
    saved = load_map(file) if map else None
    known = open_featured(run, data, split, encoder, console, least=1, label_column=label_column)
    images, features = known.images, known.features
    if mirrored:
        if known.encoder is None:
            raise ValueError(f"--mirrored needs an encoder, and {run.path} holds vectors")
        turned = Sequential(RandomHorizontalFlip(1.0), known.encoder)
        features = (
            features + features_shown(turned, images, console, "features of mirror images")
        ) / 2
    added, pictures = {}, None
    if saved is not None:
        now = origin(run.path, images)
        if now["encoder"] != saved.about.get("encoder"):
            raise ValueError(
                f"the encoder of {run.path} changed since {file} was drawn: draw the map again"
            )
        assert known.encoder is not None
        own = saved.encoder(known.encoder)

        def on_the_map(rows: list[int]) -> Tensor:
            if own is known.encoder:
                return features[rows]
            return features_shown(own, images.subset(rows), console, "features")

        coordinates = saved.place(images, on_the_map)
        added, pictures = table_columns(images, features, coordinates), IMAGE
    labels: Any = images.labels
    if labels is not None and (classes := images.class_names) is not None:
        labels = [classes[one] if one >= 0 else None for one in labels]
    write_embeddings(path, images.names, features.numpy(), labels, images.columns, added, pictures)
    console.print(Text(f"{len(images)} embeddings of {features.shape[1]} numbers -> {path}"))
    return path


def write_embeddings(
    path: Path,
    names: Sequence[str],
    features: np.ndarray,
    labels: Sequence[Any] | np.ndarray | None = None,
    columns: pyarrow.Table | None = None,
    added: Mapping[str, pyarrow.Array] | None = None,
    pictures: str | None = None,
) -> None:
    """Write one row for each image: its name, its label (the class by name, if it has one), and its
    embedding.

    .parquet: columns name, label, embedding (a list); .csv: name, label, e0, e1, ...; .npz: arrays
    of those names. columns: further ones, which come before the embedding, as they are in .parquet,
    else as `as_arrays` has them. Of a name that is taken they are called table_name. added: still
    more, before those, whose names are taken by them. pictures: the one of these, {bytes, path},
    that Hugging Face datasets is told to decode. Both in .parquet alone. The file appears when it
    is complete.
    """
    import numpy as np
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    from nearfar.data.exif import LONGEST
    from nearfar.data.sources.rows import marked_as_images
    from nearfar.data.table import as_arrays, cut

    known: dict[str, Any] = {"name": np.array(names)}
    if labels is not None:
        own = pyarrow.table({"label": labels})
        known |= {"label": own["label"]} if path.suffix == ".parquet" else as_arrays(own)
    known |= added or {}
    embedding: dict[str, Any] = {"embedding": features}
    if path.suffix == ".csv":
        embedding = {f"e{i}": features[:, i] for i in range(features.shape[1])}
    if columns is not None:
        taken = {
            *known,
            *embedding,
            *(("file", "allow_pickle") if path.suffix == ".npz" else ()),
        }  # of np.savez
        names_now = [f"table_{name}" if name in taken else name for name in columns.column_names]
        columns = columns.rename_columns(names_now)
        whole = path.suffix == ".parquet"
        known |= {name: columns[name] for name in names_now} if whole else as_arrays(columns)
    with replacing(path) as file:
        if path.suffix == ".npz":  # whose texts have one width, and objects would be pickled
            known = {
                name: np.array([cut(str(text), LONGEST) for text in one], dtype=str)
                if isinstance(one, np.ndarray) and one.dtype.kind == "O"
                else one
                for name, one in known.items()
            }
            np.savez(file, **known, **embedding)
        elif path.suffix == ".csv":
            pyarrow.csv.write_csv(pyarrow.table(known | embedding), file)
        else:
            flat = pyarrow.array(np.ascontiguousarray(features).reshape(-1))
            known["embedding"] = pyarrow.FixedSizeListArray.from_arrays(flat, features.shape[1])
            table = pyarrow.table(known)
            pyarrow.parquet.write_table(
                table if pictures is None else marked_as_images(table, pictures), file
            )
