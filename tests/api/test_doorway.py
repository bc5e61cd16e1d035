"""Under which names, and from which sites' pages, a gateway can be reached."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from api.server import Server
from api.wire import refused

OPEN = ("/metrics", "/docs", "/openapi.json")
ASKS = ("/healthz", "/readyz")
SITE = "https://chat.example"
APPS = ("app://obsidian.md", "chrome-extension://abcdefghij", "vscode-webview://1f0-a2", "tauri://localhost:80")


@pytest.fixture(scope="module", params=["127.0.0.1", "0.0.0.0"])
def named(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A gateway with a name and a friend, on loopback and outside of it."""
    settings = {
        "LEGATO_SERVER__HOST": request.param,
        "LEGATO_SERVER__HOSTS": "Gateway.example, other.example:8420",
        "LEGATO_SERVER__ORIGINS": ",".join((f"{SITE}/", *APPS)),
    }
    server = Server(tmp_path_factory.mktemp("named") / "home", **settings)
    try:
        yield server
    finally:
        server.stop()


def asked(server: Server, path: str = "/v1/models", method: str = "GET", **headers: str) -> httpx.Response:
    return server.client.request(method, path, headers={name.replace("_", "-"): v for name, v in headers.items()})


def test_a_name_that_is_configured_is_served(named: Server) -> None:
    """As a proxy passes it on, with its own pages; so is every name of loopback."""
    for host in ("gateway.example", "GATEWAY.example:443", "other.example", "localhost", "127.0.0.1:1", "[::1]:80"):
        assert asked(named, Host=host).status_code == 200
        assert asked(named, Host=host, Origin=f"https://{host}").status_code == 200


def test_a_name_that_nobody_configured_is_refused_everywhere(named: Server) -> None:
    """Also where no key is needed, but for questions after its health."""
    for host in ("evil.example", "gateway.example.evil.example", ""):
        for path in ("/v1/models", *OPEN):
            error = refused(asked(named, path, Host=host, Origin=f"http://{host}"), 403, "forbidden")
            assert "server.hosts" in error["message"]
        for path in ASKS:
            assert asked(named, path, Host=host).status_code == 200
    for path in OPEN:
        assert asked(named, path, Host="gateway.example", Authorization="").status_code == 200


def test_outside_loopback_without_names_programs_may_use_any_and_browsers_none(tmp_path: Path) -> None:
    """In a network of containers every service has a name; a page of another site comes with a browser."""
    server = Server(tmp_path / "home", LEGATO_SERVER__HOST="0.0.0.0")
    try:
        for path in ("/v1/models", *OPEN):
            assert asked(server, path, Host="legato:8420").status_code == 200
            refused(asked(server, path, Host="evil.example", Origin="http://evil.example"), 403, "forbidden")
            refused(asked(server, path, Host="evil.example", Sec_Fetch_Site="same-origin"), 403, "forbidden")
    finally:
        server.stop()


def test_outside_loopback_a_bare_address_is_a_name_and_the_log_warns(named: Server) -> None:
    """Behind a translated address the gateway does not know its own; on loopback it does."""
    outside = urlsplit(named.url).hostname == "0.0.0.0"
    for host in ("192.0.2.7:8420", "[2001:db8::7]", "0.0.0.0"):
        assert asked(named, Host=host).status_code == (200 if outside else 403)
    assert ("listens outside loopback" in named.log) == outside


def test_a_page_of_a_friend_may_read_answers(named: Server) -> None:
    """It is told so before it asks and with each answer, a refusal included; no other page is."""
    wish = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization, x-stainless-os"}
    told = asked(named, method="OPTIONS", Origin=SITE, Authorization="", **wish)
    assert (told.status_code, told.headers["access-control-allow-origin"]) == (204, SITE)
    assert told.headers["access-control-allow-headers"] == "authorization, x-stainless-os"
    assert "DELETE" in told.headers["access-control-allow-methods"]
    assert told.headers["x-request-id"]
    for path, status in {"/v1/models": 200, "/v1/conversations/conv_unknown": 404}.items():
        answer = asked(named, path, Origin=SITE)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, SITE)
        assert answer.headers["vary"] == "Origin"
        assert {"X-Request-Id", "Retry-After"} <= set(answer.headers["access-control-expose-headers"].split(", "))
    for origin in ("https://evil.example", f"{SITE}.evil.example", "http://chat.example", "null"):
        for method in ("GET", "OPTIONS"):
            answer = asked(named, method=method, Origin=origin, **wish)
            assert answer.status_code in (403, 405)
            assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_an_application_that_is_made_of_pages_may_be_a_friend(named: Server) -> None:
    """Under its very origin, and under no other that is like it."""
    for origin in APPS:
        answer = asked(named, Origin=origin)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, origin)
    for origin in ("app://obsidian.md.evil", "app://evil", "https://obsidian.md", "tauri://localhost"):
        refused(asked(named, Origin=origin), 403, "forbidden")


def test_a_page_of_a_friend_sees_a_stream(named: Server) -> None:
    """Bit by bit, like everybody."""
    body = {"input": "hello", "stream": True}
    answer = named.client.post("/v1/responses", json=body, headers={"Origin": SITE})
    assert answer.headers["access-control-allow-origin"] == SITE
    assert "X-Legato-Conversation" in answer.headers["access-control-expose-headers"]
    assert answer.text.endswith("data: [DONE]\n\n")


def test_the_front_door_leads_to_the_page_about_the_api(server: Server) -> None:
    """People click on the first address that they are shown."""
    answer = httpx.get(server.url, trust_env=False)
    assert answer.status_code == 307
    assert answer.headers["location"] == "/docs"
    page = httpx.get(server.url, follow_redirects=True, trust_env=False)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
