"""The tools: `nearfar VERB TARGET`, one folder for each verb.

A tool is a function `tool(photos: Embeddings, **options) -> Result`; its signature and docstring
are the command line and the help. Its folder holds the algorithm, the page and the template. No
tool imports another: what makes two images copies, and nearest neighbours, lie in `neighbours/`. So
that help takes no second, the file of a tool's function imports little at its top.
"""

from nearfar.tools.registry import Between, Seed, find_tool, tool, tool_names

__all__ = ["Between", "Seed", "find_tool", "tool", "tool_names"]
