"""Stack the copies that nearfar found in a photo server, Immich, by its API.

    nearfar duplicates photos/ --json > found.json
    export IMMICH_API_KEY=...
    python examples/stack_copies.py found.json http://localhost:2283          # says what it would do
    python examples/stack_copies.py found.json http://localhost:2283 --apply

Each group of copies becomes a stack, whose first image, the one to show, is the first of the group.
Near-duplicates are left out. Nothing is removed, and a stack can be undone on the server. A group
that is stacked already is skipped, and so is one with an image in a stack of other images.

Images that were uploaded are found by the SHA-1 of their files; those of an external library by
their paths there: `--here photos/ --there /usr/src/app/external` says how a path begins on this
machine, and how on the server. What the server does not have is listed at the end.

Follows the API documentation of Immich 2.7.5: POST /api/assets/bulk-upload-check, POST
/api/search/metadata, GET and POST /api/stacks, with the header x-api-key. The key needs the
permissions asset.read, asset.upload (for the check by SHA-1 alone), stack.read and stack.create.
Standard library alone.
"""

import argparse
import hashlib
import json
import os
import sys
import urllib.error
import urllib.request

SECONDS = 60  # to wait for an answer
CHECKED = 500  # files in one request
FOUND = 1000  # search results in one answer, the most that Immich allows


