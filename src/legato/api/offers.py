"""HTTP for clients that offer another protocol along with their request, as every Java client offers HTTP/2.

Such an offer is declined by not taking it up. The parser would take what follows the head of the request for that other
protocol, and lose its body; so the head is read once more, without the offer.
"""

import sys

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Http(HttpToolsProtocol):
    """uvicorn's own, which takes no offer up."""

    def data_received(self, data: bytes) -> None:
        while data:
            self._received, self._again = data, b""
            super().data_received(data)
            data = self._again

    def _should_upgrade(self) -> bool:
        return self.parser.get_method() != b"CONNECT"  # which is no offer, and stays one however it is read

    def handle_websocket_upgrade(self) -> None:
        """What uvicorn does about an offer that it takes for one of a WebSocket."""
        offer = sys.exception()
        assert isinstance(offer, httptools.HttpParserUpgrade)
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + self.parser.get_http_version().encode()]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self._again = b"\r\n".join([*lines, b"", self._received[offer.args[0] :]])
        self.parser = httptools.HttpRequestParser(self)  # a new one: the other reads nothing after a `close`
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
