"""Where the controller may answer: loopback, or with TLS, or because the user said that it need not be safe."""

import subprocess
from contextlib import closing
from pathlib import Path

import pytest
import trustme

from distributed_grid.controller.listening import checked, fingerprint, listen, url_of
from distributed_grid.errors import InvalidRequest, PortTaken
from distributed_grid.model.listening import Listening, check_host_name, plain_host


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """A certificate and its key."""
    issued = trustme.CA().issue_cert("head.example.org")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    return str(cert), str(key)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.8.8.8", "::1"])
def test_loopback_needs_nothing(host: str) -> None:
    assert checked(Listening(host)).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.10", "10.0.0.1"])
def test_off_loopback_there_must_be_tls_or_an_owner_who_says_that_it_is_fine(host: str, pair: tuple[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="Beyond loopback, grid listens only with TLS") as refused:
        checked(Listening(host))

    assert "--tls-cert" in (refused.value.try_next or "")
    assert "--insecure" in (refused.value.try_next or "")
    checked(Listening(host, insecure=True))
    checked(Listening(host, tls_cert=pair[0], tls_key=pair[1]))


@pytest.mark.parametrize("host", ["", "no such name", "nowhere.invalid"])
def test_a_host_must_be_one_even_with_tls(host: str, pair: tuple[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="--host"):
        checked(Listening(host, tls_cert=pair[0], tls_key=pair[1]))


def test_a_name_counts_as_what_it_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "socket.getaddrinfo", lambda *_, **__: [(0, 0, 0, "", ("127.0.0.1", 0)), (0, 0, 0, "", ("192.0.2.1", 0))]
    )

    with pytest.raises(InvalidRequest, match=r"192\.0\.2\.1"):
        checked(Listening("half-loopback"))


def test_a_certificate_and_its_key_are_tried_before_anything_starts(
    tmp_path: Path, pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = pair
    other = tmp_path / "other.pem"
    trustme.CA().issue_cert("x").private_key_pem.write_to_path(str(other))
    bad = [
        Listening(tls_cert=cert),
        Listening(tls_key=key),
        Listening(tls_cert=cert, tls_key=str(other)),
        Listening(tls_cert=str(tmp_path / "nowhere"), tls_key=key),
        Listening(tls_cert=key, tls_key=key),
    ]

    for listening in bad:
        with pytest.raises(InvalidRequest):
            checked(listening)
    monkeypatch.chdir(tmp_path)
    assert checked(Listening(tls_cert="cert.pem", tls_key="key.pem")).tls_cert == cert


def test_an_encrypted_key_is_refused_without_asking_for_its_password(tmp_path: Path, pair: tuple[str, str]) -> None:
    locked = tmp_path / "locked.pem"
    command = ["openssl", "pkey", "-in", pair[1], "-aes256", "-passout", "pass:secret", "-out", str(locked)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("there is no openssl here")

    with pytest.raises(InvalidRequest, match="encrypted"):
        checked(Listening(tls_cert=pair[0], tls_key=str(locked)))


@pytest.mark.parametrize("name", ["", "http://head", "head:80", "*", "a b", "*.example.org", "u@head"])
def test_a_name_to_allow_is_a_bare_name(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_host_name(name)


@pytest.mark.parametrize(
    ("host", "plain"),
    [
        ("Head.Example.org:80", "head.example.org"),
        ("head.", "head"),
        ("[::1]:80", "::1"),
        ("::1", "::1"),
        ("127.0.0.1:1", "127.0.0.1"),
        ("", ""),
        (":80", ""),
    ],
)
def test_what_a_host_header_means(host: str, plain: str) -> None:
    assert plain_host(host) == plain


def test_the_url_is_one_that_can_be_reached() -> None:
    for host, own, expected in [
        ("127.0.0.1", "x", "http://127.0.0.1:"),
        ("0.0.0.0", "192.0.2.1", "http://192.0.2.1:"),
        ("::1", "x", "http://[::1]:"),
    ]:
        with listen(host, 0) as listening:
            assert url_of(listening, tls=False, own_address=own).startswith(expected)


def test_the_fingerprint_is_that_of_the_first_certificate(tmp_path: Path, pair: tuple[str, str]) -> None:
    chain = tmp_path / "chain.pem"
    other = trustme.CA().cert_pem.bytes().decode()
    chain.write_text(f"some text\n{Path(pair[0]).read_text()}{other}")

    assert fingerprint(str(chain)) == fingerprint(pair[0])


def test_a_port_that_was_asked_for_and_is_taken_is_an_error() -> None:
    with closing(listen("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=str(port)) as caught:
            listen("127.0.0.1", port, or_another=False)
        assert "--port" in str(caught.value.try_next)
        with closing(listen("127.0.0.1", port)) as another:
            assert another.getsockname()[1] != port
