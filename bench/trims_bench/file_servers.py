"""A file server that is not the limit: nginx over a folder in memory, plain and with TLS."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trims_bench.others.serving import free_port
from trims_bench.repository import ClientsMissingError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CONFIG = """
worker_processes 2; daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; user {user};
events {{ worker_connections 256; }}
http {{
  access_log off; sendfile on; sendfile_max_chunk 2m; tcp_nopush on; keepalive_requests 100000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  log_format sent '$body_bytes_sent';
  server {{ listen 127.0.0.1:{port}; root {root}; }}
  server {{ listen 127.0.0.1:{slow_port}; root {root}; limit_rate {slow}; access_log {folder}/sent.log sent; }}
  server {{ listen 127.0.0.1:{tls_port} ssl; root {root}; ssl_certificate {folder}/cert.pem;
            ssl_certificate_key {folder}/key.pem; ssl_session_cache shared:a:1m; }}
}}
"""
_START_S = 10.0


@dataclass(frozen=True)
class FileServer:
    """A server that runs.

    Attributes:
        port: Port without TLS.
        slow_port: Port with a limit of bandwidth for each connection.
        sent_log: Bytes that it has sent there, a line for each answer.
        certificate: Self-signed: it is the certificate of its authority, too.
    """

    port: int
    tls_port: int
    slow_port: int
    sent_log: Path
    certificate: str


@contextmanager
def nginx(root: Path, folder: Path, slow_bytes_per_s: int = 16 << 20) -> Iterator[FileServer]:
    """Serve the files of a folder for a block.

    Args:
        folder: Folder for the server's own files.
        slow_bytes_per_s: Limit of a connection to the slow port.

    Raises ClientsMissingError without nginx or openssl.
    """
    program, openssl = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin"), shutil.which("openssl")
    if program is None or openssl is None:
        raise ClientsMissingError("nginx or openssl is not installed (Debian: nginx-light, openssl)")
    folder.mkdir(exist_ok=True)
    cert, key = folder / "cert.pem", folder / "key.pem"
    request = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
               "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]  # fmt: skip
    subprocess.run(request, check=True, capture_output=True)
    port, tls_port, slow_port = free_port(), free_port(), free_port()
    config = folder / "nginx.conf"
    named = {"folder": folder, "root": root, "user": getpass.getuser(), "slow": slow_bytes_per_s}
    config.write_text(_CONFIG.format(port=port, tls_port=tls_port, slow_port=slow_port, **named))
    process = subprocess.Popen([program, "-c", str(config), "-p", str(folder)], stderr=subprocess.DEVNULL)
    try:
        _await(port)
        yield FileServer(port, tls_port, slow_port, folder / "sent.log", str(cert))
    finally:
        process.terminate()
        process.wait(_START_S)


def _await(port: int) -> None:
    until_s = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.01)
        else:
            return
