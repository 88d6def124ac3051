"""The API of the Hugging Face hub, as far as a model is read: commits, listings, and where a file's bytes are now.

The token goes to the hub's own origin and no further: signed addresses of its delivery network need none. Errors name
the repository, and what the user can do. Not covered: which files are wanted, and what the cache has (`hub`).
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, quote, urljoin, urlsplit

from trims.core.errors import (
    AddressRefusedError,
    ArtifactError,
    ArtifactNotFoundError,
    DigestMismatchError,
    SourceRefusedError,
)
from trims.sources.http.client import Location, check_status, shown
from trims.sources.hub.files import HubFile, is_commit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trims.sources.http.client import Answer, Http
    from trims.sources.hub.environment import HubEnvironment

#: Seconds for which a signed address that states no end is used.
SIGNED_FOR_S = 600.0
#: Redirects of one origin to itself: a repository that was renamed, a file that the hub keeps elsewhere.
_MOST_REDIRECTS = 5
#: Pages of a listing; the hub's have 1,000 files.
_MOST_PAGES = 1000
_NEXT: Final = re.compile(r'<([^>]*)>\s*;[^,]*\brel="?next"?')
_SHOWN_LETTERS = 300


class HubApi:
    """Requests to one hub about one repository.

    Args:
        environment: Endpoint and token.
        name: `org/name`.
    """

    def __init__(self, http: Http, environment: HubEnvironment, name: str) -> None:
        self._http, self._environment, self._name = http, environment, name
        token = environment.token()
        self._secret = {"Authorization": f"Bearer {token}"} if token else {}

    def commit(self, revision: str) -> str:
        """Return the commit that a branch, a tag or a shortened commit has now. Raises as `Opened.fill`."""
        url = f"{self._environment.endpoint}/api/models/{self._name}/revision/{quote(revision, safe='')}?expand=sha"
        found = self._json(self._get(url, f"{self._name}@{revision}"))
        sha = found.get("sha") if isinstance(found, dict) else None
        if not (isinstance(sha, str) and is_commit(sha)):
            raise self._no_hub(f"no commit for {self._name}@{revision}")
        return sha

    def listing(self, commit: str) -> dict[str, HubFile]:
        """Return all files of a commit, by path. Raises as `Opened.fill`, and ArtifactError for a path that leaves."""
        url: str | None = (
            f"{self._environment.endpoint}/api/models/{self._name}/tree/{commit}?recursive=true&expand=false"
        )
        files: dict[str, HubFile] = {}
        for _ in range(_MOST_PAGES):
            if url is None:
                _check_folders(self._name, files)
                return files
            answer = self._get(url, f"{self._name}@{commit}")
            rows = self._json(answer)
            if not isinstance(rows, list):
                raise self._no_hub(f"no list of files for {self._name}")
            files.update(_row(row) for row in rows if not (isinstance(row, dict) and row.get("type") == "directory"))
            found = _NEXT.search(answer.headers.get("Link") or "")
            url = urljoin(url, found[1]) if found is not None else None
        raise ArtifactError(f"{self._name} is listed on more than {_MOST_PAGES} pages, more than any model")

    def read(self, commit: str, name: str, file: HubFile) -> bytes:
        """Return the bytes of a small file, checked. Raises as `Opened.fill`, and DigestMismatchError."""
        content = self._get(self._url(commit, name), f"{self._name} {name}").body
        found = git_sha1(content) if not file.sha256 else hashlib.sha256(content).hexdigest()
        if found != (file.sha256 or file.blob_id) and (file.sha256 or not file.xet_hash):
            raise DigestMismatchError(
                f"{name} of {self._name} hashes to {found}, and the hub lists {file.sha256 or file.blob_id}"
            )
        return content

    def locate(self, commit: str, name: str) -> Location:
        """Return where a file's bytes are now: at the hub with the token, or at a signed address without."""
        url, what = self._url(commit, name), f"{self._name} {name}"
        for _ in range(_MOST_REDIRECTS):
            answer = self._http.request("HEAD", url, secret=self._secret_for(url), follow=False)
            if not 300 <= answer.status < 400:
                self._check(answer, what)
                return Location(url, self._secret)
            onward = urljoin(url, answer.headers.get("Location") or url)
            if urlsplit(url).scheme == "https" and urlsplit(onward).scheme != "https":
                raise AddressRefusedError(f"{shown(url)} redirects from https to {shown(onward)}: not followed")
            if self._secret_for(onward) is not self._secret:
                return Location(onward, {}, good_for_s(onward, answer))
            url = onward
        raise ArtifactError(f"{shown(url)} redirects more than {_MOST_REDIRECTS} times")

    def _url(self, commit: str, name: str) -> str:
        return f"{self._environment.endpoint}/{self._name}/resolve/{commit}/{quote(name)}"

    def _secret_for(self, url: str) -> Mapping[str, str]:
        """Return the token for an address of the hub; for any other, which a page or a redirect names, none."""
        return self._secret if _origin(url) == _origin(self._environment.endpoint) else {}

    def _get(self, url: str, what: str) -> Answer:
        answer = self._http.request("GET", url, secret=self._secret_for(url))
        self._check(answer, what)
        return answer

    def _json(self, answer: Answer) -> Any:
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            raise self._no_hub("something else than JSON") from None

    def _no_hub(self, what: str) -> ArtifactError:
        return ArtifactError(
            f"{self._environment.endpoint} answers with {what}, as no hub of Hugging Face does; check HF_ENDPOINT, and "
            "whether a proxy answers instead"
        )

    def _check(self, answer: Answer, what: str) -> None:
        """Raise the error that an answer of the hub stands for; nothing for a success."""
        if 200 <= answer.status < 300:
            return
        code, said = answer.headers.get("X-Error-Code") or "", answer.headers.get("X-Error-Message") or ""
        page = f"{self._environment.endpoint}/{self._name}"
        said = f" (the hub says: {said[:_SHOWN_LETTERS]})" if said.isprintable() and said else ""
        if "Invalid credentials" in said:
            raise SourceRefusedError(
                f"{self._name}: the hub does not know the token of {self._environment.token_place}{said}; "
                "`hf auth login` writes a new one"
            )
        if code == "GatedRepo":
            raise SourceRefusedError(
                f"{self._name} is gated{said}: accept its terms at {page}, and {self._how_to_log_in()}"
            )
        if code == "RepoNotFound" or (not code and answer.status == 401):
            raise ArtifactNotFoundError(
                f"the hub has no model {self._name}, or it is private{said}: check the name at {page}, or "
                f"{self._how_to_log_in()}"
            )
        if code == "RevisionNotFound":
            raise ArtifactNotFoundError(f"{what}: no such revision{said}; {page}/tree/main shows those there are")
        if code == "EntryNotFound":
            raise ArtifactNotFoundError(f"{what}: no such file{said}; {page}/tree/main shows those there are")
        if "Access to this resource is disabled" in said:
            raise SourceRefusedError(f"{self._name} is disabled at the hub{said}; {page} may say why")
        check_status(answer, f"{what} at {self._environment.endpoint}{said}")

    def _how_to_log_in(self) -> str:
        if self._secret:
            return f"use a token of an account that may read it (now: the one of {self._environment.token_place})"
        return "give a token of an account that may read it (HF_TOKEN, or `hf auth login`)"


