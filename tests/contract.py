"""`make contract`: requests made from the OpenAPI documents, right and wrong ones, at a real control plane.

Whatever is asked: no 5xx, no answer later than its deadline, every refusal in the API's own form; and when
all that was made has been deleted again, nothing is left unsettled. Prints one JSON line; exit status 1 if
any of that does not hold. Needs the extra ``contract`` (schemathesis).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx2
import schemathesis  # type: ignore[import-not-found, unused-ignore]
from bench.site import Site, User, new_site, user
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode  # type: ignore[import-not-found, unused-ignore]

from tests.tiny_image import fake_tiny
from unstuck.api.openapi import TITLES

SLOWEST = 20.0
"""Seconds: a call that asks a guest waits up to 15."""
SETTLED_WITHIN = 180.0
LISTS = {
    "compute": ("/compute/v2.1/servers", "/compute/v2.1/flavors", "/compute/v2.1/os-keypairs"),
    "image": ("/image/v2/images",),
    "networking": ("/networking/v2.0/networks", "/networking/v2.0/ports"),
    "database": ("/instances", "/backups", "/datastores"),
}
"""Where real ids come from. Of identity none: whoever asks would lock himself out."""
KEPT = ("os-services", "os-hosts", "os-hypervisors", "os-quota-sets", "os-aggregates")
"""A host that was struck off builds nothing any more, and that is what its operator asked for."""


class Campaign:
    """What was asked and what came of it."""

    def __init__(self, client: User, limit: int) -> None:
        self.client = client
        self.cloud = client.cloud
        self.limit = limit
        self.asked = 0
        self.statuses: Counter[int] = Counter()
        self.wrong: list[str] = []
        self.slowest = 0.0
        self._ids: dict[str, list[str]] = {}
        self._turn = itertools.count()

    def refresh(self, service: str) -> None:
        """Ids of what is there now."""
        found = []
        for path in LISTS.get(service, ()):
            answer = self.cloud.client.get(self._at(path))
            for items in answer.json().values() if answer.is_success else ():
                found += [str(item["id"]) for item in items if isinstance(item, dict) and "id" in item]
        self._ids[service] = found

    def _at(self, path: str) -> str:
        inside = path.startswith(("/instances", "/backups", "/datastores"))
        return f"/database/v1.0/{self.cloud.project_id}{path}" if inside else path

    def ask(self, service: str, case: Any) -> None:
        """Send one request, with real ids in its path half of the time, and judge the answer."""
        given_words = dict(case.path_parameters or {})
        turn = next(self._turn)
        real = self._ids.get(service)
        for name in given_words:
            if name == "project_id":
                given_words[name] = self.cloud.project_id if turn % 8 else given_words[name]
            elif real and turn % 2 and not any(word in case.path for word in KEPT):
                given_words[name] = real[turn % len(real)]
        case.path_parameters = given_words
        ready = case.as_transport_kwargs(base_url=self.cloud.url)
        headers = {
            name: value for name, value in (ready.get("headers") or {}).items() if _sendable(name, value)
        }
        body = {"json": ready["json"]} if ready.get("json") is not None else {"content": ready.get("data")}
        began = time.monotonic()
        try:
            request = self.cloud.client.build_request(
                ready["method"], ready["url"], params=ready.get("params"), headers=headers,
                timeout=SLOWEST, **body,
            )  # fmt: skip
        except (ValueError, TypeError, UnicodeError, httpx2.InvalidURL):
            return  # nothing that a client could send
        try:
            answer = self.cloud.client.send(request)
        except httpx2.TransportError as error:
            self._note(request, f"no answer: {error!r}")
            return
        took = time.monotonic() - began
        self.asked += 1
        self.statuses[answer.status_code] += 1
        self.slowest = max(self.slowest, took)
        self._judge(request, answer)

    def _judge(self, request: httpx2.Request, answer: httpx2.Response) -> None:
        if answer.status_code >= 500:
            self._note(request, f"{answer.status_code}: {answer.text[:300]}")
        elif answer.status_code >= 400 and request.method != "HEAD" and not _says_why(answer):
            self._note(request, f"{answer.status_code} without a message: {answer.text[:300]!r}")

    def _note(self, request: httpx2.Request, words: str) -> None:
        body = request.content[:300] if request.content else b""
        text = f"{request.method} {request.url} {body!r}: {words}"
        self.wrong.append(text)
        print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Delete what was made."""
        client, database = self.cloud.client, f"/database/v1.0/{self.cloud.project_id}"
        for path, key in (("/compute/v2.1/servers?all_tenants=1", "servers"), ("/image/v2/images", "images")):
            for item in client.get(path).json().get(key, ()):
                client.post(f"/compute/v2.1/servers/{item['id']}/action", json={"unlock": None})
                client.delete(f"{path.partition('?')[0]}/{item['id']}")
        for item in client.get(f"{database}/instances").json().get("instances", ()):
            action = f"{database}/instances/{item['id']}/action"
            client.post(action, json={"protect": {"protected": False}})
            client.post(action, json={"reset_status": {"force_delete": True}})
        for item in client.get(f"{database}/backups").json().get("backups", ()):
            client.delete(f"{database}/backups/{item['id']}")

    def unsettled(self) -> dict[str, Any]:
        """By kind, the oldest row with its age; nothing where all is at rest."""
        found = self.cloud.get("/unstuck/v1/status")["unsettled"]
        return {kind: rows for kind, rows in found.items() if rows["count"]}

    def explained(self) -> list[Any]:
        """What the oldest of each kind waits for."""
        asked = [f"/unstuck/v1/explain/{kind}/{rows['oldest_id']}" for kind, rows in self.unsettled().items()]
        return [self.cloud.client.get(path).json() for path in asked]


