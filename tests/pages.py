"""Metrics pages of servers that are not here, served over HTTP one after another."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path(__file__).parent / "data" / "metrics"
Page = str | bytes | int  # an int is an HTTP status without a page


def recorded(name: str, **values: float) -> str:
    """A recorded page; `kv_cache_usage_perc=0.5` replaces the value of every line of that metric."""
    text = (FOLDER / f"{name}.txt").read_text("utf-8")
    for metric, value in values.items():
        text, count = re.subn(rf"(?m)^((?:\w+:)?{metric}(?:\{{.*\}})?) .*$", rf"\g<1> {value}", text)
        assert count, metric
    return text


@contextmanager
def serving(pages: Sequence[Page]) -> Iterator[str]:
    """The URL of a server that gives each page once, and the last one from then on."""
    left = list(pages)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(page, int):
                self.send_error(page)
                return
            body = page.encode() if isinstance(page, str) else page
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Nothing: a test's output is its own."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
        finally:
            server.shutdown()
            thread.join()
