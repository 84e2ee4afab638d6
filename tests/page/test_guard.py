"""Only the page, opened with its token on this machine, gets answers, and changes nothing."""

import http.client
import socket

import pytest
from browsed import train

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("guard")
    train(directory, steps=5)
    return directory


def request(view, path, method="GET", headers=None, token=True):
    connection = http.client.HTTPConnection("127.0.0.1", view.port, timeout=20)
    secret = view.url.partition("token=")[2]
    address = f"{path}{'&' if '?' in path else '?'}token={secret}" if token else path
    connection.request(method, address, headers=headers or {})
    answer = connection.getresponse()
    text = answer.read().decode(errors="replace")
    connection.close()
    return answer, text


def test_a_token_is_needed(serve, runs):
    view = serve(runs)
    for path in ("/", "/api/runs", "/page/main.js", "/plotly.js", "/?token=wrong", "/?token="):
        answer, text = request(view, path, token=False)
        assert answer.status == 401
        assert "spoolax view" in text
    answer, text = request(view, "/")
    assert answer.status == 200
    assert "<title>spoolax" in text
    cookie = answer.getheader("set-cookie").partition(";")[0]
    assert "HttpOnly; SameSite=Strict" in answer.getheader("set-cookie")
    assert request(view, "/api/runs", headers={"cookie": cookie}, token=False)[0].status == 200
    for odd in ("a,b=1", "x@y=1", '{}=1; pref={"a": 1}', "=", ";;"):  # Of other programs.
        both = {"cookie": f"{odd}; {cookie}"}
        assert request(view, "/api/runs", headers=both, token=False)[0].status == 200
        assert request(view, "/api/runs", headers={"cookie": odd}, token=False)[0].status == 401
    wrong = {"cookie": f"other={cookie.partition('=')[2]}"}
    assert request(view, "/api/runs", headers=wrong, token=False)[0].status == 401
    other = serve(runs)  # Each has a token of its own.
    assert request(other, "/api/runs", headers={"cookie": cookie}, token=False)[0].status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "localhost:1"}, 421),
        ({"host": ""}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"cookie": '=;;\\x00="'}, 200),
    ],
)
def test_other_sites_are_refused_though_they_have_the_token(serve, runs, headers, status):
    assert request(serve(runs), "/api/runs", headers=headers)[0].status == status


def test_nothing_can_be_changed(serve, runs):
    view = serve(runs)
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert request(view, "/api/runs", method)[0].status == 405


@pytest.mark.parametrize(
    "path",
    [
        "/page/../server.py",
        "/page/..%2fserver.py",
        "/page/%2e%2e/server.py",
        "/page//etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/api/about?runs=../../etc/passwd",
        "/api/lines?runs=/etc/passwd&key=x",
    ],
)
def test_no_path_leads_out(serve, runs, path):
    answer, text = request(serve(runs), path)
    assert answer.status in (404, 405)
    assert "root:" not in text
    assert "import" not in text


def test_what_makes_no_sense_is_said_in_one_line(serve, runs):
    view = serve(runs)
    _, text = request(view, "/api/runs")
    one = text.partition('"id":"')[2][:12]
    for path, said in {
        f"/api/lines?runs={one}&key=nothing": "None of the runs has 'nothing'",
        f"/api/lines?runs={one}&key=train/loss&x=epoch": "epoch",
        f"/api/lines?runs={one}&key=train/loss&from=a": "`from=a` is not a number",
        f"/api/field?runs={one}&key=train/los": "Did you mean 'train/loss'",
        "/api/field?runs=unknown&key=x": "is not there any more",
    }.items():
        answer, text = request(view, path)
        assert answer.status == 404, text
        assert said in text
    assert request(view, "/api/nothing")[0].status == 404
    assert request(view, "/api/runs")[0].status == 200


def test_it_is_for_this_machine_only_and_takes_the_next_port(serve, runs):
    from spoolax.view.server import listening_socket

    view = serve(runs)
    assert view._socket.getsockname()[0] == "127.0.0.1"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with listening_socket(port) as made:
            assert made.getsockname()[1] > port