class Stop(Exception):
    """The message is all that there is to say."""


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses to follow: a POST would become a GET, and the key go elsewhere."""

    def redirect_request(self, *_):
        """Return None: the answer is an error then."""


class Server:
    """An Immich server at an address such as http://localhost:2283."""

    def __init__(self, address, key):
        self.address = address.rstrip("/").removesuffix("/api")
        if not self.address.startswith(("http://", "https://")):
            raise Stop(f"{address} is no address of a server, such as http://localhost:2283")
        self.key, self.opener = key, urllib.request.build_opener(NoRedirect)
        self.unread = []  # files that are gone or cannot be read, whose SHA-1 is not known

    def ask(self, method, path, content=None):
        """Send a request with JSON, and return the JSON of the answer."""
        headers = {"x-api-key": self.key, "Accept": "application/json"}
        data = None
        if content is not None:
            data, headers["Content-Type"] = json.dumps(content).encode(), "application/json"
        request = urllib.request.Request(f"{self.address}/api{path}", data, headers, method=method)
        try:
            with self.opener.open(request, timeout=SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise Stop(self._explained(error)) from error
        except (urllib.error.URLError, OSError) as error:
            raise Stop(f"cannot reach {self.address}: {getattr(error, 'reason', error)}") from error
        except ValueError as error:
            raise Stop(f"{self.address} does not answer as Immich does") from error

    def _explained(self, error):
        """Return an error of the server in one line."""
        try:
            message = json.load(error)["message"]
        except (ValueError, KeyError, TypeError, OSError):
            message = error.reason
        if error.code == 401:
            return f"{self.address} refuses the key in IMMICH_API_KEY: {message}"
        if error.code == 403:
            return f"the key in IMMICH_API_KEY lacks a permission: {message}"
        if 300 <= error.code < 400:
            return f"{self.address} has moved: name {error.headers['Location']}"
        if error.code == 404:
            return f"there is no Immich at {self.address}: {message}"
        return f"{self.address} answers {error.code}: {message}"

    def assets_of_files(self, paths):
        """Return the asset of each file that was uploaded, by the SHA-1 of its bytes."""
        assets = {}
        for start in range(0, len(paths), CHECKED):
            some = {}
            for number, path in enumerate(paths[start : start + CHECKED], start):
                try:
                    with open(path, "rb") as file:
                        some[str(number)] = hashlib.file_digest(file, "sha1").hexdigest()
                except (OSError, ValueError):
                    self.unread.append(paths[number])  # the server may have it all the same
            items = [{"id": number, "checksum": digest} for number, digest in some.items()]
            if not items:
                continue
            for result in self.ask("POST", "/assets/bulk-upload-check", {"assets": items})[
                "results"
            ]:
                if result.get("assetId") and not result.get("isTrashed"):
                    assets[paths[int(result["id"])]] = result["assetId"]
        return assets

    def assets_at(self, places):
        """Return the asset of each path on this machine by its path on the server, which the server
        compares as a part, in any case and without accents.
        """
        assets = {}
        for path, place in places.items():
            page = "1"
            while page is not None:
                wanted = {"originalPath": place, "size": FOUND, "page": int(page)}
                answer = self.ask("POST", "/search/metadata", wanted)["assets"]
                for asset in answer["items"]:
                    if asset["originalPath"] == place and not asset["isTrashed"]:
                        assets[path] = asset["id"]
                page = None if path in assets else answer["nextPage"]
        return assets

    def stacks(self):
        """Return the assets of the stack that each asset is in."""
        members = (
            {asset["id"] for asset in stack["assets"]} for stack in self.ask("GET", "/stacks")
        )
        return {asset: stack for stack in members for asset in stack}


def copies(file):
    """Return the groups of copies, each the paths of its images, the one to show first; the rows of
    a group may stand anywhere in the file.
    """
    groups = {}
    try:
        with open(file, encoding="utf-8") as opened:
            table = json.load(opened)
        rows = list(zip(table["group"], table["kind"], table["path"], strict=True))
        if not all(isinstance(path, str) for path in [*table["path"], *table["kind"]]):
            raise TypeError("a path is no text")
        for group, kind, path in rows:
            groups.setdefault(group, []).append((kind, path))
    except OSError as error:
        raise Stop(f"{file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise Stop(
            f"{file} is not what `nearfar duplicates photos/ --json` prints of images in files"
        ) from error
    ordered = [sorted(rows, key=lambda row: row[0] != "first") for rows in groups.values()]
    paths = [[path for kind, path in rows if kind != "near-duplicate"] for rows in ordered]
    return [group for group in paths if len(group) > 1]


def places_on_server(paths, folder, folder_on_server):
    """Return the path on the server of each path below a folder of this machine."""
    starts = {os.path.join(of(folder), "") for of in (os.path.abspath, os.path.realpath)}
    places = {
        path: folder_on_server.rstrip("/") + "/" + path.removeprefix(start)
        for path in paths
        for start in starts
        if path.startswith(start)
    }
    return {path: place for path, place in places.items() if is_text(place)}


def is_text(path):
    """Return whether a path can stand in JSON: bytes that are no UTF-8 cannot."""
    return not any(0xD800 <= ord(letter) <= 0xDFFF for letter in path)


def shown(path):
    """Return a path as a terminal can show it in one line."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in path)


def show(paths, title):
    """Print a title and the paths below it, if there are any."""
    if paths:
        print(title, *(f"  {shown(path)}" for path in paths), sep="\n")


def stack(server, groups, assets, apply):
    """Stack groups whose images the server has; returns how many became a stack, how many were one,
    and how many have an image in another.
    """
    stacks, made, before, others = server.stacks(), 0, 0, 0
    for group in groups:
        ids = list(dict.fromkeys(assets[path] for path in group if path in assets))
        if len(ids) < 2:  # of the same bytes, uploads are one image
            continue
        present = [stacks[asset] for asset in ids if asset in stacks]
        if any({*ids} <= members for members in present):
            before += 1
        elif any(not members <= {*ids} for members in present):
            others += 1
            print(f"in another stack: {', '.join(map(shown, group))}")
        else:
            made += 1
            names = ", ".join(shown(path) for path in group if path in assets)
            print(f"{'stack' if apply else 'would stack'}: {names}")
            if apply:
                server.ask("POST", "/stacks", {"assetIds": ids})
    return made, before, others


def main(words=None):
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("found", help="what `nearfar duplicates photos/ --json` printed")
    parser.add_argument("server", help="address, such as http://localhost:2283")
    parser.add_argument("--here", metavar="FOLDER", help="start of the paths on this machine")
    parser.add_argument("--there", metavar="FOLDER", help="start of the same paths on the server")
    parser.add_argument("--apply", action="store_true", help="do it, in place of saying it")
    given = parser.parse_args(words)
    if (given.here is None) != (given.there is None):
        parser.error("--here and --there go together")
    try:
        key = os.environ.get("IMMICH_API_KEY")
        if not key:
            raise Stop("put a key of your account on the server into IMMICH_API_KEY")
        groups, server = copies(given.found), Server(given.server, key)
        paths = [path for group in groups for path in group]
        if given.there is None:
            assets = server.assets_of_files(paths)
        else:
            assets = server.assets_at(places_on_server(paths, given.here, given.there))
        made, before, others = stack(server, groups, assets, given.apply)
    except Stop as error:
        print(f"stack_copies: {error}", file=sys.stderr)
        return 2
    done = "stacked" if given.apply else "would stack"
    print(f"{done} {made} groups of {len(groups)}; {before} are stacks already", end="")
    print(f"; {others} left, with an image in another stack" if others else "")
    looked_for = set(paths).difference(server.unread)
    missing = [path for path in paths if path in looked_for and path not in assets]
    show(missing, f"{len(missing)} of {len(paths)} images are not on the server:")
    unread = (
        f"{len(server.unread)} of {len(paths)} files cannot be read here, so were not looked for"
    )
    show(server.unread, f"{unread}; find copies again:")
    return 0


if __name__ == "__main__":
    sys.exit(main())
