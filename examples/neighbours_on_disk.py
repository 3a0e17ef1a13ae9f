"""Nearest neighbours among more embeddings than memory holds: faiss's inverted lists in a file on disk.

    python examples/neighbours_on_disk.py build embeddings/ index/
    python examples/neighbours_on_disk.py search index/ queries.parquet neighbours.parquet --k 10

`build` learns the centres of the lists from a sample, adds the Parquet files one after the other, and prints the
recall: the share of the 10 nearest rows (cosine) of 1000 rows that a search finds. Memory: one file and the sample; on
disk the rows once more. `search` reads the lists of the nearest centres alone. Needs `pip install "nearfar[large]"`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import faiss
import numpy as np
import pyarrow
import pyarrow.parquet as pq
from faiss.contrib.ondisk import merge_ondisk

INDEX, NAMES = "index.faiss", "names.parquet"
QUERIES, NEAREST = 1000, 10


def rows_of(table: pyarrow.Table) -> np.ndarray:
    """The column "embedding" as unit rows."""
    column = table["embedding"].combine_chunks()
    rows = np.stack(column.to_numpy(zero_copy_only=False)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)


def build(embeddings: Path, folder: Path, lists: int | None, probes: int) -> None:
    files = sorted(embeddings.glob("*.parquet"))
    if not files:
        raise SystemExit(f"neighbours_on_disk: {embeddings} holds no Parquet files")
    folder.mkdir(parents=True)
    counts = [pq.read_metadata(file).num_rows for file in files]
    lists = lists or max(1, min(int(4 * sum(counts) ** 0.5), sum(counts) // 40))
    generator = np.random.default_rng(0)
    wanted = min(1.0, 64 * lists / sum(counts))
    sample = []
    for file in files:
        rows = rows_of(pq.read_table(file, columns=["embedding"]))
        sample.append(rows[generator.random(len(rows)) < wanted])
    trained = faiss.index_factory(rows.shape[1], f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT)
    trained.train(np.concatenate(sample))
    faiss.write_index(trained, str(folder / "trained.faiss"))

    queries = rows_of(pq.read_table(files[0], columns=["embedding"]))[:QUERIES]
    best = (
        np.full((len(queries), NEAREST), -np.inf, np.float32),
        np.full((len(queries), NEAREST), -1),
    )
    start, parts, writer = 0, [], None
    for file in files:
        table = pq.read_table(file, columns=["name", "embedding"])
        rows = rows_of(table)
        part = faiss.read_index(str(folder / "trained.faiss"))
        part.add_with_ids(rows, np.arange(start, start + len(rows)))
        parts.append(str(folder / f"part-{len(parts)}.faiss"))
        faiss.write_index(part, parts[-1])
        near, positions = faiss.knn(
            queries, rows, min(NEAREST, len(rows)), metric=faiss.METRIC_INNER_PRODUCT
        )
        near, positions = (
            np.concatenate([best[0], near], 1),
            np.concatenate([best[1], positions + start], 1),
        )
        order = np.argsort(-near, 1)[:, :NEAREST]
        best = np.take_along_axis(near, order, 1), np.take_along_axis(positions, order, 1)
        writer = writer or pq.ParquetWriter(folder / NAMES, table.select(["name"]).schema)
        writer.write_table(table.select(["name"]))
        start += len(rows)
    writer.close()
    index = faiss.read_index(str(folder / "trained.faiss"))
    merge_ondisk(index, parts, str(folder / "lists.faiss"))
    index.nprobe = probes
    faiss.write_index(index, str(folder / INDEX))
    for part in [*parts, folder / "trained.faiss"]:
        Path(part).unlink()
    positions = index.search(queries, NEAREST)[1]
    recall = np.mean(
        [
            len((set(row) & set(other)) - {-1}) / min(NEAREST, start)
            for row, other in zip(positions, best[1], strict=True)
        ]
    )
    print(
        f"{start} rows in {lists} lists; recall of the {NEAREST} nearest with {probes} "
        f"probes: {recall:.3f}"
    )


def search(folder: Path, queries: Path, out: Path, k: int, probes: int | None) -> None:
    index = faiss.read_index(str(folder / INDEX), faiss.IO_FLAG_ONDISK_SAME_DIR)
    index.nprobe = probes or index.nprobe
    names = pq.read_table(folder / NAMES, memory_map=True)["name"]
    table = pq.read_table(queries, columns=["name", "embedding"])
    near, positions = index.search(rows_of(table), k)
    # -1 where the lists that were read hold fewer than k rows
    columns = {"name": table["name"].to_pylist()}
    columns["distance"] = [1 - each[rows >= 0] for each, rows in zip(near, positions, strict=True)]
    columns["neighbour"] = [
        [names[int(row)].as_py() for row in rows if row >= 0] for rows in positions
    ]
    pq.write_table(pyarrow.table(columns), out)
    print(f"{len(table)} queries -> {out}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    made = verbs.add_parser("build")
    made.add_argument("embeddings", type=Path)
    made.add_argument("index", type=Path)
    made.add_argument("--lists", type=int)
    made.add_argument("--probes", type=int, default=32)
    searching = verbs.add_parser("search")
    searching.add_argument("index", type=Path)
    searching.add_argument("queries", type=Path)
    searching.add_argument("out", type=Path)
    searching.add_argument("--k", type=int, default=10)
    searching.add_argument("--probes", type=int)
    given = parser.parse_args()
    if given.verb == "build":
        build(given.embeddings, given.index, given.lists, given.probes)
    else:
        search(given.index, given.queries, given.out, given.k, given.probes)


if __name__ == "__main__":
    main()
