"""What `/openapi.json` says is what a running server does.

Once with requests that are known to work, one for each route at least; and once with whatever the document allows and
forbids, made up from it. Nothing is a failure of the server, and each answer has a state, a type, headers and a body
that the document names; what the document forbids is refused.
"""

import html
import re
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi import checks
from schemathesis.specs.openapi.schemas import OpenApiSchema

from api.server import BOUND, Server
from api.test_isolation import Things, rows, things  # noqa: F401 - a fixture
from api.wire import ask, conversation_of, get, refused
from legato.api.http import ROUTES
from legato.domain.ids import new_id

ENDLESS = "/v1/conversations/{id}/events"  # test_conversation_events.py reads it
KNOWN = [(method, path) for method, path, _ in ROUTES if path != ENDLESS]
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]


@pytest.fixture(scope="module")
def described(server: Server) -> OpenApiSchema:
    """The document as it is served."""
    generation = {"with-security-parameters": False, "allow-extra-parameters": False}
    config = SchemathesisConfig.from_dict({"request-timeout": BOUND, "generation": generation})
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json", config=config)


def test_each_route_says_what_it_is_for_and_what_it_takes(client: httpx.Client) -> None:
    """In a sentence of its own, in the document and on the page for people."""
    shown = re.sub(r"</?(b|code)>", "", html.unescape(client.get("/docs").text))
    rows = dict(re.findall(r"<tr><td class=m>(\w+</td><td class=p>[^<]+)</td><td>(.*?)</td></tr>", shown))
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method, operation in methods.items():
            row = rows[f"{method.upper()}</td><td class=p>{path}"]
            assert operation["summary"]
            assert path not in operation["summary"]
            assert operation["summary"].count("`") % 2 == 0
            assert row.startswith(f"{operation['summary'].replace('`', '')}.")
            assert all(p["name"] in row for p in operation["parameters"] if p["in"] != "path")


@pytest.mark.parametrize(("method", "path"), KNOWN)
def test_a_good_answer_is_as_described(
    method: str,
    path: str,
    described: OpenApiSchema,
    client: httpx.Client,
    things: Things,  # noqa: F811 - the fixture
) -> None:
    """Each route, called as it should be."""
    operation = described[path.replace(":path", "")][method.lower()]
    for row in rows(things)[method, path]:
        answer = client.request(method, row.path, json=row.body, params=row.params)
        assert answer.status_code == row.owner
        operation.Case().validate_response(answer, checks=CHECKS)


@pytest.mark.parametrize(("method", "path"), KNOWN)
def test_whatever_is_asked_is_answered_as_described(
    method: str, path: str, described: OpenApiSchema, client: httpx.Client, request: pytest.FixtureRequest
) -> None:
    """With made-up names, and with the names of what there is."""
    operation = described[path.replace(":path", "")][method.lower()]
    good, bad = (operation.as_strategy(generation_mode=mode) for mode in GenerationMode)
    long = request.config.getoption("--long")
    headers = {"Authorization": client.headers["Authorization"]}
    forbidding = [*CHECKS, checks.negative_data_rejection]

    @settings(
        max_examples=300 if long else 8,
        derandomize=not long,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(good, bad))
    def ask_for(case: Case[Any]) -> None:
        case.call_and_validate(headers=headers, checks=forbidding)
        if case.path_parameters:
            known = {"channel": "telegram", "account": "tg", "chat": "1", "sender": "1", **_known(client, case)}
            case.path_parameters = {name: known[name] for name in case.path_parameters}
            case.call_and_validate(headers=headers, checks=forbidding)

    ask_for()


def test_a_method_that_is_not_described_is_told_which_are(described: OpenApiSchema, client: httpx.Client) -> None:
    """`Allow` names all methods of a path, not only those of one route."""
    paths = described.raw_schema["paths"]
    for path in paths:
        asked = re.sub(r"\{\w+\}", "x", path)
        meant = [known for known in paths if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", known), asked)]
        answer = client.request("PROPFIND", asked)
        refused(answer, 405, "method_not_allowed")
        allowed = set(answer.headers["allow"].lower().split(", ")) - {"head"}
        assert allowed == {method for known in meant for method in paths[known]}, path


def test_a_path_with_a_slash_too_many_is_unknown(client: httpx.Client) -> None:
    """It is refused like any other, and not sent elsewhere."""
    for path in ("/v1/responses/", "/v1/models/demo//", "/healthz/"):
        refused(client.get(path), 404)


def _known(client: httpx.Client, case: Case[Any]) -> dict[str, str]:
    """What there is, new for each request, because some of them delete it."""
    name = new_id("name-")
    response = ask(client, "reply only hello", conversation=name)
    conversation = conversation_of(response)
    item = get(client, f"/v1/conversations/{conversation}/items")["data"][0]["id"]
    [kind] = case.operation.tags
    ids = {"responses": response["id"], "runs": response["id"], "models": "demo"}
    return {"id": ids.get(kind, conversation), "item_id": item, "name": name}
