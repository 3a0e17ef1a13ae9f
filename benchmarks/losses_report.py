"""The numbers of one run of benchmarks/losses.py as a page, a plot, and the targets."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

MIB = 1 << 20
EXACT, SAME = 1e-6, 1e-4


def verdict(check: dict) -> str:
    """Say how a loss compares with float64: the same loss, a multiple of it, or something else."""
    if "error" in check:
        return f"fails: {check['error']}"
    errors = f"value {check['value_error']:.0e}, gradient {check['gradient_error']:.0e}"
    if check["gradient_error"] < SAME and check["value_error"] < SAME:
        return f"agrees ({errors})"
    if check["residual"] < SAME:
        return f"gradient x {check['factor']:.4g}, else the same (to {check['residual']:.0e})"
    return (
        f"SOMETHING ELSE ({errors}; nearest multiple x {check['factor']:.3g} leaves "
        f"{check['residual']:.0e})"
    )


def _name(row: dict, odd: set[str]) -> str:
    return row["case"] + (" (†)" if row["case"] in odd else "")


def _table(rows: list[dict], odd: set[str], cell) -> list[str]:
    sizes = sorted({row["batch"] for row in rows})
    lines = [
        "| | " + " | ".join(f"{size}" for size in sizes) + " |",
        "|---" * (len(sizes) + 1) + "|",
    ]
    for case in dict.fromkeys(row["case"] for row in rows):
        by_size = {row["batch"]: row for row in rows if row["case"] == case}
        cells = [cell(by_size[size]) if size in by_size else "" for size in sizes]
        lines.append(f"| {_name(by_size[min(by_size)], odd)} | " + " | ".join(cells) + " |")
    return lines


def _failed(row: dict) -> str:
    return "mem" if "memory" in row["error"] else "-" if "not run" in row["error"] else "fails"


def _time(row: dict) -> str:
    if "error" in row:
        return _failed(row)
    median, minimum = 1000 * row["median"], 1000 * row["minimum"]
    return f"{median:.4g} ({minimum:.4g})" if row["rounds"] else f"{median:.4g}*"


def _memory(row: dict) -> str:
    return _failed(row) if "error" in row else f"{row['extra_bytes'] / MIB:.1f}"


def _share(row: dict) -> str:
    if "error" in row:
        return _failed(row)
    return f"{100 * row['floor'] / row['gemm'] / row['median']:.0f} %" if row["gemm"] else ""


def gemm_rate(run: dict) -> float:
    return statistics.median(
        [row["gemm"] for row in run["rows"] if row.get("gemm")] or [float("nan")]
    )


def markdown(run: dict[str, Any]) -> str:
    odd = {check["case"] for check in run["checks"] if not check["verdict"].startswith("agrees")}
    machine, rows = run["machine"], run["rows"]
    versions = ", ".join(f"{package} {version}" for package, version in machine["versions"].items())
    minutes = f"{run['seconds'] / 60:.0f} min"
    lines = [
        "# Losses: exactness, memory and time",
        "",
        "Written by `make bench` (`benchmarks/losses.py`); raw numbers in `benchmark-losses.json`.",
        f"{machine['date']}, {machine['cpu']}, {machine['threads']} threads, float32, {minutes}; "
        f"{versions}",
        f"GEMM rate of this machine in the same run: **{gemm_rate(run) / 1e9:.0f} "
        f"GFLOP/s** (float32, median).",
        "",
        "![time and memory against the batch size](benchmark-losses.png)",
        "",
        "## Agreement with the plain form in float64",
        "Relative errors of value and gradient; losses with state are compared at their "
        "second step, and SACLR-1 at",
        "batch size 2, where its sample is known. `plain` forms the whole matrix. (†) "
        "marks losses that do not agree.",
        "",
        "| | computes | verdict |",
        "|---|---|---|",
        *(
            f"| {check['case']} | {check['quantity']} | {check['verdict']} |"
            for check in run["checks"]
        ),
    ]
    for dim in sorted({row["dim"] for row in rows}):
        for queue in sorted({row["queue"] for row in rows if row["dim"] == dim}):
            part = [row for row in rows if (row["dim"], row["queue"]) == (dim, queue)]
            title = f"d = {dim}, queue of {queue}" if queue else f"d = {dim}"
            lines += [
                "",
                f"## {title}",
                "Columns: batch size B (two views: n = 2B rows)."
                if not queue
                else "Column: batch size.",
            ]
            lines += [
                "",
                "Forward and backward, ms: median (minimum); *: one slower run of the memory pass:",
                "",
            ]
            lines += _table(part, odd, _time)
            own = (
                "; that of lightly's memory bank includes two copies of its queue" if queue else ""
            )
            lines += [
                "",
                f"Peak memory above inputs and gradients, MiB{own}:",
                "",
                *_table(part, odd, _memory),
            ]
            lines += [
                "",
                "Share of the arithmetic floor at the GEMM rate:",
                "",
                *_table(part, odd, _share),
            ]
    lines += [
        "",
        "## Failures",
        f"A loss may use {run['limits']['memory'] / 2**30:.1f} GiB and "
        f"{run['limits']['seconds']:.0f} s ",
    ]
    lines[-1] += "(a fifth of that at the larger dim). `mem`: more memory than that; `-`: not run."
    lines += [""] + [
        f"- {row['case']}, B = {row['batch']}, d = {row['dim']}: {row['error']}"
        for row in rows
        if "error" in row and "not run: failed" not in row["error"]
    ]
    lines += ["", "## Targets", *targets(run)]
    return "\n".join(lines) + "\n"


def targets(run: dict[str, Any]) -> list[str]:
    """One line for each target: met or not, with the figure."""
    dim = min(row["dim"] for row in run["rows"])
    good = [row for row in run["rows"] if "error" not in row]
    agree = {
        check["case"]
        for check in run["checks"]
        if "error" not in check and check["residual"] < SAME
    }
    ours = [row for row in good if row["owner"] == "nearfar"]

    def times_faster(fast: dict, slow: dict) -> float:
        """Medians of the same rounds; where one of them was not repeated, their single runs in the
        memory pass.
        """
        key = "median" if fast["rounds"] and slow["rounds"] else "seconds"
        return slow[key] / fast[key]

    def ratio(text: str, slow: str, fast: str, batch: int, least: float) -> str:
        at = {row["case"]: row for row in good if (row["batch"], row["dim"]) == (batch, dim)}
        if slow not in at or fast not in at:
            return f"- not measured: {text}"
        speedup = times_faster(at[fast], at[slow])
        single = "" if at[fast]["rounds"] and at[slow]["rounds"] else " (single runs)"
        return f"- {'met' if speedup >= least else 'NOT MET'}: {text}: {speedup:.1f}x{single}"

    def never_slower(text: str, others: list[dict]) -> str:
        same = ("quantity", "batch", "dim", "queue")
        pairs = [
            (times_faster(a, b), a, b)
            for a in ours
            for b in others
            if all(a[k] == b[k] for k in same)
        ]
        if not pairs:
            return f"- not measured: {text}"
        slower = sorted((pair for pair in pairs if pair[0] < 1), key=lambda pair: pair[0])
        least, a, b = min(pairs, key=lambda pair: pair[0])
        worst = (
            f"least {least:.2f}x, {a['case']} against {b['case']} at B = {a['batch']}, "
            f"d = {a['dim']}"
        )
        return (
            f"- {'NOT MET' if slower else 'met'}: {text}: {len(pairs) - len(slower)} of "
            f"{len(pairs)} sizes; {worst}"
        )

    def memory() -> str:
        text = (
            "at most 16 MiB + 16 n bytes above inputs and gradient, every contrastive loss and size"
        )
        over = [
            (row["extra_bytes"] - 16 * MIB - 16 * row["batch"] * (1 if row["queue"] else 2), row)
            for row in ours
            if row["contrastive"]
        ]
        if not over:
            return f"- not measured: {text}"
        row = max(over, key=lambda pair: pair[0])[1]
        beyond = sum(excess > 0 for excess, _ in over)
        worst = (
            f"{row['case']} at B = {row['batch']}, d = {row['dim']}: "
            f"{row['extra_bytes'] / MIB:.1f} MiB"
        )
        return (
            f"- {'NOT MET' if beyond else 'met'}: {text}: {len(over) - beyond} of "
            f"{len(over)}; worst {worst}"
        )

    def exact() -> str:
        mine = [
            check for check in run["checks"] if check["owner"] == "nearfar" and check["contrastive"]
        ]
        failing = [check["case"] for check in mine if check.get("gradient_error", 1.0) > EXACT]
        worst = max(
            (check.get("gradient_error", float("inf")) for check in mine), default=float("nan")
        )
        text = (
            f"gradient within 1e-6 of float64, contrastive losses: "
            f"{len(mine) - len(failing)} of {len(mine)}"
        )
        text += f"; worst {worst:.1e}"
        return f"- {'NOT MET' if failing else 'met'}: {text}" + (
            f" ({', '.join(failing)})" if failing else ""
        )

    def gpu() -> str:
        text = "B = 65536, d = 128, bfloat16 on an H200 in 30 ms"
        if not run["gpu"].get("milliseconds"):
            return f"- not measured: {text} (no GPU here)"
        median = statistics.median(run["gpu"]["milliseconds"])
        return (
            f"- {'met' if median <= 30 else 'NOT MET'}: {text}: {median:.1f} ms on "
            f"{run['gpu']['device']}"
        )

    peers = [
        row for row in good if row["owner"] not in ("nearfar", "plain") and row["case"] in agree
    ]
    lightly, mine = "lightly NTXentLoss", "nearfar SimCLR"
    return [
        memory(),
        ratio("5x lightly at B = 1024", lightly, mine, 1024, 5),
        ratio("10x lightly at B = 4096", lightly, mine, 4096, 10),
        ratio("6x plain masked cross entropy at B = 4096", "plain SimCLR", mine, 4096, 6),
        never_slower(
            "never slower than the plain form", [row for row in good if row["owner"] == "plain"]
        ),
        never_slower("never slower than a peer that agrees", peers),
        ratio("MoCo with a queue 4x its plain form", "plain MoCo", "nearfar MoCo", 256, 4),
        ratio("SCE with a queue 3x its plain form", "plain SCE", "nearfar SCE", 256, 3),
        ratio(
            "SACLR-1 20x SACLR-all at B = 4096", "nearfar SACLR-all", "nearfar SACLR-1", 4096, 20
        ),
        exact(),
        gpu(),
    ]


def plot(run: dict[str, Any], path: Path) -> None:
    """Time and memory against the batch size, log-log, at the smallest dim."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    dim = min(row["dim"] for row in run["rows"])
    rows = [
        row for row in run["rows"] if row["dim"] == dim and not row["queue"] and "error" not in row
    ]
    shown = ["SimCLR", "SACLR-1", "SACLR-all", "SigCLR", "SogCLR", "iSogCLR", "CLIP"]
    figure, panels = pyplot.subplots(1, 2, figsize=(14, 5), layout="constrained")
    for case in dict.fromkeys(row["case"] for row in rows):
        line = [row for row in rows if row["case"] == case]
        owner, quantity = line[0]["owner"], line[0]["quantity"]
        if quantity not in shown or (owner == "plain" and quantity != "SimCLR"):
            continue
        style = {"nearfar": "-", "plain": ":"}.get(owner, "--")
        batches = [row["batch"] for row in line]
        panels[0].plot(
            batches, [1000 * row["median"] for row in line], style, marker=".", label=case
        )
        panels[1].plot(
            batches,
            [max(row["extra_bytes"] / MIB, 0.1) for row in line],
            style,
            marker=".",
            label=case,
        )
    for panel, title in zip(
        panels, ["forward and backward, ms", "memory above inputs and gradient, MiB"], strict=True
    ):
        panel.set(xscale="log", yscale="log", xlabel=f"batch size B (d = {dim})", title=title)
        panel.set_xscale("log", base=2)
        panel.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.savefig(path, dpi=110)
