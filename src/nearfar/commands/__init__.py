"""The commands: `nearfar VERB`, `nearfar.VERB(run, ...)` and `run.VERB(...)` are one function in
the file of its name.

Its signature and its docstring are the command line and the help: the first line is the summary,
"Args" are the options, and the lines of the module's docstring that begin with "nearfar" are the
examples. So that help takes no second, such a file imports the standard library alone at its top;
names of annotations stand under TYPE_CHECKING, and torch and the rooms are imported by the
function. It checks what it is given, opens run and data, calls the rooms below, and writes and
prints what they find. No command imports another: what two have in common lives in a room below.
"""