def git_sha1(content: bytes) -> str:
    """Return the name that git gives to a file's bytes."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _row(row: Any) -> tuple[str, HubFile]:
    """Read one row of a listing. Raises ArtifactError."""
    if not (isinstance(row, dict) and isinstance(row.get("path"), str)):
        raise ArtifactError(f"the hub lists a file without a path: {row!r:.200}")
    stored = row.get("lfs")
    sha256 = stored.get("oid") if isinstance(stored, dict) else None
    size = stored.get("size") if isinstance(stored, dict) else row.get("size")
    return row["path"], HubFile.parse(row["path"], size, row.get("oid"), sha256, row.get("xetHash"))


def _check_folders(repository: str, files: Mapping[str, HubFile]) -> None:
    """Raise ArtifactError if one path is a file and a folder."""
    for name in files:
        folder = name.rpartition("/")[0]
        if folder in files:
            raise ArtifactError(f"the hub lists {folder!r:.200} of {repository} as a file and as a folder")


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2].lower()


def good_for_s(url: str, answer: Answer) -> float:
    """Return for how many seconds a signed address is good, by the server's clock if it states one."""
    query = parse_qs(urlsplit(url).query)
    now_s = _time_s(answer.headers.get("Date")) or time.time()
    ends_s = [float(text) - now_s for text in query.get("Expires", ()) if text.isdecimal()]
    signed_s = _amazon_s(query.get("X-Amz-Date", [""])[0]) or now_s
    ends_s += [signed_s + float(text) - now_s for text in query.get("X-Amz-Expires", ()) if text.isdecimal()]
    return max(0.0, min(ends_s)) if ends_s else SIGNED_FOR_S


def _amazon_s(text: str) -> float | None:
    try:
        return datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def _time_s(text: str | None) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp() if text else None
    except ValueError:
        return None
