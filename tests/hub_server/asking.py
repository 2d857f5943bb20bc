"""The hub's own endpoints: the user, repositories, branches, files, commits."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from fnmatch import fnmatch
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.hub_server.handling import Handling
from tests.hub_server.kept import LARGEST_REGULAR_BYTES, Commit, File, Refused, git_blob, pointer


class Asking(Handling):
    """A method for each kind of route."""

    def _whoami(self) -> None:
        account = self.hub.accounts[self.headers["Authorization"].removeprefix("Bearer ")]
        organizations = [{"name": name, "type": "org", "roleInOrg": "write"} for name in account.organizations]
        token = {"accessToken": {"displayName": "test", "role": account.role}, "type": "access_token"}
        self._answer({"type": "user", "name": account.name, "orgs": organizations, "auth": token})

    def _create(self) -> None:
        wanted = json.loads(self.body)
        owner = wanted.get("organization") or next(iter(self.hub.accounts.values())).name
        repo = f"{owner}/{wanted['name']}"
        answer = {"url": f"{self.hub.endpoint}/{repo}", "name": repo}
        account = self.hub.accounts[self.headers["Authorization"].removeprefix("Bearer ")]
        if owner not in (account.name, *account.organizations):
            raise Refused(403, message=f"You don't have the rights to create a model under {owner}")
        if repo in self.hub.repos:
            self._answer({**answer, "error": "You already created this model repo"}, 409)
            return
        self.hub.make_repo(repo, private=wanted.get("visibility") == "private" or bool(wanted.get("private")))
        self._answer(answer)

    def _auth(self) -> None:
        account = self.hub.accounts.get((self.headers.get("Authorization") or "").removeprefix("Bearer "))
        if self.path.endswith("/write") and (account is None or account.role != "write"):
            raise Refused(403, message="no right to write")
        self._answer(None)

    def _yaml(self) -> None:
        self._answer({"errors": [], "warnings": []})

    def _branch(self) -> None:
        start = json.loads(self.body or b"{}").get("startingPoint") or "main"
        with self.hub.lock:
            if self._rev() in self._repo().branches:
                raise Refused(409, message="Reference already exists")
            self._repo().branches[self._rev()] = self.hub.head(self.where["repo"], start)
        self._answer(None)

    def _refs(self) -> None:
        shown = {
            kind: [{"name": name, "ref": f"refs/{ref}/{name}", "targetCommit": oid} for name, oid in sorted(of.items())]
            for kind, ref, of in (("branches", "heads", self._repo().branches), ("tags", "tags", self._repo().tags))
        }
        self._answer({**shown, "converts": []})

    def _commits(self) -> None:
        repo, oid, found = self._repo(), self.hub.head(self.where["repo"], self._rev()), []
        while oid:
            one = repo.commits[oid]
            found.append(
                {
                    "id": oid,
                    "title": one.title,
                    "message": one.message,
                    "authors": [],
                    "date": _date(one),
                }
            )
            oid = one.parent
        self._answer(found)

    def _info(self) -> None:
        oid = self.hub.head(self.where["repo"], self._rev())
        names = [{"rfilename": path} for path in sorted(self._repo().commits[oid].files)]
        self._answer({"id": self.where["repo"], "sha": oid, "private": self._repo().private, "siblings": names})

    def _tree(self) -> None:
        below = unquote(self.where.get("file") or "").rstrip("/")
        files = self.hub.files(self.where["repo"], self._rev())
        shown = {path: file for path, file in sorted(files.items()) if not below or path.startswith(below + "/")}
        if below and not shown:
            raise Refused(404, "EntryNotFound", f"{below} does not exist")
        start = int(self.query.get("cursor", ["0"])[0])
        page = list(shown.items())[start : start + self.hub.page_files]
        more = start + self.hub.page_files
        headers = {}
        if more < len(shown):
            bare = urlsplit(self.path)
            headers["Link"] = f'<{self.hub.endpoint}{bare.path}?recursive=True&cursor={more}>; rel="next"'
        self._answer([self._entry(path, file) for path, file in page], headers=headers)

    def _paths(self) -> None:
        wanted = parse_qs(self.body.decode()).get("paths", [])
        files = self.hub.files(self.where["repo"], self._rev())
        self._answer([self._entry(path, files[path]) for path in wanted if path in files])

    def _entry(self, path: str, file: File) -> dict[str, Any]:
        body = parse_qs(self.body.decode(errors="replace"))
        if "true" not in "".join([*self.query.get("expand", []), *body.get("expand", [])]).lower():
            return _entry(path, file)
        repo, one = self._repo(), self._repo().commits[self.hub.head(self.where["repo"], self._rev())]
        while one.parent and repo.commits[one.parent].files.get(path) == file:
            one = repo.commits[one.parent]
        return {**_entry(path, file), "lastCommit": {"id": one.oid, "title": one.title, "date": _date(one)}}

    def _preupload(self) -> None:
        files = self.hub.files(self.where["repo"], self._rev())
        answer = []
        for one in json.loads(self.body)["files"]:
            lfs = one["size"] >= self.hub.lfs_from_bytes or self._always_lfs(one["path"])
            said = {"path": one["path"], "uploadMode": "lfs" if lfs else "regular"}
            said["shouldIgnore"] = self._is_ignored(one["path"], files)
            there = files.get(one["path"])
            if self.hub.tells_oids and there is not None:
                said["oid"] = there.sha256 if there.lfs else there.oid
            answer.append(said)
        self._answer({"files": answer})

    def _is_ignored(self, path: str, files: dict[str, File]) -> bool:
        """By the `.gitignore` at the repository's root, as far as names of files go."""
        if ".gitignore" not in files:
            return False
        patterns = self.hub.object_path(files[".gitignore"].sha256).read_text().split()
        return any(fnmatch(path.rsplit("/", 1)[-1], pattern) for pattern in patterns)

    def _always_lfs(self, path: str) -> bool:
        return any(fnmatch(path.rsplit("/", 1)[-1], pattern) for pattern in self.hub.lfs_patterns)

    def _commit(self) -> None:
        lines = [json.loads(line) for line in self.body.splitlines()]
        header = lines[0]["value"]
        with self.hub.lock:
            branch, repo = self._rev(), self.where["repo"]
            if branch not in self._repo().branches:
                raise Refused(404, "RevisionNotFound", f"Invalid rev id: {branch}")
            if header.get("parentCommit", self.hub.head(repo, branch)) != self.hub.head(repo, branch):
                raise Refused(412, message="A commit has happened since. Please refresh and try again.")
            files = self.hub.files(repo, branch)
            for line in lines[1:]:
                self._apply(files, line["key"], line["value"])
            oid = self.hub._committed(repo, branch, header["summary"], header.get("description", ""), files)
        self._answer({"success": True, "commitOid": oid, "commitUrl": f"{self.hub.endpoint}/{repo}/commit/{oid}"})

    def _apply(self, files: dict[str, File], key: str, value: dict[str, Any]) -> None:
        path = value["path"]
        if key == "file":
            content = base64.b64decode(value["content"])
            if len(content) > LARGEST_REGULAR_BYTES:
                raise Refused(400, message=f"{path} is larger than 10 MiB: use LFS")
            files[path] = File(self.hub._keep_bytes(content), len(content), False, git_blob(content))
        elif key == "lfsFile":
            place = self.hub.object_path(value["oid"])
            if not place.exists():
                raise Refused(400, message=f"LFS pointer pointed to a file that does not exist: {path}")
            size = place.stat().st_size
            files[path] = File(value["oid"], size, True, git_blob(pointer(value["oid"], size)))
        elif key == "deletedFile":
            if files.pop(path, None) is None:
                raise Refused(404, "EntryNotFound", "A file with this name doesn't exist")
        elif key == "deletedFolder":
            gone = [one for one in files if one.startswith(path.rstrip("/") + "/")]
            if not gone:
                raise Refused(404, "EntryNotFound", "A folder with this name doesn't exist")
            for one in gone:
                del files[one]
        else:
            raise Refused(400, message=f"unknown operation {key}")


def _date(commit: Commit) -> str:
    return datetime.fromtimestamp(commit.at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _entry(path: str, file: File) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "oid": file.oid, "size": file.size}
    if file.lfs:
        size = len(pointer(file.sha256, file.size))
        entry["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": size}
    return entry