def _sendable(name: str, value: str) -> bool:
    """The client's own word about itself, and what HTTP can carry."""
    return name.lower() not in ("x-auth-token", "host", "content-length") and value.isascii()


def _says_why(answer: httpx2.Response) -> bool:
    try:
        found = answer.json()
    except ValueError:
        return False
    inner = [value for value in found.values() if isinstance(value, dict)] if isinstance(found, dict) else []
    return any("message" in value or "detail" in value for value in [found, *inner])


def fuzz(campaign: Campaign, number: int) -> None:
    """The same number of requests for every operation, in turn right ones and wrong ones."""
    documents = {name: campaign.cloud.get(f"/unstuck/v1/openapi/{name}") for name in TITLES}
    operations = [
        (service, found.ok())
        for service, document in documents.items()
        for found in schemathesis.openapi.from_dict(document).get_all_operations()
    ]
    rounds = 8
    each = max(1, campaign.limit // (len(operations) * rounds * 2))
    for turn in range(rounds):
        for service in documents:
            campaign.refresh(service)
        for (service, operation), mode in itertools.product(operations, _modes()):
            if campaign.asked < campaign.limit and (mode is not GenerationMode.NEGATIVE or _takes(operation)):
                _examples(campaign, service, operation, mode, each, number + turn)


def _modes() -> Iterator[Any]:
    yield GenerationMode.POSITIVE
    yield GenerationMode.NEGATIVE


def _takes(operation: Any) -> bool:
    """Of an operation that takes nothing, nothing wrong can be asked."""
    raw = operation.definition.raw
    return bool(raw.get("parameters") or raw.get("requestBody"))


def _examples(campaign: Campaign, service: str, operation: Any, mode: Any, each: int, number: int) -> None:
    strategy = operation.as_strategy(generation_mode=mode)

    @seed(number)
    @settings(
        max_examples=each, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=strategy)
    def run(case: Any) -> None:
        campaign.ask(service, case)

    with contextlib.suppress(Unsatisfiable):
        run()


def _settle(campaign: Campaign) -> float:
    """Seconds until nothing is unsettled any more; a violation if that takes too long."""
    began = time.monotonic()
    campaign.clear()
    while campaign.unsettled():
        if time.monotonic() - began > SETTLED_WITHIN:
            campaign.wrong.append(f"still unsettled: {campaign.unsettled()}")
            print(campaign.wrong[-1], campaign.explained(), file=sys.stderr, flush=True)
            break
        time.sleep(1.0)
    return time.monotonic() - began


def _run(site: Site, limit: int, number: int) -> int:
    site.control()
    site.agent()
    began = time.monotonic()
    with user(site, fake_tiny(site.folder / "image")) as client:
        campaign = Campaign(client, limit)
        fuzz(campaign, number)
        asked = time.monotonic() - began
        settled = _settle(campaign)
    told = {
        "requests": campaign.asked,
        "statuses": {str(status): count for status, count in sorted(campaign.statuses.items())},
        "wrong": len(campaign.wrong),
        "slowest_seconds": round(campaign.slowest, 2),
        "seconds": round(asked, 1),
        "settled_after_seconds": round(settled, 1),
    }
    print(json.dumps(told), flush=True)
    return 1 if campaign.wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with new_site("instant") as site:
        return _run(site, options.requests, options.seed)


if __name__ == "__main__":
    raise SystemExit(main())
