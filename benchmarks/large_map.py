"""A map of many images in headless Chromium: time to the first frame, frames while panning and zooming, memory.

    python benchmarks/large_map.py --images 1000000 --out docs/results/large-map.json

The images are those of DATA, repeated, at artificial coordinates (a mixture of Gaussians) with artificial neighbours
and columns. The map is written as a folder and opened from disk three times in one browser; Chromium draws WebGL in
software (SwiftShader) on the CPU, so a machine with a graphics card is faster. A frame is in time below 17.5 ms.
If other programs share the machine, look at the CPU time per frame: the two processes, the page and
the one that draws, run in parallel, so each has 16.7 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearfar.data import Images, open_images
from nearfar.tools.map.page import write_map_page

sys.path.append(str(Path(__file__).parents[1]))  # for tools/
from tools.browser import Browser, opened

FRAMES = 240
IN_TIME = 17.5  # ms
# What is done before each frame; t runs from 0 to 1.
MOVES = {
    "pan, everything in view": "nearfar.pan(t < 0.5 ? 3 : -3, 1)",
    "zoom in by 60": "nearfar.zoom(60 ** (1 / FRAMES), 400, 300)",
    "pan, zoomed in": "nearfar.pan(4, 2)",
    "zoom out": "nearfar.zoom(60 ** (-1 / FRAMES), 400, 300)",
    "pan with regions": "nearfar.pan(t < 0.5 ? 3 : -3, 1)",
    "pan with images": "nearfar.pan(t < 0.5 ? 3 : -3, 1)",
}
SETTING = {
    "pan, everything in view": "nearfar.fit()",
    "pan with regions": "nearfar.fit(); document.getElementById('regions').click()",
    "pan with images": "document.getElementById('regions').click(); "
    "document.getElementById('pictures').click()",
}
ALL_POINTS = (
    "nearfar.fit(); await new Promise((ok) => {"
    " const look = () => (nearfar.settled ? ok() : setTimeout(look, 5)); look(); })"
)


def made_up(
    source: Images, count: int
) -> tuple[torch.Tensor, Images, dict[str, np.ndarray], np.ndarray]:
    """Places, images, columns and neighbours."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(source), count)
    group = rows % 60
    middle, spread = rng.normal(size=(60, 2)) * 8, rng.uniform(0.2, 1.5, 60)
    places = middle[group] + rng.normal(size=(count, 2)) * spread[group, None]
    names = [
        f"camera_{row % 7}/2024-{row % 12 + 1:02}/image_{i:07}.jpg" for i, row in enumerate(rows)
    ]
    images = source.subset(rows)
    images.names = names
    columns = {
        "outlierness": rng.exponential(size=count).astype(np.float32),
        "kept": rng.uniform(size=count),
    }
    neighbours = rng.integers(0, count, (count, 15), dtype=np.int32)
    return torch.from_numpy(places).float(), images, columns, neighbours


def frames(browser: Browser, move: str) -> dict[str, float]:
    """Milliseconds between frames while the view moves before each."""
    script = (
        "const done = arguments[0], FRAMES = %d, seen = []; let last = 0, k = 0;"
        "const step = (now) => { if (last) seen.push(now - last); last = now;"
        "if (k++ > FRAMES) return done(seen); const t = k / FRAMES; %s; "
        "requestAnimationFrame(step); };"
        "requestAnimationFrame(step);"
    )
    before = processor_ms()
    gaps = np.array(browser.call("execute/async", script=script % (FRAMES, move), args=[]))
    spent = {kind: (ms - before.get(kind, 0)) / FRAMES for kind, ms in processor_ms().items()}
    return {
        "frames_per_second": float(1000 / gaps.mean()),
        "median_ms": float(np.median(gaps)),
        "p95_ms": float(np.quantile(gaps, 0.95)),
        "in_time": float((gaps < IN_TIME).mean()),
        "points_per_frame": browser.run("Math.round(nearfar.perFrame)"),
        "processor_ms_of_page": spent["renderer"],
        "processor_ms_of_webgl": spent["gpu-process"],
    }


def milliseconds(browser: Browser, work: str) -> float:
    """Milliseconds that a promise takes."""
    script = (
        "const done = arguments[0], began = performance.now();"
        "(async () => { %s; })().then(() => done(performance.now() - began));"
    )
    return browser.call("execute/async", script=script % work, args=[])


