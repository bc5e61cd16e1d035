"""What systemd is told (`Type=notify`): one datagram a fact, to the socket that it names. Nobody listens elsewhere."""

import socket

from legato.logs import logger

READY = "READY=1"
STOPPING = "STOPPING=1"


def tell(address: str, fact: str) -> None:
    """Send a fact; what cannot be told must not stop the gateway."""
    if not address:
        return
    path = "\0" + address[1:] if address.startswith("@") else address  # @ is how an abstract socket is written
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(1)
            sender.sendto(fact.encode(), path)
    except OSError as error:
        logger.warning("the service manager could not be told", fact=fact, error=str(error))
