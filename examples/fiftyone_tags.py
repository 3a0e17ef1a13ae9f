"""Show the copies that nearfar found in FiftyOne, as tags and fields of its samples.

    nearfar duplicates photos/ --json > found.json
    python examples/fiftyone_tags.py found.json NAME        # a dataset of FiftyOne

Each sample whose image repeats another one has the tag "copy" or "near-duplicate", and each sample
of a group the fields `nearfar_group` (a number), `nearfar_kind` (such as "same file") and
`nearfar_of` (the file that this refers to). Samples are found by their files. What an earlier call
wrote is replaced; no sample is removed. In the App, filter by the tags, or sort by the group:
`dataset.exists("nearfar_group").sort_by("nearfar_group")`.

Tried with FiftyOne 1.22.1 (`pip install fiftyone`).
"""

import json
import os
import sys

COPY, NEAR = "copy", "near-duplicate"
FIELDS = {"group": "nearfar_group", "kind": "nearfar_kind", "of": "nearfar_of"}


def tag_copies(dataset, table):
    """Write tags and fields into a dataset; returns how many images of `table` are samples of it.

    table: what `nearfar duplicates --json` prints, or what `nearfar.duplicates` returns.
    """
    samples = {os.path.realpath(path): path for path in dataset.values("filepath")}
    rows = {}  # of each sample; an image of two groups has the first, where it is a copy
    in_order = sorted(range(len(table["path"])), key=lambda row: table["group"][row])
    for row in in_order:  # groups of copies come first
        if sample := samples.get(os.path.realpath(table["path"][row])):
            rows.setdefault(sample, row)
    dataset.untag_samples([COPY, NEAR])
    for column, field in FIELDS.items():
        if dataset.has_sample_field(field):
            dataset.clear_sample_field(field)
        values = {sample: table[column][row] for sample, row in rows.items()}
        if values:
            dataset.set_values(field, values, key_field="filepath")
    kinds = {sample: table["kind"][row] for sample, row in rows.items()}
    copies = [sample for sample, kind in kinds.items() if kind not in ("first", NEAR)]
    dataset.select_by("filepath", copies).tag_samples(COPY)
    near = [sample for sample, kind in kinds.items() if kind == NEAR]
    dataset.select_by("filepath", near).tag_samples(NEAR)
    return len(rows)


def main(words):
    """Run the command line; returns the exit code."""
    import fiftyone

    if len(words) != 2:
        print("usage: python fiftyone_tags.py FOUND.json DATASET", file=sys.stderr)
        return 2
    try:
        with open(words[0], encoding="utf-8") as file:
            table = json.load(file)
        columns = [table[name] for name in (*FIELDS, "path")]
        for group, *texts in zip(*columns, strict=True):
            if not isinstance(group, int) or not all(isinstance(text, str) for text in texts):
                raise TypeError("a path is no text, or a group no number")
    except OSError as error:
        print(f"{words[0]}: {error.strerror}", file=sys.stderr)
        return 2
    except (ValueError, KeyError, TypeError):
        print(f"{words[0]} names no files in groups: see docs/bridge.md", file=sys.stderr)
        return 2
    if not fiftyone.dataset_exists(words[1]):
        known = ", ".join(fiftyone.list_datasets()) or "none"
        print(f"there is no dataset {words[1]!r}; there are: {known}", file=sys.stderr)
        return 2
    count = tag_copies(fiftyone.load_dataset(words[1]), table)
    images = len({*table["path"]})
    print(f"{count} of {images} images are samples of {words[1]}, and have fields and tags now")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
