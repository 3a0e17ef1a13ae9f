"""YAML files, of settings and of papers, read so that no file waits for ever or fills the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def load_yaml(path: Path) -> Any:
    """Return what a YAML file holds.

    Raises yaml.YAMLError or ValueError for other files, for pipes and devices, which may never end, and for aliases
    (*name) that make a small file large.
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is not a regular file")
    text = path.read_text(encoding="utf-8")
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _written_out(node, 10_000 + 10 * len(text), {})
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _written_out(node: yaml.Node, most: int, known: dict[int, int]) -> int:
    """Count characters and nodes of a document with its aliases written out; ValueError for more than `most`."""
    if id(node) not in known:
        known[id(node)] = most  # where it holds itself
        parts = node.value if isinstance(node, yaml.SequenceNode) else ()
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        size = 1 + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)
        known[id(node)] = size + sum(_written_out(part, most, known) for part in parts)
        if known[id(node)] > most:
            raise ValueError("its aliases (*name) stand for far more than the file holds; write it without them")
    return known[id(node)]
