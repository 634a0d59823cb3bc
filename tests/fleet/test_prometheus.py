"""Telemetry over HTTP: valid responses of Prometheus, and errors of servers."""

import base64
import contextlib
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from hwnas.core.errors import HwnasError
from hwnas.fleet import telemetry
from hwnas.fleet.plan import ClassRequirements, DeploymentPlan
from hwnas.fleet.telemetry import TelemetrySample, TimeRange

TIME_RANGE = TimeRange(0.0, 7200.0, 300.0)
PLAN = DeploymentPlan(
    1, "cost", "$", 0.0, 0.0, 0.0, 0.05,
    {"web": ClassRequirements(50.0, 0.7, 0.7, ["site"], [1.0], [1.0], "")}, {}, {}, [], {},
)  # fmt: skip


@contextmanager
def _server(code: int, responses: dict[str, Any] | bytes, wait_s: float = 0.0) -> Iterator[str]:
    """Yield the URL of a server that returns a prepared response for each query."""
    queries: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            assert path == "/api/v1/query_range"
            parameters = dict(urllib.parse.parse_qsl(query))
            queries.append(parameters)
            time.sleep(wait_s)
            body = (
                responses
                if isinstance(responses, bytes)
                else json.dumps(responses[parameters["query"]])
            )
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body if isinstance(body, bytes) else body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
    assert all((a["start"], a["end"], a["step"]) == ("0.000", "7200.000", "300") for a in queries)


def _matrix(label: str, name: str, values: list[tuple[float, str]]) -> dict[str, Any]:
    series = {"metric": {label: name, "job": "x"}, "values": values}
    return {"status": "success", "data": {"resultType": "matrix", "result": [series]}}


def test_queries_are_converted_to_samples() -> None:
    answers = {
        "r": _matrix("class", "web", [(0, "12.5"), (300, "NaN"), (600, "+Inf"), (900, "13")]),
        "l": _matrix("class", "web", [(0, "0.02")]),
        "d": _matrix("device", "cpu", [(900, "1"), (6600, "2")]),
    }
    with _server(200, answers) as url:
        samples = telemetry.query_samples(
            url, {"rate": "r", "late": "l", "down": "d"}, TIME_RANGE, 5, PLAN
        )
    assert samples == [
        TelemetrySample(0, "web", rate=12.5), TelemetrySample(900, "web", rate=13.0),
        TelemetrySample(0, "web", late=0.02),
        TelemetrySample(900, device="cpu", down=1), TelemetrySample(6600, device="cpu", down=2),
    ]  # fmt: skip


def test_recovered_device_is_not_reported_down() -> None:
    """A count of failed machines has no series while none has failed."""
    answers = {
        "r": _matrix("class", "web", [(0, "12.5")]),
        "d": _matrix("device", "cpu", [(900, "2"), (6300, "2")]),
    }
    with _server(200, answers) as url:
        samples = telemetry.query_samples(url, {"rate": "r", "down": "d"}, TIME_RANGE, 5, PLAN)
    assert samples == [TelemetrySample(0, "web", rate=12.5)]


@pytest.mark.parametrize(
    ("code", "answer", "words"),
    [
        (400, {"r": {"status": "error", "error": "parse error"}}, "query 'r': parse error"),
        (404, b"<html>", "responds 404 Not Found: give the URL of a Prometheus server"),
        (401, b"<html>", "responds 401 Unauthorized: give a user and password with access"),
        (403, {"r": {"message": "no"}}, "responds 403 Forbidden: give a user and password"),
        (503, b"<html>", "responds 503 Service Unavailable: try again later"),
        (200, b"<html>", "cannot be read: not JSON"),
        (200, {"r": {"status": "success", "data": {"resultType": "vector", "result": []}}},
         "'data.resultType' is 'vector'"),
        (200, {"r": _matrix("klass", "web", [(0, "1")])}, "no label 'class' (labels: job,"),
        (200, {"r": _matrix("class", "wep", [(0, "1")])}, "Did you mean 'web'?"),
        (200, {"r": _matrix("class", "web", [(0, "NaN")])}, "returns no value for the last 2"),
    ],
)  # fmt: skip
def test_server_error_is_reported_in_one_line(code: int, answer: Any, words: str) -> None:
    with _server(code, answer) as url, pytest.raises(HwnasError) as error:
        telemetry.query_samples(url, {"rate": "r"}, TIME_RANGE, 5, PLAN)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_slow_or_unreachable_server_raises() -> None:
    with (
        _server(200, b"{}", wait_s=0.5) as url,
        pytest.raises(HwnasError, match=r"within 0\.1 s|timed out"),
    ):
        telemetry.query_samples(url, {"rate": "r"}, TIME_RANGE, 0.1, PLAN)
    with pytest.raises(HwnasError, match="cannot be reached: Connection refused"):
        telemetry.query_samples(url, {"rate": "r"}, TIME_RANGE, 1, PLAN)


def test_deadline_stops_server_that_sends_slowly() -> None:
    """The timeout of a socket applies to each read."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = threading.Event()

        def drip() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
                while not done.wait(0.05):
                    connection.sendall(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        start = time.monotonic()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(HwnasError, match=r"no complete response within 0\.5 s"):
            telemetry.query_samples(url, {"rate": "r"}, TIME_RANGE, 0.5, PLAN)
        assert time.monotonic() - start < 5
        done.set()
        thread.join()


def test_url_credentials_become_basic_authorization() -> None:
    """Special characters of a password are escaped in the URL, but not in the header."""
    request = telemetry._request("http://me:s%40cret:1@host:9090/x/api", "")
    assert request.full_url == "http://host:9090/x/api"
    signed = b"me:s@cret:1"
    assert request.unredirected_hdrs == {
        "Authorization": f"Basic {base64.b64encode(signed).decode()}"
    }
    assert not telemetry._request("http://host:9090", "").unredirected_hdrs


def test_error_hides_password_of_url() -> None:
    with pytest.raises(HwnasError) as error:
        telemetry.query_samples("http://me:secret@127.0.0.1:9", {"rate": "r"}, TIME_RANGE, 1, PLAN)
    assert "secret" not in str(error.value)
    with pytest.raises(HwnasError, match="is not a URL") as error:
        telemetry.query_samples("http://me:secret@ho\u2100st", {"rate": "r"}, TIME_RANGE, 1, PLAN)
    assert "secret" not in str(error.value)


def test_replan_reads_telemetry_from_server(tmp_path: Path, monkeypatch: Any) -> None:
    from hwnas.__main__ import run
    from tests.fleet import examples

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["hwnas"])
    service = examples.service()
    service["classes"]["web"]["demand"]["hours"] = [40.0, 90.0]
    examples.write(tmp_path, service, examples.fleet())
    assert run(["plan", "service=service.yaml", "fleet=fleet.yaml", "front=0", "run.dir=p"]) == 0
    query = "sum by (class) (rate(answered_total{job='web, all'}[5m]))"
    now = time.time()
    answers = _matrix("class", "web", [(now - 60, "100"), (now - 7260, "100")])
    response = json.dumps(answers).encode()
    monkeypatch.setattr(telemetry, "_fetch", lambda address, where, timeout_s: response.decode())
    options = ["run.dir=q", f"query.rate={query}", "query.window_h=3"]
    assert run(["replan", "plan=p", "telemetry=http://127.0.0.1:1", *options]) == 0
    assert Path("q/telemetry.csv").read_text().count("web,100") == 2
    assert Path("q/decisions.csv").exists()