def processes() -> Iterator[tuple[str, Path]]:
    """Kind and folder in /proc of each of the browser's processes, which all descend from this
    one.
    """
    parents, words = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rsplit(")", 1)[1].split()[1]
            )
            words[int(folder.name)] = (
                (folder / "cmdline").read_text(errors="replace").replace("\0", " ")
            )
    for process in parents:
        above = process
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid() != process and "chromedriver" not in words[process]:
            kind = re.search(r"--type=(\S+)", words[process])
            yield kind[1] if kind else "browser", Path(f"/proc/{process}")


def process_megabytes() -> dict[str, float]:
    """Proportional set size by kind of process."""
    sizes: dict[str, float] = {}
    for kind, folder in processes():
        lines = (folder / "smaps_rollup").read_text().splitlines()
        sizes[kind] = (
            sizes.get(kind, 0)
            + next(int(line.split()[1]) for line in lines if line[:4] == "Pss:") / 1000
        )
    return sizes


def processor_ms() -> dict[str, float]:
    """Processor time so far by kind of process: unlike the time between frames, it hardly depends
    on other work.
    """
    spent: dict[str, float] = {}
    for kind, folder in processes():
        ticks = (folder / "stat").read_text().rsplit(")", 1)[1].split()[11:13]
        spent[kind] = spent.get(kind, 0) + 1000 * sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return spent


def heap(browser: Browser) -> float:
    """Megabytes of the page's JavaScript objects; its arrays of numbers lie outside and are in the
    process's size.
    """
    browser.call("goog/cdp/execute", cmd="HeapProfiler.collectGarbage", params={})
    return browser.run("performance.memory.usedJSHeapSize / 1e6")


def measure(page: Path) -> dict[str, Any]:
    """Everything that is measured in the browser."""
    with ExitStack() as stack:
        profile = stack.enter_context(tempfile.TemporaryDirectory())
        browser = stack.enter_context(opened(Path(profile), ["enable-precise-memory-info"]))
        browser.call("timeouts", script=120_000, pageLoad=120_000)
        browser.call("url", url="about:blank")
        blank = process_megabytes()
        pictures = []
        for _ in range(3):
            browser.visit(page)
            browser.wait("performance.getEntriesByName('first picture').length")
            pictures.append(
                browser.run("performance.getEntriesByName('first picture')[0].startTime")
            )
            browser.wait("nearfar.settled")
        results: dict[str, Any] = {
            "painter": browser.run("nearfar.painter"),
            "first_picture_ms": pictures,
        }
        results["all_points_ms"] = milliseconds(browser, ALL_POINTS)
        results |= {
            "blank_page_mb": blank,
            "heap_mb": heap(browser),
            "processes_mb": process_megabytes(),
        }
        results["moves"] = {}
        for name, move in MOVES.items():
            browser.run(f"(() => {{ {SETTING.get(name, '')} }})()")
            time.sleep(1.5)
            results["moves"][name] = frames(browser, move)
            print(
                f"{name:28}",
                {key: round(value, 2) for key, value in results["moves"][name].items()},
                flush=True,
            )
        results["select_all_ms"] = milliseconds(browser, "nearfar.select(() => true, 'replace')")
        browser.run("nearfar.select(() => false, 'replace')")
        results["first_search_ms"] = milliseconds(browser, "await nearfar.search('image_0012')")
        results["next_search_ms"] = milliseconds(browser, "await nearfar.search('image_0034')")
        results["heap_after_mb"], results["processes_after_mb"] = heap(browser), process_megabytes()
        results["console"] = browser.console()
        return results


def main() -> None:
    """Write the folder and measure the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="digits")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument(
        "--folder", type=Path, help="where the map is written, or was by an earlier call"
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch) / "map"
        results: dict[str, Any] = {"images": args.images, "cores": os.cpu_count()}
        if not folder.exists():
            source = open_images(args.data, image_size=args.image_size, channels=3)
            places, images, columns, neighbours = made_up(source, args.images)
            before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
            write_map_page(folder, places, images, columns=columns, neighbours=neighbours)
            results["write_seconds"] = time.perf_counter() - began
            results["write_more_memory_mb"] = (
                resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            ) / 1000
        files = [path for path in folder.rglob("*") if path.is_file()]
        results |= {
            "files": len(files),
            "megabytes": sum(path.stat().st_size for path in files) / 1e6,
        }
        print({key: round(value, 1) for key, value in results.items()}, flush=True)
        results["load_average"] = os.getloadavg()[
            0
        ]  # of the machine before the browser starts: above 0.5 it is shared
        results |= measure(folder / "index.html")
        print(
            json.dumps({key: value for key, value in results.items() if key != "moves"}, indent=1)
        )
        if args.out is not None:
            args.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
